"""Whose fault an error is: the shard's own, or the infrastructure's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the twin without Ray reads this too
    from ray.exceptions import RayError


def cause(error: RayError) -> BaseException:
    """What the scorer raised, as it raised it where that can be sent between processes."""
    raised = getattr(error, "cause", None)
    return raised if isinstance(raised, BaseException) else error


def out_of_memory(raised: BaseException) -> bool:
    """Whether memory ran out, on a CPU or on a GPU; torch has errors of its own for it."""
    said = str(raised).lower()
    known = isinstance(raised, MemoryError) or type(raised).__name__ == "OutOfMemoryError"
    return known or (
        isinstance(raised, RuntimeError) and ("out of memory" in said or "enough memory" in said)
    )
