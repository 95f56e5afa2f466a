"""Every refusal has a name, and its sentence says what was asked, what came, and what would do.

The exceptions hand their fields to ``Exception`` unchanged, so they survive the trip
between processes (Ray, multiprocessing) with their numbers intact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pac_core.bounds import PACLevel


class PACError(ValueError):
    """The base of every refusal; catch this one to catch them all."""


class InvalidInput(PACError):
    """An argument breaks its rule; the sentence names the argument, the rule and what came."""


class UnreadableFile(PACError):
    """A file is missing, cut off, of an unknown kind, or holds something else than promised."""


class NotEnoughData(PACError):
    """No threshold can prove the level with so few units."""

    def __init__(self, n: int, needed: int, level: PACLevel) -> None:
        super().__init__(n, needed, level)
        self.n, self.needed, self.level = n, needed, level

    def __str__(self) -> str:
        return (
            f"{self.n:,} calibration units cannot prove epsilon={self.level.epsilon:g} at "
            f"delta={self.level.delta:g}: at least {self.needed:,} are needed "
            f"({self.needed - self.n:,} more), or a larger epsilon or delta."
        )


class TooManyFailures(PACError):
    """More units failed (score +inf) than the level allows errors, so no finite threshold exists."""

    def __init__(self, failed: int, allowed: int, n: int) -> None:
        super().__init__(failed, allowed, n)
        self.failed, self.allowed, self.n = failed, allowed, n

    def __str__(self) -> str:
        return (
            f"{self.failed:,} of {self.n:,} calibration units failed (score +inf) but the level "
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


class SecondLook(PACError):
    """The calibrate split was opened already, for another menu: its promise is spent."""
