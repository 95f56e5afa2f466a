"""Positive definite matrices and their factors, identical to the last bit on every CPU."""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace

from pac_core.arrays import Array, like


def definite(var: Array) -> Array:
    """`[...]` whether matrices `[..., D, D]` are symmetric and positive definite, up to rounding."""
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


def factors(var: Array) -> list[tuple[Array, Array]]:
    """L D L^T of `[..., D, D]`: for each j the pivot `[...]`, and L's column below it, `[..., D - 1 - j]`.

    Only products, differences and quotients of elements, which every CPU and library rounds alike. LAPACK
    rounds differently on different CPUs, and the condition number magnifies it: scores differed by up to
    1e-5.
    """
    rest = (var + array_namespace(var).matrix_transpose(var)) / 2
    factored = []
    for _ in range(var.shape[-1]):
        pivot, column = rest[..., 0, 0], rest[..., 1:, 0]
        below = column / pivot[..., None]
        factored.append((pivot, below))
        rest = rest[..., 1:, 1:] - below[..., :, None] * column[..., None, :]
    return factored


def distance2(factored: list[tuple[Array, Array]], error: Array) -> Array:
    """`[...]` squared Mahalanobis length of `error` `[..., D]`, given the `factors` of its covariance."""
    total: Array = 0
    for pivot, below in factored:
        first, error = error[..., 0], error[..., 1:] - below * error[..., :1]
        total = total + first / pivot * first
    return total
