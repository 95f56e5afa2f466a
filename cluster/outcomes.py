"""What a scorer hands over: a row for each unit, and nothing that no certificate can be made of."""

from __future__ import annotations

from textwrap import shorten
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cluster.shards import Shard
from pac_core import InvalidInput
from pac_core.datasets import meaning

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""Named arrays, each with a row per unit."""


def checked(shard: Shard, arrays: Arrays) -> Arrays:
    """The arrays, refused unless they have a row for each unit of the shard, in its order."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.ndim < 1 or len(array) != len(shard):
            shape = getattr(array, "shape", type(array).__name__)
            raise InvalidInput(f"{name} must have a row for each of the {len(shard)} units, got {shape}")
    if "ids" not in arrays or not np.array_equal(arrays["ids"], shard.array):
        raise InvalidInput("a scorer must return `ids`: the ids of the shard, in their order")
    return arrays


def refuse_unfit(arrays: Arrays) -> None:
    """Refuse scores or logits that no certificate can be made of, such as NaN, with the first such unit.

    A simulation that diverges is an outcome, marked with an infinite truth. So is a Gaussian that is none, of
    a model that explodes: the unit counts as an error, as it does when its set is served.
    """
    smaller = [name.removeprefix("mean") for name in arrays if name.startswith("mean_")]  # ensembles
    for suffix in ["", *smaller]:
        chosen = arrays | {name: arrays[name + suffix] for name in ("mean", "var") if name + suffix in arrays}
        if not ({"scores", "logits", "probabilities"} & set(chosen) or {"mean", "var"} <= set(chosen)):
            continue
        try:
            meaning("the scorer's result", chosen, own=True)
        except InvalidInput as error:
            raise InvalidInput(_first_unfit(chosen) or str(error)) from None


def _first_unfit(arrays: Arrays) -> str:
    """The first unit that is refused alone, and why."""
    for row, unit in enumerate(arrays["ids"].tolist()):
        try:
            one = {name: array[row : row + 1] for name, array in arrays.items()}
            meaning("the scorer's result", one, own=True)
        except InvalidInput as error:
            return shorten(f"unit {unit!r}: {error}", 240)  # a row of logits can be long
    return ""
