from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import robopolicy as rp
from robopolicy.core.errors import ConfigError, DataError
from tests.evaluation.points import make_rows


def test_results_are_drawn_with_their_intervals(tmp_path: Path) -> None:
    good, bad = make_rows([True] * 9 + [False]), make_rows([False] * 10)
    chart = rp.plot({"refined": good, "base": bad}, tmp_path / "rates.svg")
    assert repr(chart).splitlines()[0] == "refined: 90.0% (59.6–98.2%), 10 episodes"
    text = (tmp_path / "rates.svg").read_text()
    assert ">refined<" in text and text.count("whisker s") == 2 and "<style>" in text
    ElementTree.fromstring(text)
    comparison = rp.compare(bad, good, names=("base", "refined"))
    assert rp.plot(comparison).svg[0].count("whisker s") == 2
    assert repr(comparison) == comparison.text()


def test_notebooks_show_intervals() -> None:
    good, bad = make_rows([True] * 9 + [False]), make_rows([False] * 10)
    assert "90.0%" in good._repr_html_() and "59.6–98.2%" in good._repr_html_()
    assert "90.0%" in repr(good) and "59.6–98.2" in repr(good)
    shown = rp.compare(bad, good, names=("<base>", "refined"))._repr_html_()
    assert "&lt;base&gt;" in shown and "+90.0 points" in shown and "is better" in shown


def test_runs_are_drawn(folder: Path, tmp_path: Path) -> None:
    chart = rp.plot("runs/base")
    assert chart.svg and all("<svg" in svg for svg in chart.svg)
    assert "base" in repr(chart) and chart._repr_html_().count("<svg") == len(chart.svg)
    assert len(chart.save(tmp_path / "a.svg")) == len(list(tmp_path.glob("a*.svg"))) == len(chart.svg)
    with pytest.raises(ConfigError, match="path: "):
        chart.save("a.png")
    for nothing, error in (({}, ConfigError), (tmp_path / "no", DataError), ([], DataError)):
        with pytest.raises(error):
            rp.plot(nothing)  # type: ignore[arg-type]
