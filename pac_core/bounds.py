"""How many errors a calibration set may contain and still prove a level: Theorem 1 of Park et al. (2020)."""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias

from pac_core.errors import InvalidInput, NotEnoughData

_TIE = 1e-11  # betaincc is better than this; nearer to delta than this, integers decide
_EXACT = 2_000  # largest n for which the exact sum takes milliseconds
_MOST = 2**53  # beyond it a double no longer counts in ones


@dataclass(frozen=True)
class PACLevel:
    """The level of a promise: an error of at most `epsilon`, with confidence at least 1 - `delta`.

    epsilon: the probability that the set of a new unit misses the truth, in (0, 1)
    delta: the probability, over the draw of the calibration set, that the promise fails, in (0, 1)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            value = getattr(self, name)
            try:
                number = float(value)
            except (TypeError, ValueError, OverflowError):
                raise InvalidInput(f"{name} must be a number, got {value!r}") from None
            if isinstance(value, str) or not 0 < number < 1:
                raise InvalidInput(f"{name} must lie strictly between 0 and 1, got {value!r}")
            object.__setattr__(self, name, number)


Bound: TypeAlias = Callable[[int, PACLevel], int]
"""Maps the number of units and the level to the number of errors allowed."""


def max_errors(n: int, level: PACLevel) -> int:
    """k*, the largest k with P[Binomial(n, epsilon) <= k] < delta (equation 8 of the paper).

    >>> max_errors(20_000, PACLevel(epsilon=0.01, delta=1e-5))
    142
    >>> max_errors(20, PACLevel(epsilon=0.1, delta=0.1))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    pac_core.errors.NotEnoughData: 20 calibration units cannot prove epsilon=0.1 ...
    """
    n, level = whole("n", n, least=1), a_level(level)
    allowed = bisect_left(range(n), True, key=lambda k: not proves(n, k, level)) - 1
    if allowed < 0:
        raise NotEnoughData(n, min_samples(level), level)
    return allowed


def share(name: str, value: Any) -> float:
    """Return a number strictly between 0 and 1; refuse anything else."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < 1:
        raise InvalidInput(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return float(value)


def min_samples(level: PACLevel, errors: int = 0) -> int:
    """The smallest number of units that proves the level with `errors` errors.

    >>> min_samples(PACLevel(epsilon=0.01, delta=1e-5))
    1146
    """
    errors, level = whole("errors", errors, least=0), a_level(level)
    return _first(errors + 1, lambda n: proves(n, errors, level), level)


def proves(n: int, errors: int, level: PACLevel) -> bool:
    """Whether P[Binomial(n, epsilon) <= errors] < delta; near a tie, exact integers decide.

    A tie with more than 2,000 units counts as no.
    """
    if errors >= n:
        return False
    from scipy.special import betaincc  # half of the package's import time, so not at its top

    tail = float(betaincc(errors + 1, n - errors, level.epsilon))
    if abs(tail - level.delta) > _TIE * level.delta:
        return tail < level.delta
    return n <= _EXACT and _exactly_below(n, errors, level)


def vc_max_errors(n: int, level: PACLevel) -> int:
    """The number of errors that the VC bound (equation 7 of the paper) allows among `n` units.

    >>> vc_max_errors(20_000, PACLevel(epsilon=0.05, delta=1e-5))
    300
    """
    n, level = whole("n", n, least=1), a_level(level)
    allowed = math.floor(_vc_errors(n, level))
    if allowed < 0:
        raise NotEnoughData(n, vc_min_samples(level), level)
    return allowed


def vc_min_samples(level: PACLevel, errors: int = 0) -> int:
    """The smallest number of units at which the VC bound allows `errors` errors."""
    errors, level = whole("errors", errors, least=0), a_level(level)
    return _first(errors + 1, lambda n: _vc_errors(n, level) >= errors, level)


BOUNDS: dict[str, Bound] = {bound.__name__: bound for bound in (max_errors, vc_max_errors)}


def a_level(level: Any) -> PACLevel:
    """Return `level`; refuse anything but a `PACLevel`."""
    if not isinstance(level, PACLevel):
        raise InvalidInput(f"level must be a PACLevel(epsilon, delta), got {level!r}")
    return level


def whole(name: str, value: Any, *, least: int) -> int:
    """Return `value` as an int of at least `least`; refuse floats and booleans."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number <= _MOST:
        raise InvalidInput(f"{name} must be a whole number from {least} to 2**53, got {value!r}")
    return number


def _first(least: int, holds: Callable[[int], bool], level: PACLevel) -> int:
    n = least + bisect_left(range(least, _MOST), True, key=holds)
    if n == _MOST:
        raise InvalidInput(f"{level} needs more than 2**53 units, which is out of reach")
    return n


def _vc_errors(n: int, level: PACLevel) -> float:
    slack = math.sqrt((math.log(2 * n) + 1 - math.log(level.delta / 4)) / n)
    return n * (level.epsilon - slack)


def _exactly_below(n: int, errors: int, level: PACLevel) -> bool:
    """Whether the tail is below delta, in exact integer arithmetic."""
    hit, base = level.epsilon.as_integer_ratio()
    miss = base - hit
    term = miss**n
    total = term
    for i in range(errors):
        term = term * (n - i) * hit // ((i + 1) * miss)
        total += term
    share, whole = level.delta.as_integer_ratio()
    return bool(total * whole < share * base**n)
