"""Heat maps of a sweep: size and measured error over epsilon and delta."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np


def heat_maps(rows: Sequence[dict[str, Any]], title: str) -> bytes:
    """A PNG with two maps: the mean size of the sets, and their error on the test part."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    epsilons = sorted({row["epsilon"] for row in rows})
    deltas = sorted({row["delta"] for row in rows})
    asked = {(row["epsilon"], row["delta"]) for row in rows}
    wide = max(7.0, 2.4 + 1.9 * len(epsilons))
    figure, axes = plt.subplots(1, 2, figsize=(wide, 1.9 + 0.55 * len(deltas)), layout="constrained")
    panels = (("size", "mean size on the test part", "viridis"), ("test error", "measured error", "magma"))
    for axis, (key, words, colours) in zip(axes, panels, strict=True):
        values = np.full((len(deltas), len(epsilons)), np.nan)
        for row in rows:
            if row[key] != "":
                values[deltas.index(row["delta"]), epsilons.index(row["epsilon"])] = row[key]
        image = axis.imshow(values, cmap=colours, aspect="auto")
        figure.colorbar(image, ax=axis)
        middle = np.nanmean([np.nanmin(values), np.nanmax(values)]) if np.isfinite(values).any() else 0.0
        for (y, x), value in np.ndenumerate(values):
            missing = "refused" if (epsilons[x], deltas[y]) in asked else ""
            text = missing if np.isnan(value) else f"{value:.3g}"
            axis.text(x, y, text, ha="center", va="center", color="white" if value <= middle else "black")
        axis.set_xticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])
        axis.set_yticks(range(len(deltas)), [f"{delta:g}" for delta in deltas])
        axis.set(xlabel="epsilon (promised error)", ylabel="delta", title=words)
    figure.suptitle(title)
    file = io.BytesIO()
    figure.savefig(file, dpi=150)
    plt.close(figure)
    return file.getvalue()
