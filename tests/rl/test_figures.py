"""Figures that a newcomer reads rightly: every guard is named in sight, what was not checked is not drawn."""

from __future__ import annotations

import numpy as np
import pytest

from pac_rl.figures import guarded_over_time, returns_and_violations


def test_guards_of_the_same_return_are_all_named_and_none_covers_another() -> None:
    guards = dict.fromkeys(("mean", "worst", "paper", "ours"), (754.0, 0.0, (0.0, 0.06)))
    figure = returns_and_violations({"none": (940.0, 1.0, (0.98, 1.0))} | guards, "flip", allowed=0.05)
    figure.draw_without_rendering()
    [axes] = figure.axes
    boxes = [text.get_window_extent() for text in axes.get_legend().get_texts()]
    assert len(boxes) == 6
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert not any(box.overlaps(axes.get_window_extent()) for box in boxes)
    sizes = [bars[0].get_markersize() for bars in axes.containers]
    assert len(set(sizes)) == 5


@pytest.mark.parametrize(("checked", "highest"), [(None, 5.0), (2, 1.0)])
def test_only_checked_steps_of_tubes_are_drawn(checked: int | None, highest: float) -> None:
    tubes = np.zeros((2, 8, 4))
    tubes[1, :, :2], tubes[1, :, 2:] = 1.0, 5.0
    figure = guarded_over_time({"ours": (np.full(8, 0.5), tubes)}, [2.0], "speed", "t", checked=checked)
    tops = [patch.get_data().values.max() for patch in figure.axes[0].patches]
    assert len(tops) == 2 * 8 // (checked or 4), "each tube filled and with its upper end, to the last step"
    assert max(tops) == highest
