"""Trajectory tubes: their shapes, and how one is chosen on the tune split."""

from pac_core.tubes.shapes import SHAPES, LinearFeatures, check_shape, fit_shape, fit_tube, with_typical

__all__ = [
    "SHAPES",
    "LinearFeatures",
    "check_shape",
    "fit_shape",
    "fit_tube",
    "with_typical",
]
