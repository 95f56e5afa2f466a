"""Who may import whom: packages downwards only, rooms without a circle, sisters through front doors."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY = {
    "pac_core": {"pac_core"},
    "pac_rl": {"pac_core", "pac_rl"},
    "pac_vision": {"pac_core", "pac_vision"},
    "cluster": {"pac_core", "cluster"},
    "cluster.commands": {"pac_core", "cluster", "pac_rl", "pac_vision"},
}
FILES = sorted(path for package in MAY if "." not in package for path in (ROOT / package).rglob("*.py"))
HEAVY = {"torch", "ray", "gymnasium", "mujoco", "matplotlib", "pyarrow", "sklearn", "mbrl", "pandas"}


def imports(path: Path, *, top: bool = False) -> Iterator[tuple[str, str]]:
    """Module and name of everything of ours that a file imports; at module level only, if `top`."""
    tree = ast.parse(path.read_text())
    for node in tree.body if top else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            yield from ((str(node.module), alias.name) for alias in node.names)


def room(path: Path) -> str:
    """The sub-package that a file is in, or its module where it is in none."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:2]) if parts[-1] != "__init__" or len(parts) > 2 else parts[0]


def exported(door: Path) -> set[str]:
    """The names in `__all__`."""
    for node in ast.parse(door.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_packages_import_downwards(path: Path) -> None:
    allowed = MAY.get(room(path), MAY[room(path).partition(".")[0]])
    assert {module.partition(".")[0] for module, _ in imports(path)} & {*MAY} <= allowed


@pytest.mark.parametrize("package", [name for name in MAY if "." not in name])
def test_rooms_make_no_circle(package: str) -> None:
    graph: dict[str, set[str]] = {}
    for path in (path for path in FILES if path.is_relative_to(ROOT / package)):
        parts = {".".join(module.split(".")[:2]) for module, _ in imports(path, top=True)}
        graph.setdefault(room(path), set()).update(part for part in parts if part.startswith(f"{package}."))
    TopologicalSorter({name: reached - {name} for name, reached in graph.items()}).prepare()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sisters_come_in_by_the_front_door(path: Path) -> None:
    home = path.relative_to(ROOT).parts[0]
    for module, name in imports(path):
        if module.partition(".")[0] in {*MAY} - {home}:
            place = ROOT / module.replace(".", "/")
            assert place.is_dir() or module.count(".") == 1, f"{module} is inside a room"
            if place.is_dir() and not (place / f"{name}.py").exists():
                assert name in exported(place / "__init__.py"), f"{module} does not export {name}"


def test_the_statistics_need_numpy_and_scipy_alone() -> None:
    code = f"import sys, pac_core; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
