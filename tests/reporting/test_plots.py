from __future__ import annotations

import math
import xml.etree.ElementTree as ET

from robopolicy.reporting.plots import Series, Whisker, interval_chart, line_chart, outcome_grid, ticks

SVG = "{http://www.w3.org/2000/svg}"


def test_ticks_are_round():
    assert ticks(0, 1, 4) == [0, 0.25, 0.5, 0.75, 1.0]
    assert ticks(3, 30_000, 3) == [10_000, 20_000, 30_000]
    assert ticks(-0.02, 0.02, 4) == [-0.02, -0.01, 0.0, 0.01, 0.02]
    assert ticks(5, 5) == [5]


def test_line_chart_puts_points_where_they_belong():
    svg = ET.fromstring(line_chart([Series("a", [0, 10], [0.0, 1.0], [0.0, 0.9], [0.1, 1.0])], share=True))
    points = svg.find(f".//{SVG}polyline").get("points").split()
    (x0, y0), (x1, y1) = (tuple(map(float, p.split(","))) for p in points)
    assert x0 < x1 and y0 > y1  # right is more, up is more
    grid = {t.text: float(t.get("y")) - 4 for t in svg.iter(f"{SVG}text") if t.text in ("0%", "100%")}
    assert grid == {"0%": y0, "100%": y1}
    assert len(svg.find(f".//{SVG}polygon").get("points").split()) == 4


def test_long_numbers_fit_beside_the_axis():
    """A character is about 6.7 pixels wide; texts that end at x begin at x − 6.7 × their length."""
    svg = ET.fromstring(line_chart([Series("a", [0, 10], [-0.02551, -0.02549])]))
    labels = [t for t in svg.iter(f"{SVG}text") if t.get("text-anchor") == "end"]
    assert max(len(t.text) for t in labels) >= 8
    assert all(float(t.get("x")) >= 6.7 * len(t.text) for t in labels)


def test_gaps_and_nothing():
    assert line_chart([]) == "" and interval_chart([]) == ""
    assert line_chart([Series("a", [0, 1], [math.nan, math.inf])]) == ""
    svg = ET.fromstring(line_chart([Series("a", [0, 1, 2], [1.0, math.nan, 1.0])]))
    assert len(svg.find(f".//{SVG}polyline").get("points").split()) == 2


def test_extreme_numbers_are_drawn_or_left_out():
    huge, tiny = 1.7e308, 5e-324
    for x, y in (([0, 1], [-huge, huge]), ([-huge, huge], [0, 1])):
        assert line_chart([Series("a", x, y)]) == ""
    for x, y in (([0, 1, 2], [0, 1, huge]), ([0, 1], [tiny, tiny]), ([0, 1], [0, tiny]), ([1e20, 1e20], [0, 1]),
                 ([0, 1], [1e300, -1e300]), ([0, 1], [1, 1 + 2.3e-16])):  # fmt: skip
        svg = ET.fromstring(line_chart([Series("a", x, y, y, y)]))
        assert len(svg.find(f".//{SVG}polyline").get("points").split()) == 2
    assert ticks(0, 1e-13, 4) == [0, 2.5e-14, 5e-14, 7.5e-14, 1e-13]


def test_interval_chart_and_escaping():
    rows = [Whisker("<b>", 0.5, 0.4, 0.6, "50%"), Whisker("dot", 0.2, math.nan, math.nan)]
    text = interval_chart(rows, standalone=True)
    svg = ET.fromstring(text)
    assert len(svg.findall(f".//{SVG}circle")) == 2
    assert len([line for line in svg.iter(f"{SVG}line") if "whisker" in line.get("class")]) == 1
    assert "prefers-color-scheme" in text
    assert text == interval_chart(rows, standalone=True)


def test_outcome_grid():
    svg = ET.fromstring(outcome_grid([("good", "seed 1")] * 51))
    assert len(svg.findall(f"{SVG}rect")) == 51
    assert svg.find(f"{SVG}rect/{SVG}title").text == "seed 1"
