"""The size of label sets: the score that is chosen on the tune units against the paper's two, D and C+D.

    python -m benchmarks label_sizes
    python -m benchmarks.label_sizes logits.npz [tune [calibrate]]

The first trains small classifiers on generated data and draws fresh units for each of 100 splits; but for
`texts`, which the margins of the choice were set on, none of them shaped the choice. The second takes splits
of a file with logits `[N, K]` and labels `[N]`; they share units, so its intervals tell how much the draw of
the split matters, not how other data would fare. All scores of a split are calibrated on the same units.
Nothing here is a certificate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from benchmarks.figures import Figure, within
from pac_core import LogitForecast, PACLevel
from pac_core.bounds import max_errors
from pac_core.fitting import score_fitter
from pac_core.sets import calibrate

Draw: TypeAlias = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
"""From a generator and a number of units to their logits `[N, K]` and labels `[N]`."""
SPLITS, TEST = 100, 1000
TUNE = (200, 1000)
LEVELS = ((0.02, 1e-5, 2000), (0.05, 1e-5, 2000), (0.1, 0.05, 2000), (0.05, 0.05, 500))
"""epsilon, delta, and how many units calibrate"""
CHANCE = 10  # fewer errors than this allowed: how two sizes compare on one split is chance
NAMES = ("smallest", "paper", "plain")


def label_sizes() -> Iterator[Figure]:
    """Sizes relative to the smaller of D and C+D, at the level where that is largest."""
    with ProcessPoolExecutor(2) as pool:
        for tune in TUNE:
            for name, found in zip(MODELS, pool.map(_generated, MODELS, [tune] * len(MODELS)), strict=True):
                ratio, words = _said(found, LEVELS)
                yield within(
                    f"label sizes: {name}, {tune:,} tune units", ratio, 1.0, "of D or C+D", "<= 1.01", words
                )


@dataclass(frozen=True)
class Compared:
    """Sizes at one level, relative to the better of the paper's two.

    ratio: of the mean sizes over the splits
    low, high: 95% interval of it, from 1,000 resamplings of the splits
    larger, much: share of the splits in which the chosen score's sets are larger, and by more than 5%
    worst: the largest ratio of a split
    """

    ratio: float
    low: float
    high: float
    larger: float
    much: float
    worst: float

    @classmethod
    def of(cls, sizes: np.ndarray) -> Compared:
        """From mean sizes `[S, 3]` of the sets of `NAMES`."""
        ours, other = sizes[:, 0], sizes[:, 1 + int(np.argmin(sizes[:, 1:].mean(axis=0)))]
        some = np.random.default_rng(0).integers(len(sizes), size=(1000, len(sizes)))
        low, high = np.quantile(ours[some].mean(axis=1) / other[some].mean(axis=1), [0.025, 0.975])
        each = ours / other
        return cls(ours.mean() / other.mean(), low, high, (each > 1).mean(), (each > 1.05).mean(), each.max())

    def __str__(self) -> str:
        return (
            f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f}), larger in {self.larger:.0%} of splits, "
            f"by over 5% in {self.much:.0%}, at most {self.worst:.2f}"
        )


def measure(draw: Draw, levels: Any, tune: int, splits: int, test: int) -> np.ndarray:
    """`[L, S, 3]` mean sizes of test units' sets with the scores `NAMES`."""
    found = np.empty((len(levels), splits, len(NAMES)))
    most = max(n for _, _, n in levels)
    for seed in range(splits):
        logits, labels = draw(np.random.default_rng([tune, seed]), tune + most + test)
        tuning, tested = LogitForecast(logits[:tune]), LogitForecast(logits[tune + most :])
        for row, (epsilon, delta, n) in enumerate(levels):
            level, proof = PACLevel(epsilon, delta), slice(tune, tune + n)
            for column, name in enumerate(NAMES):
                score = score_fitter(tuning.domain, name, calibrate=n)(tuning, labels[:tune], level)
                predictor = calibrate(score, LogitForecast(logits[proof]), labels[proof], level)
                found[row, seed, column] = predictor.sets(tested).size().mean()
    return found


def _said(found: np.ndarray, levels: Any) -> tuple[float, str]:
    """The largest ratio of the levels, and each level in words."""
    compared = [Compared.of(sizes) for sizes in found]
    words = []
    for (epsilon, delta, n), one in zip(levels, compared, strict=True):
        allowed = max_errors(n, PACLevel(epsilon, delta))
        chance = ", mostly chance on one split" if allowed < CHANCE else ""
        words.append(f"({epsilon:g}, {delta:g}) from {n:,}, k* = {allowed}{chance}: {one}")
    return max(one.ratio for one in compared), f"{found.shape[1]} splits; " + "; ".join(words)


def _generated(name: str, tune: int) -> np.ndarray:
    import torch

    torch.set_num_threads(1)
    return measure(MODELS[name](), LEVELS, tune, SPLITS, TEST)


def network(
    inputs: np.ndarray, labels: np.ndarray, layers: list[Any], *, epochs: int, smoothing: float = 0.0
) -> Callable[[np.ndarray], np.ndarray]:
    """Logits by layers of torch, trained on these."""
    import torch

    net = torch.nn.Sequential(*layers)
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    x, y = torch.as_tensor(inputs), torch.as_tensor(labels)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(128):
            loss = torch.nn.functional.cross_entropy(net(x[rows]), y[rows], label_smoothing=smoothing)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    def logits(new: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(net.eval()(torch.as_tensor(new)).numpy())

    return logits


def trained(
    world: Draw, units: int, layers: Callable[[Any], list[Any]], *, epochs: int, smoothing: float = 0.0
) -> Draw:
    """The logits of a network that was trained on some units of a world, for others of it."""
    import torch

    torch.manual_seed(0)
    model = network(
        *world(np.random.default_rng(7), units), layers(torch.nn), epochs=epochs, smoothing=smoothing
    )

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        inputs, labels = world(rng, n)
        return model(inputs), labels

    return draw


def texts() -> Draw:
    """Fifty topics, and naive Bayes, over-confident because its words come in bursts."""
    rng, topics, words = np.random.default_rng(11), 50, 400
    topic = rng.dirichlet(np.full(words, 0.1), size=topics)

    def world(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        labels, other = rng.integers(0, topics, size=(2, n))
        own = rng.beta(2, 1.5, size=(n, 1))
        concentration = 30 * (own * topic[labels] + (1 - own) * (topic[other] + topic.mean(axis=0)) / 2)
        burst = rng.standard_gamma(concentration + 1e-6)
        return rng.poisson(25 * burst / burst.sum(axis=1, keepdims=True)), labels

    counts, labels = world(rng, 3000)
    seen = np.array([counts[labels == k].sum(axis=0) + 0.2 for k in range(topics)])
    table = np.log(seen / seen.sum(axis=1, keepdims=True)).T

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        counts, labels = world(rng, n)
        return (counts @ table).astype(np.float32), labels

    return draw


def images() -> Draw:
    """Thirty glyphs of 10 x 10, shifted, partly covered, in noise that differs; a small convolutional net."""
    glyphs = (np.random.default_rng(12).random((30, 6, 6)) < 0.45).astype(np.float32)

    def world(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        labels, places = rng.integers(0, 30, size=n), rng.integers(0, 5, size=(n, 2))
        pixels = (rng.uniform(0.1, 0.6, size=(n, 1, 1)) * rng.standard_normal((n, 10, 10))).astype(np.float32)
        for i, (label, (row, column)) in enumerate(zip(labels, places, strict=True)):
            glyph = glyphs[label].copy()
            glyph[: rng.integers(0, 3)] = 0
            pixels[i, row : row + 6, column : column + 6] += glyph
        return pixels[:, None], labels

    def layers(nn: Any) -> list[Any]:
        shrink = [nn.Conv2d(1, 16, 5), nn.ReLU(), nn.Conv2d(16, 24, 3), nn.ReLU(), nn.MaxPool2d(2)]
        return [*shrink, nn.Flatten(), nn.Linear(96, 30)]

    return trained(world, 8000, layers, epochs=10)


def tokens() -> Draw:
    """The next of 100 tokens after two, some of them rare, by a network that is trained for long."""
    rng, size = np.random.default_rng(13), 100
    last, before = (rng.gumbel(size=(size, size)) * 1.5 for _ in range(2))
    often = -np.log(np.arange(1, size + 1))

    def world(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        pair = rng.choice(size, size=(n, 2), p=np.exp(often) / np.exp(often).sum())
        noise = rng.gumbel(size=(n, size))
        return pair, (last[pair[:, 1]] + before[pair[:, 0]] + often + noise).argmax(axis=1)

    def layers(nn: Any) -> list[Any]:
        return [nn.Embedding(size, 24), nn.Flatten(), nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, size)]

    return trained(world, 12_000, layers, epochs=12)


def table() -> Draw:
    """Seven kinds of ground by ten columns, three of them in steps, and a forest of trees."""
    from sklearn.ensemble import RandomForestClassifier

    rng = np.random.default_rng(14)
    first, second = rng.normal(size=(10, 12)), rng.normal(size=(12, 7))

    def world(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        columns = rng.standard_normal((n, 10))
        columns[:, :3] = np.round(columns[:, :3])
        logits = 1.5 * np.tanh(columns @ first) @ second + [2, 2, 0, -2, 0, 0, -1]
        return columns, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)

    forest = RandomForestClassifier(60, min_samples_leaf=3, random_state=0).fit(*world(rng, 4000))

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        columns, labels = world(rng, n)
        return np.log(forest.predict_proba(columns) + 1e-4).astype(np.float32), labels

    return draw


def shells() -> Draw:
    """A hundred classes on shells about ten centres; smoothed labels make the network under-confident."""
    centres = np.random.default_rng(15).normal(size=(10, 12)) * 1.6

    def world(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        labels, way = rng.integers(0, 100, size=n), rng.standard_normal((n, 12))
        radius = 0.8 * (1 + labels % 10) + 0.22 * rng.standard_t(4, size=n)
        points = centres[labels // 10] + radius[:, None] * way / np.linalg.norm(way, axis=1, keepdims=True)
        return points.astype(np.float32), labels

    def layers(nn: Any) -> list[Any]:
        return [nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 100)]

    return trained(world, 20_000, layers, epochs=10, smoothing=0.15)


def columns() -> Draw:
    """Forty classes by columns that hang together, and naive Bayes, which counts them as apart."""
    rng = np.random.default_rng(16)
    centres, together = rng.normal(size=(40, 8)), rng.normal(size=(8, 30)) / 2

    def world(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, 40, size=n)
        hidden = centres[labels] + rng.gamma(2, 0.25, size=(n, 1)) * rng.standard_normal((n, 8))
        return hidden @ together + 0.3 * rng.standard_normal((n, 30)), labels

    seen, labels = world(rng, 4000)
    means = np.array([seen[labels == k].mean(axis=0) for k in range(40)])
    spread = np.array([seen[labels == k].std(axis=0) for k in range(40)])

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        values, labels = world(rng, n)
        z = (values[:, None] - means) / spread
        return -(z**2 / 2 + np.log(spread)).sum(axis=2).astype(np.float32), labels

    return draw


MODELS: dict[str, Callable[[], Draw]] = {
    "columns": columns,
    "texts": texts,
    "images": images,
    "tokens": tokens,
    "table": table,
    "shells": shells,
}
ALL = {"label_sizes": label_sizes}


def _of_file(path: Path, tune: int = 1000, n: int = 2000) -> None:
    """Prints the comparison for splits of a file."""
    from pac_core.datasets import read_dataset

    units = read_dataset(path)
    if not isinstance(units.forecast, LogitForecast) or units.truth is None:
        raise SystemExit(f"Error: {path} must hold logits and labels")
    logits, truth = units.forecast.logits, units.truth

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        rows = rng.permutation(len(truth))[:n]
        return logits[rows], truth[rows]

    levels = [
        (epsilon, delta, n) for epsilon, delta in ((0.02, 1e-5), (0.05, 1e-5), (0.1, 1e-5), (0.1, 0.05))
    ]
    found = measure(draw, levels, tune, SPLITS, len(truth) - tune - n)
    for (epsilon, delta, _), sizes in zip(levels, found, strict=True):
        means = ", ".join(f"{name} {size:.2f}" for name, size in zip(NAMES, sizes.mean(axis=0), strict=True))
        print(f"epsilon={epsilon:g}, delta={delta:g}: mean sizes {means}; {Compared.of(sizes)}")


if __name__ == "__main__":
    _of_file(Path(sys.argv[1]), *map(int, sys.argv[2:4]))
