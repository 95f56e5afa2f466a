"""The command `pac logits`: the logits of a finished run as one npz or parquet, written a shard at a time."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_core.cli import FILE, refuse_existing, refuse_unwritable, say
from pac_core.files import whole_file
from pac_core.runs import Arrays, RunFolder, Task


@click.command("logits")
@click.argument("folder")
@click.option("--out", type=FILE, required=True, help="logits.npz or logits.parquet.")
@click.option("--force", is_flag=True, help="Replace --out if it exists.")
def logits(folder: str, out: Path, force: bool) -> None:
    """Write ids, labels and logits of a finished run, for pac fit, pac evaluate and pac sets.

    \b
    pac logits run --out logits.parquet
    pac fit logits.parquet --epsilon 0.05 --delta 1e-5 --tune 1000 --calibrate 2000

    Written beside the folder of the images, the file shares its ledger: pac fit then refuses units that the
    run has calibrated on. Written elsewhere, give pac fit that ledger with --ledger. A parquet file has the
    columns id, label and logits, a list of numbers; where broken images count as misses, `failed` marks them.
    """
    refuse_existing(force, out)
    refuse_unwritable("--out", out)
    if out.suffix not in WRITERS:
        raise InvalidInput(f"--out must end in {' or '.join(WRITERS)}, got {out}")
    place = RunFolder(folder)
    task = Task.read(place)
    shards = (arrays for _, arrays in place.over(task.job.shards, lambda shard, arrays: arrays))
    first = next(shards)
    if not {"logits", "labels"} <= set(first):
        raise InvalidInput(f"{folder} must be the run of a classifier, but holds {', '.join(sorted(first))}")
    columns = ["labels", "logits", *(["failed"] if "failed" in first else [])]
    shape, dtype = (task.job.units, first["logits"].shape[1]), first["logits"].dtype
    model = {"model": task.model.name, "model_digest": str(task.model.digest)}
    out.parent.mkdir(parents=True, exist_ok=True)
    failed = done = 0
    with whole_file(out) as part, WRITERS[out.suffix](part, columns, dtype, shape, model) as write:
        for arrays in chain([first], shards):
            count = len(arrays["logits"])
            failed += int(arrays["failed"].sum()) if "failed" in arrays else 0
            write(task.names[done : done + count], arrays)
            done += count
    if failed:
        say("broken", f"{failed:,} units have no forecast: their logits are NaN, `failed` marks them")
    say("wrote", f"{done:,} units, {shape[1]:,} labels, to {out}")


Write = Callable[[NDArray[np.str_], Arrays], None]


@contextmanager
def _parquet(
    path: Path, columns: list[str], dtype: np.dtype[Any], shape: tuple[int, int], model: dict[str, str]
) -> Iterator[Write]:
    number = pa.from_numpy_dtype(dtype)
    kinds = {"labels": pa.int64(), "logits": pa.list_(number, shape[1]), "failed": pa.bool_()}
    singular = {"labels": "label"}
    fields = [("id", pa.string()), *((singular.get(name, name), kinds[name]) for name in columns)]
    schema = pa.schema(fields, metadata=model)

    with pq.ParquetWriter(path, schema, use_dictionary=False) as file:

        def write(names: NDArray[np.str_], arrays: Arrays) -> None:
            flat = pa.array(np.ascontiguousarray(arrays["logits"]).ravel())
            made = {"logits": pa.FixedSizeListArray.from_arrays(flat, shape[1])}
            made |= {name: pa.array(arrays[name]) for name in columns if name != "logits"}
            parts = [pa.array(names.tolist(), pa.string()), *(made[name] for name in columns)]
            file.write_table(pa.Table.from_arrays(parts, schema=schema))

        yield write


@contextmanager
def _npz(
    path: Path, columns: list[str], dtype: np.dtype[Any], shape: tuple[int, int], model: dict[str, str]
) -> Iterator[Write]:
    """The logits go into the archive as they come; ids and labels are small and follow at the end."""
    kept: dict[str, list[Any]] = {"ids": [], **{name: [] for name in columns if name != "logits"}}
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("logits.npy", "w", force_zip64=True) as file:
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)

            def write(names: NDArray[np.str_], arrays: Arrays) -> None:
                file.write(np.ascontiguousarray(arrays["logits"]).data)
                for name, values in kept.items():
                    values.append(names if name == "ids" else arrays[name])

            yield write
        rest = {name: np.concatenate(values) for name, values in kept.items()}
        for name, array in (rest | {name: np.array(text) for name, text in model.items()}).items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


WRITERS = {".npz": _npz, ".parquet": _parquet}
