"""What came true: the states of whole horizons, or of units that ended before theirs did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_torch_array

from pac_core.arrays import Array, like, plain
from pac_core.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class Trajectories:
    """The truth of a horizon of which a unit may have lived only the first steps.

    states: `[B, H, D]`; what stands after a unit's end is ignored
    lengths: `[B]` steps until the end, the last one included: 1 to H

    Give it wherever a truth `[B, H, D]` is asked for. Steps after the end do not exist, so no set can
    miss them and nothing is fitted to them: the promise runs until the end.
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
        """`[B, H, D]` the states, NaN after the end: how steps that never were are known inside."""
        xp = array_namespace(self.states)
        ended = (np.arange(self.states.shape[1]) >= self.lengths[:, None])[..., None]
        mask = xp.asarray(ended, device=self.states.device) if is_torch_array(self.states) else ended
        return xp.where(mask, like(self.states, np.nan), self.states)


def as_given(truth: Any, states: Array) -> Any:
    """`states`, which were made of `truth`, with its lengths if it has any."""
    return Trajectories(states, truth.lengths) if isinstance(truth, Trajectories) else states


def a_truth(truth: Any, mean: Array, shape: tuple[int, ...]) -> Array:
    """`truth` as an array like `mean`, for a set to compare with; NaN is like infinity, in no set.

    Steps after the end of `Trajectories` become NaN, the mark of what cannot be missed.
    """
    if isinstance(truth, Trajectories):
        return shaped(truth.marked(), mean, shape)
    truth = shaped(truth, mean, shape)
    xp = array_namespace(truth)
    return xp.where(xp.isnan(truth), like(truth, np.inf), truth)


def shaped(truth: Any, mean: Array, shape: tuple[int, ...]) -> Array:
    """`truth` in the library and on the device of `mean`, refused unless it holds numbers of this shape."""
    if not is_torch_array(truth):
        truth = plain("truth", truth, "[B, D]" if len(shape) == 2 else "[B, H, D]")
        if truth.dtype.kind not in "fiu":
            raise InvalidInput(f"truth must be numbers, got dtype {truth.dtype}")
    if tuple(truth.shape) != shape:
        raise InvalidInput(f"truth must have shape {shape}, got {tuple(truth.shape)}")
    return like(mean, truth)
