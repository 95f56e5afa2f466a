"""What a model predicts: logits over labels, or Gaussians."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_numpy_array, is_torch_array

from pac_core.arrays import Array, Floats, booleans, doubles, like, number, plain
from pac_core.covariances import definite, distance2, factors
from pac_core.errors import InvalidInput
from pac_core.normalisers import log_sum_exp
from pac_core.truths import Trajectories, shaped

_NO_TRUTH: Any = object()


@dataclass(frozen=True, eq=False)
class LogitForecast:
    """A categorical distribution for each of N inputs: f(y|x) = softmax(tau * logits)[y].

    logits: `[N, K]` float16, float32 or float64; -inf is a label of probability zero
    tau: the temperature as in the paper: it multiplies the logits
    failed: `[N]` bool, units without a forecast (a broken image), whose logits are NaN; None if there are
        none
    """

    logits: Floats
    tau: float = 1.0
    failed: Any = None

    def __post_init__(self) -> None:
        logits = plain("logits", self.logits, "[N, K]")
        if logits.dtype not in (np.float16, np.float32, np.float64):
            raise InvalidInput(f"logits must be float16, float32 or float64, got dtype {logits.dtype}")
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "tau", float(positive_tau(self.tau, "one number")))
        if self.failed is None:
            return
        failed = booleans("failed", self.failed, len(logits))
        if (strange := failed & ~np.isnan(logits).all(axis=1)).any():
            raise InvalidInput(f"a failed unit must have logits NaN, got numbers in row {strange.argmax()}")
        object.__setattr__(self, "failed", failed if failed.any() else None)

    @classmethod
    def from_probabilities(cls, probabilities: Any) -> LogitForecast:
        """The forecast with these probabilities `[N, K]`, each row summing to 1.

        Logs are taken in float64, because those of float32 differ between CPUs by more than scores may. Those
        of float16 probabilities are rounded to float16, of which there are so few that no last bit matters.
        """
        array = plain("probabilities", probabilities, "[N, K]")
        if array.dtype.kind != "f" or not ((array >= 0) & (array <= 1)).all():
            raise InvalidInput("probabilities must be floats in [0, 1], got others")
        sums = array.sum(axis=1, dtype=np.float64)
        slack = 1e-3 if array.dtype == np.float64 else 1e-2
        if abs(sums - 1).max() > slack:
            worst = int(abs(sums - 1).argmax())
            raise InvalidInput(
                f"each row of probabilities must sum to 1 within {slack:g}, got {sums[worst]:g} in row "
                f"{worst}; normalise them, or give logits"
            )
        with np.errstate(divide="ignore"):
            logs = np.log(array, dtype=np.float64)
        return cls(logs.astype(np.float16) if array.dtype == np.float16 else logs)

    @cached_property
    def normaliser(self) -> tuple[Floats, Floats]:
        """`[N]` shift and `[N]` log: the sum of exp(tau * logits - shift) is exp(log).

        Kept apart, so that logits of any size lose no digits.
        """
        return log_sum_exp(self.logits, self.tau)

    @property
    def domain(self) -> tuple[str, int]:
        """What is forecast: ("labels", K)."""
        return ("labels", self.logits.shape[1])

    def check(self) -> None:
        """Refuse logits that are not numbers, naming the row, except those of failed units."""
        if self.failed is None:
            self.normaliser  # noqa: B018
        elif (wrong := np.isnan(self.logits).any(axis=1) & ~self.failed).any():
            raise InvalidInput(f"logits of units that did not fail must be numbers, got row {wrong.argmax()}")
        elif not self.failed.all():
            self.take(~self.failed).check()

    def tempered(self, tau: float) -> LogitForecast:
        """The forecast with log f multiplied by `tau` and normalised again."""
        return replace(self, tau=self.tau * float(positive_tau(tau, "one number")))

    def take(self, rows: Any) -> LogitForecast:
        """The forecast of these rows."""
        failed = None if self.failed is None else self.failed[rows]
        return replace(self, logits=self.logits[rows], failed=failed)

    def predictions(self) -> Any:
        """`[N]` the most probable label."""
        return self.logits.argmax(axis=1)


@dataclass(frozen=True, eq=False)
class GaussianForecast:
    """A Gaussian for each of B inputs, of one step or of a horizon of H steps.

    mean: `[B, D]` or `[B, H, D]`, numpy or torch
    var: variances of the shape of `mean`, or covariances with one more axis `[..., D, D]`
    failed: `[B]` bool, units without a forecast (the model diverged); None if there are none. Their mean
        becomes NaN

    Steps are independent of each other, as in the paper. The constructor checks shapes only, so that a
    planner may build forecasts thousands of times a second; whatever is fitted to a forecast checks its
    numbers. A unit that is not a Gaussian is refused there unless it is marked as failed, by hand or by
    `mark_failures`; then it scores +inf and counts as an error. Its set is empty either way.
    """

    mean: Array
    var: Array
    failed: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        try:
            array_namespace(self.mean)
            array_namespace(self.mean, self.var)
            self.mean.shape, self.var.shape  # noqa: B018
        except (TypeError, AttributeError):
            kinds = f"{type(self.mean).__name__} and {type(self.var).__name__}"
            raise InvalidInput(f"mean and var must be arrays of one library, got {kinds}") from None
        for name, array in (("mean", self.mean), ("var", self.var)):
            if "float" not in str(array.dtype):
                raise InvalidInput(f"{name} must hold floats, got dtype {array.dtype}")
        shape = tuple(self.mean.shape)
        if len(shape) not in (2, 3) or 0 in shape:
            raise InvalidInput(f"mean must have shape [B, D] or [B, H, D], none of them 0, got {shape}")
        if tuple(self.var.shape) not in (shape, (*shape, shape[-1])):
            raise InvalidInput(
                f"var must have the shape of mean {shape}, or that with one more axis of "
                f"{shape[-1]} for covariances, got {tuple(self.var.shape)}"
            )
        if self.failed is None:
            return
        failed = booleans("failed", self.failed, shape[0])
        object.__setattr__(self, "failed", failed if failed.any() else None)
        if (strange := failed & like(failed, _gaussian(self.mean, self.var))).any():
            xp = array_namespace(self.mean)
            rows = strange if is_numpy_array(self.mean) else xp.asarray(strange, device=self.mean.device)
            marked = xp.reshape(rows, (-1,) + (1,) * (len(shape) - 1))
            object.__setattr__(self, "mean", xp.where(marked, like(self.mean, np.nan), self.mean))

    def mark_failures(self) -> GaussianForecast:
        """Mark as failed every unit whose numbers are not Gaussian at some step.

        For a model's own output: a unit on which it diverges counts as an error.

        >>> diverged = GaussianForecast(np.array([[0.0], [np.inf]]), np.ones((2, 1)))
        >>> diverged.mark_failures().failed.tolist()
        [False, True]
        """
        lost = ~like(np.zeros(1, bool), _gaussian(self.mean, self.var))
        return replace(self, failed=lost if self.failed is None else lost | self.failed)

    @property
    def domain(self) -> tuple[str, *tuple[int, ...]]:
        """What is forecast: ("vectors", D) or ("trajectories", H, D)."""
        return ("vectors" if self.mean.ndim == 2 else "trajectories", *map(int, self.mean.shape[1:]))

    def take(self, rows: Any) -> GaussianForecast:
        """The forecast of these rows."""
        here = rows.cpu().numpy() if is_torch_array(rows) else rows
        failed = None if self.failed is None else self.failed[here]
        return replace(self, mean=self.mean[rows], var=self.var[rows], failed=failed)

    @property
    def full(self) -> bool:
        """Whether `var` holds covariances rather than variances."""
        return bool(self.var.ndim > self.mean.ndim)

    @property
    def variances(self) -> Array:
        """`[..., D]` the marginal variances."""
        xp = array_namespace(self.var)
        return xp.linalg.diagonal(self.var) if self.full else self.var

    def log_det(self) -> Array:
        """`[...]` the log determinant of each covariance."""
        xp = array_namespace(self.var)
        if self.full:
            return sum(xp.log(pivot) for pivot, _ in self._factors)
        return xp.sum(xp.log(self.var), axis=-1)

    def mahalanobis2(self, truth: Array) -> Array:
        """`[...]` squared Mahalanobis distance of `truth` `[..., D]` from the mean."""
        xp = array_namespace(self.mean)
        error = xp.where(xp.isnan(truth), xp.zeros_like(self.mean), truth - self.mean)  # steps after an end
        if self.full:
            lost = xp.any(xp.isinf(error), axis=-1)  # elimination would turn inf into NaN
            near = xp.where(lost[..., None], xp.zeros_like(error), error)
            distance = distance2(self._factors, near)
            return xp.where(lost, like(distance, np.inf), distance)
        return xp.sum((error / xp.sqrt(self.var)) ** 2, axis=-1)

    @cached_property
    def _factors(self) -> list[tuple[Array, Array]]:
        return factors(self.var)

    def spread2(self, direction: Array) -> Array:
        """`[...]` variance along `direction`, `[D]` or of the shape of the mean."""
        xp = array_namespace(self.mean)
        if self.full:
            along = xp.sum(self.var * direction[..., None, :], axis=-1)
            return xp.sum(along * direction, axis=-1)
        return xp.sum(self.var * direction * direction, axis=-1)  # direction**2 may vanish

    def tempered(self, tau: Any) -> GaussianForecast:
        """Variances divided by `tau`: one number, or one per step `[H]`."""
        steps = positive_tau(tau, "one number or [H]").astype(np.float64)
        if steps.ndim == 1 and tuple(self.mean.shape[1:-1]) != steps.shape:
            raise InvalidInput(f"tau must be one number or one per step, got shape {steps.shape}")
        trailing = (1,) * (1 + self.full if steps.ndim else 0)
        return replace(self, var=self.var / like(self.var, steps.reshape((*steps.shape, *trailing))))

    def accumulated(self) -> GaussianForecast:
        """Variances summed over the steps so far: Sigma~_t of section 3.6 of the paper."""
        if self.mean.ndim != 3:
            raise InvalidInput(f"only a horizon [B, H, D] accumulates, got {tuple(self.mean.shape)}")
        xp = array_namespace(self.var)
        with np.errstate(over="ignore", invalid="ignore"):  # of units that failed
            return replace(self, var=xp.cumulative_sum(self.var, axis=1))

    def wide(self) -> GaussianForecast:
        """The same in float64, in which scores and sets are computed."""
        return replace(self, mean=doubles(self.mean), var=doubles(self.var))

    def sound(self) -> Array:
        """`[B]` whether a unit's forecast is Gaussian at every step."""
        return _gaussian(self.mean, self.var)

    def for_sets(self) -> tuple[GaussianForecast, Array]:
        """The forecast in float64, and `[B]` which units are sound; the others become standard normal.

        The sets of the others are empty; the stand-in only avoids warnings.
        """
        xp = array_namespace(self.mean)
        wide = self.wide()
        sound = wide.sound()
        if bool(xp.all(sound)):
            return wide, sound
        where = xp.reshape(sound, (-1,) + (1,) * (self.mean.ndim - 1))
        unit = xp.ones_like(wide.mean)
        if self.full:
            unit = unit[..., None] * like(wide.var, np.eye(self.mean.shape[-1]))
        mean = xp.where(where, wide.mean, xp.zeros_like(wide.mean))
        var = xp.where(where[..., None] if self.full else where, wide.var, unit)
        return GaussianForecast(mean, var), sound

    def check(self, truth: Any = _NO_TRUTH, *, failures: bool = False) -> Any:
        """Refuse a forecast that is not Gaussian; return `truth` in float64 and the mean's library.

        The truth is never rounded to the mean's precision. It may hold infinities, the mark of a failed unit;
        NaN is refused. Steps after the end of `Trajectories` become NaN.

        failures: accept units marked as failed
        """
        lost = ~like(np.zeros(1, bool), self.sound())
        known = np.zeros_like(lost) if self.failed is None else self.failed
        if (wrong := lost & ~known if failures else lost).any():
            rule = "positive definite covariances" if self.full else "variances above 0"
            why = "has no score of its own" if known[wrong.argmax()] else "counts as an error"
            raise InvalidInput(
                f"mean and var must be finite numbers with {rule}, got others in {int(wrong.sum())} units, "
                f"the first in row {int(wrong.argmax())}; a unit marked as failed (`failed`, or "
                f"mark_failures()) {why}"
            )
        if truth is _NO_TRUTH:
            return None
        xp, shape, mean = array_namespace(self.mean), tuple(self.mean.shape), doubles(self.mean)
        if isinstance(truth, Trajectories):
            return shaped(truth.marked(), mean, shape)
        truth = shaped(truth, mean, shape)
        if bool(xp.any(xp.isnan(truth))):
            raise InvalidInput("truth must not contain NaN; mark a failed unit with inf")
        return truth


def _gaussian(mean: Array, var: Array) -> Array:
    """`[B]` whether all numbers of a unit make Gaussians."""
    xp, full = array_namespace(mean), var.ndim > mean.ndim
    mean, var = doubles(mean), doubles(var)
    # A sum of doubles is finite only if all its terms are, and cheaper to check.
    with np.errstate(over="ignore", invalid="ignore"):
        sums = [xp.sum(part, axis=tuple(range(1, part.ndim))) for part in (mean, var)]
        good = xp.isfinite(sums[0] + sums[1])
    variances = xp.linalg.diagonal(var) if full else var
    good = good & (xp.min(variances, axis=tuple(range(1, variances.ndim))) > 0)
    if full:
        matrices = definite(var)
        good = good & (xp.all(matrices, axis=-1) if matrices.ndim == 2 else matrices)
    return good


def positive_tau(tau: Any, shape: str) -> Any:
    """Return `tau` as an array; refuse anything but finite numbers above 0 of the named shape."""
    several = shape != "one number" and (isinstance(tau, list | tuple) or getattr(tau, "ndim", 0) > 0)
    array = plain("tau", tau, "[H]") if several else np.asarray(number("tau", tau))
    if array.dtype.kind not in "fiu" or not (np.isfinite(array) & (array > 0)).all():
        raise InvalidInput(f"tau must be {shape}, finite and above 0, got {tau!r}")
    return array


def a_forecast(forecast: Any, *kinds: type) -> Any:
    """Return `forecast`; refuse anything but a forecast of these kinds (of any kind, if none is named)."""
    kinds = kinds or (LogitForecast, GaussianForecast)
    if not isinstance(forecast, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidInput(f"forecast must be a {names}, got {type(forecast).__name__}")
    return forecast


def count_units(forecast: LogitForecast | GaussianForecast) -> int:
    """How many units a forecast is of."""
    return len(forecast.logits if isinstance(forecast, LogitForecast) else forecast.mean)
