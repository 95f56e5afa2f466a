"""The report page in a real browser: Debian's chromium, headless, from disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from pac_core import PACLevel
from pac_core.certificates import Record
from pac_core.report import StoredRun, build_page, player
from pac_core.runs import RunFolder, Stage, Task, certify_run, run_here

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
PATIENCE = 120  # seconds until a page is ready; a busy machine may need them

CONTRAST = """
  const light = rgb => {
    const [r, g, b] = rgb.map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const parse = text => text.match(/[0-9.]+/g).map(Number);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const texts = document.querySelectorAll('p, h1, h2, h3, li, td, th, summary, label, button, text');
  return [...texts].filter(node => node.textContent.trim()).map(node => {
    const style = getComputedStyle(node);
    const ink = parse(node instanceof SVGElement ? style.fill : style.color).slice(0, 3);
    const [a, b] = [light(ink), light(behind(node))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), node.textContent.slice(0, 40)];
  }).filter(pair => pair[0] < 4.5);
"""
"""The texts whose contrast is below 4.5."""


class Walks:
    """Two numbers over five steps around a forecast of 0."""

    def __init__(self, *, device: str = "cpu") -> None:
        pass

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        truth = np.random.default_rng(shard.seed).normal(size=(len(shard), 5, 2)) * [1, 10]
        found = {"ids": np.array(shard.ids), "mean": 0 * truth, "var": 0 * truth + 1, "truth": truth}
        return found | {"lengths": np.full(len(shard), 5)}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    ids = [f"{HOSTILE} {number}" for number in range(600)]
    task = Task.of(
        "walks",
        ids,
        [Stage(Walks)],
        size=200,
        names=ids,
        unit="walk",
        model=Record(HOSTILE),
        tune=200,
        calibrate=200,
        seed=0,
    )
    run = RunFolder(folder / "run")
    task.write(run)
    run_here(task.job, run)
    certify_run(task, run, [PACLevel(0.1, 0.05)], folder / "pac-ledger")
    robot = {"value": [1.0, 3.0], "x": [0.0, 0.1], "frames": [[[0, 0, 0, 1]], [[0.1, 0, 0.1, 1]]]}
    data = {"robots": [robot | {"name": HOSTILE}], "radii": [0.05], "dt": 0.05, "bound": 2.0, "scale": 80}
    stored = StoredRun(run, (("number 0", 1.0, True),))
    html = build_page([stored])
    extra = player("robots", data | {"label": "speed", "unit": "m/s"}, "A robot")
    file = folder / "page.html"
    file.write_text(html.replace("</main>", f"{extra}</main>"))
    return file


@pytest.fixture(params=["light", "dark"])
def browser(request: pytest.FixtureRequest, page: Path) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1000,1400"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    theme = {"features": [{"name": "prefers-color-scheme", "value": request.param}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", theme)
    driver.get(page.as_uri())
    WebDriverWait(driver, PATIENCE).until(
        lambda one: one.execute_script("return document.body.dataset.ready")
    )
    yield driver
    driver.quit()


def band(driver: webdriver.Chrome) -> str:
    return str(
        driver.find_element(By.CSS_SELECTOR, ".player[data-kind=tubes] polygon").get_attribute("points")
    )


def readout(driver: webdriver.Chrome, kind: str) -> str:
    return driver.find_element(By.CSS_SELECTOR, f".player[data-kind={kind}] .readout").text


def move(driver: webdriver.Chrome, kind: str, to: int) -> None:
    slider = driver.find_element(By.CSS_SELECTOR, f".player[data-kind={kind}] input[type=range]")
    change = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
    driver.execute_script(change, slider, to)


def test_the_page_works(browser: webdriver.Chrome, page: Path) -> None:
    assert browser.get_log("browser") == []
    assert browser.title == "What was promised, and did it hold?"
    assert not browser.find_elements(By.CSS_SELECTOR, "img")  # hostile names stayed text
    assert HOSTILE in browser.find_element(By.CSS_SELECTOR, ".card").text

    unit, number = browser.find_elements(By.CSS_SELECTOR, ".player[data-kind=tubes] select")
    assert "left its tube at step" in readout(browser, "tubes")  # it opens where a unit was missed
    Select(unit).select_by_index(5)
    Select(number).select_by_visible_text("number 0")
    move(browser, "tubes", 0)
    assert "Step 1, number 0" in readout(browser, "tubes")
    assert "was inside its tube" in readout(browser, "tubes")
    assert "number 0 may reach" in readout(browser, "tubes")
    assert len(browser.find_elements(By.CSS_SELECTOR, ".player[data-kind=tubes] line.limit")) == 1
    move(browser, "tubes", 3)
    assert "Step 4, number 0" in readout(browser, "tubes")
    before = band(browser)
    Select(number).select_by_visible_text("number 1")
    assert "Step 4, number 1" in readout(browser, "tubes")
    assert band(browser) != before
    assert len(browser.find_elements(By.CSS_SELECTOR, ".player[data-kind=tubes] line.limit")) == 0
    shown = json.loads(
        browser.execute_script("return document.querySelector('.player[data-kind=tubes] script').textContent")
    )
    Select(unit).select_by_index(len(shown["units"]) - 1)
    low, high = (shown["units"][-1][end][3][1] for end in ("low", "high"))
    assert f"tube {float(f'{low:.4g}'):g} to {float(f'{high:.4g}'):g}" in readout(browser, "tubes")

    move(browser, "robots", 1)
    assert "3" in readout(browser, "robots")
    assert browser.find_elements(By.CSS_SELECTOR, ".player[data-kind=robots] g.over .body")
    move(browser, "robots", 0)
    assert not browser.find_elements(By.CSS_SELECTOR, ".player[data-kind=robots] g.over .body")


def test_text_can_be_read(browser: webdriver.Chrome) -> None:
    """WCAG's contrast of at least 4.5 for every text, and no control without a name."""
    assert browser.execute_script(CONTRAST) == []
    unnamed = "svg[role=img]:not([aria-label]), .player:not([aria-label]), img:not([alt])"
    assert not browser.find_elements(By.CSS_SELECTOR, unnamed)


def test_a_phone_shows_all_of_it(browser: webdriver.Chrome) -> None:
    size = {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390


def test_keys_move_the_slider(browser: webdriver.Chrome) -> None:
    slider = browser.find_element(By.CSS_SELECTOR, ".player[data-kind=tubes] input[type=range]")
    move(browser, "tubes", 0)
    slider.send_keys(webdriver.Keys.ARROW_RIGHT)
    assert "Step 2" in readout(browser, "tubes")
