"""From the columns of a table to the numbers a network reads, fitted on the training rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_vision.tabular import Table

_FURTHEST = 5.0  # standard deviations; a network is not asked beyond


@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers: imputed by the median, then standardised; a flag says where it was missing."""

    name: str
    median: float
    mean: float
    scale: float
    flagged: bool

    def encode(self, table: Table) -> NDArray[np.float64]:
        """`[N, 1]` or `[N, 2]`."""
        values = table.numbers(self.name)
        gone = np.isnan(values)
        filled = (np.where(gone, self.median, values) - self.mean) / self.scale
        filled = np.clip(filled, -_FURTHEST, _FURTHEST)
        return np.stack([filled, gone], axis=1) if self.flagged else filled[:, None]


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of categories, one number for each that training saw; missing is one of them.

    A category that training never saw is a row of zeros. Cells are compared as written, in any file.
    """

    name: str
    categories: tuple[str, ...]

    def encode(self, table: Table) -> NDArray[np.float64]:
        """`[N, C]`."""
        column = table.text(self.name)
        return np.asarray(column[:, None] == np.array(self.categories), dtype=np.float64)


@dataclass(frozen=True)
class Encoder:
    """Columns with the numbers fitted on training rows; call it on a table for float32 `[N, F]`."""

    columns: tuple[NumericColumn | CategoricalColumn, ...]

    def __call__(self, table: Table) -> NDArray[np.float32]:
        return np.concatenate([column.encode(table) for column in self.columns], axis=1).astype(np.float32)


def fit_encoder(table: Table, names: Sequence[str], rows: NDArray[np.int64]) -> Encoder:
    """The encoder of the columns `names`, fitted on the training `rows` alone.

    A column that says nothing in training (one value, or none) is left out. Means, medians and categories of
    the other rows are never looked at, so those stay fit to calibrate and to test.

    >>> table = Table("t", np.array(["a", "b", "c"]), {"x": np.array([1.0, 3.0, 99.0]),
    ...               "kind": np.array(["red", "blue", "green"])})
    >>> fit_encoder(table, ["x", "kind"], np.array([0, 1]))(table).tolist()
    [[-1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [5.0, 0.0, 0.0]]
    """
    fitted: list[NumericColumn | CategoricalColumn] = []
    for name in names:
        seen = table.column(name)[rows]
        if not table.is_numeric(name):
            categories = np.unique(seen)
            if len(categories) > 1:
                fitted.append(CategoricalColumn(name, tuple(categories.tolist())))
            continue
        known = seen[~np.isnan(seen)]
        flagged = 0 < len(known) < len(seen)
        if len(known) and (known.std() > 0 or flagged):
            median = float(np.median(known))
            filled = np.where(np.isnan(seen), median, seen)
            scale = float(filled.std()) or 1.0
            fitted.append(NumericColumn(name, median, float(filled.mean()), scale, flagged))
    if not fitted:
        raise InvalidInput(f"no column of the {len(rows):,} training rows tells one row from another")
    return Encoder(tuple(fitted))
