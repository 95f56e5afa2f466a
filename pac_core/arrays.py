"""Checks at the public doors, what numpy and torch share, numbers rounded outwards to text."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import ROUND_CEILING, Context, Decimal
from textwrap import shorten
from typing import Any, SupportsFloat, TypeAlias

import numpy as np
from array_api_compat import array_namespace, is_numpy_array, is_torch_array
from numpy.typing import NDArray

from pac_core.errors import InvalidInput

Array: TypeAlias = Any
"""A numpy array or a torch tensor; a function returns the kind, and the device, it was given."""

Floats: TypeAlias = NDArray[np.floating[Any]]

_BLOCK = 1 << 20  # bytes of a block: it stays in the cache, and threads seldom wait for each other


def check_numbers(name: str, value: Any, shape: str, *, finite: bool = False) -> Floats:
    """Return `value` as a numpy array of floats; refuse another `shape` such as ``"[N, K]"``, and NaN.

    Integers become float64. `finite=True` refuses +inf as well; -inf is always refused.
    """
    array = check_array(name, value, shape)
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise InvalidInput(f"{name} must be numbers that a double can hold, got dtype {array.dtype}")
    if array.dtype.kind != "f":
        if abs(array.astype(np.float64)).max() > 2**53:
            raise InvalidInput(f"{name} must be numbers that a double can hold, got integers beyond 2**53")
        array = array.astype(np.float64)
    if np.isnan(array).any():
        raise InvalidInput(f"{name} must not contain NaN, got {int(np.isnan(array).sum()):,} of them")
    if np.isneginf(array).any() or (finite and np.isinf(array).any()):
        rule = "finite" if finite else "above -inf"
        raise InvalidInput(f"{name} must be {rule}, got an infinite value")
    return array


def check_number(name: str, value: Any) -> float:
    """Return `value` as a float; refuse anything but one number. A string is not a number."""
    try:
        array = np.asarray(_here(value))
    except (ValueError, TypeError, RuntimeError):
        array = np.zeros(0)
    if array.ndim or array.dtype.kind not in "fiu" or np.isnan(array):
        raise InvalidInput(f"{name} must be one number, got {shorten(repr(value), 80)}")
    return float(array)


def check_list(name: str, value: Any) -> list[Any]:
    """Return `value` as a list; refuse a string, a mapping and what cannot be iterated over."""
    try:
        if not isinstance(value, str | bytes | Mapping):
            return list(value)
    except TypeError:  # also raised by an array without axes
        pass
    raise InvalidInput(f"{name} must be a list or another sequence, got {shorten(repr(value), 80)}")


def check_array(name: str, value: Any, shape: str) -> NDArray[Any]:
    """Return `value` as a numpy array of plain values with the named axes, none of them empty."""
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidInput(f"{name} must not be masked, because no unit may be left out")
    try:
        array = np.asarray(_here(value))
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidInput(f"{name} must convert to a numpy array of shape {shape}: {error}") from None
    if array.dtype == object:
        raise InvalidInput(f"{name} must be an array of plain values, got Python objects")
    axes = shape.strip("[]").split(", ")
    if array.ndim != len(axes):
        raise InvalidInput(f"{name} must have shape {shape}, got {array.shape}")
    if array.size == 0:
        raise InvalidInput(f"{name} must not be empty, got shape {array.shape}")
    return array


def check_labels(name: str, value: Any, n: int, classes: int) -> NDArray[np.int64]:
    """Return class indices `[n]`; refuse any outside 0 to `classes` - 1."""
    array = check_array(name, value, "[N]")
    if array.dtype.kind not in "iu":
        raise InvalidInput(f"{name} must be whole numbers, got dtype {array.dtype}")
    if len(array) != n:
        raise InvalidInput(f"{name} must have one entry per row, got {len(array)} for {n} rows")
    if array.min() < 0 or array.max() >= classes:
        wrong = array[(array < 0) | (array >= classes)][0]
        hint = "; subtract 1 if yours start at 1" if array.min() == 1 and array.max() == classes else ""
        raise InvalidInput(f"{name} must lie in 0..{classes - 1}, got {wrong}{hint}")
    return array.astype(np.int64)


def check_booleans(name: str, value: Any, n: int | None = None) -> NDArray[np.bool_]:
    """Return `value` as booleans `[N]`, of which there must be `n`."""
    array = check_array(name, value, "[N]")
    if array.dtype != np.bool_ or n not in (None, len(array)):
        rule = "booleans" if n is None else f"{n:,} booleans, one for each unit"
        raise InvalidInput(f"{name} must be {rule}, got {len(array):,} of dtype {array.dtype}")
    return array


def to_float64(values: Array) -> Array:
    """Convert to float64, in the same library and on the same device."""
    if is_numpy_array(values):
        return np.asarray(values, dtype=np.float64)
    xp = array_namespace(values)
    return values if values.dtype == xp.float64 else xp.astype(values, xp.float64)


def convert_like(array: Array, values: Any) -> Array:
    """Convert `values` to the library, device and dtype of `array`."""
    if is_numpy_array(array):
        return np.asarray(_here(values), dtype=array.dtype)
    if not is_torch_array(values):  # torch refuses negative strides and foreign byte orders
        values = np.asarray(values)
        double = values.dtype.kind == "f" and values.dtype.itemsize > 8
        native = np.dtype(np.float64) if double else values.dtype.newbyteorder("=")
        values = values.astype(native, order="C", copy=False)
    return array_namespace(array).asarray(values, dtype=array.dtype, device=array.device)


def _here(values: Any) -> Any:
    """Move a tensor to where numpy can read it; numpy has no bfloat16, but float32 holds every one."""
    if not is_torch_array(values):
        return values
    values = values.detach().cpu()
    return values.float() if str(values.dtype) == "torch.bfloat16" else values


def check_returned(name: str, values: Any, shape: tuple[int, ...], to: Array) -> Array:
    """Return what a user's function returned, as doubles like `to`; refuse any other shape."""
    given = values if is_torch_array(values) else np.asarray(values)
    kind, tensor = str(given.dtype), is_torch_array(to)
    hidden = isinstance(values, np.ma.MaskedArray)
    if tuple(given.shape) != shape or not ("float" in kind or "int" in kind) or hidden:
        what = "a masked array" if hidden else f"{tuple(given.shape)} of {kind}"
        raise InvalidInput(f"{name} must be numbers of shape {shape}, got {what}")
    return convert_like(to_float64(to[:0]) if tensor else np.zeros(0), given)


def norm(vectors: Array) -> Array:
    """Euclidean norm `[...]` of vectors `[..., K]` of any magnitude: the square of 1e-170 would underflow.

    >>> norm(np.array([[3e-170, 4e-170], [3e170, 4e170]])).tolist()
    [5e-170, 5e+170]
    """
    xp = array_namespace(vectors)
    most = xp.max(xp.abs(vectors), axis=-1)
    scale = xp.where((most > 0) & (most < np.inf), most, xp.ones_like(most))
    return scale * xp.sqrt(xp.sum((vectors / scale[..., None]) ** 2, axis=-1))


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Runs torch, if loaded, on one thread: their number decides the last digits, and idle ones spin."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    if torch:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch:
            torch.set_num_threads(before)


def count_threads() -> int:
    """How many threads to use: `OMP_NUM_THREADS` (Ray sets it to a worker's CPUs), else the cores."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    if setting.isdecimal() and int(setting) > 0:
        return int(setting)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_over_rows(work: Callable[[slice, Floats], None], like: Floats, buffers: int, dtype: Any) -> None:
    """Call `work(rows, scratch)` on slices of the rows of `like` `[N, K]`, in threads, each of which reuses
    its `scratch` `[buffers, rows, K]`, because allocating memory costs more than the arithmetic."""
    n, width = like.shape
    step = max(1, _BLOCK // (width * np.dtype(dtype).itemsize))
    slices = [slice(start, min(start + step, n)) for start in range(0, n, step)]
    count = min(count_threads(), len(slices))

    def run(first: int) -> None:
        scratch = np.empty((buffers, min(step, n), width), dtype)
        for rows in slices[first::count]:
            work(rows, scratch[:, : rows.stop - rows.start])

    if count == 1:
        return run(0)
    from concurrent.futures import ThreadPoolExecutor  # kept out of the import time of the package

    with ThreadPoolExecutor(count) as pool:
        for _ in pool.map(run, range(count)):
            pass


def round_up(value: SupportsFloat, digits: int = 6) -> str:
    """Round up to `digits` digits: T, an upper end, the limit of a risk.

    >>> round_up(2.0000001), round_up(-2.0000001), round_up(0.05), round_up(1.7e9 + 0.5)
    ('2.00001', '-2', '0.05', '1.70001e+09')
    """
    number = float(value)
    if number - number != 0:  # NaN and the infinities
        return f"{number:g}"
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(number + 0.0))
    text = f"{float(rounded):.{digits}g}"
    return text if Decimal(text) == rounded else f"{rounded:e}"  # too small or too large for all digits


def round_down(value: SupportsFloat, digits: int = 6) -> str:
    """Round down to `digits` digits: a lower end, a margin.

    >>> round_down(2.0000001), round_down(-2.0000001)
    ('2', '-2.00001')
    """
    text = round_up(-float(value), digits)
    if text in ("0", "nan"):
        return text
    return text[1:] if text.startswith("-") else f"-{text}"
