"""The command `pac logits`: the logits of a finished run as one npz or parquet, written a shard at a time."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_core.cli import FILE, refuse_existing, refuse_unwritable, say, to_float16
from pac_core.datasets import ROUNDED
from pac_core.files import whole_file
from pac_core.runs import Arrays, RunFolder, Task

ENDINGS = (".npz", ".parquet")


@dataclass(frozen=True)
class Written:
    """What was written: units, labels, units without a forecast; the largest change of a logit by rounding,
    and units whose most likely label is one of several after it."""

    n: int
    classes: int
    failed: int
    moved: float = 0.0
    tied: int = 0


def write_logits(folder: RunFolder, out: Path, *, float16: bool = False) -> Written:
    """Writes `ids` `[N]`, `labels` `[N]` and `logits` `[N, K]` of a run that classified units.

    out: .npz, or .parquet with columns id, label and logits (a list of K numbers); where the run counts
        broken images as misses also `failed` `[N]`, their logits being NaN; and the model's digest
    float16: rounds the logits; the digest says so, and sets for new units are made from rounded logits too
    """
    if out.suffix not in ENDINGS:
        raise InvalidInput(f"--out must end in {' or '.join(ENDINGS)}, got {out}")
    task = Task.read(folder)
    shards = (arrays for _, arrays in folder.over(task.job.shards, lambda shard, arrays: arrays))
    first = next(shards)
    if not {"logits", "labels"} <= set(first):
        raise InvalidInput(f"{folder} must be the run of a classifier, but holds {', '.join(sorted(first))}")
    columns = ["labels", "logits", *(["failed"] if "failed" in first else [])]
    classes, dtype = first["logits"].shape[1], np.dtype(np.float16 if float16 else first["logits"].dtype)
    digest = f"{ROUNDED if float16 else ''}{task.model.digest}"
    model = {"model": task.model.name, "model_digest": digest}
    out.parent.mkdir(parents=True, exist_ok=True)
    writer = _npz if out.suffix == ".npz" else _parquet
    moved, tied, failed, done = 0.0, 0, 0, 0
    shape = (task.job.units, classes)
    with whole_file(out) as part, writer(part, columns, dtype, shape, model) as write:
        for arrays in chain([first], shards):
            logits, count = arrays["logits"], len(arrays["logits"])
            if float16:
                small = to_float16(logits)
                with np.errstate(invalid="ignore"):  # -inf stays what it is
                    moved = max(moved, float(np.nanmax(abs(logits - small), initial=0.0)))
                tied += int(((small == small.max(axis=1, keepdims=True)).sum(axis=1) > 1).sum())
                arrays = arrays | {"logits": small}
            failed += int(arrays["failed"].sum()) if "failed" in arrays else 0
            write(task.names[done : done + count], arrays)
            done += count
    return Written(done, classes, failed, moved, tied)


@click.command("logits")
@click.argument("folder")
@click.option("--out", type=FILE, required=True, help="logits.npz or logits.parquet.")
@click.option("--float16", is_flag=True, help="Round the logits: half the size, and other sets at the edge.")
@click.option("--force", is_flag=True, help="Replace --out if it exists.")
def logits(folder: str, out: Path, float16: bool, force: bool) -> None:
    """Write ids, labels and logits of a finished run, for pac fit, pac evaluate and pac sets.

    \b
    pac logits run --out logits.parquet
    pac fit logits.parquet --epsilon 0.05 --delta 1e-5 --tune 1000 --calibrate 2000

    Written beside the folder of the images, the file shares its ledger: pac fit then refuses units that the
    run has calibrated on. Written elsewhere, give pac fit that ledger with --ledger.
    """
    refuse_existing(force, out)
    refuse_unwritable("--out", out)
    done = write_logits(RunFolder(folder), out, float16=float16)
    if done.failed:
        say("broken", f"{done.failed:,} units have no forecast: their logits are NaN, `failed` marks them")
    if float16:
        say("rounded", f"to float16: a logit moved by up to {done.moved:.2g}")
        say("rounded", f"{done.tied:,} of {done.n:,} units have now more than one most likely label")
        say("note", "a label at the edge of a set may now be in or out: fit, test, serve from these logits")
        say("note", "the file says that it is rounded: pac sets --images then rounds fresh logits, too")
    say("wrote", f"{done.n:,} units, {done.classes:,} labels, to {out}")


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
