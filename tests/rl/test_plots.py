"""Figures that a newcomer reads rightly: what was not checked is not drawn."""

from __future__ import annotations

import numpy as np
import pytest

from pac_core import InvalidInput
from pac_rl.plots import plot_episodes, plot_tubes


@pytest.mark.parametrize(("checked", "highest"), [(None, 5.0), (2, 1.0)])
def test_only_checked_steps_of_tubes_are_drawn(checked: int | None, highest: float) -> None:
    tubes = np.zeros((2, 8, 4))
    tubes[1, :, :2], tubes[1, :, 2:] = 1.0, 5.0
    figure = plot_episodes({"ours": (np.full(8, 0.5), tubes)}, [2.0], "speed", "t", checked=checked)
    tops = [patch.get_data().values.max() for patch in figure.axes[0].patches]
    assert len(tops) == 2 * 8 // (checked or 4), "each tube filled and with its upper end, to the last step"
    assert max(tops) == highest


def test_no_tube_is_no_figure() -> None:
    with pytest.raises(InvalidInput, match="tubes must be one or more, got none"):
        plot_tubes({}, np.zeros((1, 2, 3)), {0: "x"}, [0])
