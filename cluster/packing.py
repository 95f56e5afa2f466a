"""Arrays of a shard as the bytes of an Arrow file, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pac_core import InvalidInput


def pack(arrays: dict[str, NDArray[Any]], label: str = "") -> NDArray[np.uint8]:
    """An Arrow file: a column for each array, the same bytes for the same arrays and label.

    >>> sorted(unpack(pack({"ids": np.array(["a", "b"]), "scores": np.array([1.0, 2.0])})))
    ['ids', 'scores']
    """
    table = pa.table({name: _column(name, array) for name, array in arrays.items()})
    table = table.replace_schema_metadata({"label": label})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return np.frombuffer(sink.getvalue(), dtype=np.uint8)


def unpack(content: Any) -> dict[str, NDArray[Any]]:
    """The arrays of an Arrow file made by `pack`; numbers are not copied."""
    table = pa.ipc.open_file(pa.py_buffer(content)).read_all()
    return {name: _array(table.column(name).combine_chunks()) for name in table.column_names}


def label_of(content: Any) -> str:
    """The label that was packed with the arrays."""
    metadata = pa.ipc.open_file(pa.py_buffer(content)).schema.metadata or {}
    return str(metadata.get(b"label", b"").decode())


def _column(name: str, array: NDArray[Any]) -> Any:
    if array.dtype.kind == "U":
        return pa.array(array.tolist(), pa.string())
    if array.dtype.kind not in "bfiu" or (array.dtype.kind == "b" and array.ndim > 2):
        raise InvalidInput(
            f"{name} must hold numbers, text or at most two axes of booleans, got {array.dtype}"
        )
    if array.ndim == 1:
        return pa.array(array)
    if array.dtype.kind == "b":  # Arrow has no tensors of bits: a list for each row
        return pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(array))


def _array(column: Any) -> NDArray[Any]:
    if isinstance(column, pa.FixedShapeTensorArray):
        tensor: NDArray[Any] = column.to_numpy_ndarray()
        return tensor
    if pa.types.is_string(column.type):
        return np.array(column.to_pylist(), dtype=np.str_)
    if pa.types.is_fixed_size_list(column.type):
        return np.asarray(column.flatten()).reshape(len(column), column.type.list_size)
    return np.asarray(column)
