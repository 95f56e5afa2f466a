"""What is imported only when it is asked for by name: ours, and what other packages add.

In its pyproject a package registers under the groups ``pac_sets.commands``, ``.tasks`` (of `pac run`),
``.models`` and ``.image_sources``, ``.shapes`` (of tubes), ``.forecasters`` (what `pac sets` serves from)
and ``.pages`` (of `pac report`, by the name of a task).
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

Kind: TypeAlias = Literal["commands", "tasks", "models", "image_sources", "shapes", "forecasters", "pages"]
SHIPPED: dict[str, dict[str, tuple[str, str]]] = {
    "commands": {
        "guard": ("cluster.commands.guard:guard", "Guard a planner with a run's tubes, and certify it."),
        "logits": ("cluster.commands.logits:logits", "Write the logits of a finished run to npz or parquet."),
        "run": ("cluster.commands.run:run", "Score units in parallel on Ray, and certify."),
        "submit": ("cluster.commands.submit:submit", "Submit a run as a job to a Ray cluster."),
        "tune": ("cluster.commands.tune:tune", "Sweep epsilon, delta and the choice of score with Ray Tune."),
    },
    "tasks": {
        "imagenet": ("cluster.commands.vision:run_imagenet", "Images, classified by a model."),
        "otb": ("cluster.commands.vision:run_otb", "Tracks of videos, stored or fresh."),
        "rl": ("cluster.commands.rl:run_rl", "Rollouts of a robot and an ensemble's forecasts of them."),
    },
    "forecasters": {"images": ("pac_vision.models.libraries:forecast_images", "Images, by a model.")},
    "pages": {
        "episodes": ("pac_rl.pages:show_episodes", "The robot with and without its guard."),
        "imagenet": ("pac_vision.pages:show_images", "Images with their sets."),
        "otb": ("pac_vision.pages:show_tracks", "Videos with their boxes."),
        "plans": ("pac_rl.pages:show_rollouts", "Tubes of plans."),
        "rl": ("pac_rl.pages:show_rollouts", "Tubes of rollouts."),
    },
}
"""Ours: where each is, and what it is for."""


def names(kind: Kind) -> list[str]:
    """The registered names, sorted, without importing anything."""
    return sorted(_points(kind))


def describe(kind: Kind) -> dict[str, str]:
    """The registered names, each with what it is for, without importing anything."""
    added = dict.fromkeys(names(kind), "Added by a plugin; see its --help.")
    return added | {name: text for name, (_, text) in SHIPPED.get(kind, {}).items()}


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
        owner = point.dist.name if point.dist else "pac-sets"
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
    from importlib.metadata import EntryPoint, entry_points  # kept out of the import time of the package

    group = f"pac_sets.{kind}"
    ours = [EntryPoint(name, value, group) for name, (value, _) in SHIPPED.get(kind, {}).items()]
    return {point.name: point for point in (*entry_points(group=group), *ours)}


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
