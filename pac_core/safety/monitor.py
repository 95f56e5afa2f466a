"""The run-time monitors: does the certified system still keep its promise, and is it still the same world?

`Monitor` counts exits. H0: an episode exits (what the certificate calls an error) with probability at most
epsilon, whatever happened before. The monitor bets against H0, starting with wealth 1. After episode i, with
X_i = 1 for an exit and 0 otherwise, the wealth is multiplied by 1 + lambda_i (X_i - epsilon), where 0 <=
lambda_i < 1/epsilon is fixed before the episode. Under H0 the wealth is a supermartingale (an e-process), so
it ever reaches 1/alpha, where the alarm is raised, with probability at most alpha (Ville's inequality). The
unit is the episode, settled once: overlapping windows of one gave 69% false alarms at alpha = 1% in a
simulation.

`ScoreMonitor` ranks scores; see `pac_core.exchangeability`. Each has its own alpha, and they add up.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import check_numbers, round_up
from pac_core.bounds import check_integer, check_probability
from pac_core.certificates.certificate import check_words, read_json, scores_digest, seal, write_json
from pac_core.certificates.ledger import RESET, add_note
from pac_core.errors import BadCertificate, InvalidInput
from pac_core.exchangeability import BETS, RankBets

VERSION = 1
SCORE_MONITOR = "pac-sets score monitor"
"""The format of the file of a `ScoreMonitor`."""
ODDS = np.array([1.5, 2.0, 4.0])
"""The alternatives to bet on: so many times the odds of epsilon."""
SHARES = np.array([0.25, 0.5, 0.25])  # of new stakes, for each of them
_SURE = 1 + 1e-9  # a bet that should reach 1/alpha must do so despite rounding


def settle(stakes: Any, episode: Any, exited: Any, *, epsilon: float, alpha: float) -> Any:
    """`[..., J]` the stakes after an episode, from those before it; `episode` counts from 1.

    Each alternative makes the bet that is optimal if it is true (Kelly). Of the initial wealth, 1 / (i (i +
    1)) joins the stakes at episode i, so that a change late in a long quiet life is detected too. No more is
    bet than an exit needs to reach 1/alpha.
    """
    stakes = stakes + SHARES * (1 / (episode * (episode + 1)))
    bets = (ODDS - 1) / (1 + (ODDS - 1) * epsilon)  # below 1/epsilon
    wealth = stakes.sum(-1) + 1 / (episode + 1)
    gain = (stakes * bets).sum(-1) * (1 - epsilon)
    enough = np.clip((_SURE / alpha - wealth) / gain, 0, 1)
    return stakes * (1 + np.multiply.outer(enough * (exited - epsilon), bets))


class _KeptTest:
    """A test whose state is in a sealed file that one process keeps."""

    _format: ClassVar[str]
    _fixed: ClassVar[tuple[str, ...]]
    """of the state: what makes it another test"""
    _clear: Callable[[], None]
    _state: Callable[[], dict[str, Any]]
    _restore: Callable[[dict[str, Any]], None]
    wealth: Any
    alarm: bool

    def __init__(self, path: str | os.PathLike[str] | None, on_alarm: Callable[[Any], None] | None) -> None:
        self.path = None if path is None else Path(path)
        self.on_alarm = on_alarm
        self._told, self._written, self._phase = False, "", "between"
        self._clear()
        if self.path is not None and self.path.exists():
            self._load(self.path)
            self._take_over()
        self._save()
        self._tell()

    def _take_over(self) -> None:
        """Settle what a restart cut off."""

    def reset(self, ledger: str | os.PathLike[str], reason: str) -> None:
        """Start again with wealth 1, after recording in the ledger what is given up, and why.

        Each life may raise a false alarm with probability alpha, which the ledger counts and charges to its
        budget, if it has one.
        """
        check_words("reason", reason)
        self._owned("reset")
        if self._phase != "between":
            raise InvalidInput("reset must come between episodes: finish the running one first")
        hidden = ("format", "version", "scores")
        facts = {name: value for name, value in self._state().items() if name not in hidden}
        add_note(ledger, RESET, facts | {"wealth": self.wealth, "reason": reason})
        self._clear()
        self._told = False
        self._save()

    def _owned(self, what: str) -> None:
        if self._phase == "read":
            raise InvalidInput(f"{what} needs the process that keeps the monitor; this one was only read")

    def _tell(self) -> None:
        if self.alarm and not self._told:
            self._told = True
            if self.on_alarm is not None:
                self.on_alarm(self)

    def _save(self) -> None:
        if self.path is None:
            return
        if self.path.exists() and read_json(self.path).get("seal") != self._written:
            raise InvalidInput(f"{self.path} was changed by somebody else: one monitor keeps one file")
        document = self._state()
        self._written = seal(document)
        write_json(self.path, document | {"seal": self._written})

    def _load(self, path: Path) -> None:
        """Take over the state in a file; refuse a changed file, and one of another test."""
        document = read_json(path)
        if document.get("format") != self._format or document.get("version") != VERSION:
            raise BadCertificate(f"{path} is not a {self._format} of version {VERSION}")
        if set(document) != {*self._state(), "seal"} or seal(document) != document["seal"]:
            raise BadCertificate(f"{path} was changed after it was written: its seal does not match")
        for name in self._fixed:
            if document[name] != self._state()[name]:
                raise InvalidInput(
                    f"{path} keeps a monitor with {name}={document[name]}, got {self._state()[name]}: "
                    "reset that one, or keep this one elsewhere"
                )
        self._restore(document)
        self.alarm, self._written = document["alarm"], document["seal"]


class Monitor(_KeptTest):
    """A test of "an episode exits with probability at most epsilon" that may be read at every step.

    epsilon: of the certificate; alpha: the false-alarm probability over the monitor's lifetime
    path: a file that keeps the state; None forgets it when the process ends
    on_alarm: called with the monitor once when the alarm is raised, and once by a process that starts while
        the alarm stands

    If nothing has changed since a certificate at delta, the false-alarm probability is at most alpha + delta.
    The absence of an alarm does not prove that all is well. **An episode cut off by a restart counts as an
    exit**, because otherwise ending the process would erase one: call `finish` before stopping the process on
    purpose. Opening a file takes it over, so look at a running monitor with `Monitor.read(path)`.

    >>> monitor = Monitor(epsilon=0.05, alpha=0.01)
    >>> for episode in range(5):
    ...     for step in range(200):
    ...         if monitor.step(exited=step == 150):
    ...             break  # the fallback acts
    ...     alarm = monitor.finish()
    >>> monitor
    no alarm after 5 episodes with 5 exits, wealth 79.87 against P(exit) <= 0.05, alarm at 100
    """

    _format = "pac-sets monitor"
    _fixed = ("epsilon", "alpha", "odds")

    def __init__(
        self,
        epsilon: float,
        alpha: float,
        path: str | os.PathLike[str] | None = None,
        on_alarm: Callable[[Monitor], None] | None = None,
    ) -> None:
        self.epsilon, self.alpha = check_probability("epsilon", epsilon), check_probability("alpha", alpha)
        super().__init__(path, on_alarm)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Monitor:
        """The monitor in a file, read only: the file is not touched, and nothing is bet.

        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> running = Monitor(0.05, 0.01, f"{folder.name}/monitor.json")
        >>> alarm = running.step(exited=False)
        >>> Monitor.read(running.path)
        no alarm after 0 episodes with 0 exits, wealth 1 against P(exit) <= 0.05, alarm at 100
        >>> folder.cleanup()
        """
        document = read_json(path)
        monitor = cls(*(document.get(name, 0.5) for name in ("epsilon", "alpha")))
        monitor._load(Path(path))
        monitor._phase = "read"
        return monitor

    @property
    def wealth(self) -> float:
        """The wealth after the last settled episode."""
        return float(self._stakes.sum() + 1 / (self.episodes + 1))

    def step(self, exited: bool) -> bool:
        """Whether the alarm stands, after one step of an episode; its first exit is settled at once."""
        if not isinstance(exited, bool | np.bool_):
            raise InvalidInput(f"exited must be True or False, got {exited!r}")
        self._owned("step")
        if self._phase == "between":
            self._phase = "running"
            if not exited:
                self._save()  # from here on, ending the process cuts off an episode
        if exited and self._phase == "running":
            self._settle(exited=True)
            self._phase = "exited"
            self._save()
            self._tell()
        return self.alarm

    def finish(self) -> bool:
        """Whether the alarm stands, after the end of the episode; one that did not exit is settled now."""
        self._owned("finish")
        if self._phase == "between":
            raise InvalidInput("finish must follow a step: an episode without steps does not count")
        if self._phase == "running":
            self._settle(exited=False)
        self._phase = "between"
        self._save()
        return self.alarm

    def __repr__(self) -> str:
        word = "ALARM" if self.alarm else "no alarm"
        return (
            f"{word} after {self.episodes:,} episodes with {self.exits:,} exits, "
            f"wealth {self.wealth:.4g} against P(exit) <= {round_up(self.epsilon)}, "
            f"alarm at {1 / self.alpha:g}"
        )

    def _clear(self) -> None:
        self.episodes, self.exits, self.alarm = 0, 0, False
        self._stakes: NDArray[np.float64] = np.zeros(len(ODDS))
        self._phase = "between"

    def _take_over(self) -> None:
        if self._phase == "running":
            self._settle(exited=True)
        self._phase = "between"

    def _settle(self, *, exited: bool) -> None:
        if self.alarm:  # the test is over
            return
        self.episodes, self.exits = self.episodes + 1, self.exits + exited
        self._stakes = settle(
            self._stakes, self.episodes, float(exited), epsilon=self.epsilon, alpha=self.alpha
        )
        self.alarm = self.wealth >= 1 / self.alpha

    def _state(self) -> dict[str, Any]:
        test = {"format": self._format, "version": VERSION, "epsilon": self.epsilon, "alpha": self.alpha}
        stakes = {"odds": ODDS.tolist(), "stakes": self._stakes.tolist(), "episodes": self.episodes}
        return test | stakes | {"exits": self.exits, "alarm": self.alarm, "phase": self._phase}

    def _restore(self, document: dict[str, Any]) -> None:
        self._stakes = np.array(document["stakes"], dtype=np.float64)
        self.episodes, self.exits, self._phase = (document[name] for name in ("episodes", "exits", "phase"))


class ScoreMonitor(_KeptTest):
    """A test of "new units are drawn as the calibration units were" that may be read after every unit.

    calibration: `[n]` the calibration scores of a certificate; with others its file is refused
    alpha: the false-alarm probability over the monitor's lifetime and the draw of the calibration units; it
        adds to that of a `Monitor` of exits
    path, on_alarm: as of `Monitor`; seed: of the smoothing of ranks; scores: those bet on so far

    Hand in the score of each whole unit, in the order in which they began, computed as the calibration scores
    were; +inf for one that failed or was lost. The absence of an alarm does not prove that all is well.

    >>> rng = np.random.default_rng(0)
    >>> monitor = ScoreMonitor(rng.normal(size=1000), alpha=0.01)
    >>> monitor.observe(rng.normal(size=500)), monitor.observe(rng.normal(0.5, size=500))
    (False, True)
    >>> monitor
    ALARM after 575 units, wealth 106.6 against one source of scores, alarm at 100
    """

    _format = SCORE_MONITOR
    _fixed = ("calibration", "alpha", "seed", "bets")

    def __init__(
        self,
        calibration: Any,
        alpha: float,
        path: str | os.PathLike[str] | None = None,
        on_alarm: Callable[[ScoreMonitor], None] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        scores = check_numbers("calibration", calibration, "[N]").astype(np.float64)
        self.alpha, self.seed = check_probability("alpha", alpha), check_integer("seed", seed, least=0)
        self.digest, self.scores = scores_digest(scores), list[float]()
        self._calibration: list[float] = scores.tolist()
        self._bets = RankBets(self._calibration, self.seed)
        super().__init__(path, on_alarm)

    @property
    def wealth(self) -> float:
        """The wealth after the last unit."""
        return self._bets.wealth

    def observe(self, scores: Any) -> bool:
        """Whether the alarm stands, after the score of one more unit, or those of several in their order.

        They are settled and on disk when it returns; after the alarm the test is over.
        """
        self._owned("observe")
        for score in check_numbers("scores", np.atleast_1d(scores), "[N]").astype(np.float64).tolist():
            if self.alarm:
                break
            self.scores.append(score)
            self.alarm = self._bets.bet(score, self.alpha)
        self._save()
        self._tell()
        return self.alarm

    def __repr__(self) -> str:
        word = "ALARM" if self.alarm else "no alarm"
        against = f"wealth {self.wealth:.4g} against one source of scores, alarm at {1 / self.alpha:g}"
        return f"{word} after {self._bets.units:,} units, {against}"

    def _clear(self) -> None:
        self.alarm = False
        self._bets.stakes, self._bets.units = np.zeros(len(BETS)), 0
        # Ranks go on among all that was seen, so that what led to a reset does not bias the life after it.

    def _state(self) -> dict[str, Any]:
        test = {"format": self._format, "version": VERSION, "calibration": self.digest}
        test |= {"alpha": self.alpha, "seed": self.seed, "bets": BETS.tolist()}
        scores = base64.b64encode(np.array(self.scores, "<f8").tobytes()).decode()  # JSON has no infinity
        life = {"stakes": self._bets.stakes.tolist(), "units": self._bets.units, "alarm": self.alarm}
        return test | life | {"scores": scores}

    def _restore(self, document: dict[str, Any]) -> None:
        self.scores = np.frombuffer(base64.b64decode(document["scores"]), dtype="<f8").tolist()
        self._bets = RankBets(self._calibration, self.seed, self.scores)
        self._bets.stakes, self._bets.units = np.array(document["stakes"]), document["units"]
