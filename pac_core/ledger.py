"""What the calibrate split was asked for, written down before it is opened, and what that costs.

Each certificate may fail with probability delta; several from the same units may fail together
more often than any one. The ledger holds the whole menu beforehand and states the probability
that any of them fails. A menu thought of after the look needs new units.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pac_core.bounds import PACLevel, max_errors
from pac_core.documents import read_json, write_json
from pac_core.errors import BadCertificate, PACError, SecondLook
from pac_core.predictors import Score
from pac_core.splits import ids_digest, unit_names

FORMAT = "pac-sets ledger"
_WIDEST = 4_000_000  # entries of a transition matrix; a wider one falls back to the sum of deltas
_SIGMAS = 12
_CUT_OFF = 1e-20  # more than the probability of leaving a window of twelve sigmas


@dataclass(frozen=True)
class Entry:
    """One certificate on the menu: a score, by its digest, at a level."""

    score: str
    epsilon: float
    delta: float

    @property
    def level(self) -> PACLevel:
        return PACLevel(self.epsilon, self.delta)


@dataclass(frozen=True)
class Opening:
    """One look: calibration units, and the menu they were opened for.

    calibrate: digest of the ids of the calibration units
    n: how many there are
    menu: every certificate asked for
    data: digest of what is said of them (forecasts and truths, or scores): with other data, the same
        units and menu are another look
    units: a 64-bit hash of each id, so that any later overlap is noticed
    """

    calibrate: str
    n: int
    menu: tuple[Entry, ...]
    data: str
    units: str

    @classmethod
    def of(cls, ids: Any, menu: Iterable[Entry], data: str) -> Opening:
        """The look at the units with these ids."""
        names = unit_names("ids", ids).tolist()
        hashes = b"".join(sorted(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names))
        ordered = sorted(menu, key=lambda entry: (entry.score, entry.epsilon, entry.delta))
        return cls(ids_digest(ids), len(names), tuple(ordered), data, base64.b64encode(hashes).decode())

    def shared_with(self, other: Opening) -> int:
        """How many units both looked at."""
        mine, theirs = (np.frombuffer(base64.b64decode(o.units), dtype=">u8") for o in (self, other))
        return len(np.intersect1d(mine, theirs))

    @property
    def cost(self) -> float:
        """The probability that any certificate of the menu fails is below this."""
        return joint_cost(self.n, self.menu)


def score_digest(score: Score) -> str:
    """A fingerprint of a fitted score."""
    text = json.dumps({"kind": score.kind} | score.to_json(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def joint_cost(n: int, menu: Iterable[Entry]) -> float:
    """A bound on the probability that any certificate of the menu fails, from the same `n` units.

    Different scores add up. For one score at one epsilon only the largest delta counts. For one
    score at several epsilons the probability is computed exactly: the numbers of units beyond
    the true quantiles are nested binomials.

    >>> menu = [Entry("s", e, d) for e in (0.01, 0.02, 0.03, 0.04, 0.05) for d in (1e-1, 1e-3, 1e-5)]
    >>> round(joint_cost(5000, menu), 3)
    0.214
    """
    by_score: dict[str, dict[float, float]] = {}
    for entry in menu:
        deltas = by_score.setdefault(entry.score, {})
        deltas[entry.epsilon] = max(entry.delta, deltas.get(entry.epsilon, 0.0))
    return min(1.0, math.fsum(_cost_of_one_score(n, deltas) for deltas in by_score.values()))


def open_split(path: str | os.PathLike[str], opening: Opening) -> Opening:
    """Write the menu into the ledger at `path`, before the calibrate split is read.

    The same menu on the same units again is the same look. Any other look that shares a unit with
    an earlier one raises `SecondLook`.
    """
    file = Path(path).resolve()  # a link to a ledger is that ledger
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file):
        openings = read_ledger(file) if file.exists() else []
        for earlier in openings:
            if opening == earlier:
                return earlier
            shared = opening.shared_with(earlier)
            if shared:
                raise SecondLook(
                    f"{shared:,} of these {opening.n:,} units were calibrated on before, for "
                    f"{_describe(earlier.menu)} (ledger {file}): a new certificate needs units never "
                    "calibrated on. Ask for every epsilon and delta in one look."
                )
        document = {"format": FORMAT, "version": 1, "openings": [asdict(o) for o in [*openings, opening]]}
        write_json(file, document)
    return opening


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Only one process at a time, where the system can lock files."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with open(file.with_name(file.name + ".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_ledger(path: str | os.PathLike[str]) -> list[Opening]:
    """All openings of a ledger; a file that is not one is refused."""
    document = read_json(path)
    if document.get("format") != FORMAT or document.get("version") != 1:
        raise BadCertificate(f"{path} is not a ledger of version 1")
    try:
        return [_opening(entry) for entry in document["openings"]]
    except (PACError, KeyError, TypeError, ValueError) as error:
        raise BadCertificate(f"{path} is a damaged ledger: {error!r}") from None


def _opening(document: dict[str, Any]) -> Opening:
    """One look, refused unless its parts fit together."""
    menu = tuple(Entry(**entry) for entry in document["menu"])
    opening = Opening(**{**document, "menu": menu})
    for entry in menu:
        max_errors(opening.n, entry.level)
    if not menu or len(base64.b64decode(opening.units, validate=True)) != 8 * opening.n:
        raise ValueError("a look must have a menu and a hash of each unit")
    return opening


def _cost_of_one_score(n: int, deltas: dict[float, float]) -> float:
    if len(deltas) == 1:
        return next(iter(deltas.values()))
    epsilons = sorted(deltas)
    allowed = [max_errors(n, PACLevel(epsilon, deltas[epsilon])) for epsilon in epsilons]
    windows = [_window(n, epsilon) for epsilon in epsilons]
    if max(len(a) * len(b) for a, b in pairwise(windows)) > _WIDEST:
        return math.fsum(deltas.values())
    # alive[i]: probability that windows[j][i] units lie beyond quantile j and no bound failed yet
    alive, before, reached, failed = np.ones(1), np.zeros(1, dtype=np.int64), 0.0, _CUT_OFF
    for epsilon, window, errors in zip(epsilons, windows, allowed, strict=True):
        share = (epsilon - reached) / (1 - reached)
        step = _binomial(window[None, :] - before[:, None], n - before[:, None], share)
        alive = alive @ step
        failed += float(alive[window <= errors].sum())
        alive[window <= errors] = 0
        before, reached = window, epsilon
    return min(failed, math.fsum(deltas.values()))


def _window(n: int, epsilon: float) -> Any:
    """The counts that are not beyond all likelihood; `_CUT_OFF` charges the rest."""
    middle, wide = n * epsilon, _SIGMAS * math.sqrt(n * epsilon * (1 - epsilon)) + _SIGMAS
    return np.arange(max(0, math.floor(middle - wide)), min(n, math.ceil(middle + wide)) + 1)


def _binomial(hits: Any, trials: Any, share: float) -> Any:
    """P[Binomial(trials, share) = hits], 0 where hits is negative."""
    from scipy.special import betaln, xlog1py, xlogy  # see bounds.proves

    possible = (hits >= 0) & (hits <= trials)
    k = np.where(possible, hits, 0)
    log_choose = -betaln(trials - k + 1, k + 1) - np.log1p(trials)
    log_p = log_choose + xlogy(k, share) + xlog1py(trials - k, -share)
    return np.where(possible, np.exp(log_p), 0.0)


def _describe(menu: Sequence[Entry]) -> str:
    levels = ", ".join(sorted({f"({entry.epsilon:g}, {entry.delta:g})" for entry in menu}))
    scores = len({entry.score for entry in menu})
    count = f"{len(menu)} certificate{'s' * (len(menu) > 1)} of {scores} score{'s' * (scores > 1)}"
    return f"{count} at (epsilon, delta) = {levels}"
