"""The levels of the paper's plots and tables, fitted to the number of calibration units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pac_core import InvalidInput, PACLevel, max_errors, min_samples

DELTAS = (1e-1, 1e-3, 1e-5)
LADDER = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
ALLOWED = 20  # errors: a threshold that fewer decide is mostly chance
CHANCE = 10  # errors: where fewer are allowed, how the sizes of two scores compare is chance, and marked so


@dataclass(frozen=True)
class Levels:
    """What is asked of the calibrate part.

    main: the level of the ablation, the baselines and the pictures
    epsilons, deltas: of the tables, down and across
    """

    main: PACLevel
    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    @property
    def table(self) -> tuple[PACLevel, ...]:
        """Every epsilon with every delta, row by row."""
        return tuple(PACLevel(epsilon, delta) for epsilon in self.epsilons for delta in self.deltas)

    @property
    def along_epsilon(self) -> tuple[PACLevel, ...]:
        """The table's epsilons and two larger ones, at the main delta."""
        top = max(self.epsilons)
        wide = {*self.epsilons, self.main.epsilon, *(e for e in (2 * top, 4 * top) if e < 1)}
        return tuple(PACLevel(epsilon, self.main.delta) for epsilon in sorted(wide))

    @property
    def along_delta(self) -> tuple[PACLevel, ...]:
        """The table's deltas and two smaller ones, at the main epsilon."""
        least = min(self.deltas)
        wide = {*self.deltas, self.main.delta, *(float(f"{least * step:.3g}") for step in (1e-2, 1e-4))}
        return tuple(PACLevel(self.main.epsilon, delta) for delta in sorted(wide, reverse=True))

    @property
    def all(self) -> tuple[PACLevel, ...]:
        """Each level once, the main one first."""
        return tuple(dict.fromkeys((self.main, *self.table, *self.along_epsilon, *self.along_delta)))

    def feasible(self, n: int) -> tuple[PACLevel, ...]:
        """Those of all that `n` units can prove."""
        return tuple(level for level in self.all if feasible(n, level))


def fit_levels(
    n: int,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    epsilons: Sequence[float] = (),
    deltas: Sequence[float] = DELTAS,
) -> Levels:
    """Levels for `n` calibration units.

    epsilon: of the main level; by default the smallest of 0.01, 0.02, 0.05, 0.1 ... of which the units allow
        20 errors or more, which is the paper's 0.01 at its n of 20,000
    epsilons: of the tables; by default five steps up to 0.05, the paper's, or to a larger main epsilon

    >>> fit_levels(20_000).main, fit_levels(2_000).main
    (PACLevel(epsilon=0.01, delta=1e-05), PACLevel(epsilon=0.05, delta=1e-05))
    >>> fit_levels(150).epsilons
    (0.06, 0.12, 0.18, 0.24, 0.3)
    """
    if epsilon is None:
        rich = (e for e in LADDER if feasible(n, PACLevel(e, delta), errors=ALLOWED))
        epsilon = next(rich, LADDER[-1])
    main = PACLevel(epsilon, delta)
    max_errors(n, main)  # refuses here what cannot be proved
    top = max(epsilon, 0.05)
    steps = tuple(epsilons) or tuple(round(top * step / 5, 10) for step in range(1, 6))
    if not deltas:
        raise InvalidInput("deltas must be one or more, got none")
    return Levels(main, tuple(sorted(set(steps))), tuple(sorted(set(deltas), reverse=True)))


def why_not(n: int, needed: int) -> str:
    """Why `n` units give no sets at a level: there are too few, or more are broken than it allows errors."""
    return f"needs {needed:,}" if needed > n else "too many are broken"


def feasible(n: int, level: PACLevel, *, errors: int = 0) -> bool:
    """Whether `n` units with so many errors prove the level."""
    return min_samples(level, errors) <= n


def chance(n: int, level: PACLevel) -> str:
    """What a figure says at a level that allows fewer than ten errors, or nothing.

    >>> [chance(n, PACLevel(0.01, 1e-3)) for n in (2000, 4000, 10)]
    ['k* = 7: chance', '', '']
    """
    allowed = max_errors(n, level) if feasible(n, level) else CHANCE
    return f"k* = {allowed}: chance" if allowed < CHANCE else ""
