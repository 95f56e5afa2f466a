"""The figures that are kept are figures that some benchmark writes."""

from __future__ import annotations

import ast
import json
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "benchmarks"


def test_no_figure_is_left_of_a_benchmark_that_is_gone() -> None:
    words = {
        node.value
        for path in FOLDER.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    kept = {figure["name"] for figure in json.loads((FOLDER / "results.json").read_text())["figures"]}
    assert kept <= words
