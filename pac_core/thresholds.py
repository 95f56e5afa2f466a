"""The threshold T with its evidence, one or one per group, exact also where scores stay in their shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import Floats, check_array, check_labels, check_numbers, round_up
from pac_core.bounds import Bound, PACLevel, max_errors
from pac_core.errors import InvalidInput, NotEnoughData, SmallGroups, TooManyFailures
from pac_core.splits import unit_names

Names: TypeAlias = NDArray[np.str_]
OTHER = "other"
"""The group that small ones are merged into."""


@dataclass(frozen=True, repr=False)
class Threshold:
    """T and the evidence for it: prediction sets are `{y : score(x, y) <= value}`.

    value: T; it may be rounded up, never down
    n, errors: calibration units, and how many of them may score above T (k*), by the named bound
    level: what this proves of new units, if they and the calibration units are independent draws from one
        distribution and the calibration units were not used to choose the score
    """

    value: float
    n: int
    errors: int
    level: PACLevel
    bound: str = max_errors.__name__

    def __repr__(self) -> str:
        return (
            f"T = {round_up(self.value)} from {self.n:,} calibration units, of which {self.errors:,} may lie "
            f"above: error at most {round_up(self.level.epsilon)} with confidence 1 - "
            f"{round_up(self.level.delta)}, for units drawn like these."
        )

    def at(self, groups: Any = None) -> Any:
        """T; where each group has its own, `[N]` that of each unit."""
        return self.value

    def names_of(self, groups: Any, truth: Any = None) -> Names | None:
        """`[N]` the calibrated group of each unit, where groups have a T each: of labels, by the truth. One
        that was not calibrated is refused."""
        return None


@dataclass(frozen=True, repr=False)
class GroupThreshold(Threshold):
    """A threshold for each group, see `Groups` for what that promises.

    value: the largest finite one; it makes no sets
    n, errors: sums over the groups
    groups: by name, each at its share of delta; T is +inf of labels with too few units
    merged: groups that are one here, `OTHER`
    labels: `[K]` the group of each label; None if the group of a unit is known
    """

    groups: Mapping[str, Threshold] = field(default_factory=dict, hash=False)
    merged: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = None
    column: str = "group"

    @property
    def always(self) -> list[str]:
        """The groups whose labels are in every set."""
        return [name for name, one in self.groups.items() if np.isinf(one.value)]

    def names_of(self, groups: Any, truth: Any = None) -> Names:
        if self.labels is not None:
            return np.asarray(np.array(self.labels)[truth])
        if groups is None:
            raise InvalidInput(f"groups must be given, got none: each {self.column} has its own threshold")
        names = group_names(groups)
        names = np.where(np.isin(names, self.merged), OTHER, names)
        if len(unknown := np.setdiff1d(names, [*self.groups])):
            known = ", ".join(map(repr, [name for name in self.groups if name != OTHER] + [*self.merged]))
            got = str(unknown[0])
            raise InvalidInput(f"{self.column} must be one that was calibrated ({known}), got {got!r}")
        return names

    def at(self, groups: Any = None) -> Any:
        return np.array([self.groups[name].value for name in self.names_of(groups).tolist()])

    def __repr__(self) -> str:
        of = f"in each {self.column}" if self.labels is None else "given the group of the true label"
        each = [
            f"{name!r}: {f'T = {round_up(one.value)}' if one.value < np.inf else 'labels in every set'} "
            f"({one.n:,} units, of which {one.errors:,} may lie above)"
            for name, one in self.groups.items()
        ]
        return (
            f"{len(each)} thresholds from {self.n:,} calibration units: error at most "
            f"{round_up(self.level.epsilon)} {of}, in all of them with confidence 1 - "
            f"{round_up(self.level.delta)}, for units drawn like these. {'; '.join(each)}."
        )


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups with a threshold each (Mondrian), for one of two promises. Neither implies the other.

    names: `[N]` the group of each unit, which is known when its set is made, with the T of that group:
        P(miss | group) <= epsilon. A group that was not calibrated is refused
    labels: instead, `[K]` the group of each label, where nobody knows that of a new unit. The set is
        {y : score(x, y) <= T of the group of y}, and P(miss | the true label is in the group) <= epsilon.
        Of a group with too few calibration units T is +inf: its labels are in every set
    merge_small: whether too small groups of units become one, "other", with the next smallest where they are
        still too few, instead of being refused; its promise is about its groups in the proportions of the
        calibration units
    column: what the groups are called, such as "regime"

    Of G groups, one is too small if it cannot prove epsilon at delta / G; those that remain share delta
    equally. Only counts decide. Given who is in which group, all groups (and every mixture of them) keep
    their promise together with confidence 1 - delta.
    """

    names: Any = None
    labels: Any = None
    merge_small: bool = False
    column: str = "group"

    def __post_init__(self) -> None:
        for name in ("names", "labels"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, group_names(given))
        if self.names is None and self.labels is None:
            raise InvalidInput("groups must have names, of units or of labels, got neither")
        if self.labels is not None and self.merge_small:
            raise InvalidInput("merge_small is for groups of units: labels of a small group are in every set")

    @classmethod
    def of(cls, groups: Any, truth: Any, domain: tuple[Any, ...] | None) -> Groups | None:
        """The groups of the units with these truths, from names, `Groups` or None."""
        if groups is None:
            return None
        made, n = groups if isinstance(groups, Groups) else cls(groups), len(truth)
        if made.labels is not None:
            if domain != ("labels", classes := len(made.labels)):
                raise InvalidInput(f"groups of labels must be one for each label, got {classes}")
            made = replace(made, names=made.labels[check_labels("labels", truth, n, classes)])
        if len(made.names) != n:
            raise InvalidInput(f"groups must have one entry per unit, got {len(made.names)} for {n}")
        return made

    def plan(self, level: PACLevel, bound: Bound = max_errors) -> tuple[Names, PACLevel, list[str]]:
        """By counts alone: `[N]` each unit's group, the level of each group, and which were too small."""
        names, (own, lacking) = self.names, _share(self.names, level, bound)
        small = sorted(lacking)
        if self.labels is not None and len(rest := names[~np.isin(names, small)]):
            own, lacking = _share(rest, level, bound)
        elif self.merge_small and small:
            counts = Counter(names.tolist())
            small = sorted({*small, OTHER} & {*counts})
            rest = sorted({*counts} - {*small}, key=lambda name: (counts[name], name))
            for more in range(len(rest) + 1):  # the next smallest join them until they suffice
                merged = sorted([*small, *rest[:more]])
                names = np.where(np.isin(self.names, merged), OTHER, self.names)
                own, lacking = _share(names, level, bound)
                if not lacking:
                    break
            small = merged
        if lacking and self.merge_small:  # all of them are one by now
            raise lacking[OTHER]
        if lacking:
            needed = next(iter(lacking.values())).needed
            raise SmallGroups({name: one.n for name, one in lacking.items()}, needed, own)
        if self.merge_small and small:
            n = int((names == OTHER).sum())
            # Merged units are not of one distribution: Hoeffding (1956) compares with the binomial's tail.
            if bound(n, own) + 1 > n * level.epsilon:
                raise InvalidInput(f"delta must be smaller to merge groups, got {level.delta:g}")
        return names, own, small


def group_names(groups: Any) -> Names:
    """`[N]` names of groups, as text; booleans are names, too."""
    given = check_array("groups", groups, "[N]")
    names = unit_names("groups", given.astype(str) if given.dtype.kind == "b" else given)
    for name in np.unique(names).tolist():
        if not name.strip() or not name.isprintable() or name.strip().lower() == "nan":
            raise InvalidInput(f"groups must have a name each, got {name!r}")
    return names


def _share(names: Names, level: PACLevel, bound: Bound) -> tuple[PACLevel, dict[str, NotEnoughData]]:
    """The level of each group, and why some of them cannot prove it."""
    found, counts = np.unique(names, return_counts=True)
    own, lacking = PACLevel(level.epsilon, level.delta / len(found)), {}
    for name, n in zip(found.tolist(), counts.tolist(), strict=True):
        try:
            bound(n, own)
        except NotEnoughData as error:
            lacking[name] = error
    return own, lacking


@dataclass(frozen=True, eq=False)
class ShardedScores:
    """Scores that stay in their shards, of which one is read at a time.

    sizes: which shards there are and how many scores each holds
    read: yields each shard's id, once, with its scores `[n]`
    """

    sizes: Mapping[Any, int]
    read: Callable[[], Iterable[tuple[Hashable, Any]]]

    def __len__(self) -> int:
        return sum(self.sizes.values())

    def __iter__(self) -> Iterator[Floats]:
        """Each shard's scores; one that is lost, repeated or cut must never make a smaller sample."""
        due = dict(self.sizes)
        for shard, scores in self.read():
            part = check_numbers("scores", scores, "[N]")
            if len(part) != (expected := due.pop(shard, 0)):
                raise InvalidInput(
                    f"each of the {len(self.sizes):,} expected shards must come once with its scores, got "
                    f"{len(part):,} of shard {shard!r} where {expected:,} were due"
                )
            yield part
        if due:
            raise InvalidInput(f"all {len(self.sizes):,} expected shards must come, got no {[*due][:3]}")


def fit_threshold(
    scores: Any, level: PACLevel, *, bound: Bound = max_errors, groups: Groups | None = None
) -> Threshold:
    """The smallest T that proves the level on calibration scores `[N]` (algorithm 1 of the paper), or with
    `groups` of these units the smallest of each group.

    From `ShardedScores` T is the same to the last bit. Tied scores need no care. Failed units score +inf; if
    they outnumber the errors allowed, there is no threshold: `TooManyFailures`.

    >>> fit_threshold(range(100), PACLevel(epsilon=0.1, delta=0.1)).value
    94.0
    >>> shards = {"a": range(0, 50), "b": range(50, 100)}
    >>> sharded = ShardedScores({"a": 50, "b": 50}, shards.items)
    >>> fit_threshold(sharded, PACLevel(epsilon=0.1, delta=0.1)).value
    94.0
    """
    whole = None if isinstance(scores, ShardedScores) else check_numbers("scores", scores, "[N]")
    if groups is not None:
        return _fit_groups(np.concatenate([*scores]) if whole is None else whole, level, bound, groups)
    shards, n = (scores, len(scores)) if whole is None else ([whole], len(whole))
    errors = bound(n, level)
    largest: Floats = np.empty(0)  # of those seen so far, as many as may be needed; T first
    for part in shards:
        seen = np.concatenate([largest, part]) if len(largest) else part
        place = max(0, len(seen) - 1 - errors)
        largest = np.partition(seen, place)[place:]
    value = float(largest[0])
    if np.isinf(value):
        raise TooManyFailures(sum(int(np.isinf(part).sum()) for part in shards), errors, n)
    name = getattr(bound, "__name__", type(bound).__name__)
    return Threshold(value + 0.0, n, errors, level, name)


def _fit_groups(scores: Floats, level: PACLevel, bound: Bound, groups: Groups) -> GroupThreshold:
    if groups.names is None or len(groups.names) != len(scores):
        raise InvalidInput(f"groups must have one name per score, {len(scores)}, and label groups the truth")
    names, own, small = groups.plan(level, bound)
    labels = None if groups.labels is None else tuple(groups.labels.tolist())
    made: dict[str, Threshold] = {}
    for name in sorted({*names.tolist(), *(labels or ())}):
        mine = scores[names == name]
        if labels is not None and (name in small or not len(mine)):
            made[name] = Threshold(np.inf, len(mine), 0, level)
            continue
        try:
            made[name] = fit_threshold(mine, own, bound=bound)
        except TooManyFailures as error:
            raise TooManyFailures(error.failed, error.allowed, error.n, name) from None
    largest = max((one for one in made.values() if one.value < np.inf), key=lambda one: one.value)
    errors, merged = sum(one.errors for one in made.values()), tuple(small) if labels is None else ()
    more = largest.bound, made, merged, labels, groups.column
    return GroupThreshold(largest.value, len(scores), errors, level, *more)
