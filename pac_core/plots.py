"""Figures of the bounds; matplotlib is imported when one is drawn."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pac_core.bounds import PACLevel, min_samples, vc_min_samples
from pac_core.errors import InvalidInput

INK = ("#1b5e9e", "#c8553d", "#4f8a5b", "#7a5c99", "#8a6d3b")


def canvas(width: float = 6.0, height: float = 4.0) -> tuple[Any, Any]:
    """A figure and its axes in our style."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidInput("figures need matplotlib: install pac-sets[figures]") from None
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes


def plot_bounds(
    folder: str | os.PathLike[str], *, delta: float = 1e-5, errors: Sequence[int] = (0, 1, 10, 50)
) -> list[Path]:
    """Draw the paper's sample-complexity figures: VC against direct bound, and the latter for several k.

    Returns the two files written.
    """
    epsilons = np.geomspace(0.005, 0.2, 60)
    levels = [PACLevel(float(epsilon), delta) for epsilon in epsilons]
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    figures = {
        "bounds_vc_direct.png": {
            "VC bound, no errors allowed": [vc_min_samples(level) for level in levels],
            "direct bound, no errors allowed": [min_samples(level) for level in levels],
        },
        "bounds_direct_errors.png": {
            f"{k} error{'s' * (k != 1)} allowed": [min_samples(level, k) for level in levels]
            for k in sorted(errors, reverse=True)
        },
    }
    written = []
    for name, curves in figures.items():
        figure, axes = canvas()
        for (label, needed), ink in zip(curves.items(), INK * len(curves), strict=False):
            axes.loglog(epsilons, needed, color=ink, label=label)
        axes.set_xlabel("promised error, epsilon")
        axes.set_ylabel("calibration units needed, n")
        axes.set_xticks([0.005, 0.01, 0.02, 0.05, 0.1, 0.2], ["0.005", "0.01", "0.02", "0.05", "0.1", "0.2"])
        axes.minorticks_off()
        axes.set_title(f"Units needed for confidence 1 - {delta:g}", loc="left", fontsize=11)
        axes.legend(frameon=False)
        figure.savefig(target / name)
        written.append(target / name)
    return written
