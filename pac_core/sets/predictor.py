"""A predictor is a score and a threshold: it makes sets, and failed units get none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from pac_core.arrays import Array, convert_like, to_float64
from pac_core.bounds import Bound, PACLevel, max_errors
from pac_core.errors import BadCertificate, InvalidInput
from pac_core.forecasts import (
    GaussianForecast,
    LogitForecast,
    check_forecast,
    count_units,
    drop_failed,
    with_lengths,
)
from pac_core.scores import Temperature, fit_temperature, gaussian_nll, nll
from pac_core.sets.kinds import ConfidenceSets, LabelSets, gaussian_sets, join_sets, label_sets, width_remarks
from pac_core.thresholds import Groups, GroupThreshold, Threshold, fit_threshold


def score_units(score: Any, forecast: Any, truth: Any) -> Array:
    """`[N]` the score of each unit's truth; +inf for a failed unit.

    >>> from pac_core.sets import Likelihood
    >>> logits = np.array([[0.0, 0.0], [np.nan, np.nan]])
    >>> forecast = LogitForecast(logits, failed=np.array([False, True]))
    >>> score_units(Likelihood(), forecast, [1, 1]).tolist()
    [0.6931471805599453, inf]
    """
    failed = check_forecast(forecast).failed
    if failed is None:
        return score.scores(forecast, truth)
    scores = np.full(len(failed), np.inf)
    if failed.all():
        gaussian = isinstance(forecast, GaussianForecast)
        return convert_like(to_float64(forecast.mean), scores) if gaussian else scores
    if isinstance(forecast, GaussianForecast):
        forecast.check(failures=True)  # refuses the others, naming the row in the whole forecast
    known = score.scores(*drop_failed(forecast, truth))
    scores = convert_like(known, scores)
    scores[~failed] = known
    return scores


def make_sets(score: Any, forecast: Any, threshold: Any) -> Any:
    """The sets of scores at most T; empty for a failed unit."""
    failed = check_forecast(forecast).failed
    if failed is None or not isinstance(forecast, LogitForecast):  # unsound Gaussians have empty sets
        return score.sets(forecast, threshold)
    member = np.zeros(forecast.logits.shape, bool)
    if not failed.all():
        member[~failed] = score.sets(forecast.take(~failed), threshold).member
    return LabelSets(member)


def _sets_by_group(score: Any, forecast: Any, threshold: GroupThreshold, groups: Any) -> Any:
    """Each unit's set by its group's T; of groups of labels, the labels that the T of their group lets in."""
    if threshold.labels is not None:
        member, of = np.ones(forecast.logits.shape, bool), np.array(threshold.labels)
        for name, one in threshold.groups.items():
            if one.value < np.inf:  # +inf lets in even the labels of a failed unit
                member[:, of == name] = make_sets(score, forecast, one).member[:, of == name]
        return LabelSets(member)
    names = threshold.names_of(groups)
    if len(names) != (n := count_units(forecast)):
        raise InvalidInput(f"groups must have one entry per unit, got {len(names)} for {n}")
    rows = {name: np.flatnonzero(names == name) for name in np.unique(names).tolist()}
    each = [(mine, make_sets(score, forecast.take(mine), threshold.groups[g])) for g, mine in rows.items()]
    return join_sets(each)


AnyForecast: TypeAlias = LogitForecast | GaussianForecast
AnySets: TypeAlias = LabelSets | ConfidenceSets


class Score(Protocol):
    """A fitted nonconformity score: larger is worse, and its sets are the truths that score at most T.

    Whatever has these methods can be calibrated; with `to_json` and `from_json`, certified.
    """

    kind: ClassVar[str]

    def scores(self, forecast: Any, truth: Any) -> Array:
        """`[N]` the score of each unit's truth."""

    def sets(self, forecast: Any, threshold: Threshold | float) -> Any:
        """The sets of score at most T: `LabelSets` or `ConfidenceSets`."""

    def to_json(self) -> dict[str, Any]:
        """The fitted numbers."""


FitScore: TypeAlias = Callable[[Any, Any, PACLevel], Score]
"""Fits a score to tune forecast, tune truth and level, as `tempered` and the tube shapes do."""


@dataclass(frozen=True, eq=False)
class Likelihood:
    """The paper's score, -log f(y|x), of a forecast that may be prepared: variances summed over the steps so
    far (A), then tempered (C). For a horizon this is the tube shape `joint`."""

    kind: ClassVar[str] = "likelihood"
    accumulate: bool = False
    temperature: Temperature | None = None
    typical: tuple[float, Any] | None = None
    """of a tube's tune units, not stored: mean volume term, `[D]` mean deviations relative to the states'"""

    @classmethod
    def fit(
        cls, forecast: Any, truth: Any, *, accumulate: bool = False, temperature: bool = True
    ) -> Likelihood:
        """The score with what is asked for; the temperature is the most likely one of the tune units."""
        if isinstance(forecast, GaussianForecast):
            truth = with_lengths(truth, forecast.check(truth, failures=True))
            forecast = forecast.wide()
        made = cls(accumulate)
        return cls(accumulate, fit_temperature(made.prepared(forecast), truth)) if temperature else made

    def prepared(self, forecast: Any) -> Any:
        """The forecast whose density is the score."""
        forecast = forecast.accumulated() if self.accumulate else forecast
        return forecast if self.temperature is None else self.temperature(forecast)

    def remarks(self, threshold: float) -> list[str]:
        """What a user should know about tubes at this T."""
        if self.typical is None:
            return []
        volume, widths = self.typical
        return width_remarks(np.sqrt(max(2 * threshold - volume, 0.0)) * widths)

    def scores(self, forecast: Any, truth: Any) -> Array:
        if not isinstance(forecast, GaussianForecast):
            return nll(self.prepared(forecast), truth)
        # Check and widen before preparing: a sum over steps would hide a bad variance.
        truth = forecast.check(truth)
        return gaussian_nll(self.prepared(forecast.wide()), truth)

    def sets(self, forecast: Any, threshold: Threshold | float) -> AnySets:
        if not isinstance(forecast, GaussianForecast):
            return label_sets(self.prepared(forecast), threshold)
        wide, sound = forecast.for_sets()
        return gaussian_sets(self.prepared(wide), threshold, sound=sound)

    def __str__(self) -> str:
        prepared = ["accumulated variances"] * self.accumulate
        return (
            ", ".join([*prepared, *([] if self.temperature is None else [str(self.temperature)])])
            or "as it is"
        )

    def to_json(self) -> dict[str, Any]:
        steps: list[Any] = [{"accumulated": True}] * self.accumulate
        if self.temperature is not None:
            steps.append({"tau": np.asarray(self.temperature.tau).tolist(), "n": self.temperature.n})
        return {"preparations": steps}

    @classmethod
    def from_json(cls, numbers: dict[str, Any]) -> Likelihood:
        steps = numbers["preparations"]
        accumulate = steps[:1] == [{"accumulated": True}]
        rest = steps[accumulate:]
        if len(rest) > 1 or any(set(step) != {"tau", "n"} for step in rest):
            raise BadCertificate(
                "preparations must be 'accumulated', then 'tau' with 'n', each once at most, got "
                f"{[sorted(step) for step in steps[:3]]}"
            )
        if not rest:
            return cls(accumulate)
        tau = np.asarray(rest[0]["tau"], dtype=np.float64)
        return cls(accumulate, Temperature(tau if tau.ndim else float(tau), rest[0]["n"]))


def fit_tempered(forecast: Any, truth: Any, level: PACLevel) -> Score:
    """The paper's score with its temperature (C)."""
    return Likelihood.fit(forecast, truth)


@dataclass(frozen=True, eq=False)
class GivenScore:
    """A score that was computed elsewhere and is known by its name only.

    A threshold can be proved from its numbers; only whoever can compute it can make its sets.
    """

    kind: ClassVar[str] = "given"
    name: str

    def scores(self, forecast: Any, truth: Any) -> Array:
        raise InvalidInput(
            f"this certificate was made from bare scores ({self.name}): its sets are the truths whose "
            "score, computed as for the calibration units, is at most T"
        )

    sets = scores

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name}

    @classmethod
    def from_json(cls, parts: dict[str, Any]) -> GivenScore:
        return cls(str(parts["name"]))


@dataclass(frozen=True, eq=False)
class Predictor:
    """Prediction sets with a promise: a score fitted on the tune part, a threshold from the calibrate part.

    The set of a new unit misses its truth with probability at most epsilon, with confidence 1 - delta over
    the draw of the calibration units, if new units are drawn like them and `score` was not chosen on them.
    """

    score: Score
    threshold: Threshold
    domain: tuple[Any, ...] | None = None
    """of the calibration forecasts, such as ("labels", 10); None if not known"""

    def sets(self, forecast: Any, groups: Any = None) -> Any:
        """The sets of new units, whose forecasts must be of the calibrated kind.

        groups: `[N]` the group of each, where each group of units has a threshold of its own
        """
        if self.domain is not None and check_forecast(forecast).domain != self.domain:
            domains = f"{describe_domain(self.domain)}, as calibrated, got {describe_domain(forecast.domain)}"
            raise InvalidInput(f"the forecast must be of {domains}")
        if isinstance(self.threshold, GroupThreshold):
            return _sets_by_group(self.score, forecast, self.threshold, groups)
        if groups is not None:
            raise InvalidInput("groups must not be given: one threshold was calibrated for all of them")
        return make_sets(self.score, forecast, self.threshold)

    tube = sets

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences about sets that keep their promise but may be of little use, such as very wide tubes."""
        remarks = getattr(self.score, "remarks", None)
        return () if remarks is None else tuple(remarks(self.threshold.value))

    def __repr__(self) -> str:
        notes = "".join(f" Note: {remark}." for remark in self.remarks)
        return f"Predictor({self.score.kind}: {self.threshold}{notes})"


def describe_promise(score: Any, unit: str, epsilon: float) -> tuple[str, float]:
    """Whose set a score's sets are, in words, and the probability with which it misses."""
    covers = getattr(score, "covers", None)
    return (f"a new {unit}", epsilon) if covers is None else covers(unit, epsilon)


def describe_domain(domain: tuple[Any, ...]) -> str:
    """A forecast's domain in words."""
    kind, *sizes = domain
    names = {"labels": "{} labels", "vectors": "{} dimensions", "trajectories": "{} steps of {} dimensions"}
    return names[kind].format(*sizes)


def calibrate(
    score: Score, forecast: Any, truth: Any, level: PACLevel, *, bound: Bound = max_errors, groups: Any = None
) -> Predictor:
    """The predictor of this score, from the calibrate part; `groups` are names of its units, or `Groups`."""
    known = Groups.of(groups, truth, check_forecast(forecast).domain)
    scores, n = score_units(score, forecast, truth), count_units(forecast)
    if (shape := tuple(np.shape(scores))) != (n,):  # fewer would be another number of units
        raise InvalidInput(f"scores must be one for each of {n} units, got shape {shape}")
    return Predictor(score, fit_threshold(scores, level, bound=bound, groups=known), forecast.domain)
