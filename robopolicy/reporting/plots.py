"""Draw SVG: line charts with bands, intervals in rows, grids of outcomes.

Colours are CSS classes, so one drawing serves light and dark pages. `standalone` adds the style sheet for files that
are shown on their own (docs/img). The output depends on the numbers alone: no dates, fonts or library versions in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

STYLE = """
svg.plot{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;\
font-variant-numeric:tabular-nums;max-width:100%;height:auto}
svg.plot text{fill:var(--muted,#666a73)}svg.plot text.ink{fill:var(--ink,#1b1d22)}\
svg.plot text.strong{fill:var(--ink,#1b1d22);font-weight:600}
svg.plot .rule{stroke:var(--rule,#e4e1db);stroke-width:1}svg.plot .base{stroke:var(--muted,#666a73);stroke-width:1}
svg.plot .mark{stroke:var(--ink,#1b1d22);stroke-width:1.2;stroke-dasharray:4 4;opacity:.55}
svg.plot .line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}svg.plot .band{opacity:.16;\
stroke:none}
svg.plot .whisker{stroke-width:3;stroke-linecap:round;opacity:.45}svg.plot .bar{opacity:.10}
.c0{--c:var(--s0,#8b8f98)}.c1{--c:var(--s1,#2a5bd0)}.c2{--c:var(--s2,#0f8a6c)}.c3{--c:var(--s3,#c9622b)}\
.c4{--c:var(--s4,#8a4fbf)}.c5{--c:var(--s5,#b0892a)}
.good{--c:var(--ok,#1d9070)}.bad{--c:var(--no,#d0492f)}.soft{--c:var(--okl,#a9d6c6)}.dim{--c:var(--nol,#c9c5bd)}
svg.plot .f{fill:var(--c)}svg.plot .s{stroke:var(--c)}svg.plot text.f{fill:var(--c)}
""".strip()
_DARK = (
    "@media(prefers-color-scheme:dark){svg.plot{--ink:#eceae6;--muted:#a2a5ad;--rule:#33363d;--s0:#8f949e;--s1:#7aa2ff;"
    "--s2:#46c7a3;--s3:#f0935c;--s4:#c08cf0;--s5:#dcb84f;--ok:#3fb68f;--no:#f0745a;--okl:#2c5a4c;--nol:#4a4d55}}"
)


@dataclass(frozen=True)
class Series:
    """One curve. `low`/`high` are its band, where there is one; `colour` is a class of STYLE."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = field(default_factory=list)
    high: Sequence[float] = field(default_factory=list)
    colour: str = "c1"


@dataclass(frozen=True)
class Whisker:
    """One row of an interval chart; NaN limits draw a dot alone. `note` stands at the right."""

    name: str
    value: float
    low: float
    high: float
    note: str = ""
    colour: str = "c1"


def number(value: float) -> str:
    """Short form for ticks and tables: 1200 → 1.2k, 0.00031 → 3.1e-4."""
    size = abs(value)
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.4g}{letter}"
    if size >= 0.001:
        return f"{value:.4g}"
    mantissa, exponent = f"{value:.2g}".split("e") if "e" in f"{value:.2g}" else (f"{value:.1e}").split("e")
    return f"{mantissa}e{int(exponent)}"


def percent(value: float) -> str:
    return f"{100 * value:.4g}%"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between `low` and `high`, about `count` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / max(1, count)
    scale = 10 ** math.floor(math.log10(raw))
    unit = next(scale * m for m in (1, 2, 2.5, 5, 10) if raw <= scale * m * 1.0001)
    return [round(k * unit, 12) for k in range(math.ceil(low / unit - 1e-9), math.floor(high / unit + 1e-9) + 1)]


def line_chart(
    series: Sequence[Series], *, title: str = "", x_label: str = "", share: bool = False,
    marks: Sequence[tuple[float, str]] = (), width: int = 520, height: int = 280, legend: bool | None = None,
    standalone: bool = False,
) -> str:  # fmt: skip
    """Draw curves over one x axis. `share`: y runs from 0 to 100%. `marks`: dashed horizontals with a name."""
    points = [(x, y) for s in series for x, y in zip(s.x, s.y, strict=True) if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return ""
    legend = len(series) > 1 if legend is None else legend
    left, right, top, bottom = 46, 14, 12 + 20 * bool(title) + 20 * legend, 26 + 16 * bool(x_label)
    x0, x1 = min(x for x, _ in points), max(x for x, _ in points)
    edges = [v for s in series for v in (*s.low, *s.high) if math.isfinite(v)] + [m for m, _ in marks]
    y0, y1 = (0.0, 1.0) if share else _range([y for _, y in points] + edges)
    x1 = x1 if x1 > x0 else x0 + 1
    sx = (width - left - right) / (x1 - x0)
    sy = (height - top - bottom) / (y1 - y0)

    def at(x: float, y: float) -> tuple[float, float]:
        return left + (x - x0) * sx, top + (y1 - min(max(y, y0), y1)) * sy

    out = [f'<text class="strong" x="{left}" y="14">{escape(title)}</text>'] if title else []
    if legend:
        cursor = float(left)
        for s in series:
            out.append(f'<g class="{s.colour}"><rect class="f" x="{cursor:.1f}" y="{top - 14}" width="14" height="3"/>')
            out.append(f'<text x="{cursor + 19:.1f}" y="{top - 9}">{escape(s.name)}</text></g>')
            cursor += 34 + 6.4 * len(s.name)
    show = percent if share else number
    for value in ticks(y0, y1, max(3, (height - top - bottom) // 44)):
        y = at(x0, value)[1]
        out.append(f'<line class="rule" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{left - 7}" y="{y + 4:.1f}" text-anchor="end">{show(value)}</text>')
    for value in ticks(x0, x1, max(3, (width - left - right) // 90)):
        x = at(value, y0)[0]
        out.append(f'<text x="{x:.1f}" y="{height - bottom + 17}" text-anchor="middle">{number(value)}</text>')
    if x_label:
        middle = left + (width - left - right) / 2
        out.append(f'<text x="{middle:.1f}" y="{height - 6}" text-anchor="middle">{escape(x_label)}</text>')
    for value, name in marks:
        y = at(x0, value)[1]
        out.append(f'<line class="mark" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{width - right}" y="{y - 5:.1f}" text-anchor="end">{escape(name)}</text>')
    for s in series:
        out.append(f'<g class="{s.colour}">')
        if s.low and s.high:
            keep = [i for i in range(len(s.x)) if math.isfinite(s.low[i]) and math.isfinite(s.high[i])]
            edge = [at(s.x[i], s.high[i]) for i in keep] + [at(s.x[i], s.low[i]) for i in reversed(keep)]
            out.append(f'<polygon class="band f" points="{_points(edge)}"/>')
        finite = [at(x, y) for x, y in zip(s.x, s.y, strict=True) if math.isfinite(x) and math.isfinite(y)]
        out.append(f'<polyline class="line s" points="{_points(finite)}"/>')
        if len(finite) <= 40:
            out += [f'<circle class="f" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in finite]
        out.append("</g>")
    return _svg(out, width, height, title or x_label, standalone)


def interval_chart(
    rows: Sequence[Whisker],
    *,
    title: str = "",
    share: bool = True,
    low: float | None = None,
    high: float | None = None,
    marks: Sequence[tuple[float, str]] = (),
    width: int = 720,
    standalone: bool = False,
) -> str:
    """Draw one row an estimate: dot and confidence interval on a common axis. `marks`: dashed verticals with a name."""
    if not rows:
        return ""
    name_width = min(280, 20 + 6.6 * max(len(r.name) for r in rows))
    note_width = 12 + 6.4 * max(len(r.note) for r in rows)
    step, top = 26, 8 + 20 * bool(title) + 16 * bool(marks)
    height = top + step * len(rows) + 26
    edges = [v for r in rows for v in (r.value, r.low, r.high) if math.isfinite(v)] + [m for m, _ in marks]
    x0, x1 = (0.0, 1.0) if share else _range(edges)
    x0, x1 = (x0 if low is None else low), (x1 if high is None else high)
    sx = (width - name_width - note_width) / (x1 - x0)

    def at(x: float) -> float:
        return name_width + (min(max(x, x0), x1) - x0) * sx

    out = [f'<text class="strong" x="0" y="14">{escape(title)}</text>'] if title else []
    base = top + step * len(rows)
    show = percent if share else number
    for value in ticks(x0, x1, 5):
        x = at(value)
        out.append(f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{base}"/>')
        out.append(f'<text x="{x:.1f}" y="{base + 17}" text-anchor="middle">{show(value)}</text>')
    for value, name in marks:
        x = at(value)
        out.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 4}" y2="{base}"/>')
        out.append(f'<text x="{x:.1f}" y="{top - 8}" text-anchor="middle">{escape(name)}</text>')
    for i, r in enumerate(rows):
        y = top + step * (i + 0.5)
        out.append(f'<text class="ink" x="0" y="{y + 4:.1f}">{escape(_cut(r.name, int(name_width / 6.4)))}</text>')
        out.append(f'<g class="{r.colour}">')
        if math.isfinite(r.low) and math.isfinite(r.high):
            ends = f'x1="{at(r.low):.1f}" x2="{at(r.high):.1f}"'
            out.append(f'<line class="whisker s" {ends} y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<circle class="f" cx="{at(r.value):.1f}" cy="{y:.1f}" r="4.5"/></g>')
        out.append(f'<text class="ink" x="{width}" y="{y + 4:.1f}" text-anchor="end">{escape(r.note)}</text>')
    return _svg(out, width, height, title or "intervals", standalone)


def outcome_grid(cells: Sequence[tuple[str, str]], *, columns: int = 50, size: int = 13) -> str:
    """Draw one small square an episode: (colour class, tooltip)."""
    out = []
    for i, (colour, tip) in enumerate(cells):
        x, y = (i % columns) * size, (i // columns) * size
        out.append(f'<rect class="{colour} f" x="{x}" y="{y}" width="{size - 2}" height="{size - 2}" rx="2">'
                   f"<title>{escape(tip)}</title></rect>")  # fmt: skip
    return _svg(out, columns * size, size * math.ceil(len(cells) / columns), "outcome of every episode", False)


def styled(svg: str) -> str:
    """Return a drawing with the style sheet in it, for files and pages that have none."""
    head, _, rest = svg.partition(">")
    return f"{head}><style>{STYLE}{_DARK}</style>{rest}"


def _svg(parts: Sequence[str], width: float, height: float, name: str, standalone: bool) -> str:
    svg = (
        f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(name)}">{"".join(parts)}</svg>'
    )
    return styled(svg) if standalone else svg


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Limits a little outside the data; from zero where the data come near it."""
    low, high = min(values), max(values)
    gap = (high - low) or abs(high) or 1.0
    return (0.0 if 0 <= low < 0.5 * gap else low - 0.06 * gap), high + 0.06 * gap


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
