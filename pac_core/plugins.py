"""What other packages add, found by entry points.

In its pyproject a package registers under the groups ``pac_sets.commands``, ``.tasks`` (of `pac run`),
``.models`` and ``.image_sources``, ``.shapes`` (of tubes) and ``.forecasters`` (what `pac sets` serves from).
Nothing is imported until it is asked for by name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pac_core.errors import InvalidInput

Kind: TypeAlias = Literal["commands", "tasks", "models", "image_sources", "shapes", "forecasters"]


def names(kind: Kind) -> list[str]:
    """The registered names, sorted, without importing anything."""
    return sorted(_points(kind))


def load(kind: Kind, name: str) -> Any:
    """The object registered as `name`; a missing or broken plugin is named in the refusal."""
    points = _points(kind)
    if name not in points:
        known = ", ".join(sorted(points)) or "none"
        raise InvalidInput(f"no plugin of kind '{kind}' is named {name!r}; installed: {known}")
    point = points[name]
    if point.value.startswith("cluster."):
        _refuse_other_cluster()
    try:
        return point.load()
    except Exception as error:  # whatever a stranger's module does while it is imported
        owner = point.dist.name if point.dist else "an unknown package"
        raise InvalidInput(
            f"the plugin {name!r} of {owner} ({point.value}) does not load: {error}"
        ) from error


def _refuse_other_cluster() -> None:
    """Refuse PyPI's package of the same name, where it was installed over ours."""
    spec = find_spec("cluster")
    places = [*(spec.submodule_search_locations or ()), spec.origin] if spec else []
    if not any((Path(str(place)) / "commands" / "run.py").exists() for place in places):
        raise InvalidInput(
            f"the package cluster at {places[0] if places else 'no place'} is not the one of pac-sets, but "
            "another distribution of that name: pip uninstall cluster, then install pac-sets again"
        )


def _points(kind: Kind) -> dict[str, Any]:
    from importlib.metadata import entry_points  # kept out of the import time of the package

    return {point.name: point for point in entry_points(group=f"pac_sets.{kind}")}


def lazy_door(package: str, file: str, *, extra: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names are imported when they are first used (PEP 562).

    file: of the package; its names are those that stand under ``if TYPE_CHECKING``, for tools to see
    extra: of pac-sets, which installs what the modules need
    """
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.col_offset]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            raise ImportError(f"{package}.{name} needs {error.name}: install pac-sets[{extra}]") from error

    return find, lambda: sorted(homes)
