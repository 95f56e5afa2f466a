"""Whether a matrix is a covariance."""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace

from pac_core.arrays import Array, like


def definite(var: Array) -> Array:
    """`[...]` whether matrices `[..., D, D]` are symmetric and positive definite, in their own units."""
    xp = array_namespace(var)
    dims = var.shape[-1]
    eye = like(var, np.eye(dims))
    diagonal = xp.linalg.diagonal(var)
    usable = xp.all(xp.isfinite(var), axis=(-2, -1)) & xp.all(diagonal > 0, axis=-1)
    safe = xp.where(usable[..., None, None], var, eye)
    root = xp.sqrt(xp.linalg.diagonal(safe))
    scaled = safe / root[..., :, None] / root[..., None, :]
    even = xp.max(xp.abs(scaled - xp.matrix_transpose(scaled)), axis=(-2, -1)) <= 1e-6
    try:  # one factorisation of all is fast, and fails if any fails
        xp.linalg.cholesky(xp.where(even[..., None, None], scaled, eye) - dims * 1e-12 * eye)
        return usable & even
    except (np.linalg.LinAlgError, RuntimeError):
        return usable & even & (xp.linalg.eigvalsh(scaled)[..., 0] > dims * 1e-12)
