"""Anybody's robot as functions: what happens, put into one protocol.

A system may keep more than it shows: `begin`, `see` and `advance` work on rows `[B, S]` of all that it needs
to go on, of which `see` makes the states `[B, D]`. Each row has a generator of its own, so that everything
random in a unit comes from its id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib import import_module
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from pac_core import InvalidInput, PACError
from pac_core.arrays import check_list, check_numbers, check_returned
from pac_core.bounds import check_integer

Floats: TypeAlias = NDArray[np.float64]
Rngs: TypeAlias = Sequence[Generator]


Advanced: TypeAlias = tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]
"""Rows after a step, and which of them ended and which failed."""


class AnySystem(Protocol):
    """What happens; `System`, `MujocoSystem` and `GymSystem` are such."""

    @property
    def names(self) -> Sequence[str]:
        """D names of a state's numbers."""

    @property
    def low(self) -> Floats:
        """`[A]` the smallest action."""

    @property
    def high(self) -> Floats:
        """`[A]` the largest action."""

    def begin(self, rngs: Rngs) -> Floats:
        """`[B, S]` rows at a reset, one for each generator."""

    def see(self, rows: Floats) -> Floats:
        """`[B, D]` their states."""

    def advance(self, rows: Floats, actions: Floats, rngs: Rngs) -> Advanced:
        """The rows one step later."""


class Lazy:
    """A dataclass that hands on its fields alone: what it made of them is made again where it is needed."""

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]


class RowByRow(Lazy):
    """Systems that are stepped one row at a time; a row whose step raises has failed."""

    def move(self, row: Floats, action: Floats, rng: Generator) -> tuple[Floats, bool]:
        """The row after a step, and whether the episode ends there; whatever the simulator raises."""
        raise NotImplementedError

    def advance(self, rows: Floats, actions: Floats, rngs: Rngs) -> Advanced:
        reached, ended = np.full(rows.shape, np.nan), np.zeros(len(rows), bool)
        for i, one in enumerate(zip(rows, actions, rngs, strict=True)):
            try:
                reached[i], ended[i] = self.move(*one)
            except PACError:
                raise
            except Exception:  # whatever a stranger's simulator does when it breaks
                reached[i] = np.nan
        failed = np.asarray(~np.isfinite(reached).all(axis=1))
        return reached, ended & ~failed, failed


@dataclass(frozen=True, eq=False)
class System(RowByRow):
    """A robot as two functions.

    reset: from a generator to a state `[D]`
    step: from a state `[D]`, an action `[A]` and a generator to the next state `[D]`; if `vectorised`, from
        states `[B, D]`, actions `[B, A]` and B generators to states `[B, D]`
    low, high: `[A]` the range of actions
    names: D names of the state's numbers
    ended: from a state to whether the episode ends there; from states `[B, D]` to `[B]` if `vectorised`

    A step that raises, or returns NaN or infinity, is a failed unit: it breaks every limit. One that returns
    another shape is refused. A vectorised step that raises is called again for each row alone, with its
    generator as it was, so that one row's failure is nobody else's.
    """

    reset: Callable[[Generator], Any]
    step: Callable[[Any, Any, Any], Any]
    low: Any
    high: Any
    names: Sequence[str]
    ended: Callable[[Any], Any] | None = None
    vectorised: bool = False

    def __post_init__(self) -> None:
        low, high = (check_numbers(name, getattr(self, name), "[A]", finite=True) for name in ("low", "high"))
        if low.shape != high.shape or not (low < high).all():
            raise InvalidInput(f"low must be below high, number by number, got {self.low} and {self.high}")
        fixed = {"low": low.astype(np.float64), "high": high.astype(np.float64)}
        for name, value in {**fixed, "names": check_names(self.names)}.items():
            object.__setattr__(self, name, value)

    def begin(self, rngs: Rngs) -> Floats:
        return np.stack([_at_reset("reset", self.names, self.reset, rng) for rng in rngs])

    def see(self, rows: Floats) -> Floats:
        return rows

    def advance(self, rows: Floats, actions: Floats, rngs: Rngs) -> Advanced:
        if not self.vectorised:
            return super().advance(rows, actions, rngs)
        before = [rng.bit_generator.state for rng in rngs]
        try:
            reached, ended = self._move(rows.copy(), actions.copy(), rngs)
        except PACError:
            raise
        except Exception:
            for rng, state in zip(rngs, before, strict=True):
                rng.bit_generator.state = state
            return super().advance(rows, actions, rngs)
        failed = np.asarray(~np.isfinite(reached).all(axis=1))
        return reached, ended & ~failed, failed

    def move(self, row: Floats, action: Floats, rng: Generator) -> tuple[Floats, bool]:
        if not self.vectorised:
            return self._move(row.copy(), action.copy(), rng)
        reached, ended = self._move(row[None].copy(), action[None].copy(), [rng])
        return reached[0], bool(ended[0])

    def _move(self, states: Floats, actions: Floats, rngs: Any) -> tuple[Floats, Any]:
        """Of one state, or of several if vectorised."""
        reached = _check("step", self.step(states, actions, rngs), states.shape)
        alive = np.asarray(np.isfinite(reached).all(axis=-1))
        ended = np.zeros(alive.shape, bool)
        if self.ended is not None and alive.any():
            seen = reached[alive] if self.vectorised else reached
            told = self.ended(seen.copy())
            ended[alive] = check_bools("ended", told, seen.shape[:-1], f"{int(alive.sum())} states")
        return reached, ended


@dataclass(frozen=True, eq=False)
class GymSystem(RowByRow):
    """Any other Gymnasium environment.

    id: its name, of which wrappers are taken off; or a function that makes it, with the wrappers you want
    state: from the environment to its state `[D]`
    set_state: from the environment and such a state: puts it back there. The state must then be all that it
        needs to go on. None for an environment that cannot be put back: it is reset to the same seed, and the
        actions so far are carried out again, which must lead to the same state to the last bit
    names: D names of the state's numbers
    options: of `gymnasium.make`, or of the function
    steps: without `set_state`, the most of an episode with the plan at its end; by default the environment's
        `max_episode_steps`

    What is random comes from the environment's `np_random`: the unit's own generator, or without `set_state`
    one of its own seed. An episode ends where a step says `terminated`; `truncated` does not count.
    """

    id: str | Callable[..., Any]
    state: Callable[[Any], Any]
    set_state: Callable[[Any, Floats], Any] | None
    names: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.steps is not None:
            check_integer("steps", self.steps, least=1)
        object.__setattr__(self, "names", check_names(self.names))
        object.__setattr__(self, "options", dict(sorted(self.options.items())))

    def _make(self) -> Any:
        gymnasium = require_module("gymnasium")
        try:
            made = self.id(**self.options) if callable(self.id) else gymnasium.make(self.id, **self.options)
            gym = made if callable(self.id) else made.unwrapped
            gym.reset(seed=0)
        except Exception as error:
            raise InvalidInput(f"id and options must make an environment: {error}") from None
        space = gym.action_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1 or not space.is_bounded():
            raise InvalidInput(f"actions must be a list of numbers with finite ends, got {space}")
        return gym

    @cached_property
    def gym(self) -> Any:
        """The environment that is put back; without `set_state`, the one that is asked for its spaces."""
        return self._make()

    @cached_property
    def low(self) -> Floats:
        return np.asarray(self.gym.action_space.low, dtype=np.float64)

    @cached_property
    def high(self) -> Floats:
        return np.asarray(self.gym.action_space.high, dtype=np.float64)

    @cached_property
    def _most(self) -> int:
        """Steps that a row has room for."""
        spec = self.gym.spec if callable(self.id) else require_module("gymnasium").spec(self.id)
        found = self.steps or getattr(spec, "max_episode_steps", None)
        if found is None:
            raise InvalidInput("steps must be given without set_state and a time limit, got None")
        return int(found)

    @cached_property
    def _live(self) -> dict[bytes, Any]:
        """Environments that stand where a row says, the latest last: they need not be led there again."""
        return {}

    def begin(self, rngs: Rngs) -> Floats:
        return np.stack([self._begin(int(rng.integers(2**31))) for rng in rngs])

    def _begin(self, seed: int) -> Floats:
        def read(gym: Any) -> Any:
            gym.reset(seed=seed)
            return self.state(gym)

        gym = self.gym if self.set_state else self._spare()
        state = _at_reset("state", self.names, read, gym)
        if self.set_state:
            return state
        row = np.concatenate([[seed, 0.0], np.zeros(self._most * len(self.low)), state])
        self._live[row.tobytes()] = gym
        return row

    def see(self, rows: Floats) -> Floats:
        return rows[:, -len(self.names) :]

    def move(self, row: Floats, action: Floats, rng: Generator) -> tuple[Floats, bool]:
        gym, row = self._put_back(row, rng), row.copy()
        terminated = gym.step(action.astype(gym.action_space.dtype))[2]
        row[-len(self.names) :] = self._read(gym)
        if self.set_state is None:
            first = 2 + int(row[1]) * len(action)
            row[first : first + len(action)] = action
            row[1] += 1
            self._live[row.tobytes()] = gym
        return row, bool(terminated)

    def _put_back(self, row: Floats, rng: Generator) -> Any:
        """An environment that stands where this row says."""
        if self.set_state is None:
            if row[1] == self._most:
                rule = "steps must be the most of an episode with the plan at its end"
                raise InvalidInput(f"{rule}, got {self._most} and a step more")
            return self._live.pop(row.tobytes(), None) or self._replay(row)
        try:
            self.set_state(self.gym, row.copy())
        except Exception as error:
            rule = "set_state must take the environment and a state"
            raise InvalidInput(f"{rule}, but raised {error!r}") from None
        if not np.array_equal(self._read(self.gym), row):
            raise InvalidInput("set_state must put the environment back into the state that state reads")
        self.gym.unwrapped.np_random = rng
        return self.gym

    def _replay(self, row: Floats) -> Any:
        done, size = int(row[1]), len(self.low)
        gym = self._spare()
        gym.reset(seed=int(row[0]))
        for action in row[2 : 2 + done * size].reshape(done, size):
            gym.step(action.astype(gym.action_space.dtype))
        if not np.array_equal(self._read(gym), row[-len(self.names) :]):
            rule = "the same seed and actions must lead to the same state where there is no set_state"
            raise InvalidInput(f"{rule}, got another: {self.id} hides something random")
        return gym

    def _spare(self) -> Any:
        """An environment to be reset: a new one, or of many the one that has not been used for longest."""
        return self._make() if len(self._live) < LIVE else self._live.pop(next(iter(self._live)))

    def _read(self, gym: Any) -> Floats:
        return _check("state", self.state(gym), (len(self.names),))


LIVE = 1024
"""Environments that `GymSystem` keeps where it cannot put one back."""


def check_system(system: AnySystem) -> None:
    """Refuse, with what it raised, a system that cannot be reset and stepped, and stepped again the same."""
    rng = default_rng(0)
    rows, middle = system.begin([rng]), (system.low + system.high) / 2
    state = system.see(rows)
    if state.shape != (1, len(system.names)):
        raise InvalidInput(
            f"a state must have {len(system.names)} numbers, a name each, got {state.shape[1:]}"
        )
    if isinstance(system, RowByRow):
        try:
            system.move(rows[0], middle, rng)
        except PACError:
            raise
        except Exception as error:
            raise InvalidInput(
                f"step must take a state, an action and a generator, but raised {error!r}"
            ) from None
    if system.advance(rows, middle[None], [rng])[2].any():
        raise InvalidInput("step must return finite numbers from a reset and the middle action, got others")
    if not np.array_equal(_walk(system), _walk(system, aside=True), equal_nan=True):
        rule = "a step must depend on its state, action and generator alone"
        raise InvalidInput(f"{rule}, got another result when it was done again")


def _walk(system: AnySystem, *, aside: bool = False) -> Floats:
    """Where two steps lead; if `aside`, with steps of another episode in between."""
    rng, other = default_rng(1), default_rng(2)
    row, far = (system.begin([one]) for one in (rng, other))
    for _ in range(2):
        if aside:
            system.advance(far, _draw(system, other), [other])
        row, ended, failed = system.advance(row, _draw(system, rng), [rng])
        if (ended | failed).any():
            break
    return row


def _draw(system: AnySystem, rng: Generator) -> Floats:
    return rng.uniform(system.low, system.high)[None]


def check_names(names: Any) -> tuple[str, ...]:
    """`names` of a state's numbers, refused unless they are different texts."""
    given = tuple(check_list("names", names))
    if not given or not all(isinstance(name, str) for name in given) or len(set(given)) != len(given):
        raise InvalidInput(f"names must be different texts, one for each number of a state, got {given}")
    return given


def _at_reset(name: str, names: Sequence[str], read: Callable[[Any], Any], given: Any) -> Floats:
    """`[D]` the state at a reset, which cannot fail."""
    rule = f"{name} must return {len(names)} finite numbers, one for each of {', '.join(names)}"
    try:
        state = _check(name, read(given), (len(names),))
    except PACError as error:
        raise InvalidInput(f"{rule}: {error}") from None
    except Exception as error:
        raise InvalidInput(f"{rule}, but raised {error!r}") from None
    if not np.isfinite(state).all():
        raise InvalidInput(f"{rule}, got {state}")
    return state


def _check(name: str, values: Any, shape: tuple[int, ...]) -> Floats:
    """What a user's function returned, as doubles of this shape."""
    try:
        return np.array(check_returned(name, values, shape, np.zeros(0)))  # a copy: it may be theirs
    except (ValueError, TypeError) as error:  # lists of different lengths
        raise InvalidInput(f"{name} must be numbers of shape {shape}: {error}") from None


def check_bools(name: str, values: Any, shape: tuple[int, ...], what: str) -> NDArray[np.bool_]:
    """What a user's function returned, refused unless it is a bool for each of something."""
    given = np.asarray(values)
    if given.shape != shape or given.dtype != np.bool_:
        got = f"{given.dtype} of {given.shape}"
        raise InvalidInput(f"{name} must return a bool for each of {what}, got {got}")
    return given


def require_module(module: str) -> Any:
    """The module of this name, refused in one sentence where it is not installed.

    Tubes and guards work without a simulator, so whatever needs one asks for it only then.
    """
    try:
        return import_module(module)
    except ImportError as error:
        more = " and then mbrl-lib itself, pip install --no-deps mbrl==0.2.0" if module[:4] == "mbrl" else ""
        raise InvalidInput(f"{module} is needed here: install pac-sets[rl]{more} ({error})") from None
