"""Numbers as text, rounded so that a sentence never claims more than the number does.

Files hold every digit (`repr`). Sentences round T, upper ends and risks up; lower ends and margins down.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Context, Decimal
from typing import SupportsFloat


def at_least(value: SupportsFloat, digits: int = 6) -> str:
    """Round up to `digits` digits: T, an upper end, the limit of a risk.

    >>> at_least(2.0000001), at_least(-2.0000001), at_least(0.05), at_least(1.7e9 + 0.5)
    ('2.00001', '-2', '0.05', '1.70001e+09')
    """
    number = float(value)
    if number - number != 0:  # NaN and the infinities
        return f"{number:g}"
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(number + 0.0))
    text = f"{float(rounded):.{digits}g}"
    return text if Decimal(text) == rounded else f"{rounded:e}"  # too small or too large for all digits


def at_most(value: SupportsFloat, digits: int = 6) -> str:
    """Round down to `digits` digits: a lower end, a margin.

    >>> at_most(2.0000001), at_most(-2.0000001)
    ('2', '-2.00001')
    """
    text = at_least(-float(value), digits)
    if text in ("0", "nan"):
        return text
    return text[1:] if text.startswith("-") else f"-{text}"
