"""What the paper's figures compare with: ablations, sets of a mass, which promise nothing, other sizes."""

import math
from functools import partial

import numpy as np
from scipy.special import chdtri

from pac_core.bounds import max_errors, vc_max_errors
from pac_core.sets import Boxes, ConfidenceSets, Ellipsoids, LabelSets, Likelihood, calibrate


def fit_ablation(letters, tune, cal, level):
    """A row of the paper's figures, such as "A+C+D", from forecast and truth of tune and calibrate units.

    A accumulates variances, C fits temperatures, D is the direct bound; without D, the VC bound.
    """
    score = Likelihood.fit(*tune, accumulate="A" in letters, temperature="C" in letters)
    return calibrate(score, *cal, level, bound=max_errors if "D" in letters else vc_max_errors)


def mass_label_sets(forecast, epsilon, rows=4096):
    """The fewest most probable labels whose probabilities add up to 1 - epsilon."""
    member, (shift, log) = np.zeros(forecast.logits.shape, dtype=bool), forecast.normaliser
    for start in range(0, len(member), rows):
        some = slice(start, start + rows)
        z = forecast.tau * forecast.logits[some].astype(np.float64)
        probability = np.exp((z - shift[some, None]) - log[some, None])
        order = np.argsort(-probability, axis=1, kind="stable")
        mass = np.cumsum(np.take_along_axis(probability, order, axis=1), axis=1)
        # A label is needed as long as those before it do not reach the mass.
        needed = np.roll(mass, 1, axis=1) < 1 - epsilon
        needed[:, 0] = True
        np.put_along_axis(member[some], order, needed, axis=1)
    return LabelSets(member)


def mass_gaussian_sets(forecast, epsilon):
    """The ellipsoid of mass 1 - epsilon around the mean of each trajectory, of all steps together."""
    forecast, sound = forecast.for_sets()
    radius2 = float(chdtri(math.prod(forecast.mean.shape[1:]), epsilon))
    region = Ellipsoids(forecast, radius2 + 0 * forecast.mean[..., 0])
    return ConfidenceSets(region, partial(_distance, forecast), radius2, sound, forecast.mean.shape)


def _distance(forecast, truth):
    return forecast.mahalanobis2(truth).sum(axis=-1)


def volume_root(tube):
    """`[B]` the D-th root of the volume, averaged over steps; 0 for an empty tube."""
    region, dims = tube.region, tube.region.center.shape[-1]
    if isinstance(region, Boxes):
        roots = np.exp(np.log(region.upper - region.lower).mean(axis=-1))
    else:
        ball = math.pi ** (dims / 2) / math.gamma(dims / 2 + 1)
        roots = ball ** (1 / dims) * region.radius * np.exp(region.forecast.log_det() / (2 * dims))
    return np.where(tube.empty, 0.0, roots.mean(axis=-1))


def mean_width(tube, directions=32):
    """`[B]` the mean of the full width over random directions, averaged over steps; 0 for an empty tube."""
    drawn = np.random.default_rng(0).normal(size=(directions, tube.region.center.shape[-1]))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    widths = sum(tube.support(row) + tube.support(-row) for row in drawn) / directions
    return np.where(tube.empty, 0.0, widths.mean(axis=-1))
