"""The truth of a trajectory forecast, also where units end early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_torch_array

from pac_core.arrays import Array, like, plain
from pac_core.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class Trajectories:
    """True states of a horizon, of which a unit may live only the first steps.

    states: `[B, H, D]`; states after a unit's end are ignored
    lengths: `[B]` steps up to and including the end: 1 to H

    Accepted wherever a truth `[B, H, D]` is. Steps after the end do not exist, so no set can miss them and
    nothing is fitted to them: the promise holds until the end.
    """

    states: Any
    lengths: Any

    def __post_init__(self) -> None:
        if not is_torch_array(self.states):
            object.__setattr__(self, "states", plain("states", self.states, "[B, H, D]"))
            if self.states.dtype.kind not in "fiu":
                raise InvalidInput(f"states must be numbers, got dtype {self.states.dtype}")
        lengths, shape = plain("lengths", self.lengths, "[B]"), tuple(self.states.shape)
        if len(shape) != 3 or len(lengths) != shape[0]:
            raise InvalidInput(f"states must be [B, H, D] with a length each, got {shape}, {lengths.shape}")
        if lengths.dtype.kind not in "iu" or lengths.min() < 1 or lengths.max() > shape[1]:
            raise InvalidInput(f"lengths must be whole numbers from 1 to the horizon {shape[1]}, got others")
        object.__setattr__(self, "lengths", lengths)
        ended = int((shape[1] - lengths).sum()) * shape[2]
        if int(array_namespace(self.states).isnan(self.marked()).sum()) > ended:
            raise InvalidInput("states must not contain NaN before the end; mark a failed unit with inf")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: Any) -> Trajectories:
        return Trajectories(self.states[rows], self.lengths[rows])

    def marked(self) -> Array:
        """`[B, H, D]` the states, with NaN for the steps after the end."""
        xp = array_namespace(self.states)
        ended = (np.arange(self.states.shape[1]) >= self.lengths[:, None])[..., None]
        mask = xp.asarray(ended, device=self.states.device) if is_torch_array(self.states) else ended
        return xp.where(mask, like(self.states, np.nan), self.states)


def as_given(truth: Any, states: Array) -> Any:
    """`states`, which were made from `truth`, with its lengths if it has any."""
    return Trajectories(states, truth.lengths) if isinstance(truth, Trajectories) else states


def a_truth(truth: Any, mean: Array, shape: tuple[int, ...]) -> Array:
    """The array that a set compares with; a NaN in `truth` becomes infinite, which is in no set.

    Steps after the end of `Trajectories` become NaN, which no set can miss.
    """
    if isinstance(truth, Trajectories):
        return shaped(truth.marked(), mean, shape)
    truth = shaped(truth, mean, shape)
    xp = array_namespace(truth)
    return xp.where(xp.isnan(truth), like(truth, np.inf), truth)


def shaped(truth: Any, mean: Array, shape: tuple[int, ...]) -> Array:
    """Convert `truth` to an array like `mean`; refuse any other shape."""
    if not is_torch_array(truth):
        truth = plain("truth", truth, "[B, D]" if len(shape) == 2 else "[B, H, D]")
        if truth.dtype.kind not in "fiu":
            raise InvalidInput(f"truth must be numbers, got dtype {truth.dtype}")
    if tuple(truth.shape) != shape:
        raise InvalidInput(f"truth must have shape {shape}, got {tuple(truth.shape)}")
    return like(mean, truth)
