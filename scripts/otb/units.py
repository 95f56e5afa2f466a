"""What is drawn independently: videos against frames, on the same scores."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from common import panels

from pac_core import InvalidInput, PACLevel
from pac_core.plots import INK
from pac_core.thresholds import fit_threshold
from pac_vision.tracking import check_share, share_score

UNITS = ("frame", "sequence")


@dataclass(frozen=True, eq=False)
class UnitErrors:
    """The errors of thresholds calibrated on one kind of unit, one per draw of calibration videos `[draws]`.

    frames, videos: of the videos left over, the shares of frames missed, and of videos that miss over gamma
    true: the same of the unit, if all videos at hand are the whole world and those calibrated on are drawn
        from it with replacement: what the promise is about
    """

    unit: str
    level: PACLevel
    gamma: float
    frames: Any
    videos: Any
    true: Any

    @property
    def breaches(self):
        """In how many of the draws the promise fails; promised are at most delta of them."""
        return int((self.true > self.level.epsilon).sum())

    @property
    def promise(self):
        what = f"more than {self.gamma:.0%} of a video's frames" if self.unit == "sequence" else "a frame"
        return f"P(miss {what}) <= {self.level.epsilon:g}"


def compare_units(frame_scores, level, gamma, *, calibrate, draws, seed=0):
    """Errors of thresholds from `calibrate` random videos, by what was taken for the unit.

    frame_scores: of each video `[F]`
    level: of a video; a frame's is that with epsilon = gamma
    """
    gamma, everything = check_share("gamma", gamma), np.arange(len(frame_scores))
    if not 0 < calibrate < len(everything):
        raise InvalidInput(f"calibrate must be 1 to {len(everything) - 1} videos, got {calibrate}")
    levels = {"frame": PACLevel(gamma, level.delta), "sequence": level}
    scores = np.array([share_score(frames, gamma) for frames in frame_scores])
    lengths, drawn = np.array([len(frames) for frames in frame_scores]), np.random.default_rng(seed)

    def errors(rows, tested, unit):
        """The shares of frames missed and of videos over gamma, with the threshold of `rows`."""
        chosen = scores[rows] if unit == "sequence" else np.concatenate([frame_scores[r] for r in rows])
        threshold = fit_threshold(chosen, levels[unit]).value
        missed = sum(int((frame_scores[row] > threshold).sum()) for row in tested)
        return missed / lengths[tested].sum(), float((scores[tested] > threshold).mean())

    found = {unit: [] for unit in UNITS}
    for _ in range(draws):
        order, world = drawn.permutation(everything), drawn.integers(len(everything), size=calibrate)
        for place, unit in enumerate(UNITS):
            left = errors(order[:calibrate], order[calibrate:], unit)
            found[unit].append((*left, errors(world, everything, unit)[place]))
    return {unit: UnitErrors(unit, levels[unit], gamma, *np.array(found[unit]).T) for unit in UNITS}


def unit_histograms(found, title):
    """The true error of each draw, for both units, each against its own promise; broken ones are red."""
    figure, grid = panels(1, len(found), (9.6, 4.4), sharey=True)
    for panel, (unit, one) in zip(grid[0], found.items(), strict=True):
        name, limit = "video" if unit == "sequence" else unit, one.level.epsilon
        # No bar holds kept and broken promises; a hair above, because just epsilon is kept.
        edges = limit * (np.arange(max(one.true.max() / limit, 1.5) * 8 + 2) / 8 + 1e-9)
        edges[0] = 0
        kept = one.true <= limit
        panel.hist(one.true[kept], edges, color=INK[0], alpha=0.75)
        panel.hist(one.true[~kept], edges, color=INK[1], alpha=0.85)
        panel.axvline(limit, color="black", linestyle="--")
        beside = {"transform": panel.get_xaxis_transform(), "va": "top", "fontsize": 9}
        panel.text(limit, 0.98, f"  promised: at most {limit:g}", **beside)
        words = f"broken in {one.breaches / len(one.true):.1%} of the draws"
        words = f"calibrated on {name}s: {words}\n(promised: in at most {one.level.delta:.0%})"
        panel.set_title(words, loc="left", fontsize=10)
        many = f"videos that miss over {one.gamma:.0%} of their frames"
        panel.set_xlabel(f"true share of {many if name == 'video' else 'frames missed'}", fontsize=9.5)
    grid[0][0].set_ylabel("draws")
    figure.suptitle(f"{title}; red: the promise is broken", x=0.01, ha="left", fontsize=10.5)
    return figure
