"""The figures that are kept are figures that some benchmark writes."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "benchmarks"


def written(node: ast.AST) -> str | None:
    """A pattern of what a string in the source can say; None for everything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(node.value)
    if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        return "".join(written(part) or ".+" for part in node.values)
    return None


def test_no_figure_is_left_of_a_benchmark_that_is_gone() -> None:
    trees = [ast.parse(path.read_text()) for path in FOLDER.glob("*.py")]
    patterns = {pattern for tree in trees for node in ast.walk(tree) if (pattern := written(node))}
    kept = {figure["name"] for figure in json.loads((FOLDER / "results.json").read_text())["figures"]}
    assert not {name for name in kept if not any(re.fullmatch(pattern, name) for pattern in patterns)}
