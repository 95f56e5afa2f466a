"""Digests of what decides a run: the content of a stage's arguments, the code of its scorers, versions.

Modules count by their source and that of what they import, found without running any of it. The standard
library and installed packages are left out: their versions tell.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import importlib.util
import os
import platform
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np

OURS = ("pac_core", "pac_rl", "pac_vision", "cluster")
CODE = "code of "
"""Before the name of a module, among packages and their versions."""


class Sources:
    """SHA-256 of the sources of modules, as they are met; `own` packages count even if installed."""

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
        """Notes the sources of all modules that some code of a package imports."""
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
        if spec.origin == "built-in" or (top not in self._own and is_installed(file)):
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


def is_installed(place: str | os.PathLike[str] | None) -> bool:
    """Whether a file belongs to the standard library or to an installed package; so does what has none."""
    if place is None:
        return True
    file = Path(place)
    library = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    packages = {"site-packages", "dist-packages"}
    return not packages.isdisjoint(file.parts) or not library.isdisjoint(file.resolve().parents)


def find_versions(needs: Sequence[str]) -> dict[str, str]:
    """Versions of what decides the digits: Python, our code, and packages or sources (``code of module``)."""
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


_ATOMS = (types.NoneType, types.EllipsisType, types.NotImplementedType, bool, float, complex, str, range)
_PARTS: dict[Any, Callable[[Any], Iterable[Any]]] = {
    property: lambda one: (one.fget, one.fset, one.fdel),
    staticmethod: lambda one: (one.__func__,),
    classmethod: lambda one: (one.__func__,),
    functools.cached_property: lambda one: (one.func,),
    types.GetSetDescriptorType: lambda one: (one.__qualname__,),
    types.CellType: lambda cell: (cell.cell_contents,) if cell != types.CellType() else (),
    types.CodeType: lambda code: (  # what it does, not where it stands
        *(code.co_code, code.co_consts, code.co_exceptiontable),
        (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
    ),
}
"""What code is made of that pickle does not take apart."""
_NO_CODE = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__"} | {
    *("__abstractmethods__", "_abc_impl", "__dataclass_fields__", "__dataclass_params__"),
    *("__firstlineno__", "__static_attributes__", "__parameters__"),
}
"""Names in a class that do not decide what it does, or follow from others that do."""


class Undigested(Exception):
    """A value whose content cannot be told; its text says which."""


class Digests:
    """Digests of values. What occurs several times is hashed once, and all code that is met is noted.

    >>> Digests()({"a": [1, 2.0]}) == Digests()({"a": [1, 2.0]}) != Digests()({"a": [1, 2]})
    True
    """

    def __init__(self, own: Iterable[str] = ()) -> None:
        self._sources = Sources(own)
        self.code = self._sources.code
        self._known: dict[int, tuple[Any, bytes]] = {}  # with the value, or its id would be given away
        self._open: dict[int, int] = {}

    def __call__(self, value: Any) -> str:
        """SHA-256 of what a value holds; `Undigested` if that cannot be told."""
        try:
            return self._digest(value).hex()
        except RecursionError:
            raise Undigested(f"a {_name(type(value))} that is nested too deeply") from None

    def _digest(self, value: Any) -> bytes:
        kind = type(value)
        if kind in _ATOMS or kind is int:
            return _hash(kind.__name__, (hex(value) if kind is int else repr(value)).encode())
        if kind in (bytes, bytearray, memoryview):
            return _hash(kind.__name__, value)
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._open:  # it holds itself
            return _hash("above", str(len(self._open) - self._open[id(value)]).encode())
        self._open[id(value)] = len(self._open)
        try:
            found = self._take_apart(value)
        finally:
            del self._open[id(value)]
        self._known[id(value)] = value, found
        return found

    def _all(self, kind: str, *parts: Any) -> bytes:
        return _hash(kind, *map(self._digest, parts))

    def _take_apart(self, value: Any) -> bytes:
        kind, torch = type(value), sys.modules.get("torch")
        if kind in (list, tuple):
            return self._all(kind.__name__, *value)
        if kind in (dict, types.MappingProxyType):
            return self._all("dict", *(part for pair in value.items() for part in pair))
        if kind in (set, frozenset):
            return _hash(kind.__name__, *sorted(map(self._digest, value)))
        if kind is np.ndarray:
            return self._array(value)
        if torch is not None and isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.is_quantized or value.is_meta:
                raise Undigested(f"a tensor of layout {value.layout} on {value.device}")
            plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            about = f"{_name(kind)} {value.dtype} {tuple(value.shape)}"
            return _hash("tensor", about.encode(), plain.view(torch.uint8).numpy().data)
        if isinstance(value, type | types.FunctionType):
            return self._definition(value)
        if isinstance(value, types.ModuleType):
            if not self._sources.cover(value.__name__):
                raise Undigested(f"the module {value.__name__}, which has no source")
            return _hash("module", value.__name__.encode())
        known = next((known for known in _PARTS if isinstance(value, known)), None)
        return self._object(value) if known is None else self._all(known.__name__, *_PARTS[known](value))

    def _array(self, value: Any) -> bytes:
        if value.dtype.fields:  # bytes between the fields hold anything
            return self._all("records", value.shape, {name: value[name] for name in value.dtype.names})
        if value.dtype.hasobject:
            return self._all("objects", value.shape, value.ravel().tolist())
        about = f"{value.dtype.str} {value.shape}"
        return _hash("array", about.encode(), np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)

    def _object(self, value: Any) -> bytes:
        """By what pickle would make it of, or by the `digest` that it offers where that cannot be told."""
        try:
            made = _reduce(value)
            if isinstance(made, str):
                module = getattr(value, "__module__", None) or type(value).__module__
                self._sources.cover(module)
                return self._all("global", f"{module}.{made}", getattr(value, "__wrapped__", None))
            return self._all("object", type(value), *made)
        except Undigested:
            offered = getattr(value, "digest", None)
            offered = offered() if callable(offered) else offered
            if not isinstance(offered, str | bytes):
                raise
            return self._all("digest", type(value), offered)

    def _definition(self, value: Any) -> bytes:
        """A class or function: by its name if that tells it, or else by what it does."""
        function, covered = isinstance(value, types.FunctionType), self._sources.cover(value.__module__)
        name = _hash("function" if function else "class", _name(value).encode())
        found = reduce(_get, value.__qualname__.split("."), sys.modules.get(value.__module__))
        hidden = not function and value.__module__ not in self.code and "<locals>" not in value.__qualname__
        if covered and (found is value or hidden):  # workers find it; or it is a library's, which hides it
            return name
        if not function:
            inside = {key: part for key, part in vars(value).items() if key not in _NO_CODE}
            return _hash("local", name, self._all("", type(value), value.__bases__, inside))
        known, used = value.__globals__, {}
        if not covered:
            self._sources.note_imports(value.__code__, known.get("__package__") or "")
            used = {name: known[name] for name in find_globals(value.__code__) if name in known}
        parts = (value.__code__, value.__defaults__, value.__kwdefaults__, value.__closure__, vars(value))
        return _hash("local", name, self._all("", *parts, used))


def _reduce(value: Any) -> Any:
    """What pickle would make a value of: a name, or parts; values that are only remembered are left out."""
    known = copyreg.dispatch_table.get(type(value))
    try:
        made: Any = known(value) if known else value.__reduce_ex__(4)
    except Exception:
        raise Undigested(f"a {_name(type(value))}") from None
    if isinstance(made, str):
        return made
    function, args, state, *items = (*made, None, None, None)[:5]
    attributes, *slots = state if type(state) is tuple and len(state) == 2 else (state,)
    if isinstance(attributes, dict):
        kind = type(value)
        remembered = {n for n in attributes if isinstance(getattr(kind, n, None), functools.cached_property)}
        attributes = {n: part for n, part in attributes.items() if n not in remembered} or None
    return function, args, attributes, slots, *(None if one is None else list(one) for one in items)


def read_path(value: Any) -> Any:
    """What a file or folder holds in place of its name, where a path or a text names one that is there."""
    if not isinstance(value, str | os.PathLike) or not (os.path.isfile(value) or os.path.isdir(value)):
        return value
    try:
        return _read_path(os.fspath(value), ())
    except OSError as error:
        raise Undigested(f"{value}, which cannot be read: {error}") from None


def _read_path(path: Any, above: tuple[Any, ...]) -> Any:
    """above: the folders that it lies in, because a link may lead back to one"""
    if os.path.isfile(path):
        with open(path, "rb") as file:
            return "file", hashlib.file_digest(file, "sha256").digest()
    if not os.path.isdir(path):  # a link to nothing, a pipe
        return "neither"
    real = os.path.realpath(path)
    if real in above:
        return "above", len(above) - above.index(real)
    names = sorted(os.listdir(path))
    return "folder", [(name, _read_path(os.path.join(path, name), (*above, real))) for name in names]


def _get(thing: Any, name: str) -> Any:
    return getattr(thing, name, None)


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _hash(kind: str, *parts: Any) -> bytes:
    whole = hashlib.sha256(f"{kind} {len(parts)}\n".encode())
    for part in parts:
        whole.update(memoryview(part).nbytes.to_bytes(8, "big"))
        whole.update(part)
    return whole.digest()
