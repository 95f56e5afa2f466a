"""What a finished run holds: one pass over the shards for a part, a few in memory, sums and counts added up.

The tune part alone is gathered where a shape is chosen on all of its units at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pac_core.datasets import parse_arrays
from pac_core.errors import InvalidInput
from pac_core.forecasts import GaussianForecast, Trajectories, drop_failed
from pac_core.runs.folders import RunFolder
from pac_core.runs.jobs import Arrays, Job, Receipt, Shard
from pac_core.scores import merge_moments, moments
from pac_core.sets.predictor import Accumulated, GivenScore, Likelihood, Score, score_units
from pac_core.splits import Part, Splits
from pac_core.thresholds import ShardedScores
from pac_core.tubes.shapes import with_typical

Result = TypeVar("Result")
_SIZED = 1000  # units on which mean widths are measured: they need no more


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


ALL = View()
"""Every member and step that was stored."""


@dataclass(frozen=True, eq=False)
class Results:
    """A finished run, read part by part: one pass over the shards with its units, in threads.

    names: `[N]` of the units, in the order of the job's ids; the parts are drawn by them
    """

    job: Job
    folder: RunFolder
    names: NDArray[np.str_]
    parts: Splits
    _files: dict[int, Receipt] = field(default_factory=dict, init=False)
    """the file of each shard that was read, whose checksum is right; no other is read later"""
    _first: list[Arrays] = field(default_factory=list, init=False)
    """the arrays of the first shard, if it was read for its shapes only: the next pass begins with it"""
    _domains: dict[View, tuple[Any, ...] | None] = field(default_factory=dict, init=False)
    _failed: dict[tuple[str, int], NDArray[np.int64]] = field(default_factory=dict, init=False)
    """part and shard: rows of the units without a forecast"""
    _gathered: dict[tuple[str, View], tuple[Any, Any]] = field(default_factory=dict, init=False)

    def units(self, part: str) -> NDArray[np.str_]:
        """Names of the units of a part, in the order of their rows."""
        return self.names[self._rows(part)]

    def each(
        self, part: str, function: Callable[[Callable[[View], Any]], Result]
    ) -> Iterator[tuple[Shard, NDArray[np.int64], Result]]:
        """Each shard with units of the part, their rows among all units, and what `function` makes of them.

        function: called in a thread, with what reads these units: from a view to what it reads
        """
        rows, starts = self._rows(part), self._starts()

        def use(shard: Shard, arrays: Arrays) -> tuple[NDArray[np.int64], Result]:
            first = starts[shard.number]
            mine = rows[slice(*np.searchsorted(rows, (first, first + len(shard))))]
            units = {name: array[mine - first] for name, array in arrays.items()}

            @cache
            def read(view: View) -> Any:
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

    def fit_paper_score(self, view: View = ALL) -> Likelihood:
        """The paper's score (A + C): its temperatures come from the sums of each shard."""

        def add_up(read: Callable[[View], Any]) -> tuple[Any, Any, Any]:
            _, forecast, truth = read(view)
            wide = forecast.wide()
            return moments(wide.accumulated() if forecast.mean.ndim == 3 else wide, truth), forecast, truth

        sums, horizon = [], False
        some: list[tuple[Any, Any]] = []
        for _, _, (added, forecast, truth) in self.each("tune", add_up):
            sums.append(added)
            horizon = forecast.mean.ndim == 3
            alive = forecast.failed is None or not forecast.failed.all()
            if horizon and alive and sum(len(states) for _, states in some) < _SIZED:
                some.append((forecast, truth))
        score = Likelihood((*([Accumulated()] if horizon else []), merge_moments(sums)))
        return with_typical(score, *drop_failed(*_concatenate(*zip(*some, strict=True)))) if some else score

    def scores(self, score: Score, target: str, view: View = ALL) -> ShardedScores:
        """The calibration scores, computed a shard at a time and kept in the parquet file `target`."""
        return self.write_scores([(score, target, view)])[0]

    def write_scores(self, wanted: Sequence[tuple[Score, str, View]]) -> list[ShardedScores]:
        """The same for several scores, each with its file, in one pass over the calibrate part."""

        def compute(read: Callable[[View], Any]) -> list[NDArray[np.float64]]:
            found = []
            for score, _, view in wanted:
                given, *pair = read(view)
                values = given if isinstance(score, GivenScore) else score_units(score, *pair)
                found.append(np.asarray(values, np.float64))
            return found

        schema = pa.schema({"id": pa.string(), "score": pa.float64()})
        with ExitStack() as stack:
            files = [stack.enter_context(self.folder.create(target)) for _, target, _ in wanted]
            writers = [stack.enter_context(pq.ParquetWriter(file, schema)) for file in files]
            for _, rows, columns in self.each("calibrate", compute):
                ids = self.names[rows].tolist()
                for writer, values in zip(writers, columns, strict=True):
                    writer.write_table(pa.table({"id": ids, "score": values}, schema=schema))
        return [read_scores(self.folder, target) for _, target, _ in wanted]

    def digest(self) -> str:
        """A fingerprint of what was found of all units: that of the files of all shards, each verified."""
        for _ in self._over([s for s in self.job.shards if s.number not in self._files], lambda *_: None):
            pass
        listed = sorted(receipt.digest for receipt in self._files.values())
        return hashlib.sha256("".join(listed).encode()).hexdigest()

    def domain(self, view: View = ALL) -> tuple[Any, ...] | None:
        """What is forecast, from the shapes of a shard; None if the run stores scores."""
        if view not in self._domains:
            [(_, arrays)] = self._over(self.job.shards[:1], lambda _, arrays: arrays)
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
        while self._first and shards and shards[0] is self.job.shards[0]:
            yield shards[0], function(shards[0], self._first.pop())
            shards = shards[1:]
        yield from self.folder.over(shards, function, self._files)

    def _rows(self, part: str) -> NDArray[np.int64]:
        return cast(Part, getattr(self.parts, part)).rows

    def _starts(self) -> list[int]:
        return [0, *accumulate(map(len, self.job.shards))]

    def _shards(self, part: str) -> list[Shard]:
        """Those with units of the part."""
        ends = np.searchsorted(self._rows(part), self._starts())
        return [shard for shard, n in zip(self.job.shards, np.diff(ends), strict=True) if n]


def read_scores(folder: RunFolder, name: str) -> ShardedScores:
    """The scores of a parquet file of a run folder, a row group at a time."""

    def groups(read: Callable[[Any, int], Any]) -> Iterator[tuple[Hashable, Any]]:
        with folder.fs.open(f"{folder.root}/{name}", "rb") as file:
            source = pq.ParquetFile(file)
            for group in range(source.num_row_groups):
                yield group, read(source, group)

    def over(function: Callable[[Any], Any]) -> Iterable[tuple[Hashable, Any]]:
        return groups(lambda source, group: function(np.asarray(source.read_row_group(group)["score"])))

    sizes = dict(groups(lambda source, group: source.metadata.row_group(group).num_rows))
    return ShardedScores(sizes, over)


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
