"""The site builds without a warning, needs nothing from elsewhere, and can be read in a browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from doc_pages import ROOT

LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?(https?:[^\"' >]+)"
    r"|<link[^>]*stylesheet[^>]*href=[\"']?(https?:[^\"' >]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        found = LOADED.findall(page.read_text())
        assert not found, f"{page.name} loads {found}"


def test_the_reference_has_every_name_of_the_front_doors(site: Path) -> None:
    import cluster
    import pac_core
    import pac_rl
    import pac_vision

    for door in (pac_core, pac_rl, pac_vision, cluster):
        page = (site / "reference" / f"{door.__name__}.html").read_text()
        missing = [name for name in door.__all__ if not re.search(rf'id="[\w.]*\.{name}"', page)]
        assert not missing, f"{door.__name__}: {missing}"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_browser_reads_it_and_the_search_finds(address: str) -> None:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1200"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        browser = webdriver.Chrome(options=options)
    except Exception as error:  # no browser, or no driver for it
        pytest.skip(f"needs Chromium and its driver: {str(error).splitlines()[0]}")
    try:
        for page in ("index", "tutorials/planner", "reference/pac_core", "gallery"):
            browser.get(f"{address}/{page}.html")
            assert browser.find_element(By.TAG_NAME, "h1").text
            broken = "return [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
            assert browser.execute_script(broken) == []
        severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert not severe, severe
        browser.get(f"{address}/index.html?q=fallback")
        found = WebDriverWait(browser, 30).until(
            lambda page: page.find_elements(By.CSS_SELECTOR, ".md-search-result__item a")
        )
        assert any("planner" in str(link.get_attribute("href")) for link in found)
    finally:
        browser.quit()
