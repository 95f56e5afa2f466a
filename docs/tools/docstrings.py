"""Docstrings as the site shows them: doctests as code, and a line `name: meaning` as an item of a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ITEM = re.compile(r"^([a-z_][\w]*(?:, [a-z_]\w*)*): (?=\S)")
_MARK = re.compile(r"[ ]*# doctest: \+\w+[ ]*$", re.M)


def markdown(text: str) -> str:
    """A docstring of ours as markdown."""
    lines: list[str] = []
    inside = False  # a doctest, which ends at an empty line
    listed = False
    for line in text.splitlines():
        if not inside and line.startswith(">>> "):
            inside = True
            lines += ["", "```pycon"]
        elif inside and not line.strip():
            inside = False
            lines.append("```")
        if inside:
            lines.append(line)
            continue
        item = _ITEM.match(line)
        if item and not listed:
            lines.append("")
        if item:
            names = ", ".join(f"`{name}`" for name in item[1].split(", "))
            line = f"- {names}: {line[item.end() :]}"
        elif listed and line.startswith(" "):
            line = f"    {line.strip()}"
        elif listed and line.strip():
            lines.append("")
        listed = bool(item) or (listed and line.startswith("    "))
        lines.append(line)
    return _MARK.sub("", "\n".join([*lines, "```"] if inside else lines))


class Docstrings(griffe.Extension):
    """Rewrites each docstring once, before it is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = "" if obj.is_module else markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        pkg.docstring = None
