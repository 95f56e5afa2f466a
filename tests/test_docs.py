"""The pages of docs/ run as they stand, link to what exists, and skip code only with a reason."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from doc_pages import DOCS, ROOT, RUN, blocks, commands, compare, run_fresh

SHOWN = sorted(DOCS.rglob("*.md"))
LESSONS = [DOCS / "getting-started.md", *(DOCS / "tutorials").glob("*.md"), *(DOCS / "how-to").glob("*.md")]
QUICK = ["getting-started", "tutorials/classifier", "tutorials/report"]
QUICK += ["how-to/same-world", "how-to/any-candidate"]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_page_runs(name: str, tmp_path: Path) -> None:
    run_fresh(DOCS / f"{name}.md", tmp_path)


def anchors(page: Path) -> set[str]:
    """Of the headings of a page, as code hosts and the site make them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [*SHOWN, ROOT / "README.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link, anchor in LINK.findall(page.read_text()):
        target = Path(os.path.normpath(page.parent / link)) if link else page
        assert target.exists(), f"{page.name} links to {link}, which does not exist"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name} links to {link}#{anchor}, which is no heading"


@pytest.mark.parametrize("page", sorted(LESSONS), ids=lambda page: page.stem)
def test_code_is_run_or_says_why_not(page: Path) -> None:
    for block in blocks(page):
        known = block.kind in (*RUN, "text") or block.skip is not None
        assert known, f"{page.name}, line {block.line}: run it (python, console), or say why not (skip)"


def test_readme_is_one_page_that_fits_a_terminal() -> None:
    lines = (ROOT / "README.md").read_bytes().splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 120


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    assert not [page for page in SHOWN if str(page.relative_to(DOCS)) not in menu]


def test_pages_that_are_wrong_are_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    printed = "```python\nprint(1)\n```\n\n```text\n2\n```\n"
    for code in (printed, "```console\n$ echo 1\n2\n```\n", "```console\n$ false\n```\n"):
        page.write_text(code)
        with pytest.raises(AssertionError, match=r"page\.md, line"):
            run_fresh(page, tmp_path)
    page.write_text("<!-- skip: needs a robot -->\n```python\n1 / 0\n```\n")
    run_fresh(page, tmp_path)
    assert commands("$ a \\\n  b\nout\n$ c\n") == [("a \\\n  b\n", "out\n"), ("c\n", "")]
    compare(page, 1, "T = ... units\n", "T = 4.5 of 3 units\n")


def test_pictures_are_small() -> None:
    assert not [path for path in (DOCS / "images").iterdir() if path.stat().st_size > 100_000]
