"""Suppressing false alarms: two rules, and what each really promises.

The paper suppresses an alarm whose set is {false}. Coverage bounds how often an alarm is both true and
suppressed, among all alarms; it does not follow that a suppressed alarm is false with probability 1 -
epsilon. What does follow is `risk_given`. It is better to calibrate on true alarms alone, which bounds the
share of true alarms that are suppressed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import booleans, numbers, plain
from pac_core.bounds import PACLevel, a_level
from pac_core.errors import InvalidInput, NothingAccepted
from pac_core.evaluation import error_interval
from pac_core.sets import LabelSets, label_limit
from pac_core.texts import at_least, at_most
from pac_core.thresholds import Threshold, fit_threshold


@dataclass(frozen=True, repr=False)
class AlarmRule:
    """Suppress an alarm whose score under "true alarm" is above T, with the evidence for T.

    threshold: fitted on true alarms alone, so that its n and its level are about those

    A new true alarm is suppressed with probability at most epsilon, with confidence 1 - delta over the draw
    of the calibration alarms, if both are independent draws from one distribution (alarms of one patient are
    not) and the model was not chosen by looking at them. Nothing is promised about false alarms, nor about
    any kind of true alarm by itself.
    """

    threshold: Threshold

    def suppress(self, scores: Any) -> NDArray[np.bool_]:
        """`[N]` which alarms to suppress, from `scores` `[N]`, -log f(true|x) as for the calibration alarms.

        A score that is not finite suppresses nothing: if the model fails, the alarm sounds. T is widened like
        that of label sets, so that another CPU's last bits suppress nothing either.
        """
        array = plain("scores", scores, "[N]")
        if array.dtype.kind not in "fiu":
            raise InvalidInput(f"scores must be numbers, got dtype {array.dtype}")
        return np.asarray(np.isfinite(array) & (array > label_limit(self.threshold)))

    def __repr__(self) -> str:
        level = self.threshold.level
        return (
            f"Suppress an alarm whose score under 'true' is above {at_least(self.threshold.value)}: a true "
            f"alarm is suppressed with probability at most {at_least(level.epsilon)}, with confidence "
            f"1 - {at_least(level.delta)}, from {self.threshold.n:,} true alarms of which "
            f"{self.threshold.errors:,} may lie above, for alarms drawn like these."
        )


def fit_alarm_rule(scores: Any, true: Any, level: PACLevel) -> AlarmRule:
    """The rule that suppresses most and still proves the level for true alarms.

    scores: `[N]` -log f(true|x) of the calibration alarms
    true: `[N]` booleans, which of them were true; the scores of the others are not used

    How many of N are true is random, but given that number their scores are independent draws, so the bound
    holds. With too few, `NotEnoughData` says how many true alarms would do.

    >>> rule = fit_alarm_rule(range(200), [i % 2 == 0 for i in range(200)], PACLevel(0.1, 0.05))
    >>> rule.threshold.n, rule.threshold.value
    (100, 190.0)
    >>> rule.suppress([190.0, 191.0, float("nan"), float("inf")]).tolist()
    [False, True, False, False]
    """
    values = numbers("scores", scores, "[N]")
    chosen = booleans("true", true, len(values))
    if not chosen.any():
        raise InvalidInput(f"true must hold at least one true alarm, got none among {len(chosen):,}")
    return AlarmRule(fit_threshold(values[chosen], a_level(level)))


def suppress_by_sets(sets: LabelSets, *, false_label: int = 0) -> NDArray[np.bool_]:
    """`[N]` the paper's rule: which alarms have the set {false}; an empty set suppresses nothing.

    >>> sets = LabelSets(np.array([[True, False], [True, True], [False, True], [False, False]]))
    >>> suppress_by_sets(sets).tolist()
    [True, False, False, False]
    """
    labels = sets.member.shape[1]
    if isinstance(false_label, bool) or false_label not in range(labels):
        raise InvalidInput(f"false_label must be a label in 0..{labels - 1}, got {false_label!r}")
    return np.asarray(sets.member[:, false_label] & (sets.size() == 1))


@dataclass(frozen=True, repr=False)
class RiskGiven:
    """What a promise about all units implies for one kind of unit: an upper limit of P(miss | kind).

    limit: epsilon / least, at most 1
    least: exact lower limit of P(kind), one-sided Clopper-Pearson, from `count` of `n` fresh units
    confidence: of the limit: 1 - delta - doubt
    level: the promise about all units
    """

    limit: float
    least: float
    confidence: float
    kind: str
    count: int
    n: int
    level: PACLevel

    def __repr__(self) -> str:
        return (
            f"P(miss given {self.kind}) <= {at_least(self.limit, 4)} with confidence "
            f"{at_most(self.confidence)}: P(miss) <= {at_least(self.level.epsilon)} divided by "
            f"P({self.kind}) >= {at_most(self.least, 4)}, from "
            f"{self.count:,} of {self.n:,} units."
        )


def risk_given(level: PACLevel, members: Any, *, kind: str, doubt: float = 0.01) -> RiskGiven:
    """The limit of P(miss | kind) that follows from P(miss) <= epsilon alone.

    level: that the sets were calibrated at
    members: `[N]` booleans, which units are of the kind; none of them may have been calibrated on or used to
        choose the kind, so take the test part
    kind: in words, such as "suppressed": a miss is then a true alarm that was suppressed
    doubt: the probability that the lower limit of P(kind) fails

    P(miss and kind) is at most P(miss), so P(miss | kind) is at most epsilon / P(kind). With no unit of the
    kind: `NothingAccepted`. The paper's experiment suppressed 189 of 817 alarms at (0.02, 1e-5), 13 of them
    true: 6.9%, which contradicts "at most 2%" but not what follows:

    >>> risk_given(PACLevel(0.02, 1e-5), [True] * 189 + [False] * 628, kind="suppressed")
    P(miss given suppressed) <= 0.1012 with confidence 0.98999: P(miss) <= 0.02 divided by \
P(suppressed) >= 0.1977, from 189 of 817 units.
    """
    level, chosen = a_level(level), booleans("members", members)
    if isinstance(doubt, bool) or not isinstance(doubt, float) or not 0 < doubt < 1 - level.delta:
        raise InvalidInput(f"doubt must lie strictly between 0 and 1 - delta, got {doubt!r}")
    count, n = int(chosen.sum()), len(chosen)
    if not count:
        raise NothingAccepted(f"none of the {n:,} units is {kind}, so nothing is known about such units")
    least = error_interval(count, n, doubt)[0]
    return RiskGiven(min(1.0, level.epsilon / least), least, 1 - level.delta - doubt, kind, count, n, level)


@dataclass(frozen=True)
class Suppression:
    """What a rule did to test alarms whose truth is known; intervals are exact, 98%, each end at 99%."""

    true: int
    true_suppressed: int
    false: int
    false_suppressed: int

    @property
    def share_of_true(self) -> float:
        """The share of true alarms suppressed: the harm; NaN if there were none."""
        return self.true_suppressed / self.true if self.true else float("nan")

    @property
    def share_of_false(self) -> float:
        """The share of false alarms suppressed: the benefit; NaN if there were none."""
        return self.false_suppressed / self.false if self.false else float("nan")

    @property
    def suppressed(self) -> int:
        return self.true_suppressed + self.false_suppressed

    @property
    def true_interval(self) -> tuple[float, float]:
        """Of P(suppressed | true alarm)."""
        return _interval(self.true_suppressed, self.true)

    @property
    def false_interval(self) -> tuple[float, float]:
        """Of P(suppressed | false alarm)."""
        return _interval(self.false_suppressed, self.false)

    @property
    def wrong_interval(self) -> tuple[float, float]:
        """Of P(true alarm | suppressed)."""
        return _interval(self.true_suppressed, self.suppressed)


def suppression(suppressed: Any, true: Any) -> Suppression:
    """The counts of `suppressed` `[N]` against `true` `[N]`, both booleans.

    >>> counts = suppression([True, True, False, False], [True, False, True, False])
    >>> counts.share_of_true, counts.share_of_false
    (0.5, 0.5)
    """
    quiet = booleans("suppressed", suppressed)
    real = booleans("true", true, len(quiet))
    return Suppression(*(int(rows.sum()) for rows in (real, quiet & real, ~real, quiet & ~real)))


def _interval(count: int, n: int) -> tuple[float, float]:
    return error_interval(count, n) if n else (0.0, 1.0)
