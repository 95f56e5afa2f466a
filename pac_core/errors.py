"""Every refusal has a name, and its sentence says what was asked, what came, and what would do.

The exceptions hand their fields to ``Exception`` unchanged, so they survive the trip
between processes (Ray, multiprocessing) with their numbers intact.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pac_core.bounds import Family, PACLevel


class PACError(ValueError):
    """The base of every refusal; catch this one to catch them all."""


class InvalidInput(PACError):
    """An argument breaks its rule; the sentence names the argument, the rule and what came."""


class UnreadableFile(PACError):
    """A file is missing, cut off, of an unknown kind, or holds something else than promised."""


class NotEnoughData(PACError):
    """The level cannot be proved with so few units, of which `errors` may be errors."""

    def __init__(self, n: int, needed: int, level: PACLevel, errors: int = 0) -> None:
        super().__init__(n, needed, level, errors)
        self.n, self.needed, self.level, self.errors = n, needed, level, errors

    def __str__(self) -> str:
        allowing = f" with {self.errors:,} errors allowed" if self.errors else ""
        return (
            f"{self.n:,} calibration units{allowing} cannot prove epsilon={self.level.epsilon:g} at "
            f"delta={self.level.delta:g}: at least {self.needed:,} are needed "
            f"({self.needed - self.n:,} more), or a larger epsilon or delta."
        )


class SmallGroups(NotEnoughData):
    """Groups with too few units to prove the level at their share of delta: `small` has how many each has."""

    def __init__(self, small: dict[str, int], needed: int, level: PACLevel) -> None:
        super().__init__(min(small.values()), needed, level)
        self.args, self.small = (small, needed, level), small

    def __str__(self) -> str:
        names = ", ".join(f"{name!r} has {n:,}" for name, n in self.small.items())
        need = f"each group must have at least {self.needed:,} calibration units to prove "
        level = f"epsilon={self.level.epsilon:g} at its share of delta, {self.level.delta:g}"
        return f"{need}{level}, but {names}: collect more, or join groups (merge_small makes one of them)."


class TooFewAccepted(NotEnoughData):
    """Of the reweighted units too few remain to prove the level."""

    def __init__(self, n: int, needed: int, level: PACLevel, units: int, bound: float) -> None:
        PACError.__init__(self, n, needed, level, units, bound)
        self.n, self.needed, self.level, self.errors = n, needed, level, 0
        self.units, self.bound = units, bound

    @property
    def units_needed(self) -> int:
        """How many units keep the needed number on average: about one in `bound` is accepted."""
        return math.ceil(self.needed * self.bound)

    def __str__(self) -> str:
        return (
            f"{self.n:,} of {self.units:,} units were accepted at the weight bound {self.bound:g}, and "
            f"cannot prove epsilon={self.level.epsilon:g} at delta={self.level.delta:g}: at least "
            f"{self.needed:,} must be, which takes about {self.units_needed:,} units; or calibrate on fresh "
            "units of the new policy."
        )


class NothingAccepted(PACError):
    """No decision was accepted, so nothing is known of accepted ones."""


class TooManyFailures(PACError):
    """More units failed (score +inf) than the level allows errors, so no finite threshold exists."""

    def __init__(self, failed: int, allowed: int, n: int, group: str | None = None) -> None:
        super().__init__(failed, allowed, n, group)
        self.failed, self.allowed, self.n, self.group = failed, allowed, n, group

    def __str__(self) -> str:
        of = "" if self.group is None else f" of the group {self.group!r}"
        return (
            f"{self.failed:,} of {self.n:,} calibration units{of} failed (score +inf) but the level "
            f"allows {self.allowed:,} errors: no finite threshold keeps the promise. Mend the failures, or "
            "ask for a larger epsilon, on new units: these have been looked at, and dropping the "
            "failed ones would void the promise."
        )


class OverlappingSplits(PACError):
    """Two parts that must be disjoint share units."""

    def __init__(self, first: str, second: str, shared: int, example: str) -> None:
        super().__init__(first, second, shared, example)
        self.first, self.second, self.shared, self.example = first, second, shared, example

    def __str__(self) -> str:
        return (
            f"the parts '{self.first}' and '{self.second}' share {self.shared:,} units "
            f"(for example {self.example!r}): the promise needs them disjoint."
        )


class NoTemperature(PACError):
    """The likelihood has no maximum at a finite positive temperature on this tune split."""


class BadCertificate(PACError):
    """A certificate is not one, is of a version this program does not know, or contradicts itself."""


class OverBudget(PACError):
    """The ledger's budget does not cover another attempt of this cost."""

    def __init__(self, cost: float, family: Family) -> None:
        super().__init__(cost, family)
        self.cost, self.family = cost, family

    def __str__(self) -> str:
        return (
            f"this would cost {self.cost:.4g}, but of the ledger's budget of {self.family.budget:g} only "
            f"{self.family.left:.4g} is left after {self.family.attempts:,} attempts and looks: ask for a "
            f"smaller delta ({self.family.share:.4g} leaves something for any number of later ones)."
        )


class SecondLook(PACError):
    """The calibrate split was opened already, for another menu: its promise is spent."""


class ShardFailed(PACError):
    """A shard fails by its own fault, or takes every worker down with it; the rest of the run is kept."""

    def __init__(self, shard: str, reason: str, details: str = "") -> None:
        super().__init__(shard, reason, details)
        self.shard, self.reason, self.details = shard, reason, details

    def __str__(self) -> str:
        return (
            f"{self.shard} failed: {self.reason}. Nothing is certified without it, because failures are "
            "no random sample. Finished shards are kept: mend the cause and start the same command again "
            "(in another folder, if the scorer's own code has to change)."
        )


class Incomplete(PACError):
    """The stored shards are not exactly the promised ones, each once."""
