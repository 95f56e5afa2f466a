"""What other packages add, found by entry points: subcommands, models, image sources, tube shapes, limits.

A package registers under the groups ``pac_sets.commands``, ``pac_sets.models``, ``pac_sets.image_sources``,
``pac_sets.shapes``, ``pac_sets.limits`` and ``pac_sets.forecasters`` (what `pac sets` serves from, such as
images) in its pyproject; nothing is imported until it is asked for by name.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pac_core.errors import InvalidInput

Kind: TypeAlias = Literal["commands", "models", "image_sources", "shapes", "limits", "forecasters"]


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
    try:
        return point.load()
    except Exception as error:  # whatever a stranger's module does while it is imported
        owner = point.dist.name if point.dist else "an unknown package"
        raise InvalidInput(
            f"the plugin {name!r} of {owner} ({point.value}) does not load: {error}"
        ) from error


def _points(kind: Kind) -> dict[str, Any]:
    from importlib.metadata import entry_points  # kept out of the import time of the package

    return {point.name: point for point in entry_points(group=f"pac_sets.{kind}")}
