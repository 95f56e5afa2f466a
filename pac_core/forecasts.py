"""What a model forecasts (logits, Gaussians), what came true and when it ended, and units that failed.

A failed unit has no forecast: it scores +inf, counts as an error, and nothing is tuned on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_torch_array
from numpy.typing import NDArray

from pac_core.arrays import (
    Array,
    Floats,
    check_array,
    check_booleans,
    check_number,
    convert_like,
    run_over_rows,
    to_float64,
)
from pac_core.errors import InvalidInput


def definite(var: Array) -> Array:
    """`[...]` whether matrices `[..., D, D]` are symmetric and positive definite, up to rounding."""
    xp = array_namespace(var)
    dims = var.shape[-1]
    eye = convert_like(var, np.eye(dims))
    diagonal = xp.linalg.diagonal(var)
    usable = xp.all(xp.isfinite(var), axis=(-2, -1)) & xp.all(diagonal > 0, axis=-1)
    safe = xp.where(usable[..., None, None], var, eye)
    root = xp.sqrt(xp.linalg.diagonal(safe))
    scaled = safe / root[..., :, None] / root[..., None, :]
    even = xp.max(xp.abs(scaled - xp.matrix_transpose(scaled)), axis=(-2, -1)) <= 1e-6
    try:  # one factorisation of all is fast, and fails if any fails
        xp.linalg.cholesky(xp.where(even[..., None, None], scaled, eye) - dims * 1e-12 * eye)
        return usable & even
    except (np.linalg.LinAlgError, RuntimeError):
        return usable & even & (xp.linalg.eigvalsh(scaled)[..., 0] > dims * 1e-12)


def factors(var: Array) -> list[tuple[Array, Array]]:
    """L D L^T of `[..., D, D]`: for each j the pivot `[...]`, and L's column below it, `[..., D - 1 - j]`.

    Only products, differences and quotients of elements, which every CPU rounds alike; LAPACK does not, and
    the condition number magnifies it: scores differed by up to 1e-5.
    """
    rest = (var + array_namespace(var).matrix_transpose(var)) / 2
    factored = []
    for _ in range(var.shape[-1]):
        pivot, column = rest[..., 0, 0], rest[..., 1:, 0]
        below = column / pivot[..., None]
        factored.append((pivot, below))
        rest = rest[..., 1:, 1:] - below[..., :, None] * column[..., None, :]
    return factored


def distance2(factored: list[tuple[Array, Array]], error: Array) -> Array:
    """`[...]` squared Mahalanobis length of `error` `[..., D]`, given the `factors` of its covariance."""
    total: Array = 0
    for pivot, below in factored:
        first, error = error[..., 0], error[..., 1:] - below * error[..., :1]
        total = total + first / pivot * first
    return total


EXACT_TO = 161 * 2.0**-24
"""How far the log of the normaliser of float16 or float32 logits may be from exact, on whatever CPU: 1e-5.

With u = 2^-24, to first order and relative to the sum S: float32 `exp` is taken to be within 8 units in the
last place, 16 u (measured over all float32: 2.55 with AVX2, 0.51 without). Its argument is rounded twice, in
tau and in the product, which moves log S by at most 2 u E|z|, where E weighs the arguments z by softmax(z).
With S from 1e-20 to 1e30, outside of which float64 takes over, E|z| is at most 70 for up to 1e10 labels: if
S < 1 it is entropy - log S, else at most max(log S, log K) + 1/e. That is 140 u. Terms are added in float64:
K 2^-53, and what underflows is below K 2^-126 / S; together below u for up to 2^28 labels. The remaining 4 u
are for second orders. Of float64 logits it is (160 + K) 2^-53: a tenth of a billionth for a million labels.
"""


def log_sum_exp(logits: Floats, tau: float) -> tuple[Floats, Floats]:
    """Shift and log, blockwise; their sum is within `EXACT_TO` of the exact one, far closer for float64."""
    work = np.float64 if logits.dtype == np.float64 else np.float32
    shift, log = np.zeros(len(logits)), np.empty(len(logits))
    factor = work(tau)

    def block(rows: slice, scratch: Floats) -> None:
        with np.errstate(all="ignore"):
            z = logits[rows]
            if factor != 1:
                z = np.multiply(z, factor, out=scratch[0], dtype=work)
            total = np.exp(z, out=scratch[0], dtype=work).sum(axis=1, dtype=np.float64)
            log[rows] = np.log(total)
            # Outside this range the plain sum has lost digits or is no number: shift those rows.
            far = np.flatnonzero(~((total > 1e-20) & (total < 1e30)))
            if len(far):
                z = logits[rows][far].astype(np.float64) * tau
                top = z.max(axis=1)
                shift[rows.start + far] = top
                log[rows.start + far] = np.log(np.exp(z - top[:, None]).sum(axis=1))

    run_over_rows(block, logits, 1, work)
    if not np.isfinite(log).all():
        row = int(np.flatnonzero(~np.isfinite(log))[0])
        raise InvalidInput(
            f"each row of logits must be numbers, one above -inf, got {logits[row]} in row {row}"
        )
    return shift, log


@dataclass(frozen=True, eq=False)
class Trajectories:
    """True states of a horizon, of which a unit may live only the first steps.

    states: `[B, H, D]`, or of K candidates `[B, K, H, D]`; states after a unit's end are ignored
    lengths: `[B]`, or `[B, K]`, steps up to and including the end: 1 to H

    Accepted wherever a truth `[B, H, D]` is. No set can miss steps after the end, and nothing is fitted to
    them: the promise holds until the end.
    """

    states: Any
    lengths: Any

    def __post_init__(self) -> None:
        if not is_torch_array(self.states):
            rank = "[B, K, H, D]" if getattr(self.states, "ndim", 3) == 4 else "[B, H, D]"
            object.__setattr__(self, "states", check_array("states", self.states, rank))
            if self.states.dtype.kind not in "fiu":
                raise InvalidInput(f"states must be numbers, got dtype {self.states.dtype}")
        shape = tuple(self.states.shape)
        lengths = check_array("lengths", self.lengths, "[B, K]" if len(shape) == 4 else "[B]")
        if len(shape) not in (3, 4) or lengths.shape != shape[:-2]:
            raise InvalidInput(f"states must be [B, H, D] with a length each, got {shape}, {lengths.shape}")
        if lengths.dtype.kind not in "iu" or lengths.min() < 1 or lengths.max() > shape[-2]:
            raise InvalidInput(f"lengths must be whole numbers from 1 to the horizon {shape[-2]}, got others")
        object.__setattr__(self, "lengths", lengths)
        ended = int((shape[-2] - lengths).sum()) * shape[-1]
        if int(array_namespace(self.states).isnan(self.marked()).sum()) > ended:
            raise InvalidInput("states must not contain NaN before the end; mark a failed unit with inf")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: Any) -> Trajectories:
        return Trajectories(self.states[rows], self.lengths[rows])

    def marked(self) -> Array:
        """The states, with NaN for the steps after the end."""
        xp = array_namespace(self.states)
        ended = (np.arange(self.states.shape[-2]) >= self.lengths[..., None])[..., None]
        mask = xp.asarray(ended, device=self.states.device)
        return xp.where(mask, convert_like(self.states, np.nan), self.states)


def with_lengths(truth: Any, states: Array) -> Any:
    """`states`, which were made from `truth`, with its lengths if it has any."""
    return Trajectories(states, truth.lengths) if isinstance(truth, Trajectories) else states


def truth_for_sets(truth: Any, mean: Array, shape: tuple[int, ...]) -> Array:
    """The array that a set compares with: NaN, in no set, becomes infinite; steps after an end become NaN."""
    states, xp = check_truth(truth, mean, shape), array_namespace(mean)
    if isinstance(truth, Trajectories):
        return states
    return xp.where(xp.isnan(states), convert_like(states, np.inf), states)


def check_truth(truth: Any, mean: Array, shape: tuple[int, ...]) -> Array:
    """Convert `truth` to an array like `mean`, NaN after an end; refuse any other shape."""
    if isinstance(truth, Trajectories):
        truth = truth.marked()
    if not is_torch_array(truth):
        truth = check_array("truth", truth, ("[B, D]", "[B, H, D]", "[B, K, H, D]")[len(shape) - 2])
        if truth.dtype.kind not in "fiu":
            raise InvalidInput(f"truth must be numbers, got dtype {truth.dtype}")
    if tuple(truth.shape) != shape:
        raise InvalidInput(f"truth must have shape {shape}, got {tuple(truth.shape)}")
    return convert_like(mean, truth)


_NO_TRUTH: Any = object()


@dataclass(frozen=True, eq=False)
class LogitForecast:
    """A categorical distribution for each of N inputs: f(y|x) = softmax(tau * logits)[y].

    logits: `[N, K]` float16, float32 or float64; -inf is a label of probability zero
    tau: the temperature as in the paper: it multiplies the logits
    failed: `[N]` bool, units without a forecast (a broken image), whose logits are NaN, or None
    """

    logits: Floats
    tau: float = 1.0
    failed: Any = None

    def __post_init__(self) -> None:
        logits = check_array("logits", self.logits, "[N, K]")
        if logits.dtype not in (np.float16, np.float32, np.float64):
            raise InvalidInput(f"logits must be float16, float32 or float64, got dtype {logits.dtype}")
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "tau", float(check_tau(self.tau, "one number")))
        if self.failed is None:
            return
        failed = check_booleans("failed", self.failed, len(logits))
        if (strange := failed & ~np.isnan(logits).all(axis=1)).any():
            raise InvalidInput(f"a failed unit must have logits NaN, got numbers in row {strange.argmax()}")
        object.__setattr__(self, "failed", failed if failed.any() else None)

    @classmethod
    def from_probabilities(cls, probabilities: Any) -> LogitForecast:
        """The forecast with these probabilities `[N, K]`, each row summing to 1.

        Logs are taken in float64, because those of float32 differ between CPUs by more than scores may.
        """
        array = check_array("probabilities", probabilities, "[N, K]")
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
        """`[N]` shift and `[N]` log, so that no digit is lost: sum exp(tau * logits - shift) = exp(log)."""
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
        return replace(self, tau=self.tau * float(check_tau(tau, "one number")))

    def take(self, rows: Any) -> LogitForecast:
        """The forecast of these rows."""
        failed = None if self.failed is None else self.failed[rows]
        return replace(self, logits=self.logits[rows], failed=failed)

    def predictions(self) -> Any:
        """`[N]` the most probable label."""
        return self.logits.argmax(axis=1)


@dataclass(frozen=True, eq=False)
class GaussianForecast:
    """A Gaussian for each of B inputs, of one step, of a horizon of H steps, or of K candidates of H steps.

    mean: `[B, D]`, `[B, H, D]` or `[B, K, H, D]` (see `fit_tube(any_of=True)`), numpy or torch
    var: variances of the shape of `mean`, or covariances with one more axis `[..., D, D]`
    failed: `[B]` bool, units without a forecast (the model diverged), or None; their mean becomes NaN

    Steps are independent, as in the paper. The constructor checks shapes only, so that a planner may build
    thousands a second; whatever is fitted to a forecast checks its numbers, and refuses a unit that is no
    Gaussian unless it is marked as failed: then it scores +inf. Its set is empty either way.
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
        if len(shape) not in (2, 3, 4) or 0 in shape:
            rule = "shape [B, D], [B, H, D] or, of candidates, [B, K, H, D], none of them 0"
            raise InvalidInput(f"mean must have {rule}, got {shape}")
        if tuple(self.var.shape) not in (shape, (*shape, shape[-1])):
            raise InvalidInput(
                f"var must have the shape of mean {shape}, or that with one more axis of "
                f"{shape[-1]} for covariances, got {tuple(self.var.shape)}"
            )
        if self.failed is None:
            return
        failed = check_booleans("failed", self.failed, shape[0])
        object.__setattr__(self, "failed", failed if failed.any() else None)
        if (strange := failed & ~self._lost()).any():
            xp = array_namespace(self.mean)
            marked = xp.asarray(strange.reshape(-1, *(1,) * (len(shape) - 1)), device=self.mean.device)
            object.__setattr__(self, "mean", xp.where(marked, convert_like(self.mean, np.nan), self.mean))

    def mark_failures(self) -> GaussianForecast:
        """Mark as failed every unit whose numbers are not Gaussian at some step: it counts as an error.

        >>> diverged = GaussianForecast(np.array([[0.0], [np.inf]]), np.ones((2, 1)))
        >>> diverged.mark_failures().failed.tolist()
        [False, True]
        """
        return replace(self, failed=self._lost() if self.failed is None else self._lost() | self.failed)

    @property
    def domain(self) -> tuple[str, *tuple[int, ...]]:
        """What is forecast: ("vectors", D) or ("trajectories", H, D), also of each of several candidates."""
        if self.mean.ndim == 2:
            return ("vectors", int(self.mean.shape[1]))
        return ("trajectories", *map(int, self.mean.shape[-2:]))

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
            return xp.where(lost, convert_like(distance, np.inf), distance)
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
        steps = check_tau(tau, "one number or [H]").astype(np.float64)
        if steps.ndim == 1 and tuple(self.mean.shape[1:-1]) != steps.shape:
            raise InvalidInput(f"tau must be one number or one per step, got shape {steps.shape}")
        trailing = (1,) * (1 + self.full if steps.ndim else 0)
        return replace(self, var=self.var / convert_like(self.var, steps.reshape((*steps.shape, *trailing))))

    def accumulated(self) -> GaussianForecast:
        """Variances summed over the steps so far: Sigma~_t of section 3.6 of the paper."""
        if self.mean.ndim != 3:
            raise InvalidInput(f"only a horizon [B, H, D] accumulates, got {tuple(self.mean.shape)}")
        xp = array_namespace(self.var)
        with np.errstate(over="ignore", invalid="ignore"):  # of units that failed
            return replace(self, var=xp.cumulative_sum(self.var, axis=1))

    def wide(self) -> GaussianForecast:
        """The same in float64, in which scores and sets are computed."""
        return replace(self, mean=to_float64(self.mean), var=to_float64(self.var))

    def sound(self) -> Array:
        """`[B]` whether a unit's forecast is Gaussian at every step."""
        xp, variances = array_namespace(self.mean), to_float64(self.variances)
        # A sum of doubles is finite only if all its terms are, and cheaper to check.
        with np.errstate(over="ignore", invalid="ignore"):
            parts = (to_float64(part) for part in (self.mean, self.var))
            good = xp.isfinite(sum(xp.sum(part, axis=tuple(range(1, part.ndim))) for part in parts))
        good = good & (xp.min(variances, axis=tuple(range(1, variances.ndim))) > 0)
        if not self.full:
            return good
        matrices = definite(to_float64(self.var))
        return good & xp.all(xp.reshape(matrices, (matrices.shape[0], -1)), axis=-1)

    def _lost(self) -> NDArray[np.bool_]:
        """`[B]` whether it is not, in numpy."""
        return np.asarray(~convert_like(np.zeros(1, bool), self.sound()))

    def for_sets(self) -> tuple[GaussianForecast, Array]:
        """The forecast in float64, and `[B]` which units are sound; the others become standard normal."""
        if self.mean.ndim == 4:
            raise InvalidInput(
                f"sets are made of forecasts [B, H, D], a row for each plan, got {tuple(self.mean.shape)}: "
                "see forecasts.flatten_candidates"
            )
        xp = array_namespace(self.mean)
        wide = self.wide()
        sound = wide.sound()
        if bool(xp.all(sound)):
            return wide, sound
        where = xp.reshape(sound, (-1,) + (1,) * (self.mean.ndim - 1))
        unit = xp.ones_like(wide.mean)
        if self.full:
            unit = unit[..., None] * convert_like(wide.var, np.eye(self.mean.shape[-1]))
        mean = xp.where(where, wide.mean, xp.zeros_like(wide.mean))
        var = xp.where(where[..., None] if self.full else where, wide.var, unit)
        return GaussianForecast(mean, var), sound

    def check(self, truth: Any = _NO_TRUTH, *, failures: bool = False) -> Any:
        """Refuse a forecast that is not Gaussian; return `truth` in float64 and the mean's library.

        The truth may be infinite, the mark of a failed unit; NaN is refused. Steps after an end become NaN.
        failures: accept units marked as failed
        """
        lost = self._lost()
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
        xp, mean = array_namespace(self.mean), to_float64(self.mean)
        states = check_truth(truth, mean, tuple(mean.shape))
        if not isinstance(truth, Trajectories) and bool(xp.any(xp.isnan(states))):
            raise InvalidInput("truth must not contain NaN; mark a failed unit with inf")
        return states


def flatten_candidates(forecast: GaussianForecast, truth: Any) -> tuple[GaussianForecast, Any]:
    """Forecast and truth of candidates `[N, K, H, D]` as those of N * K plans, those of a unit together."""
    xp, k = array_namespace(forecast.mean), int(forecast.mean.shape[1])
    mean, var = (xp.reshape(part, (-1, *part.shape[2:])) for part in (forecast.mean, forecast.var))
    failed = None if forecast.failed is None else np.repeat(forecast.failed, k)
    flat = GaussianForecast(mean, var, failed=failed)
    if isinstance(truth, Trajectories):
        states = array_namespace(truth.states).reshape(truth.states, tuple(mean.shape))
        return flat, Trajectories(states, truth.lengths.reshape(-1))
    return flat, array_namespace(truth).reshape(truth, tuple(mean.shape))


def check_tau(tau: Any, shape: str) -> Any:
    """Return `tau` as an array; refuse anything but finite numbers above 0 of the named shape."""
    several = shape != "one number" and (isinstance(tau, list | tuple) or getattr(tau, "ndim", 0) > 0)
    array = check_array("tau", tau, "[H]") if several else np.asarray(check_number("tau", tau))
    if array.dtype.kind not in "fiu" or not (np.isfinite(array) & (array > 0)).all():
        raise InvalidInput(f"tau must be {shape}, finite and above 0, got {tau!r}")
    return array


def check_forecast(forecast: Any, *kinds: type) -> Any:
    """Return `forecast`; refuse anything but a forecast of these kinds (of any kind, if none is named)."""
    kinds = kinds or (LogitForecast, GaussianForecast)
    if not isinstance(forecast, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidInput(f"forecast must be a {names}, got {type(forecast).__name__}")
    return forecast


def count_units(forecast: LogitForecast | GaussianForecast) -> int:
    """How many units a forecast is of."""
    return len(forecast.logits if isinstance(forecast, LogitForecast) else forecast.mean)


def drop_failed(forecast: Any, truth: Any) -> tuple[Any, Any]:
    """Forecast and truth of the units that have a forecast."""
    failed = check_forecast(forecast).failed
    if failed is None:
        return forecast, truth
    if failed.all():
        raise InvalidInput(f"tune must have a unit that did not fail, got {len(failed):,} that did")
    kept = isinstance(truth, Trajectories) or is_torch_array(truth)
    return forecast.take(~failed), (truth if kept else np.asarray(truth))[~failed]
