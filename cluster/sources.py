"""The code that a run is made with: our own, that of the scorers' modules, and versions of what is installed.

Modules count by their source and that of what they import, found without running any of it. The standard
library and installed packages are left out: their versions tell.
"""

from __future__ import annotations

import dis
import hashlib
import importlib.util
import platform
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType
from warnings import catch_warnings, simplefilter

OURS = ("pac_core", "pac_rl", "pac_vision", "cluster")
CODE = "code of "
"""Before the name of a module, among packages and their versions."""


class Sources:
    """Digests of the sources of modules, as they are met.

    own: packages whose code counts wherever they are installed
    code: from each module to the SHA-256 of its source
    """

    def __init__(self, own: Iterable[str] = ()) -> None:
        self.code: dict[str, str] = {}
        self._own = frozenset(own)
        self._covered: dict[str, bool] = {}

    def cover(self, module: str | None) -> bool:
        """Notes the source of a module and of what it imports; whether that, or a version, tells its code."""
        if module is None or module == "__main__":
            return False
        if module not in self._covered:
            self._covered[module] = True  # for modules that import one another
            self.cover(module.rpartition(".")[0] or None)  # whose code runs first
            self._covered[module] = self._read(module)
        return self._covered[module]

    def note_imports(self, code: CodeType, package: str) -> None:
        """Notes the sources of all modules that some code imports.

        package: the one that the code is in
        """
        for steps in _scan(code):
            for place, step in enumerate(steps):
                if step.opname == "IMPORT_NAME":
                    level, names = (steps[place - back].argval for back in (2, 1))
                    self._note_import(step.argval, level, names or (), package)

    def _note_import(self, name: str, level: int, names: Iterable[str], package: str) -> None:
        """Notes the source of ``from name import names``."""
        if level:
            try:
                name = importlib.util.resolve_name("." * level + name, package)
            except ImportError:
                return
        self.cover(name)
        if name in self.code or getattr(_find(name), "origin", "") is None:
            for sub in names:  # which may be modules
                if sub != "*" and _find(f"{name}.{sub}") is not None:
                    self.cover(f"{name}.{sub}")

    def _read(self, module: str) -> bool:
        top = module.partition(".")[0]
        if top in OURS or top in sys.stdlib_module_names:  # by their versions
            return True
        spec = _find(module)
        if spec is None or spec.origin is None:
            return spec is not None and spec.submodule_search_locations is not None
        file = Path(spec.origin)
        if spec.origin == "built-in" or (top not in self._own and _is_installed(file)):
            return True
        try:
            content = file.read_bytes()
        except OSError:
            return False
        self.code[module] = hashlib.sha256(content).hexdigest()
        if file.suffix != ".py":
            return True
        try:
            with catch_warnings():
                simplefilter("ignore")
                code = compile(content, file, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):  # nobody can import it
            return True
        package = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
        self.note_imports(code, package)
        return True


def find_globals(code: CodeType) -> list[str]:
    """Names that some code looks up outside of itself."""
    reads = ("LOAD_GLOBAL", "LOAD_NAME")
    return list(dict.fromkeys(s.argval for steps in _scan(code) for s in steps if s.opname in reads))


def _scan(code: CodeType) -> Iterator[list[dis.Instruction]]:
    """The instructions of some code, and of the code in it."""
    yield [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _scan(constant)


def _find(module: str) -> ModuleSpec | None:
    """Where a module comes from, found without running it or the packages around it."""
    if (loaded := sys.modules.get(module)) is not None:
        return getattr(loaded, "__spec__", None)
    parent, _, _ = module.rpartition(".")
    if parent:
        paths = getattr(_find(parent), "submodule_search_locations", None)
        return None if paths is None else PathFinder.find_spec(module, list(paths))
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


def _is_installed(file: Path) -> bool:
    """Whether a file belongs to the standard library or to an installed package."""
    library = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    packages = {"site-packages", "dist-packages"}
    return not packages.isdisjoint(file.parts) or not library.isdisjoint(file.resolve().parents)


def find_versions(needs: Sequence[str]) -> dict[str, str]:
    """Versions of what decides the digits: Python, our own code, and the packages named.

    ``code of my_module`` names the source of a module.
    """
    found = {"python": platform.python_version(), "pac-sets": _digest_sources()}
    sources = Sources(name.removeprefix(CODE).partition(".")[0] for name in needs if name.startswith(CODE))
    for name in needs:
        try:
            if name.startswith(CODE):
                sources.cover(name.removeprefix(CODE))
                found[name] = sources.code.get(name.removeprefix(CODE), "missing")[:32]
            else:
                found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _digest_sources() -> str:
    """A fingerprint of our own source: a version number stays the same while code changes."""
    digest = hashlib.sha256()
    for package in OURS:
        spec = importlib.util.find_spec(package)  # finds it without importing it, wherever it was shipped to
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder).rglob("*.py")):
                name = path.relative_to(folder).as_posix()
                digest.update(f"{package}/{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
