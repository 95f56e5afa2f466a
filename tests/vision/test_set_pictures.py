"""Picture tables: the right image in the right cell, red where the classifier is wrong, sets as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pac_core import InvalidInput, LogitForecast, PACLevel, Record
from pac_vision import Images, find_images
from pac_vision.class_reports import show_pictures
from pac_vision.class_results import OURS, ClassResults, compare_sets
from pac_vision.levels import Levels
from pac_vision.picture_sources import picture_cases
from pac_vision.predictions import Predictions
from pac_vision.result_folders import ResultFolder
from pac_vision.set_pictures import (
    WRONG,
    Pictured,
    picture_table,
    rows_by_class,
    size_columns,
    written_columns,
    written_table,
)
from pac_vision.written_sets import FONTS, LINE, fit_words, write_set

NAMES = ["king penguin", "church", "toilet seat", "plunger", *(f"class {i}" for i in range(4, 1000))]
COLUMNS = size_columns(1000)


def grey() -> Image.Image:
    return Image.new("RGB", (40, 30), "grey")


def case(label: int, size: int, prediction: int | None = None) -> Pictured:
    first = label if prediction is None else prediction
    members = sorted({label, first, *range(500, 500 + size)})
    return Pictured(grey, label, first, members[:size] if label in members[:size] else [label])


def test_the_papers_columns_and_those_of_few_classes() -> None:
    assert COLUMNS == ((1, 1), (5, 10), (50, 100), (200, None))
    assert written_columns(1000) == ((1, 4), (5, 9), (10, 19))
    assert size_columns(10) == written_columns(10) == ((1, 1), (2, 2), (3, None))
    of_ten = case(0, 10)
    assert [of_ten.within(sizes) for sizes in COLUMNS] == [False, True, False, False]
    assert [case(0, 11).within(sizes) for sizes in COLUMNS] == [False] * 4


def test_a_row_has_one_class_where_it_can() -> None:
    full = [case(1, size) for size in (1, 7, 60, 300)]
    nearly = [case(2, size) for size in (1, 6, 70)]
    poor = [case(3, size) for size in (1, 250)]
    table = rows_by_class([*poor, *nearly, *full], COLUMNS, rows=3)
    assert table[0] == (1, full)
    assert table[1] == (2, [*nearly, None])
    assert table[2] == (None, [poor[0], None, None, poor[1]])  # what is left, of several classes


def test_images_of_many_classes_fill_mixed_rows_once_each() -> None:
    cases = [case(i, size) for i, size in enumerate((1, 1, 1, 5, 9, 55))]
    table = rows_by_class(cases, COLUMNS, rows=5)
    assert [label for label, _ in table] == [None] * 3
    drawn = [one for _, cells in table for one in cells if one is not None]
    assert len(drawn) == len({id(one) for one in drawn}) == 6


def frames(figure: Any) -> list[bool]:
    """Whether each drawn image has a frame."""
    return [bool(axes.spines["top"].get_visible()) for axes in figure.axes if axes.images]


def test_only_wrongly_classified_images_are_framed_in_red() -> None:
    right, wrong = case(1, 1), case(1, 7, prediction=2)
    figure = picture_table([right, wrong, case(1, 60)], NAMES, "title", columns=COLUMNS)
    assert frames(figure) == [False, True, False]
    from matplotlib.colors import to_rgba

    framed = next(axes for axes in figure.axes if axes.images and axes.spines["top"].get_visible())
    assert framed.spines["left"].get_edgecolor() == to_rgba(WRONG)
    words = [text.get_text() for text in figure.texts]
    assert "church" in words  # the class of the row
    assert [axes.get_xlabel() for axes in figure.axes] == ["1 label", "7 labels", "60 labels", ""]


def canvas() -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(2, 2)).add_axes((0, 0, 1, 1))


def test_the_truth_is_red_and_the_prediction_has_the_hat() -> None:
    from matplotlib.colors import to_rgba

    axes = canvas()
    write_set(axes, (2.0, 2.0), Pictured(grey, 3, 2, [1, 2, 3]), NAMES, WRONG)
    colours = {text.get_text().rstrip(","): text.get_color() for text in axes.texts}
    assert colours == {"church": "black", "toilet seat": "black", "plunger": WRONG}
    (hat,) = axes.lines
    under = next(text for text in axes.texts if text.get_text().startswith("toilet seat"))
    assert hat.get_xdata()[0] == under.get_position()[0]
    assert hat.get_ydata()[1] > hat.get_ydata()[0] > under.get_position()[1]
    assert to_rgba(hat.get_color()) == to_rgba("black")
    assert len(axes.patches) == 2  # the braces


def test_several_words_on_a_line_keep_their_marks() -> None:
    axes = canvas()
    write_set(axes, (1.6, 0.8), Pictured(grey, 512, 517, list(range(500, 519))), NAMES, WRONG)
    heights = {text.get_position()[1] for text in axes.texts}
    assert len(heights) < 19 == len(axes.texts)  # packed
    assert [text.get_text() for text in axes.texts if text.get_color() == WRONG] == ["class 512,"]
    (hat,) = axes.lines
    under = next(text for text in axes.texts if text.get_text() == "class 517,")
    assert hat.get_xdata()[0] == under.get_position()[0]


def test_a_truth_that_the_set_misses_is_written_below_it() -> None:
    axes = canvas()
    write_set(axes, (2.0, 2.0), Pictured(grey, 3, 2, [1, 2]), NAMES, WRONG)
    assert [text.get_text() for text in axes.texts] == ["church,", "toilet seat", "missed: plunger"]
    assert axes.texts[-1].get_color() == WRONG
    assert axes.texts[-1].get_position()[1] < min(text.get_position()[1] for text in axes.texts[:-1])


@pytest.mark.parametrize("count", [1, 5, 12, 19])
def test_words_keep_their_order_and_fit(count: int) -> None:
    words = [f"a longer name {i}," for i in range(count)]
    font, lines = fit_words(words, 110, 100)
    assert [word for line in lines for word in line] == words
    assert font in FONTS
    assert len(lines) * LINE * font <= 100
    if count == 5:
        assert [len(line) for line in lines] == [1] * 5


def test_the_written_table_shows_every_column() -> None:
    cases = [case(0, 1), case(1, 3), case(2, 6, prediction=3), case(3, 12)]
    figure = written_table(cases, NAMES, "title", columns=written_columns(1000), rows=2)
    assert frames(figure) == [False, False, True, False]
    heads = [text.get_text() for text in figure.texts]
    assert r"$5 \leq |C(x)| < 10$" in heads
    with pytest.raises(InvalidInput, match="must hold an image"):
        written_table([case(0, 30)], NAMES, "title", columns=written_columns(1000))


@pytest.fixture
def results(images: Images, tmp_path: Path) -> ClassResults:
    """Logits that know the images by file names in another folder, as stored logits may."""
    drawn = np.random.default_rng(0)
    logits = drawn.normal(size=(60, 3)) + 2 * np.eye(3)[images.labels]
    names = np.array([f"elsewhere/{name.replace('/', '-')}" for name in images.ids])
    one = Predictions("net", names, LogitForecast(logits), images.labels, Record("net"), Record("net"))
    levels = Levels(PACLevel(0.3, 0.1), (0.3,), (0.1,))
    return compare_sets([one], levels, tune=20, calibrate=20, seed=0, ledger=tmp_path / "ledger")


@pytest.fixture
def copied(images: Images, tmp_path: Path) -> Path:
    """Each image in the folder of its class index, under the name that the logits know; some are missing."""
    for name, label in zip(images.ids[::2], images.labels[::2], strict=True):
        (tmp_path / "at hand" / str(label)).mkdir(parents=True, exist_ok=True)
        images.image(name).save(tmp_path / "at hand" / str(label) / name.replace("/", "-"))
    return tmp_path / "at hand"


def test_pictures_are_of_the_test_part_and_at_hand(results: ClassResults, copied: Path) -> None:
    cases = picture_cases(results, results.main(OURS), find_images(copied))
    rows = results.parts.test.rows
    here = {path.name for path in copied.rglob("*.*")}
    model = results.models[0]
    wanted = [i for i, row in enumerate(rows) if model.ids[row].split("/")[1] in here]
    assert 0 < len(cases) == len(wanted) < len(rows)
    assert [one.label for one in cases] == [int(model.labels[rows[i]]) for i in wanted]
    assert [len(one.members) for one in cases] == [int(results.main(OURS).size[i]) for i in wanted]
    assert cases[0].image().mode == "RGB"
    with pytest.raises(InvalidInput, match="got the baseline 'mass'"):
        picture_cases(results, results.main("mass"), find_images(copied))


def test_a_folder_with_other_labels_is_refused(results: ClassResults, copied: Path) -> None:
    (copied / "0").rename(copied / "5")
    (copied / "1").rename(copied / "0")
    (copied / "5").rename(copied / "1")
    with pytest.raises(InvalidInput, match="must have one label, got"):
        picture_cases(results, results.main(OURS), find_images(copied))


def test_other_labels_of_any_image_are_found_before_the_look(
    results: ClassResults, copied: Path, tmp_path: Path
) -> None:
    """One image of the tune part lies in the folder of another class."""
    (model,), rows = results.models, results.parts.tune.rows
    here = {path.name: path for path in copied.rglob("*.*")}
    strayed = next(path for row in rows if (path := here.get(model.ids[row].split("/")[1])))
    strayed.rename(copied / str((int(strayed.parent.name) + 1) % 3) / strayed.name)
    sizes = {"tune": 20, "calibrate": 20, "seed": 0}
    with pytest.raises(InvalidInput, match=f"{strayed.name} must have one label, got"):
        compare_sets(
            results.models, results.levels, ledger=tmp_path / "new.json", images=find_images(copied), **sizes
        )
    assert not (tmp_path / "new.json").exists()


def test_without_pictures_the_report_says_so(
    results: ClassResults, images: Images, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ids of the logits are not those of this folder."""
    show_pictures(results, ResultFolder(tmp_path / "out"), images, NAMES)
    said = capsys.readouterr().out
    assert "Pictures: 0 of the 20 test images are in" in said
    assert "none of them has a set of a size that pictures_sets.png shows" in said
    assert not list((tmp_path / "out").glob("*.png"))
