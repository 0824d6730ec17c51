"""reporting/settings.py: which runs have the same setting, and which of their episodes count."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from robopolicy.core.errors import DataError
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.video import INDEX
from robopolicy.reporting.run_reader import read_run
from robopolicy.reporting.settings import (
    copies_of,
    grouped,
    outcomes,
    read_members,
    runs_below,
    setting_name,
    source_of,
)
from robopolicy.reporting.sweep_figures import summarize
from robopolicy.reporting.sweep_page import write_sweep_report
from robopolicy.runs.finished import FINISHED, write_finished
from robopolicy.runs.run_dir import CONFIG
from robopolicy.runs.sweep_job import JobState
from tests.evaluation.points import make_rows
from tests.reporting.sweeps import write_job, write_run


def test_runs_of_a_sweep_are_told_apart_by_its_values(tmp_path: Path) -> None:
    for tau in ("0.005", "0.01"):
        for seed in ("0", "1"):
            values = {"algo.tau": tau, "seed": seed, "task": "reach"}
            write_job(tmp_path, values, {"seed": int(seed), "task": {"task": "reach"}, "algo": {"tau": float(tau)}})
    found = grouped(read_members(runs_below(tmp_path)))
    assert {name: [m.seed for m in runs] for name, runs in found.items()} == {"tau=0.005": [0, 1], "tau=0.01": [0, 1]}
    assert {m.task for runs in found.values() for m in runs} == {"reach"}


def test_other_runs_are_told_apart_by_the_keys_that_differ(tmp_path: Path) -> None:
    nodes = {"flow": {"_target_": "flow", "steps": 4}, "diffusion": {"_target_": "diffusion", "eta": 1.0}}
    runs = [write_run(tmp_path / f"{name}{seed}", {"seed": seed, "policy": node, "base": f"runs/bc{seed}"})
            for name, node in nodes.items() for seed in (0, 1)]  # fmt: skip
    found = grouped(read_members(runs))
    assert list(found) == ["policy=diffusion", "policy=flow"], "each seed has its own base, which is no setting"
    bases = [write_run(tmp_path / f"b{base}{seed}", {"seed": seed, "base": base}) for base in "xy" for seed in (0, 1)]
    assert list(grouped(read_members(bases))) == ["base=x", "base=y"]


def test_sweeps_of_other_settings_are_not_pooled(tmp_path: Path) -> None:
    for name, nodes in (("a", 1), ("b", 2)):
        for seed in (0, 1):
            write_job(tmp_path / name, {"algo.lr": "1", "seed": str(seed)}, {"seed": seed, "num_envs": nodes})
    found = grouped(read_members([*runs_below(tmp_path / "a"), *runs_below(tmp_path / "b")]))
    assert {name: len(runs) for name, runs in found.items()} == {"num_envs=1": 2, "num_envs=2": 2}
    assert list(grouped(read_members(runs_below(tmp_path / "a")))) == ["lr=1"]


def test_a_copied_run_is_no_further_training_seed(tmp_path: Path) -> None:
    for seed in ("0", "1"):
        write_job(tmp_path, {"seed": seed}, {"seed": int(seed), "threads": 1, "task": {"task": "reach"}}, test=0.5)
    shutil.copytree(tmp_path / "seed_0", tmp_path / "backup")
    (tmp_path / "backup" / "episodes.csv").unlink()
    members = read_members(runs_below(tmp_path))
    assert {path.name: m.name for path, m in copies_of(members).items()} == {"backup": "seed_0"}
    page, figures = write_sweep_report(runs_below(tmp_path), tmp_path / "report.html")
    assert figures.source == "test" and figures.settings[0].seeds == {"reach": [0, 1]}
    assert "left out: backup: has the config and training seed of seed_0: a training counts once" in figures.text()
    assert "has the config and training seed of seed_0" in page.read_text()


def test_a_training_that_has_not_ended_does_not_count(tmp_path: Path) -> None:
    config = {"task": {"task": "reach"}}
    ended, half = (write_run(tmp_path / name, {**config, "seed": k}, test=0.5, finished=name == "a")
                   for k, name in enumerate("ab"))  # fmt: skip
    (half / "checkpoints" / "step_0000000200").mkdir(parents=True)
    found = summarize(read_members([ended, half]))
    assert found.settings[0].seeds == {"reach": [0]}
    assert found.left_out == {half: "has not ended: the training's command goes on with it"}
    write_finished(half)
    assert summarize(read_members([ended, half])).settings[0].seeds == {"reach": [0, 1]}
    (half / "checkpoints" / "step_0000000400").mkdir()  # with a larger loop.total_steps it goes on
    assert list(summarize(read_members([ended, half])).left_out) == [half]
    (half / "checkpoints" / "step_0000000400").rmdir()
    assert not summarize(read_members([ended, half])).left_out
    shutil.rmtree(half / "checkpoints")  # a copy without weights
    assert not summarize(read_members([ended, half])).left_out
    EpisodeTable.load(half / "evaluations" / "000000200.parquet").save(half / "evaluations" / "000000300.parquet")
    assert list(summarize(read_members([ended, half])).left_out) == [half], "it goes on, before its next checkpoint"
    (half / FINISHED).write_text("[")
    assert list(summarize(read_members([ended, half])).left_out) == [half]


def test_episodes_of_another_env_are_not_pooled(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(seed), {"seed": seed, "task": {"task": "reach"}}, test=0.5) for seed in range(3)]
    rows = EpisodeTable.load(runs[1] / "episodes.csv")
    EpisodeTable(rows.frame.assign(env="pick", digest="other")).save(runs[1] / "episodes.csv")
    found = summarize(read_members(runs))
    assert found.settings[0].seeds == {"reach": [0, 2]}
    assert found.left_out == {runs[1]: "its episodes are of another env, pick: evaluate it again"}


def test_tasks_of_one_name_with_other_keys_are_not_pooled_as_seeds(tmp_path: Path) -> None:
    for horizon in (30, 40):
        for seed in (0, 1):
            task = {"task": "reach", "horizon": horizon, "processes": horizon}
            write_job(tmp_path, {"seed": str(seed), "task.horizon": str(horizon)}, {"seed": seed, "task": task})
    figures = summarize(read_members(runs_below(tmp_path)))
    assert figures.settings[0].seeds == {"reach, horizon=30": [0, 1], "reach, horizon=40": [0, 1]}


def test_settings_lie_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for lr in ("0.01", "1e-4", "0.001"):
        write_job(tmp_path, {"algo.lr": lr}, {"seed": 0, "algo": {"lr": float(lr)}})
    assert list(grouped(read_members(runs_below(tmp_path)))) == ["lr=1e-4", "lr=0.001", "lr=0.01"]
    assert setting_name({"algo.lr": "1", "policy.lr": "2", "algo.tau": "3"}) == "algo.lr=1, policy.lr=2, tau=3"


def test_only_runs_that_ended_count_and_test_episodes_where_all_have_them(tmp_path: Path) -> None:
    first = write_job(tmp_path, {"seed": "0"}, {"seed": 0}, rate=0.4, test=0.8)
    second = write_job(tmp_path, {"seed": "1"}, {"seed": 1}, rate=0.4)
    assert source_of(members := read_members([first, second])) == "validation"
    assert [m.rows("validation").success_rate().value for m in members] == [0.4, 0.4]
    JobState(values={"seed": "1"}, state="interrupted").save(second)
    assert source_of(members := read_members([first, second])) == "test"
    assert members[0].rows("test").success_rate().value == 0.8 and members[1].rows("validation") is None


def test_a_job_that_goes_on_alone_does_not_count_until_it_ends(tmp_path: Path) -> None:
    jobs = [write_job(tmp_path, {"seed": str(seed)}, {"seed": seed}, test=0.5) for seed in (0, 1)]
    (jobs[1] / "checkpoints" / "step_0000000400").mkdir()  # by its own command, with a larger loop.total_steps
    assert list(summarize(read_members(jobs)).left_out) == jobs[1:]
    write_finished(jobs[1])
    assert not summarize(read_members(jobs)).left_out


def test_episodes_of_an_older_checkpoint_do_not_count(tmp_path: Path) -> None:
    run = write_job(tmp_path, {"seed": "0"}, {"seed": 0}, test=0.8, finished=False)
    rows = EpisodeTable.load(run / "episodes.csv")
    EpisodeTable(rows.frame.assign(policy=f"{run.name}/step_0000000100@ab12")).save(run / "episodes.csv")
    (run / "checkpoints" / "step_0000000100").mkdir(parents=True)
    (member,) = read_members([run])
    assert member.rows("test") is not None
    (run / "checkpoints" / "step_0000000100_1").mkdir()  # saved again
    EpisodeTable(rows.frame.assign(policy="bc/step_0000000050@ab12")).save(run / "episodes-bc.csv")
    (member,) = read_members([run])
    assert member.rows("test") is not None and "newer checkpoint" not in str(member.run.missing)
    (run / "checkpoints" / "step_0000000200").mkdir()
    (member,) = read_members([run])
    assert member.rows("test") is None and "episodes.csv: of step_0000000100" in " ".join(member.run.missing)


def test_films_of_an_older_checkpoint_say_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "refined", {"seed": 0}, finished=False)
    (run / "videos" / "pairs").mkdir(parents=True)
    (run / "videos" / "pairs" / "a.mp4").touch()
    entry = {"file": "a.mp4", "label": "base | refined", "policy": "refined/step_0000000100@ab12"}
    (run / "videos" / "pairs" / INDEX).write_text(json.dumps([entry]))
    for step, label in ((100, "base | refined"), (200, "base | refined, step_0000000100")):
        (run / "checkpoints" / f"step_{step:010d}").mkdir(parents=True)
        assert [video.label for video in read_run(run).videos] == [label]


def test_damaged_rows_cost_one_run_alone(tmp_path: Path) -> None:
    run = write_job(tmp_path, {"seed": "0"}, {"seed": 0})
    (run / "evaluations" / "000000200.parquet").write_bytes(b"PAR1")
    (member,) = read_members([run])
    assert member.rows("validation") is None
    assert any(said.startswith("evaluations/000000200.parquet: not readable") for said in member.run.missing)


def test_episodes_are_matched_by_their_seeds() -> None:
    rows = make_rows([True, False, True])
    turned = type(rows)(rows.frame.iloc[::-1])
    assert outcomes([rows, turned]).tolist() == [[1, 0, 1], [1, 0, 1]]
    assert outcomes([rows, make_rows([True, False], start=9)]).tolist() == [[2 / 3], [0.5]]


def test_folders_that_are_no_sweep(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"seed": 0})
    assert runs_below(run) == [] and runs_below(tmp_path / "gone") == []
    (tmp_path / "link").symlink_to(run)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / CONFIG).touch()
    assert runs_below(tmp_path) == [run]
    with pytest.raises(DataError, match="gone"):
        read_members([tmp_path / "gone"])


def test_a_damaged_config_is_named_and_costs_one_run_alone(tmp_path: Path) -> None:
    for seed in ("0", "1"):
        write_job(tmp_path, {"seed": seed}, {"seed": int(seed)})
    (tmp_path / "seed_1" / CONFIG).write_text("[")
    members = read_members(runs_below(tmp_path))
    assert any("damaged" in why or CONFIG in why for why in members[1].run.missing) and members[0].seed == 0
