"""The units in a file: their scores, or their forecasts and truths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import Array, labels_for, numbers
from pac_core.errors import InvalidInput, UnreadableFile
from pac_core.forecasts import GaussianForecast, LogitForecast, count_units
from pac_core.splits import unique_names
from pac_core.tables import ABOUT, file_digest, read_arrays
from pac_core.truths import Trajectories, as_given

KEYS = """\
A file holds named arrays:
  scores [N]                                  calibration scores, larger is worse; or
  logits or probabilities [N, K], labels [N]  a classifier's forecasts, the truth in 0..K-1; or
  mean, var, truth [N, D]                     a regressor's Gaussians (var may be [N, D, D]); or
  mean, var, truth [N, H, D]                  trajectories; var is the variance of each step alone,
                                              lengths [N] the number of steps if units end early;
  ids [N]                                     names of the units, such as file names;
  failed [N]                                  units without a forecast (a broken image, a diverged
                                              model), whose logits are NaN: they count as errors.
If logits, labels or ids have other names, give --logits, --labels or --ids.
An npy file holds scores [N], or logits [N, K] with --labels labels.npy. In csv and parquet files the
columns are score, label, id, logit_0, logit_1, ... (or probability_, mean_, var_, truth_)."""


ROUNDED = "float16:"
"""Prefix of the digest of a model whose logits were rounded to float16."""
ROWS = "rows of the file"
"""The name of the ids of a file that has none."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Units with either scores, or forecasts and (where known) truths.

    ids: `[N]` strings
    named: whether the file names its units; if not, they are rows of this very file
    scores: `[N]` or None
    forecast, truth: or None
    model: name and digest of the model that made the forecasts, if the file states them
    """

    ids: NDArray[np.str_]
    named: bool
    scores: Any = None
    forecast: LogitForecast | GaussianForecast | None = None
    truth: Array = None
    model: tuple[str, str] | None = None

    def take(self, rows: Any) -> Dataset:
        """The units of these rows."""
        scores, truth = (None if part is None else part[rows] for part in (self.scores, self.truth))
        forecast = None if self.forecast is None else self.forecast.take(rows)
        return replace(self, ids=self.ids[rows], scores=scores, forecast=forecast, truth=truth)


def read_dataset(
    path: str | os.PathLike[str],
    *,
    ids: str | None = None,
    labels: str | os.PathLike[str] | None = None,
    logits: str | None = None,
) -> Dataset:
    """The units in a file.

    ids, logits: the arrays that hold them, by default "ids" (if there is one) and "logits"
    labels: the array that holds the labels, by default "labels"; or a file of them, ``labels.npy``, or
        ``labels.npz:y`` if it holds several arrays

    Forecasts are checked here, so that a bad row is named by its row in the file.
    """
    arrays = read_arrays(path)
    if labels is not None:
        arrays["labels"] = _labels(path, arrays, labels)
    if logits is not None:
        chosen = named_array(path, arrays, "--logits", logits)
        for key in {"scores", "probabilities"} & set(arrays):
            del arrays[key]
        arrays["logits"] = chosen
    if ids is not None and ids not in arrays:
        raise UnreadableFile(f"{path} has no array {ids!r}, but {', '.join(sorted(arrays))}")
    scores, forecast, truth = meaning(path, arrays)
    n = len(scores) if forecast is None else count_units(forecast)
    named, key = ids is not None or "ids" in arrays, ids or "ids"
    if named:
        names = unique_names(key, arrays[key])
    else:  # the same row of another file is another unit
        digest = file_digest(path)[:16]
        names = np.array([f"{digest}:{row}" for row in range(n)])
    if len(names) != n:
        raise InvalidInput(f"{key} must have one entry per unit, got {len(names)} for {n}")
    name, known = known_model(arrays)
    model = None if name is None or known is None else (name, known)
    return Dataset(names, named, scores, forecast, truth, model)


def known_model(arrays: Mapping[str, NDArray[Any]]) -> tuple[str | None, str | None]:
    """Name and digest of the model that made the forecasts, as far as the file states them."""
    name, digest = (str(arrays[key]) if key in arrays and not arrays[key].ndim else None for key in ABOUT)
    return name, digest


def meaning(path: Any, arrays: Mapping[str, NDArray[Any]], *, own: bool = False) -> tuple[Any, Any, Any]:
    """Scores, forecast and truth, whichever the file has.

    own: whether our own workers made the arrays; a unit on which the model diverged is then marked as failed,
        whereas a file must mark it
    """
    if "scores" in arrays:
        return numbers("scores", arrays["scores"], "[N]"), None, None
    if "logits" in arrays or "probabilities" in arrays:
        if "logits" in arrays:
            logits = LogitForecast(arrays["logits"], failed=arrays.get("failed"))
        else:
            logits = LogitForecast.from_probabilities(arrays["probabilities"])
        logits.check()
        labels = arrays.get("labels")
        return None, logits, None if labels is None else labels_for("labels", labels, *logits.logits.shape)
    if {"mean", "var"} <= set(arrays):
        # A list of numbers is a regressor of one dimension.
        parts = {name: arrays[name] for name in ("mean", "var", "truth") if name in arrays}
        parts = {name: part[:, None] if part.ndim == 1 else part for name, part in parts.items()}
        gaussian = GaussianForecast(parts["mean"], parts["var"], failed=arrays.get("failed"))
        gaussian = gaussian.mark_failures() if own else gaussian
        truth: Any = parts.get("truth")
        if truth is not None and "lengths" in arrays:
            truth = Trajectories(truth, arrays["lengths"])
        if truth is None:
            return None, gaussian, gaussian.check(failures=True)
        return None, gaussian, as_given(truth, gaussian.check(truth, failures=True))
    raise UnreadableFile(f"{path} has the arrays {', '.join(sorted(arrays))}. {KEYS}")


def named_array(path: Any, arrays: Mapping[str, NDArray[Any]], option: str, name: str) -> NDArray[Any]:
    """The array of this name, or the columns name_0, name_1, ... of a csv or parquet file, as numbers."""
    columns = [f"{name}_{i}" for i in range(len(arrays)) if f"{name}_{i}" in arrays]
    if name in arrays:
        array = arrays[name]
    elif columns and columns[-1] == f"{name}_{len(columns) - 1}":
        array = np.stack([arrays[column] for column in columns], axis=1)
    else:
        known, file = ", ".join(sorted(arrays)), " (nor is there such a file)" if option == "--labels" else ""
        raise UnreadableFile(f"{option} must name an array of {path}, which has {known}, got {name!r}{file}")
    if array.dtype.kind != "U":
        return array
    try:
        values = array.astype(np.float64)
    except ValueError:
        raise UnreadableFile(f"{option} must name an array of numbers, got {name!r} of {path}") from None
    return values.astype(np.int64) if option == "--labels" and (values == np.floor(values)).all() else values


def label_files(labels: str | os.PathLike[str]) -> list[Path]:
    """The files that `labels` of `read_dataset` may mean: FILE, and FILE of FILE:ARRAY."""
    text = os.fspath(labels)
    return [Path(text), *([Path(text.rpartition(":")[0])] if ":" in text else [])]


def _labels(path: Any, arrays: Mapping[str, NDArray[Any]], labels: str | os.PathLike[str]) -> NDArray[Any]:
    """Labels from an array of the data, or from a file of their own."""
    text, files = os.fspath(labels), [file for file in label_files(labels) if file.is_file()]
    inside = isinstance(labels, str) and text in arrays
    if inside and files:
        raise InvalidInput(f"--labels {text!r} is an array of {path} and a file: write ./{text} for the file")
    if inside or not files:
        return named_array(path, arrays, "--labels", text)
    stored = read_arrays(files[0])
    if files[0] != Path(text):
        return named_array(files[0], stored, "--labels", text.rpartition(":")[2])
    if len(stored) > 1 and "labels" not in stored:
        raise InvalidInput(f"--labels must say which array of {text} holds them, as in {text}:{min(stored)}")
    return stored["labels"] if "labels" in stored else next(iter(stored.values()))
