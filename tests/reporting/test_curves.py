"""reporting/curves.py: axes, metrics and looks of several runs' curves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from robopolicy.reporting.curves import learning_curves, legend_of, metrics_not_drawn, training_charts
from robopolicy.reporting.html_report import write_report
from robopolicy.reporting.plots import Series, line_chart, styles
from robopolicy.reporting.run_reader import Run, read_run
from tests.reporting.test_html_report import Page


def logged(run: Path, *, loop: str = "", **values: float) -> Run:
    """Return a run that logged `values` at three steps."""
    run.mkdir(parents=True)
    if loop:
        (run / "config.yaml").write_text(f"loop: {{_target_: {loop}}}\n")
    lines = [json.dumps({"step": s, "wall_s": s, **{k.replace("__", "/"): v * s for k, v in values.items()}})
             for s in (1, 2, 3)]  # fmt: skip
    (run / "metrics.jsonl").write_text("\n".join(lines))
    return read_run(run)


def title(chart: str) -> str:
    return re.findall(r'class="strong"[^>]*>([^<]*)<', chart)[0]


def test_updates_and_env_steps_have_charts_of_their_own(tmp_path: Path) -> None:
    values = {"eval__success_rate": 0.1, "train__loss": 1.0}
    runs = [logged(tmp_path / name, loop=loop, **values) for name, loop in
            (("bc", "offline"), ("rl", "off_policy"), ("ppo", "on_policy"))]  # fmt: skip
    charts = learning_curves(runs)
    assert [title(c) for c in charts] == [
        "Success by updates",
        "Success by env steps",
        "Success by minutes of training",
    ]
    assert [c.count("<polyline") for c in charts] == [1, 2, 3]
    assert [title(c) for c in training_charts(runs)] == ["loss by updates", "loss by env steps"]
    assert [title(c) for c in training_charts(runs[1:])] == ["loss"]
    assert title(learning_curves([logged(tmp_path / "x", eval__success_rate=0.1)])[0]) == "Success by steps"


def test_training_episodes_beside_evaluations_say_so(tmp_path: Path) -> None:
    runs = [logged(tmp_path / "a", eval__success_rate=0.1), logged(tmp_path / "b", train__success=0.1)]
    assert [s.name for s in legend_of(runs)] == ["a", "b, training episodes"]
    assert "b, training episodes" in learning_curves(runs)[0]
    page = Page(write_report([run.path for run in runs], tmp_path / "r.html"))
    assert "b, training episodes" in page.text and "Training episodes: success of the last 100" in page.text
    assert [s.name for s in legend_of([runs[1], logged(tmp_path / "c", train__success=0.1)])] == ["b", "c"]


def test_curves_of_one_colour_differ_in_their_dashes(tmp_path: Path) -> None:
    assert len({*styles(24)}) == 24
    runs = [logged(tmp_path / f"r{i}", eval__success_rate=0.1, train__loss=1.0) for i in range(8)]
    for chart in (learning_curves(runs)[0], training_charts(runs)[0]):
        drawn = re.findall(r'<g class="(c\d)"><polyline class="line s"( stroke-dasharray="[^"]*")?', chart)
        assert len(drawn) == len({*drawn}) == 8
    page = Page(write_report([run.path for run in runs], tmp_path / "r.html"))
    looks = re.findall(r'<li class="(c\d)"><svg[^>]*><line [^>]*?( stroke-dasharray="[^"]*")?/></svg>r\d', page.html)
    assert looks == drawn, "the legend of the page"


@pytest.mark.parametrize("letters", [20, 45, 200])
def test_legends_are_not_clipped(letters: int) -> None:
    series = [Series(f"{i}" + letters * "n", [0, 1], [0, 1]) for i in range(4)]
    chart = line_chart(series, width=430)
    places = re.findall(r'<text x="([\d.]+)" y="([\d.]+)">(\dn+…?)<', chart)
    assert len(places) == 4 and len({y for _, y, _ in places}) >= 2
    assert all(float(x) + 6.4 * len(text) <= 430 for x, _, text in places)
    assert (max(len(text) for _, _, text in places) > letters) == (letters < 60)


def test_a_page_has_one_legend_for_its_charts(tmp_path: Path) -> None:
    runs = [logged(tmp_path / f"{i}{100 * 'n'}", eval__success_rate=0.1) for i in range(3)]
    page = Page(write_report([run.path for run in runs], tmp_path / "r.html"))
    legend = re.search(r'<ul class="legend lines">.*?</ul>', page.html)
    assert legend is not None and all(run.name in legend[0] for run in runs)
    assert not any(re.findall(r"<text[^>]*>\dnnn", page.html)), "none in the drawings"
    assert legend_of(runs[:1]) == []


def test_metrics_that_are_not_drawn_are_named(tmp_path: Path) -> None:
    run = logged(tmp_path / "run", **{f"train__m{i:02d}": 1.0 for i in range(26)})
    assert metrics_not_drawn([run]) == ["m24", "m25"] and len(training_charts([run])) == 24
    assert "Not drawn: m24, m25." in Page(write_report(run.path, tmp_path / "r.html")).text
