"""What a run is made with, by content: digests of arguments and of code that are the same in every process.

A value is taken apart as pickle would do it, and its parts are hashed; pickles themselves differ between
processes. Code that workers import counts by the source of its module and of what that imports, the
standard library and installed packages left out; code that travels by value (a script's own, a notebook's, a
local class) by its bytecode, with the globals it uses.
"""

from __future__ import annotations

import ast
import copyreg
import dis
import functools
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import (
    CellType,
    CodeType,
    EllipsisType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    ModuleType,
    NoneType,
    NotImplementedType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np

OURS = ("pac_core", "pac_rl", "pac_vision", "cluster")
_ATOMS = (NoneType, EllipsisType, NotImplementedType, bool, float, complex, str, range)
_NO_CODE = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__"} | {
    *("__abstractmethods__", "_abc_impl", "__dataclass_fields__", "__dataclass_params__"),
    *("__firstlineno__", "__static_attributes__", "__parameters__"),
}
"""Names in a class that do not decide what it does, or follow from others that do."""


class Undigested(Exception):
    """A value whose content cannot be told; its text says which."""


class Digests:
    """Digests of values. What occurs several times is hashed once, and all code that is met is noted.

    own: packages whose code counts wherever they are installed
    code: from the module of each such source to its SHA-256

    >>> Digests()({"a": [1, 2.0]}) == Digests()({"a": [1, 2.0]}) != Digests()({"a": [1, 2]})
    True
    """

    def __init__(self, own: Iterable[str] = ()) -> None:
        self.code: dict[str, str] = {}
        self._own = frozenset(own)
        self._covered: dict[str, bool] = {}
        self._known: dict[int, tuple[Any, bytes]] = {}  # with the value, or its id would be given away
        self._open: dict[int, int] = {}

    def __call__(self, value: Any) -> str:
        """SHA-256 of what a value holds; `Undigested` if that cannot be told."""
        try:
            return self._of(value).hex()
        except RecursionError:
            raise Undigested(f"a {_name(type(value))} that is nested too deeply") from None

    def _of(self, value: Any) -> bytes:
        kind = type(value)
        if kind is int:
            return _hash("int", hex(value).encode())
        if kind in _ATOMS:
            return _hash(kind.__name__, repr(value).encode())
        if kind in (bytes, bytearray, memoryview):
            return _hash(kind.__name__, value)
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._open:  # it holds itself
            return _hash("above", str(len(self._open) - self._open[id(value)]).encode())
        self._open[id(value)] = len(self._open)
        try:
            found = self._taken_apart(value)
        finally:
            del self._open[id(value)]
        self._known[id(value)] = value, found
        return found

    def _all(self, kind: str, *parts: Any) -> bytes:
        return _hash(kind, *map(self._of, parts))

    def _taken_apart(self, value: Any) -> bytes:
        kind, torch = type(value), sys.modules.get("torch")
        if kind in (list, tuple):
            return self._all(kind.__name__, *value)
        if kind in (dict, MappingProxyType):
            return self._all("dict", *(part for pair in value.items() for part in pair))
        if kind in (set, frozenset):
            return _hash(kind.__name__, *sorted(map(self._of, value)))
        if kind is np.ndarray:
            return self._array(value)
        if torch is not None and isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, ModuleType):
            if not self.covers(value.__name__):
                raise Undigested(f"the module {value.__name__}, which has no source")
            return _hash("module", value.__name__.encode())
        if isinstance(value, CodeType):
            return self._all("code", *_code_parts(value))
        if isinstance(value, CellType):
            return self._all("cell", *([value.cell_contents] if _filled(value) else []))
        if isinstance(value, property):
            return self._all("property", value.fget, value.fset, value.fdel)
        if isinstance(value, staticmethod | classmethod):
            return self._all(kind.__name__, value.__func__)
        if isinstance(value, functools.cached_property):
            return self._all("cached_property", value.func)
        if isinstance(value, MemberDescriptorType | GetSetDescriptorType | WrapperDescriptorType):
            return _hash("descriptor", value.__qualname__.encode())
        return self._object(value)

    def _array(self, value: Any) -> bytes:
        if value.dtype.fields:  # bytes between the fields hold anything
            return self._all("records", value.shape, {name: value[name] for name in value.dtype.names})
        if value.dtype.hasobject:
            return self._all("objects", value.shape, value.ravel().tolist())
        about = f"{value.dtype.str} {value.shape}"
        return _hash("array", about.encode(), np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)

    def _tensor(self, value: Any) -> bytes:
        import torch

        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise Undigested(f"a tensor of layout {value.layout} on {value.device}")
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        about = f"{_name(type(value))} {value.dtype} {tuple(value.shape)}"
        return _hash("tensor", about.encode(), plain.view(torch.uint8).numpy().data)

    def _object(self, value: Any) -> bytes:
        """By what pickle would make it of, or by the `digest` that it offers where that cannot be told."""
        try:
            made = _reduced(value)
            if isinstance(made, str):
                module = getattr(value, "__module__", None) or type(value).__module__
                self.covers(module)
                return self._all("global", f"{module}.{made}", getattr(value, "__wrapped__", None))
            return self._all("object", type(value), *made)
        except Undigested:
            offered = getattr(value, "digest", None)
            offered = offered() if callable(offered) else offered
            if not isinstance(offered, str | bytes):
                raise
            return self._all("digest", type(value), offered)

    def _class(self, value: type) -> bytes:
        name = _hash("class", _name(value).encode())
        if (covered := self.covers(value.__module__)) and _importable(value):
            return name
        if covered and value.__module__ not in self.code and "<locals>" not in value.__qualname__:
            return name  # of a library that hides it
        parts = {key: part for key, part in vars(value).items() if key not in _NO_CODE}
        return _hash("local", name, self._all("", type(value), value.__bases__, parts))

    def _function(self, value: FunctionType) -> bytes:
        name = _hash("function", _name(value).encode())
        if (covered := self.covers(value.__module__)) and _importable(value):
            return name
        parts = (value.__code__, value.__defaults__, value.__kwdefaults__, value.__closure__, vars(value))
        used = {} if covered else self._globals(value)
        return _hash("local", name, self._all("", *parts, used))

    def _globals(self, function: FunctionType) -> dict[str, Any]:
        """What the code of a function finds in its module, by name; what it imports is noted."""
        found: dict[str, Any] = {}
        for code in _nested(function.__code__):
            steps = list(dis.get_instructions(code))
            for place, step in enumerate(steps):
                known = function.__globals__
                if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in known:
                    found[step.argval] = known[step.argval]
                elif step.opname == "IMPORT_NAME":
                    level, names = (steps[place - back].argval for back in (2, 1))
                    self._imported(step.argval, level, names or (), known.get("__package__") or "")
        return found

    def _imported(self, name: str, level: int, names: Iterable[str], package: str) -> None:
        """Notes the source of ``from name import names``."""
        if level:
            try:
                name = importlib.util.resolve_name("." * level + name, package)
            except ImportError:
                return
        self.covers(name)
        if name in self.code or getattr(_spec(name), "origin", "") is None:
            for sub in names:  # which may be modules
                if sub != "*" and _spec(f"{name}.{sub}") is not None:
                    self.covers(f"{name}.{sub}")

    def covers(self, module: str | None) -> bool:
        """Notes the source of a module and of what it imports; whether that, or a version, tells its code."""
        if module is None or module == "__main__":
            return False
        if module not in self._covered:
            self._covered[module] = True  # for modules that import one another
            self._covered[module] = self._read(module)
        return self._covered[module]

    def _read(self, module: str) -> bool:
        top = module.partition(".")[0]
        if top in OURS or top in sys.stdlib_module_names:  # by their versions
            return True
        spec = _spec(module)
        if spec is None:
            return False
        if spec.origin is None or spec.origin == "built-in":
            return spec.submodule_search_locations is not None or spec.origin == "built-in"
        file = Path(spec.origin)
        if top not in self._own and _installed(file):
            return True
        try:
            content = file.read_bytes()
        except OSError:
            return False
        self.code[module] = hashlib.sha256(content).hexdigest()
        if file.suffix == ".py":
            package = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
            for name, level, names in _imports(content):
                self._imported(name, level, names, package)
        return True


def _imports(source: bytes) -> Iterator[tuple[str, int, list[str]]]:
    """Module, level and names of each import, wherever in the source it stands."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # nobody can import it
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level, [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield from ((name, 0, []) for name in {alias.name, alias.name.partition(".")[0]})


def _spec(module: str) -> ModuleSpec | None:
    """Where a module comes from, found without running it or the packages around it."""
    if (loaded := sys.modules.get(module)) is not None:
        return getattr(loaded, "__spec__", None)
    parent, _, _ = module.rpartition(".")
    if not parent:
        try:
            return importlib.util.find_spec(module)
        except (ImportError, ValueError):
            return None
    above = _spec(parent)
    if above is None or above.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(module, list(above.submodule_search_locations))


def _installed(file: Path) -> bool:
    """Whether a file belongs to the standard library or to an installed package."""
    library = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    return not {"site-packages", "dist-packages"}.isdisjoint(file.parts) or any(
        path in library for path in file.resolve().parents
    )


def _importable(thing: Any) -> bool:
    """Whether workers find it by its name, so that nothing but the name is sent to them."""
    found: Any = sys.modules.get(thing.__module__)
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is thing


def _reduced(value: Any) -> Any:
    """What pickle would make a value of: a name, or parts; values that are only remembered are left out."""
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        made: Any = reduce(value) if reduce else value.__reduce_ex__(4)
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


def _code_parts(code: CodeType) -> tuple[Any, ...]:
    """What decides what code does; where it stands and what it is called does not."""
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return code.co_code, code.co_consts, code.co_exceptiontable, names, counts


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not _filled
    except ValueError:
        return False


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def content_of_file(value: Any) -> Any:
    """What a file or folder holds in place of its name, where a path or a text names one that is there."""
    if not isinstance(value, str | os.PathLike) or not (os.path.isfile(value) or os.path.isdir(value)):
        return value
    try:
        return _content(os.fspath(value), ())
    except OSError as error:
        raise Undigested(f"{value}, which cannot be read: {error}") from None


def _content(path: Any, above: tuple[Any, ...]) -> Any:
    """above: the folders that it lies in, because a link may lead back to one"""
    if os.path.isfile(path):
        with open(path, "rb") as file:
            return "file", hashlib.file_digest(file, "sha256").digest()
    if not os.path.isdir(path):  # a link to nothing, a pipe
        return "neither"
    real = os.path.realpath(path)
    if real in above:
        return "above", len(above) - above.index(real)
    inside = [(name, _content(os.path.join(path, name), (*above, real))) for name in sorted(os.listdir(path))]
    return "folder", inside


def source_digests(modules: Iterable[str]) -> dict[str, str]:
    """SHA-256 of the sources of these modules as they are found here; those that are not are left out."""
    digests = Digests(module.partition(".")[0] for module in modules)
    return {
        module: digests.code[module]
        for module in modules
        if digests.covers(module) and module in digests.code
    }


def _hash(kind: str, *parts: Any) -> bytes:
    whole = hashlib.sha256(f"{kind} {len(parts)}\n".encode())
    for part in parts:
        whole.update(memoryview(part).nbytes.to_bytes(8, "big"))
        whole.update(part)
    return whole.digest()
