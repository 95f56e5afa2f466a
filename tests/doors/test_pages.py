"""The pages of docs/ that train a model, start Ray, or need packages of the extra `doors`."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_pages import DOCS, run_fresh

SLOW = ["tutorials/tubes", "tutorials/planner", "tutorials/cluster", "tutorials/levels"]
MORE = [
    "how-to/gymnasium",
    "how-to/mbrl-lib",
    "how-to/models",
    "how-to/web-service",
    "how-to/kubernetes",
    "gallery",
]


@pytest.mark.parametrize("name", SLOW + MORE)
def test_a_page_runs(name: str, tmp_path: Path) -> None:
    run_fresh(DOCS / f"{name}.md", tmp_path)


def test_no_page_is_forgotten() -> None:
    from test_docs import LESSONS, QUICK

    known = {DOCS / f"{name}.md" for name in [*QUICK, *SLOW, *MORE]}
    assert set(LESSONS) <= known
