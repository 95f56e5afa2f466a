"""Charts, tables and heat maps of the page: inline SVG and HTML that follow its theme, every text escaped.

Hovering a mark shows its numbers; what a chart shows is also said in its alternative text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

import numpy as np
from markupsafe import Markup, escape

WIDE, HIGH = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 44
INKS = 5
"""Colours of series, `ink-0` to `ink-4` in the page's style."""


@dataclass(frozen=True)
class Series:
    """A line, or points: x and y `[n]`, with the ends of a band or of whiskers around y, where there are.

    ink: number of its colour, by default its place among the series
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    points: bool = False
    ink: int | None = None


def line_chart(
    series: Sequence[Series],
    *,
    x: str,
    y: str,
    alt: str,
    limits: Mapping[str, float] | None = None,
    zero: bool = False,
) -> Markup:
    """Lines with bands, or points with whiskers, and horizontal lines at `limits`; `x`, `y` name the axes.

    alt: what a reader who cannot see it should know
    zero: whether the y axis begins at 0
    """
    limits = limits or {}
    ends = [end for one in series for end in (one.y, one.low, one.high) if end is not None]
    places = [one.x for one in series]
    across = _Axis.of([*places, [0.0]] if series[0].points else places, _LEFT, WIDE - _RIGHT - 10)
    up = _Axis.of([*ends, list(limits.values()), [0.0] if zero else []], HIGH - _BOTTOM, _TOP)
    marks = [_frame(across, up, x, y)]
    inks = [f"ink-{(number if one.ink is None else one.ink) % INKS}" for number, one in enumerate(series)]
    for one, ink in zip(series, inks, strict=True):
        marks.append((_points if one.points else _line)(one, across, up, ink))
    for name, value in limits.items():
        place = up(value)
        marks.append(
            Markup('<line class="limit" x1="{}" x2="{}" y1="{}" y2="{}"><title>{}: {}</title></line>').format(
                _LEFT, WIDE - _RIGHT, place, place, name, number_text(value)
            )
        )
    names = [(one.name, ink) for one, ink in zip(series, inks, strict=True) if one.name]
    names += [(name, "limit") for name in limits]
    return figure(svg(marks, alt), legend(names))


def interval_chart(
    rows: Sequence[tuple[str, float, float, float]], *, limit: float, alt: str, x: str
) -> Markup:
    """A row for each name: a measured share, the ends of its interval, and a line at what is promised."""
    high = 34 * len(rows) + _BOTTOM + 10
    most = max([limit, *(row[3] for row in rows)]) * 1.08
    across = _Axis(0.0, most, 200, WIDE - _RIGHT)
    marks = [_ticks_across(across, high - _BOTTOM, 8, x, high)]
    for number, (name, share, low, up) in enumerate(rows):
        place = 26 + 34 * number
        text = f"{name}: {share_text(share)}, {share_text(low)} to {share_text(up)}"
        marks.append(
            Markup(
                '<g class="ink-0"><title>{}</title><text class="name" x="190" y="{}">{}</text>'
                '<line class="whisker" x1="{}" x2="{}" y1="{}" y2="{}"/><circle cx="{}" cy="{}" r="5"/></g>'
            ).format(
                text, place + 4, _short(name, 26), across(low), across(up), place, place, across(share), place
            )
        )
    line = '<line class="limit" x1="{0}" x2="{0}" y1="8" y2="{1}"><title>promised: at most {2}</title></line>'
    marks.append(Markup(line).format(across(limit), high - _BOTTOM, at_most(limit)))
    return figure(svg(marks, alt, high=high), legend([("promised, at most", "limit")]))


def heat_map(
    title: str, rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[Any]]
) -> Markup:
    """A table whose cells are the darker the larger their number; None is an empty cell."""
    values = [value for line in cells for value in line if isinstance(value, int | float)]
    least, most = (min(values), max(values)) if values else (0.0, 0.0)

    def cell(value: Any) -> Markup:
        if not isinstance(value, int | float):
            return Markup("<td>{}</td>").format("" if value is None else value)
        depth = 0.06 + 0.5 * ((value - least) / (most - least) if most > least else 0.0)
        return Markup('<td class="heat" style="--depth:{:.2f}">{}</td>').format(depth, number_text(value))

    head = join(Markup("<th scope=col>{}</th>").format(name) for name in columns)
    lines = [
        Markup("<tr><th scope=row>{}</th>{}</tr>").format(name, join(map(cell, line)))
        for name, line in zip(rows, cells, strict=True)
    ]
    made = Markup(
        "<div class=scroll><table class=heats><caption>{}</caption><tr><td></td>{}</tr>{}</table></div>"
    )
    return made.format(title, head, join(lines))


def table(rows: Sequence[Mapping[str, Any]], *, caption: str = "") -> Markup:
    """A table of rows with the same keys; numbers are rounded for reading."""
    if not rows:
        return Markup("")
    head = join(Markup("<th scope=col>{}</th>").format(name) for name in rows[0])
    lines = []
    for row in rows:
        cells = (
            Markup("<td class=number>{}</td>").format(number_text(value))
            if isinstance(value, int | float) and not isinstance(value, bool)
            else Markup("<td>{}</td>").format(value)
            for value in row.values()
        )
        lines.append(Markup("<tr>{}</tr>").format(join(cells)))
    title = Markup("<caption>{}</caption>").format(caption) if caption else ""
    made = "<div class=scroll><table>{}<thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>"
    return Markup(made).format(title, head, join(lines))


def paragraph(text: str, kind: str = "") -> Markup:
    """A paragraph of plain text."""
    return Markup('<p class="{}">{}</p>').format(kind, text)


def folded(title: str, body: Markup) -> Markup:
    """What is shown when its title is opened."""
    return Markup("<details><summary>{}</summary>{}</details>").format(title, body)


def figure(*parts: Markup) -> Markup:
    return Markup("<figure>{}</figure>").format(join(parts))


def legend(names: Sequence[tuple[str, str]]) -> Markup:
    """The names of marks, each with its class."""
    if not names:
        return Markup("")
    each = (Markup('<li class="{}">{}</li>').format(kind, name) for name, kind in names)
    return Markup('<ul class="legend">{}</ul>').format(join(each))


def svg(marks: Iterable[Markup], alt: str, *, wide: int = WIDE, high: int = HIGH) -> Markup:
    """A drawing with its alternative text."""
    made = '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    return Markup(made).format(wide, high, alt, join(marks))


def join(parts: Iterable[Any]) -> Markup:
    return Markup("").join(escape(part) for part in parts)


def number_text(value: float) -> str:
    """A number as people read it.

    >>> [number_text(value) for value in (3, 12345, 0.05, 3.14159, 1e-5, float("inf"))]
    ['3', '12,345', '0.05', '3.142', '1e-05', 'infinite']
    """
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def share_text(value: float) -> str:
    """A share in percent.

    >>> share_text(0.05), share_text(0.00012), share_text(0.99999), share_text(0.0)
    ('5%', '0.012%', '99.999%', '0%')
    """
    return f"{100 * value:.3g}%" if 100 * value < 99.5 else f"{100 * value:.10g}%"


def at_most(share: float) -> str:
    """A share that is promised as an upper limit, in percent, rounded up.

    >>> at_most(0.05), at_most(0.033333), at_most(1e-5)
    ('5%', '3.334%', '0.001%')
    """
    return f"{_percent(share):f}%"


def at_least(missing: float) -> str:
    """What is left of 1 by a share that is promised as an upper limit, in percent, rounded down.

    >>> at_least(0.05), at_least(0.025254), at_least(1e-5)
    ('95%', '97.474%', '99.999%')
    """
    return f"{100 - _percent(missing):f}%"


def _percent(share: float) -> Decimal:
    exact = Decimal(repr(float(share))) * 100
    return Decimal(f"{Context(prec=4, rounding=ROUND_CEILING).plus(exact).normalize():f}")


@dataclass(frozen=True)
class _Axis:
    """From numbers between `least` and `most` to places on the drawing."""

    least: float
    most: float
    first: float
    last: float

    @classmethod
    def of(cls, values: Sequence[Sequence[float]], first: float, last: float) -> _Axis:
        finite = np.concatenate([np.asarray(part, np.float64).ravel() for part in values])
        finite = finite[np.isfinite(finite)]
        least, most = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
        room = 0.04 * (most - least) or 0.5
        inside = first < last  # the x axis needs no room at its ends
        return cls(
            least - (0 if inside else room * (least != 0)), most + (0 if inside else room), first, last
        )

    def __call__(self, value: float) -> float:
        share = (value - self.least) / ((self.most - self.least) or 1.0)
        return round(self.first + (self.last - self.first) * min(max(share, -1.0), 2.0), 1)

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers along it."""
        rough = (self.most - self.least) / most or 1.0
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough * 0.999)
        first = math.ceil(self.least / step - 1e-9)
        return [round(step * i, 12) for i in range(first, math.floor(self.most / step + 1e-9) + 1)]


def _frame(across: _Axis, up: _Axis, x: str, y: str) -> Markup:
    marks = [_ticks_across(across, HIGH - _BOTTOM, _TOP, x, HIGH)]
    for value in up.ticks():
        tick = '<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>'
        tick += '<text class="tick end" x="{}" y="{}">{}</text>'
        place = up(value)
        made = Markup(tick).format(
            _LEFT, WIDE - _RIGHT, place, place, _LEFT - 8, place + 4, number_text(value)
        )
        marks.append(made)
    title = '<text class="axis" transform="translate(14 {}) rotate(-90)">{}</text>'
    return join([*marks, Markup(title).format((HIGH - _BOTTOM + _TOP) / 2, y)])


def _ticks_across(across: _Axis, floor: float, top: float, title: str, high: float) -> Markup:
    marks = []
    whole = title in ("step", "labels in the set")
    for value in (value for value in across.ticks(8) if not whole or value == int(value)):
        tick = '<line class="grid" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>'
        tick += '<text class="tick" x="{0}" y="{3}">{4}</text>'
        marks.append(Markup(tick).format(across(value), top, floor, floor + 16, number_text(value)))
    middle = (across.first + across.last) / 2
    marks.append(Markup('<text class="axis" x="{}" y="{}">{}</text>').format(middle, high - 8, title))
    return join(marks)


def _line(one: Series, across: _Axis, up: _Axis, ink: str) -> Markup:
    marks = []
    if one.low is not None and one.high is not None:
        there = [(across(x), up(y)) for x, y in zip(one.x, one.high, strict=True) if math.isfinite(y)]
        back = [(across(x), up(y)) for x, y in zip(one.x, one.low, strict=True) if math.isfinite(y)]
        marks.append(Markup('<polygon class="band" points="{}"/>').format(_path(there + back[::-1])))
    finite = [(x, y) for x, y in zip(one.x, one.y, strict=True) if math.isfinite(y)]
    marks.append(Markup('<polyline points="{}"/>').format(_path([(across(x), up(y)) for x, y in finite])))
    spots = [
        Markup('<circle class="spot" cx="{}" cy="{}" r="7"><title>{}: {} at {}</title></circle>').format(
            across(x), up(y), one.name, number_text(y), number_text(x)
        )
        for x, y in (finite if len(finite) <= 60 else [])
    ]
    return Markup('<g class="{}">{}</g>').format(ink, join([*marks, *spots]))


def _points(one: Series, across: _Axis, up: _Axis, ink: str) -> Markup:
    marks = []
    for i, (x, y) in enumerate(zip(one.x, one.y, strict=True)):
        text = f"{one.name}: {number_text(y)} at {number_text(x)}"
        if one.low is not None and one.high is not None:
            low, high = one.low[i], one.high[i]
            text += f", from {number_text(low)} to {number_text(high)}"
            whisker = '<line class="whisker" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>'
            marks.append(Markup(whisker).format(across(x), up(low), up(high)))
        dot = '<circle cx="{}" cy="{}" r="6"><title>{}</title></circle>'
        marks.append(Markup(dot).format(across(x), up(y), text))
    return Markup('<g class="{}">{}</g>').format(ink, join(marks))


def _path(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
