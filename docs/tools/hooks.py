"""What the site adds to the plain pages: files of the repository that they link to, and the reference.

The pages read well without it: links lead to files, and a reference page names the module it is about.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LANGUAGES = {".py": "python", ".yaml": "yaml", ".txt": "text", ".json": "json", "": "dockerfile"}
_LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(#[^)\s]*)?(?=\))")
_REFERENCE = re.compile(r"<!-- reference: ([\w.]+) -->")


def outside(page: str, link: str) -> Path | None:
    """The file of the repository that a page in docs/ links to, if it lies outside of docs/."""
    place = Path(os.path.normpath(DOCS / Path(page).parent / link))
    return place if place.is_file() and ROOT in place.parents and DOCS not in place.parents else None


def address(place: Path) -> str:
    """Where the site has it: sources as pages, data as it is."""
    name = place.relative_to(ROOT).as_posix()
    if name == "CHANGELOG.md":
        return "changelog.md"
    return f"source/{name}" if place.suffix in (".csv", ".json") else f"source/{name}.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    linked = {ROOT / "CHANGELOG.md"}
    for page in files.documentation_pages():
        for link, _ in _LINK.findall(page.content_string):
            if (place := outside(page.src_uri, link)) is not None:
                linked.add(place)
    for place in sorted(linked):
        name, text = address(place), place.read_text(encoding="utf-8")
        if name.startswith("source/") and name.endswith(".md"):
            fence = LANGUAGES.get(place.suffix, "text")
            text = f"# {place.relative_to(ROOT).as_posix()}\n\n````{fence}\n{text}````\n"
        made = File.generated(config, name, content=text)
        if name.startswith("source/"):
            made.inclusion = made.inclusion.NOT_IN_NAV
        files.append(made)
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri

    def relink(found: re.Match[str]) -> str:
        place = outside(here, found[1])
        if place is None:
            return found[0]
        return os.path.relpath(address(place), Path(here).parent) + (found[2] or "")

    return _REFERENCE.sub(lambda found: describe(found[1]), _LINK.sub(relink, markdown))


def exported(module: str) -> list[str]:
    """The names in `__all__`, or the public functions and classes of a module without one."""
    place = ROOT / module.replace(".", "/")
    source = (place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text()
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(node.value))
    own = (node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return [name for name in own if not name.startswith(("_", "check_"))]


def hidden(module: str, name: str) -> str | None:
    """Where a name is defined that a module of the same name hides from static analysis, or None."""
    place = ROOT / module.replace(".", "/") / "__init__.py"
    for node in ast.walk(ast.parse(place.read_text())) if place.exists() else ():
        if isinstance(node, ast.ImportFrom) and node.module and name in {one.name for one in node.names}:
            if node.module.endswith(f".{name}"):
                return f"{node.module}.{name}"
            return hidden(node.module, name)
    return None


def describe(module: str) -> str:
    """The directives that show the docstrings of a module; what the front door has is described there."""
    door = module.partition(".")[0]
    front = set() if module == door else set(exported(door))
    names = [name for name in exported(module) if name not in front]
    apart = [where for name in names if (where := hidden(module, name))]
    shared = [f"[`{name}`]({door}.md)" for name in exported(module) if name in front]
    said = f"Also here, described at the front door: {', '.join(shared)}.\n\n" if shared else ""
    shown = "show_root_heading: true, show_root_full_path: false, show_root_toc_entry: true"
    more = "".join(f"\n::: {where}\n    options: {{{shown}}}\n" for where in apart)
    return f"{said}::: {module}\n    options:\n      members: [{', '.join(names)}]\n{more}"
