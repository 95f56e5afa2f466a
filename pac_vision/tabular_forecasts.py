"""A model trained on some rows of a table, and what it says of all the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import GaussianForecast, InvalidInput, LogitForecast, split
from pac_vision.tabular import Table
from pac_vision.tabular_designs import TableDesign
from pac_vision.tabular_features import Encoder, fit_encoder
from pac_vision.tabular_models import LabelModel, ValueModel, fit_labels, fit_values

OTHER = "(any other)"
"""The class of every label that the training rows lack, where the file does not declare its classes."""


@dataclass(frozen=True, eq=False)
class TableModel:
    """Networks with the preparation of the columns they read, both fitted on training rows."""

    encoder: Encoder
    networks: LabelModel | ValueModel

    @property
    def classes(self) -> tuple[str, ...]:
        """What the labels are places in; none for a model of values."""
        return self.networks.classes if isinstance(self.networks, LabelModel) else ()

    def forecast(self, table: Table) -> LogitForecast | GaussianForecast:
        """Of every row of a table with the same columns; the target need not be there."""
        return self.networks.forecast(self.encoder(table))


@dataclass(frozen=True, eq=False)
class TableForecast:
    """What a model trained on some rows says of all the others.

    ids: `[N]` of the others; train_ids of those trained on
    forecast, truth: of the others; labels are places in `model.classes`, values are `[N, 1]`
    """

    ids: NDArray[np.str_]
    train_ids: NDArray[np.str_]
    forecast: LogitForecast | GaussianForecast
    truth: NDArray[Any]
    model: TableModel


def forecast_rest(table: Table, design: TableDesign, *, seed: int) -> TableForecast:
    """Train on `design.train` rows drawn by `seed`, forecast all others.

    Preparation of the columns and of the labels is fitted on the training rows alone, so that the others may
    calibrate and test.
    """
    design.test_rows(table)
    names = table.inputs(design.target, leave_out=design.leave_out)
    # `split` draws two parts and the rest: here the rows to train on, and all others.
    drawn = split(table.ids, tune=0, calibrate=design.train, seed=seed)
    seen, rest = drawn.calibrate.rows, drawn.test.rows
    encoder = fit_encoder(table, names, seen)
    inputs = encoder(table)[seen]
    networks: LabelModel | ValueModel
    truth: NDArray[Any]
    if design.task == "labels":
        truth, classes = places(table, design.target, seen)
        networks = fit_labels(inputs, truth[seen], classes, seed=seed)
    else:
        truth = table.values(design.target)[:, None]
        networks = fit_values(inputs, truth[seen, 0], seed=seed)
    model = TableModel(encoder, networks)
    return TableForecast(
        table.ids[rest], table.ids[seen], model.forecast(table).take(rest), truth[rest], model
    )


def places(table: Table, target: str, seen: Any) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """`[N]` the labels as places in the classes, and the classes.

    They are those the file declares; where it does not, those of the training rows and `(any other)`,
    because classes learned from calibration rows would be a look at them.
    """
    labels = table.labels(target)
    classes = table.declared.get(target, ())
    strange = set(labels.tolist()) - set(classes)
    if classes and strange:
        raise InvalidInput(f"target {target!r} must hold declared classes only, got {min(strange)!r}")
    if len(np.unique(labels[seen])) < 2:
        raise InvalidInput(f"target {target!r} must have two classes or more in the training rows, got one")
    classes = classes or (*np.unique(labels[seen]).tolist(), OTHER)
    known = {name: place for place, name in enumerate(classes)}
    return np.array([known.get(label, len(classes) - 1) for label in labels.tolist()]), classes
