"""A task and what its finished run holds: one pass over the shards for a part, a few in memory.

The tune part alone is gathered, because a score is chosen on all of its units at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pac_core.certificates.certificate import Record
from pac_core.datasets import parse_arrays
from pac_core.errors import InvalidInput, UnreadableFile
from pac_core.forecasts import GaussianForecast, Trajectories, drop_failed
from pac_core.runs.folders import RunFolder
from pac_core.runs.jobs import Arrays, Ids, Job, Receipt, Shard, Stage, cut, digest_shards, pack, unpack
from pac_core.sets.predictor import Score, score_units
from pac_core.splits import Part, Splits, ids_digest, split
from pac_core.thresholds import GroupThreshold, ShardedScores, Threshold

Result = TypeVar("Result")
Replaced: TypeAlias = Callable[[Arrays], str | None]


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be found out, in the words of its field.

    names: `[N]` of the units, for ledger and certificate, in the order of the job's ids
    unit: what is drawn independently, in a word
    model, train: for the certificate; train, what the model was trained on, None if it is not named
    score: of a run that stores scores, in words; None if it stores forecasts
    tune, calibrate, seed: of the split; the rest tests
    replaced: from the arrays of a stored shard to the first unit whose file is another by now, or None
    """

    job: Job
    names: NDArray[np.str_]
    unit: str
    model: Record
    score: str | None
    tune: int
    calibrate: int
    seed: int
    replaced: Replaced | None = None
    train: Record | None = None

    @classmethod
    def of(
        cls,
        name: str,
        ids: Ids,
        stages: Sequence[Stage],
        *,
        size: int,
        names: Any,
        unit: str,
        model: Record,
        score: str | None = None,
        tune: int,
        calibrate: int,
        seed: int,
        replaced: Replaced | None = None,
        train: Record | None = None,
        **configuration: Any,
    ) -> Task:
        """A task whose run folder holds everything that is needed to read it again."""
        names = np.asarray(names)
        about: dict[str, Any] = {"names": ids_digest(names), "unit": unit, "model": asdict(model)}
        about |= {"score": score, "tune": tune, "calibrate": calibrate}
        if train is not None:
            about["train"] = asdict(train)
        if tune < 0 or calibrate < 1 or tune + calibrate > len(ids):
            raise InvalidInput(
                f"tune and calibrate must be at least 0 and 1, and together at most the {len(ids):,} "
                f"{unit}s, got {tune:,} and {calibrate:,}"
            )
        job = Job.of(name, ids, stages, size=size, seed=seed, **about, **configuration)
        return cls(job, names, unit, model, score, tune, calibrate, seed, replaced, train)

    def write(self, folder: RunFolder) -> None:
        """Writes down what the folder is for, and which units there are.

        Refuses a folder whose finished shards are of files that were replaced since.
        """
        folder.claim(self.job)
        if self.replaced is not None:
            finished = folder.receipts(self.job)
            shards = [shard for shard in self.job.shards if shard.number in finished]
            for _, unit in folder.over(shards, lambda _, arrays: self.replaced and self.replaced(arrays)):
                if unit is not None:
                    raise InvalidInput(
                        f"{folder} holds results of another {unit} than there is now: the files of finished "
                        f"{self.unit}s must stay as they are; put it back, or choose another folder"
                    )
        ids = np.concatenate([shard.array for shard in self.job.shards])
        folder.put("units.arrow", pack({"ids": ids, "names": self.names}))

    @classmethod
    def read(cls, folder: RunFolder) -> Task:
        """The task of a folder, to read its results; it cannot be run."""
        about, needed = folder.configuration() or {}, {"unit", "model", "score", "tune", "calibrate"}
        if not needed | {"size", "names"} <= set(about):
            raise InvalidInput(f"{folder} must be the folder of a finished `pac run`, and is none")
        units = unpack(folder.get("units.arrow"))
        ids: Any = units["ids"].tolist()
        if isinstance(ids[0], int) and ids == list(whole := range(ids[0], ids[0] + len(ids))):
            ids = whole  # as they were handed over
        shards = cut(ids, about["size"], seed=about["seed"])
        job = Job(about["task"], tuple(shards), ())
        if (ids_digest(units["names"]), digest_shards(job.shards)) != (about["names"], about["ids"]):
            raise UnreadableFile(f"{folder}/units.arrow is not the one of this run: start the run again")
        parts = {name: about[name] for name in ("unit", "score", "tune", "calibrate", "seed")}
        train = Record(**about["train"]) if "train" in about else None
        return cls(job, units["names"], model=Record(**about["model"]), train=train, **parts)

    def results(self, folder: RunFolder) -> Results:
        """The finished run in a folder."""
        return Results(self, folder)


@dataclass(frozen=True)
class View:
    """Which of the stored forecasts to read: of a smaller ensemble, of the first steps only, or by another
    propagation whose forecasts were stored too; None for all members and steps, and that of the run."""

    members: int | None = None
    horizon: int | None = None
    propagation: str | None = None

    def __str__(self) -> str:
        parts = [f"{n} {name}" for n, name in ((self.members, "members"), (self.horizon, "steps")) if n]
        return ", ".join(parts)

    def __call__(self, arrays: Arrays) -> tuple[Any, Any, Any]:
        """Scores, forecast and truth of these units, those that are stored."""
        words = (self.members, f"of {self.members} members"), (self.propagation, f"by {self.propagation}")
        for kind, what in words:
            names = {name: f"{name}_{kind}" for name in ("mean", "var")}
            if kind is not None and not set(names.values()) <= set(arrays):
                raise InvalidInput(f"the run holds no forecasts {what}; run it with them")
            if kind is not None:
                arrays = arrays | {name: arrays[stored] for name, stored in names.items()}
        if self.horizon is not None:
            if "lengths" not in arrays or not 1 <= self.horizon <= arrays["truth"].shape[1]:
                raise InvalidInput(f"horizon must be within that of the run, got {self.horizon}")
            # Cut first: a forecast that explodes later is one up to there.
            steps = {name: arrays[name][:, : self.horizon] for name in ("mean", "var", "truth")}
            arrays = arrays | steps | {"lengths": np.minimum(arrays["lengths"], self.horizon)}
        return parse_arrays("the run", arrays, own=True)


def read_groups(threshold: Threshold, read: Callable[[Any], Any]) -> Any:
    """`[n]` the groups of the units that `read` reads, if their sets need them; else None."""
    known = isinstance(threshold, GroupThreshold) and threshold.labels is None
    return read(threshold.column) if known else None  # type: ignore[attr-defined]


ALL = View()
"""Every member and step that was stored."""


@dataclass(frozen=True, eq=False)
class Results:
    """A finished run, read part by part: one pass over the shards with its units, in threads."""

    task: Task
    folder: RunFolder
    _files: dict[int, Receipt] = field(default_factory=dict, init=False)
    """the file of each shard that was read, whose checksum is right; no other is read later"""
    _first: list[Arrays] = field(default_factory=list, init=False)
    """the arrays of the first shard, if it was read for its shapes only: the next pass begins with it"""
    _domains: dict[View, tuple[Any, ...] | None] = field(default_factory=dict, init=False)
    _failed: dict[tuple[str, int], NDArray[np.int64]] = field(default_factory=dict, init=False)
    """part and shard: rows of the units without a forecast"""
    _gathered: dict[tuple[str, View], tuple[Any, Any]] = field(default_factory=dict, init=False)

    @cached_property
    def parts(self) -> Splits:
        """The rows of each part, drawn by the names of the units."""
        task = self.task
        return split(task.names, tune=task.tune, calibrate=task.calibrate, seed=task.seed)

    def units(self, part: str) -> NDArray[np.str_]:
        """Names of the units of a part, in the order of their rows."""
        return self.task.names[self._rows(part)]

    def each(
        self, part: str, function: Callable[[Callable[[Any], Any]], Result]
    ) -> Iterator[tuple[Shard, NDArray[np.int64], Result]]:
        """Each shard with units of the part, their rows among all units, and what `function` makes of them.

        function: called in a thread, with what reads these units: from a view, or the name of a stored array,
            to what it reads
        """
        rows, starts = self._rows(part), self._starts()

        def use(shard: Shard, arrays: Arrays) -> tuple[NDArray[np.int64], Result]:
            first = starts[shard.number]
            mine = rows[slice(*np.searchsorted(rows, (first, first + len(shard))))]
            units = {name: array[mine - first] for name, array in arrays.items()}

            @cache
            def read(view: Any) -> Any:
                if isinstance(view, str):
                    if view not in units:
                        raise InvalidInput(f"groups must be stored by the run, which has no array {view!r}")
                    return units[view]
                found = view(units)
                if type(view) is View:
                    self._note(part, shard, mine, view, found[1])
                return found

            return mine, function(read)

        for shard, (mine, made) in self._over(self._shards(part), use):
            yield shard, mine, made

    def over(self, part: str, view: View = ALL) -> Iterator[tuple[Shard, NDArray[np.int64], Any]]:
        """Each shard with units of the part, their rows among all units, and what `view` reads of them."""
        return self.each(part, lambda read: read(view))

    def gather(self, part: str, views: Sequence[View]) -> dict[View, tuple[Any, Any]]:
        """For each view, forecast and truth of the units of a part, failed ones marked; read once."""
        if new := [view for view in dict.fromkeys(views) if (part, view) not in self._gathered]:
            pieces = [read for _, _, read in self.each(part, lambda read: [read(view)[1:] for view in new])]
            if not pieces or pieces[0][0][0] is None:
                raise InvalidInput(f"the run holds no forecasts for the part {part!r}")
            for view, found in zip(new, zip(*pieces, strict=True), strict=True):
                self._gathered[part, view] = _concatenate(*zip(*found, strict=True))
        return {view: self._gathered[part, view] for view in views}

    def gathered(self, part: str, view: View = ALL, *, failed: bool = False) -> tuple[Any, Any]:
        """Forecast and truth of the units of a part that have a forecast; of all, if `failed`."""
        whole = self.gather(part, [view])[view]
        return whole if failed else drop_failed(*whole)

    def column(self, part: str, name: str) -> NDArray[Any]:
        """A stored array of the units of a part, in the order of their rows."""
        return np.concatenate([found for _, _, found in self.each(part, lambda read: read(name))])

    def write_scores(
        self, wanted: Sequence[tuple[Score, str, View]], groups: Any = None
    ) -> list[ShardedScores]:
        """The calibration scores, each kept in its parquet file, computed in one pass over the shards; with
        the `groups` of the units, if there are some."""

        def compute(read: Callable[[View], Any]) -> list[NDArray[np.float64]]:
            found = []
            for score, _, view in wanted:
                given, *pair = read(view)
                values = score_units(score, *pair) if given is None else given
                found.append(np.asarray(values, np.float64))
            return found

        schema = pa.schema({"id": pa.string(), "score": pa.float64()})
        schema = schema if groups is None else schema.append(pa.field("group", pa.string()))
        order = self._rows("calibrate")
        with ExitStack() as stack:
            files = [stack.enter_context(self.folder.create(target)) for _, target, _ in wanted]
            writers = [stack.enter_context(pq.ParquetWriter(file, schema)) for file in files]
            for _, rows, columns in self.each("calibrate", compute):
                cells: dict[str, Any] = {"id": self.task.names[rows].tolist()}
                if groups is not None:
                    cells["group"] = groups[np.searchsorted(order, rows)].tolist()
                for writer, values in zip(writers, columns, strict=True):
                    writer.write_table(pa.table(cells | {"score": values}, schema=schema))
        return [read_scores(self.folder, target) for _, target, _ in wanted]

    def digest(self) -> str:
        """A fingerprint of what was found of all units: that of the files of all shards, each verified."""
        unread = [shard for shard in self.task.job.shards if shard.number not in self._files]
        for _ in self._over(unread, lambda *_: None):
            pass
        listed = sorted(receipt.digest for receipt in self._files.values())
        return hashlib.sha256("".join(listed).encode()).hexdigest()

    def domain(self, view: View = ALL) -> tuple[Any, ...] | None:
        """What is forecast, from the shapes of a shard; None if the run stores scores."""
        if view not in self._domains:
            [(_, arrays)] = self._over(self.task.job.shards[:1], lambda _, arrays: arrays)
            self._first.append(arrays)
            _, forecast, _ = view({name: array[:1] for name, array in arrays.items()})
            self._domains[view] = None if forecast is None else tuple(forecast.domain)
        return self._domains[view]

    def failed(self, part: str) -> NDArray[np.int64]:
        """Rows of the units of a part without a forecast; it is read only if that was never done."""
        shards = self._shards(part)
        if not all((part, shard.number) in self._failed for shard in shards):
            for _ in self.over(part):
                pass
        found = [self._failed[part, shard.number] for shard in shards]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def _note(self, part: str, shard: Shard, rows: NDArray[np.int64], view: View, forecast: Any) -> None:
        self._domains[view] = None if forecast is None else tuple(forecast.domain)
        if view == ALL:
            failed = getattr(forecast, "failed", None)
            self._failed[part, shard.number] = rows[:0] if failed is None else rows[failed]

    def _over(
        self, shards: Sequence[Shard], function: Callable[[Shard, Arrays], Result]
    ) -> Iterator[tuple[Shard, Result]]:
        """One pass; every file is verified, and is the one that was read before."""
        while self._first and shards and shards[0] is self.task.job.shards[0]:
            yield shards[0], function(shards[0], self._first.pop())
            shards = shards[1:]
        yield from self.folder.over(shards, function, self._files)

    def _rows(self, part: str) -> NDArray[np.int64]:
        return cast(Part, getattr(self.parts, part)).rows

    def _starts(self) -> list[int]:
        return [0, *accumulate(map(len, self.task.job.shards))]

    def _shards(self, part: str) -> list[Shard]:
        """Those with units of the part."""
        ends = np.searchsorted(self._rows(part), self._starts())
        return [shard for shard, n in zip(self.task.job.shards, np.diff(ends), strict=True) if n]


def read_scores(folder: RunFolder, name: str) -> ShardedScores:
    """The scores of a parquet file of a run folder, a row group at a time."""

    def read() -> Iterator[tuple[Hashable, Any]]:
        with folder.fs.open(f"{folder.root}/{name}", "rb") as file:
            source = pq.ParquetFile(file)
            for group in range(source.num_row_groups):
                yield group, np.asarray(source.read_row_group(group)["score"])

    with folder.fs.open(f"{folder.root}/{name}", "rb") as file:
        stored = pq.ParquetFile(file).metadata
        sizes = {group: stored.row_group(group).num_rows for group in range(stored.num_row_groups)}
    return ShardedScores(sizes, read)


def _concatenate(forecasts: Any, truths: Any) -> tuple[Any, Any]:
    first = forecasts[0]
    pairs = zip(forecasts, truths, strict=True)
    marks = [np.zeros(len(t), bool) if f.failed is None else f.failed for f, t in pairs]
    names = ("mean", "var") if isinstance(first, GaussianForecast) else ("logits",)
    parts = {name: np.concatenate([getattr(f, name) for f in forecasts]) for name in names}
    forecast = replace(first, **parts, failed=np.concatenate(marks))
    if isinstance(truths[0], Trajectories):
        states, lengths = (np.concatenate([getattr(t, n) for t in truths]) for n in ("states", "lengths"))
        return forecast, Trajectories(states, lengths)
    return forecast, np.concatenate(truths)
