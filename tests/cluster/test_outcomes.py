"""What a scorer hands over, at the worker's door."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from pac_core import InvalidInput
from pac_core.runs import cut, finish_shard

[SHARD] = cut(["a", "b", "c"], 3)
STEPS = np.ones((3, 4, 2))


def with_(value: float, *place: Any, of: Any = STEPS) -> Any:
    """The array, with this value in a place."""
    changed = np.array(of, dtype=float)
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"scores": with_(np.nan, 1, of=np.zeros(3))}, "unit 'b': scores must not contain NaN"),
        ({"scores": with_(-np.inf, 2, of=np.zeros(3))}, "unit 'c': scores must be above -inf"),
        (
            {"logits": with_(np.nan, 2, 0, of=np.ones((3, 1000)))},
            "unit 'c': each row of logits must be",
        ),
        (
            {"mean": STEPS, "var": STEPS, "truth": with_(np.nan, 1, 1), "lengths": np.array([4, 4, 4])},
            "unit 'b': states must not contain NaN before the end",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_certified_is_refused_with_its_unit(arrays: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(said)) as error:
        finish_shard(SHARD, {"ids": SHARD.array, **arrays}, 0.0)
    assert len(str(error.value)) <= 240


@pytest.mark.parametrize(
    "arrays",
    [
        {"scores": with_(np.inf, 1, of=np.zeros(3))},
        {
            "logits": with_(np.nan, 2, of=np.ones((3, 5))),
            "labels": np.arange(3),
            "failed": np.array([0, 0, 1], bool),
        },
        {"mean": STEPS, "var": STEPS, "truth": with_(np.inf, 1, slice(2, None))},
        {"mean": STEPS, "var": STEPS, "truth": with_(np.nan, 1, 3), "lengths": np.array([4, 2, 4])},
        {"mean": with_(np.inf, 1, 3), "var": STEPS},
        {"mean": STEPS, "var": with_(0.0, 0, 0)},
        {"mean": STEPS, "var": STEPS, "mean_3": with_(np.nan, 2), "var_3": STEPS},
        {"errors": np.array([True, False, True]), "returns": with_(np.nan, 1, of=np.zeros(3))},
    ],
    ids=[
        "diverged",
        "broken image",
        "diverged rollout",
        "early end",
        "exploded",
        "no variance",
        "smaller exploded",
        "no scores",
    ],
)
def test_outcomes_are_not_refused(arrays: Any) -> None:
    receipt, _ = finish_shard(SHARD, {"ids": SHARD.array, **arrays}, 0.0)
    assert receipt.n == 3
