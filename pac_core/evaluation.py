"""Sets measured on test units: error with its exact interval, sizes, verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pac_core.arrays import check_array, check_labels
from pac_core.bounds import PACLevel, check_level
from pac_core.errors import InvalidInput
from pac_core.forecasts import LogitForecast
from pac_core.scores import label_nll
from pac_core.thresholds import Groups, Threshold

_DOUBT = 0.01  # one-sided, on each end of the interval
QUANTILES = (0.05, 0.25, 0.75, 0.95)


class Outcomes(NamedTuple):
    """`[N]` whether each set missed its truth, its size, and whether it is empty; what sizes are in; and
    `[N]` the groups that have a promise of their own, if any."""

    missed: Any
    size: Any
    empty: Any
    size_in: str
    groups: Any = None


@dataclass(frozen=True)
class Row:
    """One row of an evaluation: of which units, such as "all" or "prediction=correct", how many of their sets
    missed the truth, or are empty; sizes of the sets, with quantiles at 5, 25, 75 and 95%.

    interval: exact (Clopper-Pearson), each end one-sided at 99%
    """

    name: str
    n: int
    errors: int
    interval: tuple[float, float]
    mean: float
    median: float
    smallest: float
    largest: float
    quantiles: tuple[float, float, float, float]
    empty: int

    @property
    def error(self) -> float:
        return self.errors / self.n


@dataclass(frozen=True)
class Evaluation:
    """The verdict of the test part on a promise, with a row for all units, and one for each group.

    promised: how many of the first rows the promise is about: 1, for all units together, unless each group
        has a threshold of its own. Nothing is promised about any other row
    """

    level: PACLevel
    rows: tuple[Row, ...]
    size_in: str
    promised: int = 1

    @property
    def all(self) -> Row:
        return self.rows[0]

    @property
    def refuted(self) -> bool:
        """Whether the 99% lower limit of the error exceeds epsilon; of several rows, that of any, with the
        same doubt for all of them together."""
        doubt, rows = _DOUBT / self.promised, self.rows[: self.promised]
        return any(error_interval(row.errors, row.n, doubt)[0] > self.level.epsilon for row in rows)

    @property
    def verdict(self) -> str:
        word = "refuted" if self.refuted else "not refuted"
        worst = max(self.rows[1 : self.promised] or self.rows[:1], key=lambda row: row.error)
        low, high = worst.interval
        each, of = ("", "") if self.promised == 1 else (" in each group", f" where {worst.name}")
        return (
            f"error at most {self.level.epsilon:g}{each}: {word} by {self.all.n:,} test units "
            f"(measured {worst.error:.4f}{of}, 98% interval {low:.4f} to {high:.4f})"
        )

    def __str__(self) -> str:
        head = ("units", "n", "error", "98% interval", "mean size", "median", "5%..95%", "min..max", "empty")
        table = format_table([head, *(_cells(row) for row in self.rows)])
        return "\n".join([table, f"(size: {self.size_in})", self.verdict])


def format_table(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells for the terminal, in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ([cell.ljust(w) for cell, w in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def evaluate(
    sets: Any, truth: Any, level: PACLevel, *, by: Mapping[str, Any] | None = None, groups: Any = None
) -> Evaluation:
    """Error, exact interval and sizes of `sets` on the test part.

    `sets` has `contains(truth)`, `size()` and `empty`; `by` maps a name to a label per unit `[N]`, and each
    distinct label gives a row. `groups` are those that have a threshold, and so a promise, of their own:
    `Groups` of labels, or names of the units' groups (where small ones were merged, as `names_of` says).

    >>> from pac_core.sets import LabelSets
    >>> sets = LabelSets(np.array([[True, False], [True, True], [False, True], [True, False]]))
    >>> print(evaluate(sets, [0, 1, 1, 1], PACLevel(0.1, 0.1)).verdict)
    error at most 0.1: not refuted by 4 test units (measured 0.2500, 98% interval 0.0025 to 0.8591)
    """
    level = check_level(level)
    if by is not None and not isinstance(by, Mapping):
        raise InvalidInput(f"by must map names to a label for each unit, got {type(by).__name__}")
    classes = np.shape(getattr(sets, "member", 0))[1:]
    known = Groups.of(groups, truth, ("labels", *classes))
    columns = {} if known is None else {known.column: known.names}
    columns |= {name: values for name, values in (by or {}).items() if name not in columns}
    missed, size, empty, size_in, _ = measure_sets(sets, truth)
    rows = [_row("all", missed, size, empty)]
    for name, values in columns.items():
        labels = check_array(name, values, "[N]")
        if len(labels) != len(missed):
            raise InvalidInput(f"{name} must have one entry per unit, got {len(labels)} for {len(missed)}")
        rows += _rows_by(name, labels, missed, size, empty)
    return Evaluation(level, tuple(rows), size_in, 1 if known is None else 1 + len(np.unique(known.names)))


def evaluate_outcomes(outcomes: Sequence[Outcomes], threshold: Threshold) -> Evaluation:
    """The same from what `measure_sets` says of shards: a few bytes of each unit."""
    level, column = threshold.level, getattr(threshold, "column", "")
    if not outcomes:
        raise InvalidInput("outcomes must be of one or more shards, got none")
    whole = [np.concatenate(part) for part in zip(*(one[:3] for one in outcomes), strict=True)]
    rows = [_row("all", *whole)]
    if outcomes[0].groups is not None:
        rows += _rows_by(column, np.concatenate([one.groups for one in outcomes]), *whole)
    return Evaluation(level, tuple(rows), outcomes[-1].size_in, len(rows))


def error_interval(errors: int, n: int, doubt: float = _DOUBT) -> tuple[float, float]:
    """Clopper-Pearson limits of an error probability, each one-sided at 1 - `doubt`."""
    from scipy.special import betaincinv  # see bounds.proves

    low = 0.0 if errors == 0 else float(betaincinv(errors, n - errors + 1, doubt))
    high = 1.0 if errors == n else float(betaincinv(errors + 1, n - errors, 1 - doubt))
    return low, high


def describe_accuracy(right: Any, labels: Any, classes: int) -> str:
    """Top-1 accuracy in a sentence that warns if it is suspiciously low.

    right, labels: `[N]` whether the most likely label is the true one, and the true ones

    An accuracy is suspicious if it covers less than a third of the way from always answering the commonest
    label to always being right, beyond chance.

    >>> describe_accuracy(np.array([True] * 9 + [False]), np.arange(10), 10)
    'accuracy 0.900 on 10 units'
    """
    wrong, n = int((~np.asarray(right)).sum()), len(labels)
    guess = max(float(np.bincount(labels).max() / n), 1 / classes)
    text = f"accuracy {1 - wrong / n:.3f} on {n:,} units"
    if error_interval(wrong, n)[0] <= (1 - guess) * 2 / 3:
        return text
    return (
        f"{text}: SUSPICIOUSLY LOW for {classes:,} classes (a guess: {guess:.3f}); do preprocessing and the "
        "order of the classes match the model's training? The sets keep their promise, but are large"
    )


def calibration_error(forecast: LogitForecast, labels: Any, *, bins: int = 15) -> float:
    """Expected calibration error (ECE): mean gap between confidence and accuracy, over equal-width bins."""
    truth = check_labels("labels", labels, *forecast.logits.shape)
    confidence = np.exp(-label_nll(forecast, forecast.logits.max(axis=1)))
    hit = forecast.predictions() == truth
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(which, weights=confidence - hit, minlength=bins)
    return float(abs(gaps).sum() / len(truth))


def measure_sets(sets: Any, truth: Any, groups: Any = None) -> Outcomes:
    """What `evaluate` needs to know of sets and their truths; `groups` are those with their own promise."""
    if not hasattr(sets, "contains"):
        raise InvalidInput(f"sets must have contains(truth), size() and empty, got {type(sets).__name__}")
    return Outcomes(
        ~np.asarray(sets.contains(truth), dtype=bool),
        np.asarray(sets.size(), dtype=np.float64),
        np.asarray(sets.empty, dtype=bool),
        getattr(sets, "size_in", "as the sets measure it"),
        groups,
    )


def _rows_by(name: str, labels: Any, *measured: Any) -> list[Row]:
    """A row for each distinct label."""
    masks = ((label, labels == label) for label in np.unique(labels))
    return [_row(f"{name}={label}", *(part[mask] for part in measured)) for label, mask in masks]


def _row(name: str, missed: Any, size: Any, empty: Any) -> Row:
    n, errors, empties = len(missed), int(missed.sum()), int(empty.sum())
    mean, median, least, most = (float(of(size)) for of in (np.mean, np.median, np.min, np.max))
    quantiles: Any = tuple(np.quantile(size, QUANTILES).tolist())
    interval = error_interval(errors, n)
    return Row(name, n, errors, interval, mean, median, least, most, quantiles, empties)


def _cells(row: Row) -> tuple[str, ...]:
    known = row.name, f"{row.n:,}", f"{row.error:.4f}", f"{row.interval[0]:.4f}..{row.interval[1]:.4f}"
    sizes = f"{row.mean:.4g}", f"{row.median:.4g}", f"{row.quantiles[0]:.4g}..{row.quantiles[3]:.4g}"
    return *known, *sizes, f"{row.smallest:.4g}..{row.largest:.4g}", f"{row.empty:,}"
