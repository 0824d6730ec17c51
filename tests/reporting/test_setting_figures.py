"""reporting/setting_figures.py: intervals of settings over seeds and tasks, and which settings are compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.statistics import wilson
from robopolicy.reporting import sweep_figures
from robopolicy.reporting.plots import Style
from robopolicy.reporting.run_reader import Run
from robopolicy.reporting.setting_figures import Setting, TaskEpisodes, setting_of
from robopolicy.reporting.settings import SweepRun, read_members
from robopolicy.reporting.sweep_figures import summarize
from robopolicy.reporting.sweep_page import curves, write_sweep_report
from tests.evaluation.points import make_rows
from tests.reporting.sweeps import write_run
from tests.reporting.test_html_report import Page


def runs(folder: Path, *, seeds: int = 2, tasks: tuple[str, ...] = ("reach",), **run: float) -> list[Path]:
    """Write two settings, tau=0.1 and 0.2, each with its training seeds in each task."""
    return [write_run(folder / f"{task}-{tau}-{seed}", {"seed": seed, "task": {"task": task}, "algo": {"tau": tau}},
                      **{"rate": 0.5, "test": 0.5, **run})
            for tau in (0.1, 0.2) for task in tasks for seed in range(seeds)]  # fmt: skip


def change(run: Path, changed: Callable[[EpisodeTable], EpisodeTable]) -> None:
    file = run / "episodes.csv"
    changed(EpisodeTable.load(file)).save(file)


def of(*tables: EpisodeTable, task: str = "reach") -> Setting:
    """Return a setting of one task with these episodes of its training seeds."""
    members = [SweepRun(Run(Path(str(i))), {"seed": i}, None, {}) for i in range(len(tables))]
    return setting_of("x", {task: list(zip(members, tables, strict=True))})


def test_runs_with_other_numbers_of_episodes_count_on_common_ones() -> None:
    found = of(make_rows([True] * 45 + [False] * 5), make_rows([True] * 15 + [False] * 5))
    assert found.tables["reach"].shape == (2, 20) and found.rates["reach"].value == pytest.approx((20 + 15) / 40)
    low, high = found.rates["reach"][1:]
    assert low <= wilson(18, 20).low and high >= wilson(18, 20).high, "no narrower than Wilson's of the common ones"
    assert found.episodes == "20–50, 20 in common" and of(make_rows([True] * 3)).episodes == "3"


def test_without_common_episodes_the_interval_is_that_of_the_fewest() -> None:
    found = of(make_rows([True] * 45 + [False] * 5), make_rows([True] * 18 + [False] * 2, start=90))
    assert found.rates["reach"] == pytest.approx(wilson(18, 20)) and found.total == found.rates["reach"]
    assert found.episodes == "20–50, none in common" and found.met["reach"].fewest == 20


def test_over_tasks_no_interval_is_a_point() -> None:
    tables = {"pick": np.ones((3, 50)), "push": np.ones((3, 50))}
    met = TaskEpisodes((("pick", "d"),), tuple(range(50)), (50, 50, 50))
    found = Setting("x", tables, {key: [0, 1, 2] for key in tables}, dict.fromkeys(tables, met))
    one = wilson(50, 50).low
    assert found.total == found.iqm and found.total.high == 1.0
    assert found.total.low == pytest.approx(1 - (1 - one) / math.sqrt(2))
    alone = Setting("x", {k: t[:1] for k, t in tables.items()}, {key: [0] for key in tables}, found.met)
    assert alone.iqm.value == 1.0 and math.isnan(alone.iqm.low), "one training seed a task has no spread"


def test_cautions_stand_at_every_interval_over_few_seeds(tmp_path: Path) -> None:
    page = Page(write_sweep_report(runs(tmp_path, tasks=("pick", "reach")), tmp_path / "r.html")[0])
    assert page.text.count("Of fewer than 10 training seeds an interval is too narrow") == 3
    assert "The mean’s draws training seeds and episodes within each task" in page.text


def test_settings_of_different_envs_are_not_compared(tmp_path: Path) -> None:
    found = runs(tmp_path)
    for run in found[2:]:
        change(run, lambda rows: EpisodeTable(rows.frame.assign(digest="other")))
    page, figures = write_sweep_report(found, tmp_path / "r.html")
    why = "tau=0.2 is not compared with tau=0.1: reach: they were evaluated on different envs or parameters."
    assert figures.comparisons == [] and why in figures.text() and why in Page(page).text
    assert "Not all settings can be compared" in Page(page).text


def test_settings_with_other_episodes_are_compared_unpaired(tmp_path: Path) -> None:
    found = runs(tmp_path)
    assert summarize(read_members(found)).comparisons[0].paired
    for run in found[2:]:
        change(run, lambda rows: EpisodeTable(rows.frame.assign(seed=rows.frame["seed"] + 1)))
    (comparison,) = summarize(read_members(found)).comparisons
    assert not comparison.paired and comparison.difference.value == 0.0
    change(found[0], lambda rows: EpisodeTable(rows.frame.assign(seed=rows.frame["seed"] + 500)))
    figures = summarize(read_members(found))
    assert figures.comparisons == [] and "the runs of tau=0.1 share no episodes" in figures.text()


def test_a_cut_file_does_not_turn_a_page_to_validation_in_silence(tmp_path: Path) -> None:
    found = runs(tmp_path)
    file = found[0] / "episodes.csv"
    file.write_text(file.read_text()[:500])
    page, figures = write_sweep_report(found, tmp_path / "r.html")
    why = "Validation counts, as 1 finished run has no usable test episodes: reach-0.1-0."
    assert figures.source == "validation" and why in figures.text() and why in Page(page).text
    assert "reach-0.1-0: episodes.csv: " in Page(page).text and "Is it cut? Evaluate again" in Page(page).text
    for run in found:
        for rows in (run / "evaluations").glob("*.parquet"):
            rows.unlink()
    figures = summarize(read_members(found))
    assert figures.source == "test" and "no usable episodes: episodes.csv: " in figures.left_out[found[0]]
    for run in found:
        (run / "episodes.csv").unlink()
    assert summarize(read_members(found)).why_validation == "", "no run has test episodes"


def test_damaged_validation_rows_are_named_on_the_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"seed": 0})
    (run / "evaluations" / "000000200.parquet").write_bytes(b"PAR1")
    page = Page(write_sweep_report([run], tmp_path / "r.html")[0])
    assert "run: evaluations/000000200.parquet: not readable" in page.text


def test_a_run_that_has_begun_does_not_cut_the_curve(tmp_path: Path) -> None:
    config = {"task": {"task": "reach"}}
    ended = write_run(tmp_path / "a", {**config, "seed": 0}, steps=(0, 100, 200, 300))
    begun = write_run(tmp_path / "b", {**config, "seed": 1}, steps=(0, 100), finished=False)
    styles = {"x": Style("c1", "")}
    (((curve,), _),) = curves({"x": read_members([ended, begun])}, styles)
    assert list(curve.x) == [0, 100, 200, 300] and not curve.low, "the finished run alone"
    (((curve,), _),) = curves({"x": read_members([begun])}, styles)
    assert list(curve.x) == [0, 100], "a sweep at work has curves"


def test_too_many_settings_are_not_compared_and_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_figures, "_MOST_SETTINGS", 1)
    page, figures = write_sweep_report(runs(tmp_path, seeds=1), tmp_path / "r.html")
    said = "2 settings are more than 1, so none is compared. Name fewer runs."
    assert figures.comparisons == [] and said in figures.text() and said in Page(page).text


def test_the_text_says_which_intervals_its_differences_have(tmp_path: Path) -> None:
    more = [write_run(tmp_path / "c", {"seed": 0, "task": {"task": "reach"}, "algo": {"tau": 0.3}}, test=0.5)]
    figures = summarize(read_members([*runs(tmp_path, seeds=1), *more]))
    said = "differences with 97.5% intervals, so that all hold together with 95% (Bonferroni):"
    assert len(figures.comparisons) == 2 and said in figures.text()
    two = summarize(read_members(runs(tmp_path / "two", seeds=1)))
    assert "differences with 95% intervals:" in two.text()
