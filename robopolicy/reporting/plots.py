"""Draw SVG: line charts with bands, intervals in rows, grids of outcomes (templates assets/*.svg).

Colours are CSS classes, so one drawing serves light and dark pages. `standalone` adds the style sheet for files that
are shown on their own (docs/img). The output depends on the numbers alone: no dates, fonts or library versions in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, NamedTuple

from robopolicy.evaluation.statistics import Interval
from robopolicy.reporting.templates import asset, render

Point = tuple[float, float]
PAGE_WIDTH = 1020  # pixels of a page's text column
_COLOURS = ("c1", "c2", "c3", "c4", "c5", "c0")
_DASHES = ("", "8 4", "2 4", "10 3 2 3")
_LETTER = 6.4  # pixels, on average
_LEFT = 46.0  # pixels of a line chart's labels
_LARGEST = 1e300  # beyond it a number is not drawn: ranges would overflow


@dataclass(frozen=True)
class Series:
    """One curve. `low`/`high` are its band, where there is one; `colour` is a class of assets/plots.css.

    `dash` is a stroke-dasharray of SVG.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = field(default_factory=list)
    high: Sequence[float] = field(default_factory=list)
    colour: str = "c1"
    dash: str = ""

    @property
    def points(self) -> list[Point]:
        return [p for p in zip(self.x, self.y, strict=True) if all(map(_drawable, p))]

    @property
    def band(self) -> list[Point]:
        """Return the outline of the band: the upper edge, then the lower one backwards."""
        rows = [r for r in zip(self.x, self.low, self.high, strict=True) if all(map(_drawable, r))]
        return [(x, high) for x, _, high in rows] + [(x, low) for x, low, _ in reversed(rows)]


@dataclass(frozen=True)
class Whisker:
    """One row of an interval chart; NaN limits draw a dot alone. `note` stands at the right."""

    name: str
    value: float
    low: float
    high: float
    note: str = ""
    colour: str = "c1"


class Style(NamedTuple):
    """The look of a curve."""

    colour: str
    dash: str


def styles(count: int) -> list[Style]:
    """Return a look for each of `count` curves; dashes tell curves of one colour apart."""
    looks = (Style(colour, dash) for dash in _DASHES for colour in _COLOURS)
    return list(islice(cycle(looks), count))


def rate_whisker(name: str, rate: Interval, episodes: int, colour: str) -> Whisker:
    """Return the row of a success rate and its number of episodes."""
    return Whisker(name, *rate, f"{100 * rate.value:.1f}%  n = {episodes}", colour)


class Axis(NamedTuple):
    """Values `first` to `last` over `length` pixels from `start` on; values beyond them lie at the ends."""

    first: float
    last: float
    start: float
    length: float

    def at(self, value: float) -> float:
        low, high = sorted(self[:2])
        return self.start + (min(max(value, low), high) - self.first) * (self.length / (self.last - self.first))


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between `low` and `high`, about `count` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / max(1, count)
    scale = 10 ** math.floor(math.log10(raw))
    unit = next(scale * m for m in (1, 2, 2.5, 5, 10) if raw <= scale * m * 1.0001)
    digits = max(12, 12 - math.floor(math.log10(unit)))
    return [round(k * unit, digits) for k in range(math.ceil(low / unit - 1e-9), math.floor(high / unit + 1e-9) + 1)]


def line_chart(
    series: Sequence[Series], *, title: str = "", x_label: str = "", share: bool = False,
    marks: Sequence[tuple[float, str]] = (), begin: tuple[float, str] | None = None, width: int = 520,
    height: int = 280, legend: bool | None = None, standalone: bool = False,
) -> str:  # fmt: skip
    """Draw curves over one x axis.

    Args:
        share: y runs from 0 to 100%.
        marks: dashed horizontals with a name.
        begin: end of a shaded part at the left, and its name.
    """
    points = [p for s in series for p in s.points]
    if not points:
        return ""
    x0, x1 = min(x for x, _ in points), max(x for x, _ in points)
    edges = [v for s in series for v in (*s.low, *s.high) if _drawable(v)] + [m for m, _ in marks]
    return _svg(
        "line_chart",
        title or x_label,
        standalone,
        width=width,
        height=height,
        title=title,
        x_label=x_label,
        marks=marks,
        share=share,
        begin=begin if begin is not None and x0 < begin[0] <= x1 else None,
        x_range=(x0, x1 if x1 > x0 else x0 + max(1.0, 1e-6 * abs(x0))),
        series=series,
        y_range=(0.0, 1.0) if share else _range([y for _, y in points] + edges),
        entries=_entries(series, width) if (len(series) > 1 if legend is None else legend) else [],
    )


class _Entry(NamedTuple):
    """A place in a legend: pixels from the left, and the row."""

    series: Series
    at: float
    row: int
    text: str


def _entries(series: Sequence[Series], width: float) -> list[_Entry]:
    """Lay out a legend within `width`; a name that is longer than a row is cut."""
    found, at, row = list[_Entry](), _LEFT, 0
    most = int((width - _LEFT - 19) / _LETTER)
    for s in series:
        text = s.name if len(s.name) <= most else s.name[: most - 1] + "…"
        if at > _LEFT and at + 19 + _LETTER * len(text) > width:
            at, row = _LEFT, row + 1
        found.append(_Entry(s, at, row, text))
        at += 34 + _LETTER * len(text)
    return found


def interval_chart(
    rows: Sequence[Whisker], *, title: str = "", low: float = 0.0, high: float = 1.0,
    marks: Sequence[tuple[float, str]] = (), width: int = 720, stacked: bool = False, standalone: bool = False,
) -> str:  # fmt: skip
    """Draw one row a rate: dot and confidence interval from `low` to `high`.

    Args:
        marks: dashed verticals with a name.
        stacked: names and notes stand above their row, for narrow screens.
    """
    if not rows:
        return ""
    return _svg(
        "interval_chart", "intervals", standalone, rows=rows, title=title, low=low, high=high, marks=marks,
        width=width, stacked=stacked,
    )  # fmt: skip


def intervals_of_page(rows: Sequence[Whisker], **options: Any) -> str:
    """Return an interval chart twice, for wide and for narrow screens; the page's style sheet shows one of them."""
    wide = interval_chart(rows, width=PAGE_WIDTH, **options)
    return render("two_widths.html", wide=wide, narrow=interval_chart(rows, width=340, stacked=True, **options))


def outcome_grid(cells: Sequence[tuple[str, str]]) -> str:
    """Draw one small square an episode: (colour class, tooltip)."""
    return _svg("outcome_grid", "outcome of every episode", False, cells=cells)


def styled(svg: str) -> str:
    """Return a drawing with the style sheet in it, for files and pages that have none."""
    head, _, rest = svg.partition(">")
    return f"{head}><style>{asset('plots.css')}{asset('plots_dark.css')}</style>{rest}"


def _svg(template: str, name: str, standalone: bool, **values: Any) -> str:
    text = render(f"{template}.svg", name=name, standalone=standalone, axis=Axis, ticks=ticks, **values)
    return type(text)(re.sub(r">\s+<", "><", text.strip()))


def _drawable(value: float) -> bool:
    return abs(value) <= _LARGEST  # false for NaN


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Limits a little outside the data; from zero where the data come near it."""
    low, high = min(values), max(values)
    gap = max((high - low) or abs(high) or 1.0, 1e-12 * abs(high), 1 / _LARGEST)
    return (0.0 if 0 <= low < 0.5 * gap else low - 0.06 * gap), high + 0.06 * gap
