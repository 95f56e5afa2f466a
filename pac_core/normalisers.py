"""The normaliser of a softmax: fast on ordinary logits, exact on extreme ones."""

from __future__ import annotations

import numpy as np

from pac_core.arrays import Floats, over_rows
from pac_core.errors import InvalidInput


def log_sum_exp(logits: Floats, tau: float) -> tuple[Floats, Floats]:
    """Shift and log, blockwise: a row is read once, and again only where exp leaves the safe range."""
    work = np.float64 if logits.dtype == np.float64 else np.float32
    shift, log = np.zeros(len(logits)), np.empty(len(logits))
    factor = work(tau)

    def block(rows: slice, scratch: Floats) -> None:
        with np.errstate(all="ignore"):
            z = logits[rows]
            if factor != 1:
                z = np.multiply(z, factor, out=scratch[0], dtype=work)
            total = np.exp(z, out=scratch[0], dtype=work).sum(axis=1)
            log[rows] = np.log(total.astype(np.float64))
            # Outside this range the plain sum has lost digits or is no number: shift those rows.
            far = np.flatnonzero(~((total > 1e-20) & (total < 1e30)))
            if len(far):
                z = logits[rows][far].astype(np.float64) * tau
                top = z.max(axis=1)
                shift[rows.start + far] = top
                log[rows.start + far] = np.log(np.exp(z - top[:, None]).sum(axis=1))

    over_rows(block, logits, 1, work)
    if not np.isfinite(log).all():
        row = int(np.flatnonzero(~np.isfinite(log))[0])
        raise InvalidInput(
            "each row of logits must be numbers, at least one of them above -inf, "
            f"got {logits[row]} in row {row}"
        )
    return shift, log
