"""Report success under worse conditions: table, curves and rows, for one policy or two on the same seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from robopolicy.evaluation.compare import Comparison, compare, format_p
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.statistics import holm
from robopolicy.reporting import plots
from robopolicy.reporting.templates import render
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.provenance import command, hardware, version

_NOTE = (
    "Intervals: 95%, Wilson's score for a rate, Tango's for a difference of two policies on the same episodes; each "
    "holds for its own point, not for the curve as a whole. p: exact McNemar, adjusted by Holm over all points."
)


class Point(NamedTuple):
    """Rows of every policy under one condition."""

    what: str
    value: float
    rows: tuple[EpisodeTable, ...]


@dataclass(frozen=True)
class Robustness:
    """Curves of the policies `names`, of which the second, where there are two, is compared with the first.

    `units`: {condition: unit of its values}. The unchanged task stands in every curve, but was run once.
    """

    names: tuple[str, ...]
    points: Sequence[Point]
    units: Mapping[str, str]

    def curves(self) -> dict[str, list[Point]]:
        """Points of each condition, by value."""
        found: dict[str, list[Point]] = {}
        for point in sorted(self.points, key=lambda p: p.value):
            found.setdefault(point.what, []).append(point)
        return {what: found[what] for what in dict.fromkeys(p.what for p in self.points)}

    def comparisons(self) -> dict[str, tuple[Comparison, float]]:
        """Compare two policies at every distinct task, by its digest, with adjusted p-values."""
        if len(self.names) != 2:
            return {}
        names = (self.names[0], self.names[1])
        found = {_digest(p): compare(*p.rows, names=names) for p in self.points}
        adjusted = holm([c.p_value for c in found.values()])
        return {digest: (c, p) for (digest, c), p in zip(found.items(), adjusted, strict=True)}

    def records(self) -> list[dict[str, Any]]:
        """Return one mapping for each policy at each point, and one for each difference."""
        pairs, out = self.comparisons(), list[dict[str, Any]]()
        for point in (p for curve in self.curves().values() for p in curve):
            at = {"condition": point.what, "at": point.value, "digest": _digest(point), "episodes": len(point.rows[0])}
            for name, rows in zip(self.names, point.rows, strict=True):
                more = {"diverged": rows.diverged, "checkpoint": str(rows.frame["policy"].iloc[0])}
                out.append({**at, "policy": name, "metric": "success_rate", **rows.success_rate()._asdict(), **more})
            if pairs:
                found, p = pairs[_digest(point)]
                more = {"mcnemar_p": found.p_value, "holm_p": p}
                name = f"{self.names[1]} − {self.names[0]}"
                out.append({**at, "policy": name, "metric": "difference", **found.difference._asdict(), **more})
        return out

    def text(self) -> str:
        """Markdown: a table for each condition."""
        return render("robustness.md", env=self.points[0].rows[0].frame["env"].iloc[0], note=_NOTE, **self._values())

    def charts(self) -> dict[str, str]:
        """Return an SVG for each condition that has more than one value."""
        return {w: self._chart(w, curve, standalone=True) for w, curve in self.curves().items() if len(curve) > 1}

    def save(self, out: Path) -> Path:
        """Write robustness.json, table.md, <condition>.svg and report.html into `out`; the page's path."""
        rows = self.points[0].rows[0]
        facts = {"env": str(rows.frame["env"].iloc[0]), "split": rows.split, "policies": list(self.names),
                 "units": dict(self.units), "intervals": _NOTE, "command": command(), "version": version(),
                 "hardware": hardware(), "rows": self.records()}  # fmt: skip
        write_atomically(out / "robustness.json", json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
        write_atomically(out / "table.md", self.text())
        for what, chart in self.charts().items():
            write_atomically(out / f"{what}.svg", chart + "\n")
        return write_atomically(out / "report.html", self._page(facts))

    def _chart(self, what: str, curve: list[Point], *, standalone: bool) -> str:
        series = []
        for i, name in enumerate(self.names):
            rates = [point.rows[i].success_rate() for point in curve]
            colour = "c1" if i == len(self.names) - 1 else "c0"
            values, low, high = map(list, zip(*rates, strict=True))
            series.append(plots.Series(name, [p.value for p in curve], values, low, high, colour))
        return plots.line_chart(series, title=f"Success by {what}", x_label=self.units[what], share=True,
                                standalone=standalone, legend=True)  # fmt: skip

    def _page(self, facts: Mapping[str, Any]) -> str:
        charts = [self._chart(w, curve, standalone=False) for w, curve in self.curves().items() if len(curve) > 1]
        return render("robustness.html", title=f"{facts['env']}: robustness", meta=[", ".join(self.names)],
                      charts=charts, **{**facts, **self._values()})  # fmt: skip

    def _values(self) -> dict[str, Any]:
        """Return what both templates read."""
        rows = self.points[0].rows[0]
        return {
            "episodes": len(rows), "split": rows.split, "names": self.names, "units": self.units,
            "curves": self.curves(), "pairs": self.comparisons(), "digest": _digest, "format_p": format_p,
        }  # fmt: skip


def _digest(point: Point) -> str:
    return str(point.rows[0].frame["digest"].iloc[0])
