"""The checker: safe or not, where first, by how much, and why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pac_core import HalfSpace, InvalidInput, KeepOutBall, TubeChecker
from pac_core.safety import CheckResult
from pac_core.sets import Boxes

ROOT = Path(__file__).parent.parent.parent


class Intervals:
    """A tube on a line: plans x steps of [low, high], numpy or torch."""

    def __init__(self, low: Any, high: Any) -> None:
        self.low, self.high = low, high

    def support(self, direction: Any) -> Any:
        factor = float(np.asarray(direction)[0])
        return factor * (self.high if factor > 0 else self.low)

    def box(self) -> tuple[Any, Any]:
        return self.low[..., None], self.high[..., None]


LIMITS = [
    HalfSpace("speed", np.ones(1), 3.0),
    HalfSpace("back", -np.ones(1), 1.0),
    KeepOutBall("hole", [2.0], 0.25),
]
LOW = np.array([[0.0, 0.0, 0.0], [0.0, 2.5, -2.0], [0.0, 0.0, 0.0], [0.0, np.nan, 0.0], [-9.0, 2.5, 2.5]])
HIGH = np.array([[1.0, 1.5, 1.0], [1.0, 3.5, 1.0], [1.0, 1.0, 1.9], [1.0, np.nan, 1.0], [9.0, 2.9, 2.9]])


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_safe_first_and_worst_by_hand(library: Any) -> None:
    checked = TubeChecker(LIMITS)(Intervals(library(LOW), library(HIGH)))
    assert tuple(checked.margin.shape) == (5, 3, 3)
    assert checked.safe.tolist() == [True, False, False, False, False]
    step, limit = checked.first
    assert step.tolist() == [-1, 1, 2, 1, 0]
    assert limit.tolist() == [-1, 0, 2, 0, 1]  # at one step, the limit with the least margin
    assert checked.worst.tolist() == pytest.approx([0.25, -1.0, -0.15, -np.inf, -8.0])
    assert checked.names == ("speed", "back", "hole")


def test_reasons_in_words() -> None:
    reasons = TubeChecker(LIMITS)(Intervals(LOW, HIGH)).reasons()
    assert reasons == [
        "safe: the smallest margin is 0.25, to hole at step 2 of 3",
        "speed: may reach 3.5, 0.5 above 3 at step 2 of 3",
        "hole: may be entered, 0.15 deep at step 3 of 3",
        "speed: nothing is known at step 2 of 3",
        "back: may reach 9, 8 above 1 at step 1 of 3",
    ]
    empty = Intervals(np.full((1, 2), np.nan), np.full((1, 2), np.nan))
    assert TubeChecker(LIMITS)(empty).reason(0) == "the tube is empty"
    open_ended = Intervals(np.zeros((1, 1)), np.full((1, 1), np.inf))
    assert TubeChecker(LIMITS[:1])(open_ended).reason(0) == "speed: the tube is unbounded at step 1 of 1"


def test_a_limit_of_ones_own_needs_no_words() -> None:
    class Odd:
        name = "odd"

        def margin(self, tube: Any) -> Any:
            return 1.0 - tube.high

        def violated(self, states: Any) -> Any:
            return states[..., 0] > 1

    checked = TubeChecker([Odd()])(Intervals(LOW[:2], HIGH[:2]))
    assert checked.reason(1) == "odd: may be violated by 2.5 at step 2 of 3"


def test_a_margin_of_zero_is_safe_and_the_one_below_is_not() -> None:
    high = np.array([[3.0], [np.nextafter(3.0, 4.0)]])
    assert TubeChecker(LIMITS[:1])(Intervals(high - 1, high)).safe.tolist() == [True, False]


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="one or more with different names, got \\(\\)"):
        TubeChecker([])
    with pytest.raises(InvalidInput, match="different names"):
        TubeChecker([LIMITS[0], LIMITS[0]])
    with pytest.raises(InvalidInput, match="plans x steps"):
        TubeChecker(LIMITS)(Intervals(LOW[0], HIGH[0]))


def test_a_tube_of_no_steps_is_refused() -> None:
    """Every margin of none is at least 0."""
    with pytest.raises(InvalidInput, match=r"each at least 1, got 2 of \(2, 0, 1\)"):
        TubeChecker(LIMITS[:1])(Intervals(np.zeros((2, 0)), np.zeros((2, 0))))


class Corners(Intervals):
    """A tube whose corners are what they are."""

    def box(self) -> tuple[Any, Any]:
        return self.low, self.high


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_a_tube_without_numbers_or_with_corners_of_two_shapes_is_refused(library: Any) -> None:
    """Of no numbers, no number is outside; and one corner would stand for all plans."""
    for low, high, sentence in (
        (np.zeros((2, 3, 0)), np.zeros((2, 3, 0)), r"each at least 1, got 2 of \(2, 3, 0\)"),
        (np.zeros((2, 3, 1)), np.ones((1, 3, 1)), r"corner .* shape \(2, 3, 1\), got \(1, 3, 1\)"),
        (np.zeros((2, 3, 1)), np.ones((2, 3)), r"corner .* shape \(2, 3, 1\), got \(2, 3\)"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            TubeChecker(LIMITS[:1])(Corners(library(low), library(high)))
    with pytest.raises(InvalidInput, match="D at least 1"):
        Boxes(*(library(np.zeros((2, 3, 0))) for _ in range(3)))
    with pytest.raises(InvalidInput, match="must have one shape"):
        Boxes(library(np.zeros((2, 3))), library(np.zeros((2, 3))), library(np.ones((1, 3))))


@pytest.mark.parametrize("margin", [lambda t: 1.0, lambda t: 5 - t.high[:1], lambda t: 5 - t.high[:, :1]])
def test_a_limit_of_ones_own_is_not_broadcast(margin: Any) -> None:
    class Odd:
        name = "odd"

        def margin(self, tube: Any) -> Any:
            return margin(tube)

        def violated(self, states: Any) -> Any: ...

    for limits in ([Odd()], [LIMITS[0], Odd()]):
        with pytest.raises(InvalidInput, match=r"the margin of 'odd' must be numbers of shape \(2, 3\)"):
            TubeChecker(limits)(Intervals(LOW[:2], HIGH[:2]))


def test_first_of_a_safe_plan_is_minus_one_even_if_all_are_safe() -> None:
    checked = CheckResult(np.ones((2, 3, 1)), np.array([True, True]), ("a",))
    assert [part.tolist() for part in checked.first] == [[-1, -1], [-1, -1]]


def test_the_checker_needs_neither_torch_nor_a_simulator() -> None:
    code = (
        "import sys\n"
        "import numpy as np\n"
        "from pac_core import GaussianForecast, HalfSpace, TubeChecker\n"
        "from pac_core.sets import gaussian_sets\n"
        "tube = gaussian_sets(GaussianForecast(np.zeros((1, 1, 1)), np.ones((1, 1, 1))), 2.0)\n"
        "print(TubeChecker([HalfSpace('h', np.ones(1), 9.0)])(tube).safe)\n"
        "print({'torch', 'mbrl', 'ray', 'gymnasium', 'mujoco'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split("\n")[:2] == ["[ True]", "set()"], done.stderr
