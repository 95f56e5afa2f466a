"""From stored shards to certificates: one shard in memory at a time, sums and counts added up.

The tune part alone is gathered where a shape is chosen on all of its units at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cluster.errors import Incomplete
from cluster.scoring import Arrays, Job
from cluster.shards import Shard
from cluster.storage import RunFolder
from pac_core import (
    Evaluation,
    GaussianForecast,
    InvalidInput,
    Likelihood,
    Part,
    Predictor,
    ShardedScores,
    Splits,
    Trajectories,
    evaluate_shards,
    merge_moments,
    moments,
)
from pac_core.datasets import meaning
from pac_core.failures import to_tune_on, unit_scores
from pac_core.predictors import Accumulated, GivenScore, Score
from pac_core.tubes import with_typical

_SIZED = 1000  # units on which mean widths are measured: they need no more


@dataclass(frozen=True)
class View:
    """Which of the stored forecasts to read.

    members: size of a smaller ensemble whose forecasts were stored too; None for all members
    horizon: the first so many steps; None for all
    """

    members: int | None = None
    horizon: int | None = None

    def __str__(self) -> str:
        parts = [f"{n} {name}" for n, name in ((self.members, "members"), (self.horizon, "steps")) if n]
        return ", ".join(parts)

    def __call__(self, arrays: Arrays) -> tuple[Any, Any, Any]:
        """Scores, forecast and truth of these units, those that are stored."""
        if self.members is not None:
            names = {name: f"{name}_{self.members}" for name in ("mean", "var")}
            if not set(names.values()) <= set(arrays):
                raise InvalidInput(f"the run holds no forecasts of {self.members} members; run it with them")
            arrays = arrays | {name: arrays[stored] for name, stored in names.items()}
        if self.horizon is not None:
            if "lengths" not in arrays or not 1 <= self.horizon <= arrays["truth"].shape[1]:
                raise InvalidInput(f"horizon must be within that of the run, got {self.horizon}")
            # Cut first: a forecast that explodes later is one up to there.
            steps = {name: arrays[name][:, : self.horizon] for name in ("mean", "var", "truth")}
            arrays = arrays | steps | {"lengths": np.minimum(arrays["lengths"], self.horizon)}
        return meaning("the run", arrays, own=True)


ALL = View()
"""Every member and step that was stored."""


@dataclass(frozen=True, eq=False)
class Results:
    """A finished run, read part by part.

    names: `[N]` of the units, in the order of the job's ids: those of the ledger and the certificate
    parts: drawn by them
    """

    job: Job
    folder: RunFolder
    names: NDArray[np.str_]
    parts: Splits

    def over(self, part: str, view: View = ALL) -> Iterator[tuple[Shard, NDArray[np.int64], Any]]:
        """Each shard with units of the part, their rows among all units, and what `view` reads of them."""
        rows, first = getattr(self.parts, part).rows, 0
        for shard, arrays in self.folder.over(self.job.shards, lambda shard, arrays: arrays):
            low, high = np.searchsorted(rows, (first, first + len(shard)))
            mine = rows[low:high]
            if len(mine):
                yield shard, mine, view({name: array[mine - first] for name, array in arrays.items()})
            first += len(shard)

    def gathered(self, part: str, view: View = ALL) -> tuple[Any, Any]:
        """Forecast and truth of the units of a part that have a forecast, in memory, to choose a score on."""
        found = [(forecast, truth) for _, _, (_, forecast, truth) in self.over(part, view)]
        if not found or found[0][0] is None:
            raise InvalidInput(f"the run holds no forecasts for the part {part!r}")
        return to_tune_on(*_join(*zip(*found, strict=True)))

    def paper_score(self, view: View = ALL) -> Likelihood:
        """The paper's score (A + C): its temperatures come from the sums of each shard.

        How wide its tubes are beside the states is taken from the first thousand units or so.
        """
        sums, horizon = [], False
        some: list[tuple[Any, Any]] = []
        for _, _, (_, forecast, truth) in self.over("tune", view):
            horizon = forecast.mean.ndim == 3
            wide = forecast.wide()
            sums.append(moments(wide.accumulated() if horizon else wide, truth))
            alive = forecast.failed is None or not forecast.failed.all()
            if horizon and alive and sum(len(states) for _, states in some) < _SIZED:
                some.append((forecast, truth))
        score = Likelihood((*([Accumulated()] if horizon else []), merge_moments(sums)))
        return with_typical(score, *to_tune_on(*_join(*zip(*some, strict=True)))) if some else score

    def scores(self, score: Score, target: str, view: View = ALL) -> ShardedScores:
        """The calibration scores, computed a shard at a time and kept in the parquet file `target`."""
        with self.folder.writing(target) as file:
            schema = pa.schema({"id": pa.string(), "score": pa.float64()})
            with pq.ParquetWriter(file, schema) as writer:
                for _, rows, (given, forecast, truth) in self.over("calibrate", view):
                    values = given if isinstance(score, GivenScore) else unit_scores(score, forecast, truth)
                    columns = {"id": self.names[rows].tolist(), "score": np.asarray(values, np.float64)}
                    writer.write_table(pa.table(columns, schema=schema))
        return sharded(self.folder, target)

    def evaluate(self, predictor: Predictor, view: View = ALL) -> Evaluation:
        """Error and sizes on the test part."""
        pairs = ((predictor.sets(forecast), truth) for _, _, (_, forecast, truth) in self.over("test", view))
        return evaluate_shards(pairs, predictor.threshold.level)

    def digest(self) -> str:
        """A fingerprint of what was found of all units: that of the files of all shards."""
        found = self.folder.receipts(self.job)
        if len(found) != len(self.job.shards):
            raise Incomplete(f"{self.folder} has {len(found):,} sound shards of {len(self.job.shards):,}")
        listed = sorted(receipt.digest for receipt in found.values())
        return hashlib.sha256("".join(listed).encode()).hexdigest()

    def domain(self, view: View = ALL) -> tuple[Any, ...] | None:
        """What is forecast, from the shapes of the first shard; None if the run stores scores."""
        _, arrays = next(self.folder.over(self.job.shards, lambda shard, arrays: arrays))
        _, forecast, _ = view({name: array[:1] for name, array in arrays.items()})
        return None if forecast is None else tuple(forecast.domain)


def sharded(folder: RunFolder, name: str) -> ShardedScores:
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


def part_names(results: Results, part: str) -> NDArray[np.str_]:
    """Names of the units of a part, in the order of their rows."""
    chosen: Part = getattr(results.parts, part)
    return results.names[chosen.rows]


def _join(forecasts: Any, truths: Any) -> tuple[Any, Any]:
    first = forecasts[0]
    marks = [
        np.zeros(len(t), bool) if f.failed is None else f.failed
        for f, t in zip(forecasts, truths, strict=True)
    ]
    names = ("mean", "var") if isinstance(first, GaussianForecast) else ("logits",)
    parts = {name: np.concatenate([getattr(f, name) for f in forecasts]) for name in names}
    forecast = replace(first, **parts, failed=np.concatenate(marks))
    if isinstance(truths[0], Trajectories):
        states, lengths = (np.concatenate([getattr(t, n) for t in truths]) for n in ("states", "lengths"))
        return forecast, Trajectories(states, lengths)
    return forecast, np.concatenate(truths)
