"""reporting/headline.py: which two evaluations a page compares, on which episodes, and what they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.reporting.html_report import write_report
from robopolicy.reporting.run_reader import read_run
from robopolicy.reporting.settings import read_members
from tests.evaluation.points import make_rows
from tests.reporting.test_html_report import Page


def rows(successes: int, episodes: int = 20, *, policy: str = "run/step_1@abc", **more: int) -> EpisodeTable:
    return make_rows([i < successes for i in range(episodes)], policy=policy, **more)


def write(run: Path, **tables: EpisodeTable) -> Path:
    """Write the rows of a run; `own` is episodes.csv."""
    run.mkdir(parents=True)
    for label, table in tables.items():
        table.save(run / ("episodes.csv" if label == "own" else f"episodes-{label}.csv"))
    return run


def names(page: Page) -> list[str]:
    """Return the evaluations of the headline."""
    return [part.partition("<")[0] for part in page.html.split('class="who">')[1:]]


def test_another_sampler_of_the_run_takes_no_headline(tmp_path: Path) -> None:
    quick = rows(2, policy="run/step_1@abc+sampling_steps-1")
    run = write(tmp_path / "run", own=rows(18), base=rows(10, policy="bc/step_1@def"), sampling_steps_1=quick)
    page = Page(write_report(run, tmp_path / "r.html"))
    assert names(page) == ["base", "run"] and "1 more evaluation is below" in page.text
    (run / "episodes-base.csv").unlink()
    page = Page(write_report(run, tmp_path / "r.html"))
    assert names(page) == ["run"] and "McNemar" not in page.text


def test_a_base_under_another_task_is_not_the_base(tmp_path: Path) -> None:
    other = rows(3, policy="bc/step_1@def")
    run = write(tmp_path / "run", own=rows(18), base=rows(10, policy="bc/step_1@def"), a_base=other)
    assert names(Page(write_report(run, tmp_path / "r.html"))) == ["base", "run"]


def test_another_policy_that_a_run_was_compared_with_is_the_reference(tmp_path: Path) -> None:
    run = write(tmp_path / "run", own=rows(18), older=rows(10, policy="older/step_1@def"))
    assert names(Page(write_report(run, tmp_path / "r.html"))) == ["older", "run"]


def test_the_base_of_the_last_of_two_runs_is_the_reference(tmp_path: Path) -> None:
    runs = [write(tmp_path / name, own=rows(18, policy=f"{name}/step_1"), base=rows(10, policy="bc")) for name in "ab"]
    assert names(Page(write_report(runs, tmp_path / "r.html"))) == ["b/base", "b"]


@pytest.mark.parametrize("more", ["own", "base"])
def test_evaluations_of_other_lengths_are_paired_on_common_episodes(tmp_path: Path, more: str) -> None:
    count = {"own": 20, "base": 20, more: 50}
    base = rows(10, count["base"], policy="bc/step_1@def")
    run = write(tmp_path / "run", own=rows(18, count["own"]), base=base)
    page = Page(write_report(run, tmp_path / "r.html"))
    assert "same 20 test episodes, those that both evaluations have" in page.text
    assert f"({count['base']} and {count['own']})" in page.text
    assert "+40.0 points" in page.text and "50.0%" in page.text and "90.0%" in page.text
    assert len(read_run(run).evaluations[more == "own"].rows) == 50, "the table of evaluations has them all"


def test_evaluations_without_a_common_episode_are_not_paired(tmp_path: Path) -> None:
    run = write(tmp_path / "run", own=rows(18, start=100), base=rows(10, policy="bc/step_1@def"))
    assert names(Page(write_report(run, tmp_path / "r.html"))) == ["run"]


def test_runs_in_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [write(tmp_path / x / y / "bc", own=rows(n)) for x, y, n in (("p", "a", 10), ("q", "a", 18))]
    page = Page(write_report(runs, tmp_path / "r.html"))
    assert names(page) == ["p/a/bc", "q/a/bc"] and "q/a/bc is better" in page.text
    other = write(tmp_path / "other", own=rows(5))
    members = read_members([*runs, other])
    assert [m.name for m in members] == ["p/a/bc", "q/a/bc", "other"]
    assert [e.name for m in members for e in m.run.evaluations] == ["p/a/bc", "q/a/bc", "other"]
