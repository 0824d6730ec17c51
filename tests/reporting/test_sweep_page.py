"""`robopolicy report` on a sweep: pooled success, comparisons in plain words, curves with bands, every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from robopolicy.cli.report import report
from robopolicy.reporting.run_reader import read_run
from robopolicy.reporting.settings import read_members, runs_below
from robopolicy.reporting.sweep_figures import summarize
from robopolicy.reporting.sweep_page import pooled_curve
from robopolicy.runs.sweep_job import JobState
from tests.reporting.sweeps import write_job, write_run
from tests.reporting.test_html_report import Page

SUCCESS = {"0.1": 0.3, "0.2": 0.8}


def write_sweep(folder: Path, *, seeds: int = 2, tasks: tuple[str, ...] = ("reach",)) -> Path:
    for task in tasks:
        for lr, rate in SUCCESS.items():
            for seed in range(seeds):
                values = {"algo.lr": lr, "seed": str(seed), "task": task}
                config = {"seed": seed, "task": {"task": task}, "algo": {"lr": float(lr)}}
                write_job(folder, values, config, rate=rate + 0.02 * seed)
    return folder


def test_seeds_are_pooled_and_few_of_them_make_nothing_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Page(report(run_dir=write_sweep(tmp_path / "sweep")))
    said = capsys.readouterr().out
    assert "lr=0.2   81.0%" in said and "2 training seeds" in said
    assert "lr=0.2 was ahead of" not in said and "lr=0.2 was ahead in these trainings" in said
    assert "is better" not in said and "is better" not in page.text
    assert "lr=0.2 − lr=0.1: +50.0 points" in page.text and "Of fewer than 10 training seeds" in page.text
    assert page.requests == []
    assert page.html.count('<polygon class="band f"') == 2


def test_ten_seeds_are_enough(tmp_path: Path) -> None:
    found = summarize(read_members(runs_below(write_sweep(tmp_path, seeds=10))))
    assert found.comparisons[0].verdict.startswith("lr=0.2 is better")
    assert found.comparisons[0].paired and found.comparisons[0].improvement == (1.0, 1.0, 1.0)
    assert not found.few and found.best is not None and found.best.name == "lr=0.2"


def test_intervals_of_several_comparisons_hold_together(tmp_path: Path) -> None:
    for lr in range(5):
        write_job(tmp_path, {"algo.lr": str(lr), "seed": "0"}, {"seed": 0, "algo": {"lr": lr}})
    found = summarize(read_members(runs_below(tmp_path)))
    assert len(found.comparisons) == 4 and found.level == pytest.approx(1 - 0.05 / 4)
    assert {c.improvement for c in found.comparisons} == {None}, "one training has no spread"


def test_over_several_tasks_each_counts_the_same(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep", tasks=("pick", "reach"))
    page = Page(report(run_dir=folder))
    assert "Interquartile mean" in page.text and "on each of 2 tasks" in page.text
    found = summarize(read_members(runs_below(folder)))
    assert found.tasks == ["pick", "reach"] and found.settings[1].total.value == pytest.approx(0.81)
    config = {"seed": 0, "task": {"task": "pick"}, "algo": {"lr": 0.3}}
    write_job(folder, {"algo.lr": "0.3", "seed": "0", "task": "pick"}, config, rate=1.0)
    found = summarize(read_members(runs_below(folder)))
    assert found.best is not None and found.best.name == "lr=0.2", "a setting without one of the tasks is not the best"


def test_runs_that_did_not_end_are_named(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep")
    name = "algo.lr_0.2-seed_1-task_reach"
    JobState(values={"algo.lr": "0.2", "seed": "1"}, state="failed", error="disk <full>").save(folder / name)
    (folder / "algo.lr_0.3-seed_0").mkdir()
    JobState(values={"algo.lr": "0.3", "seed": "0"}, state="begun").save(folder / "algo.lr_0.3-seed_0")
    page = Page(report(run_dir=folder))
    assert "failed: disk <full>" in page.text and "has not ended" in page.text and "2 runs do not count" in page.text


def test_the_band_spans_the_seeds_where_all_of_them_are(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a", {}, rate=0.4), write_run(tmp_path / "b", {}, rate=0.8, steps=(0, 50, 100))]
    curve = pooled_curve("x", [read_run(run) for run in runs], "c1")
    assert curve is not None and list(curve.x) == [0, 50, 100]
    assert list(curve.low) == pytest.approx([0, 0.1, 0.2]) and list(curve.high) == pytest.approx([0, 0.4, 0.8])
    assert list(curve.y) == pytest.approx([0, 0.25, 0.5])


def test_runs_of_one_setting_are_pooled_and_others_are_shown_side_by_side(tmp_path: Path) -> None:
    seeds = tuple(write_run(tmp_path / f"s{i}", {"seed": i}) for i in range(3))
    others = tuple(write_run(tmp_path / f"o{i}", {"seed": 0, "num_envs": i}) for i in range(3))
    assert "mean over training seeds" in Page(report(run_dir=seeds, world_model_report=None)).text
    assert "mean over training seeds" not in Page(report(run_dir=others, world_model_report=None)).text
    assert "mean over training seeds" in Page(report(run_dir=others, pooled=True)).text
    assert "mean over training seeds" not in Page(report(run_dir=seeds, pooled=False)).text
