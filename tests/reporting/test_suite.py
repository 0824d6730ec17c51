"""A whole suite: every task with its interval, in parallel, nothing done twice."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robopolicy.cli import eval as eval_verb
from robopolicy.cli import eval_suite, suite_jobs
from robopolicy.cli.eval import evaluate
from robopolicy.cli.eval_suite import evaluate_suite
from robopolicy.cli.suite_jobs import Job
from robopolicy.cli.verbs import find_verb
from robopolicy.config import registry
from robopolicy.config.compose import compose, group_options
from robopolicy.core.errors import CheckpointError, ConfigError, DataError, RobopolicyError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import TASK, Feature
from robopolicy.evaluation import code_version, policy_ref
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.numbered_task import NumberedTask
from robopolicy.policies.factory import build_policy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.reporting.suite import Suite, SuiteResult
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.runs.logger import Tracker
from tests.evaluation.points import make_rows, named_point
from tests.fakes import PointPolicy
from tests.runs.test_checkpointer import gaussian

POINTS = Suite(
    name="points",
    protocol="Twelve steps, then it is over.",
    task={"_target_": "named_point"},
    tasks={"near": {}, "far": {"name": "distant", "horizon": 5}},
    episodes=4,
)
GRADED = replace(POINTS, tasks={"long": {"name": "graded"}, "short": {"name": "graded", "horizon": 5}}, episodes=23)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trained policy for the point env."""
    monkeypatch.setattr(registry, "_admitted", ["tests.evaluation.points"])
    folder = tmp_path / "near"
    folder.mkdir()
    (folder / "config.yaml").write_text("task: {_target_: point}\n")
    Checkpointer(folder).save(1, policy=gaussian(0), state={})
    return folder


@pytest.fixture
def exact(run: Path) -> Path:
    """A trained policy whose actions are the same bits in every batch."""
    spec = PointPolicy(noise=0.075).spec
    node = {"_target_": "elementwise_point"}
    policy = build_policy(node, spec=spec, normalizer=Normalizer.from_limits(spec.observation, spec.action))
    Checkpointer(run).save(2, policy=policy, state={})
    return run


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the tasks that were really evaluated."""
    seen: list[str] = []
    real = eval_suite._evaluate

    def counted(job: Any) -> None:
        seen.append(job.task)
        real(job)

    monkeypatch.setattr(eval_suite, "_evaluate", counted)
    code(monkeypatch, "1.0+abc")
    return seen


@pytest.fixture
def pieces(evaluated: list[str], monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """What processes were sent; here one thread stands for all of them, so that their work is done in its order."""
    sent: list[Job] = []
    real = eval_suite._evaluate

    def recorded(job: Job) -> None:
        sent.append(job)
        real(job)

    monkeypatch.setattr(eval_suite, "_evaluate", recorded)
    monkeypatch.setattr(eval_suite, "ProcessPoolExecutor", lambda count, **how: ThreadPoolExecutor(1))
    return sent


def bits(result: SuiteResult) -> dict[str, str]:
    """All that rows say but the time, floats to their last bit, in the order of the rows."""
    frames = {task: rows.frame.drop(columns="wall_s") for task, rows in result.rows.items()}
    return {task: frame.assign(**{"return": frame["return"].map(float.hex)}).to_csv() for task, frame in frames.items()}


def code(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    for module in (suite_jobs, code_version):
        monkeypatch.setattr(module, "version", lambda: version)


def test_every_task_has_an_interval_and_so_has_the_total():
    """4 of 8 with Wilson's interval: (4 + z²/2 ± z √(2 + z²/4)) / (8 + z²), z = 1.96."""
    rows = {"near": make_rows([True, True, True, False]), "far": make_rows([False, False, True, False])}
    result = SuiteResult(POINTS, rows)
    found = {r["task"]: (round(r["value"], 4), round(r["low"], 4), round(r["high"], 4)) for r in result.records()}
    assert found["near"] == (0.75, 0.3006, 0.9544)
    assert found["far"][0] == 0.25 and found["all"] == (0.5, 0.2152, 0.7848)
    assert "| near | 75.0% | 30.1 – 95.4 | 4 |" in result.text() and POINTS.protocol in result.text()


def test_a_total_over_a_part_of_the_suite_says_so(tmp_path: Path) -> None:
    suite = replace(POINTS, tasks={"a|b": {}, "far": {}, "high": {}, "low|er": {}})
    rows = make_rows([True, False])
    whole = SuiteResult(suite, dict.fromkeys(suite.tasks, rows))
    assert whole.records()[-1]["task"] == "all" and "Not asked for" not in whole.text()
    part = SuiteResult(suite, {"a|b": rows, "far": rows}, {"high": "no|t\nbuilt"})
    assert part.records()[-1]["task"] == "2 of 4 tasks, without high (failed)"
    text = part.text()
    assert "| 2 of 4 tasks, without high (failed) | 50.0% |" in text and "| a\\|b | 50.0% |" in text
    assert "Not evaluated: **high** (no\\|t built)." in text and "Not asked for: low\\|er." in text
    page = part.save(tmp_path).read_text()
    assert "not asked for: low|er" in page and "2 of 4 tasks, without high (failed)" in page
    assert json.loads((tmp_path / "suite.json").read_text())["not_asked_for"] == ["low|er"]
    assert SuiteResult(suite, {"far": rows}).records()[-1]["task"] == "1 of 4 tasks"


def test_the_success_rule_is_the_suites():
    rows = make_rows([True, True, True, False])
    rows.frame["success_at_end"] = False
    assert SuiteResult(replace(POINTS, criterion="success_at_end"), {"near": rows}).total().value == 0.0


def test_finished_tasks_are_not_redone_and_changed_ones_are(run, evaluated, capsys):
    result = evaluate_suite(POINTS, run, jobs=1)
    assert evaluated == ["near", "far"] and list(result.rows) == ["near", "far"]
    folder = run / "suites" / "points"
    assert {p.name for p in folder.iterdir()} >= {"table.md", "suite.json", "report.html"}
    facts = json.loads((folder / "suite.json").read_text())
    assert [t["episodes"] for t in facts["tasks"]] == [4, 4, 8] and facts["protocol"] == POINTS.protocol
    assert result.rows["near"].seeds == episode_seeds("test", 0, 4).tolist()
    evaluate_suite(POINTS, run, jobs=1)
    assert len(evaluated) == 2 and "2 kept" in capsys.readouterr().out
    evaluate_suite(replace(POINTS, tasks={**POINTS.tasks, "near": {"horizon": 7}}), run, jobs=1)
    assert evaluated[2:] == ["near"]
    evaluate_suite(POINTS, run, jobs=1, episodes=6)
    assert evaluated[3:] == ["near", "far"], "more episodes"
    Checkpointer(run).save(2, policy=gaussian(1), state={})
    evaluate_suite(POINTS, run, jobs=1, only=("far",), episodes=6)
    assert evaluated[5:] == ["far"], "other weights"


def test_rows_of_uncommitted_code_are_redone(run, evaluated, monkeypatch):
    """Two changed trees have one name."""
    code(monkeypatch, "1.0+abc+dirty")
    for _ in range(2):
        evaluate_suite(POINTS, run, jobs=1, only=("near",))
    assert evaluated == ["near", "near"]


def test_a_task_that_fails_is_named_and_tried_again_alone(run, evaluated):
    suite = replace(POINTS, tasks={"near": {}, "broken": {}})
    for _ in range(2):
        with pytest.raises(RobopolicyError, match=r"1 of 2 tasks failed.*broken: task.name='broken'"):
            evaluate_suite(suite, run, jobs=1)
    assert evaluated == ["near", "broken", "broken"]
    table = (run / "suites" / "points" / "table.md").read_text()
    assert "Not evaluated: **broken**" in table and "| near |" in table


def test_at_stands_for_the_task(run, evaluated):
    with pytest.raises(CheckpointError, match="far: no such file"):
        evaluate_suite(POINTS, run.parent / "@", jobs=1)
    assert not evaluated, "before anything is evaluated"
    other = run.parent / "far"
    other.mkdir()
    (other / "config.yaml").write_text("task: {_target_: point}\n")
    Checkpointer(other).save(1, policy=gaussian(3), state={})
    result = evaluate_suite(POINTS, run.parent / "@", jobs=1)
    policies = [rows.frame["policy"].iloc[0] for rows in result.rows.values()]
    assert policies[0].startswith("near/") and policies[1].startswith("far/")
    assert (run.parent / "suites" / "points" / "table.md").is_file()


def test_pieces_hold_the_rows_of_the_whole_task_bit_for_bit(exact, pieces):
    whole = evaluate_suite(GRADED, exact, jobs=1, out=exact / "whole")
    assert [len(job.seeds) for job in pieces] == [23, 23]
    cut = evaluate_suite(GRADED, exact, jobs=3, out=exact / "cut")
    assert [(job.task, len(job.seeds), job.num_envs) for job in pieces[2:]] == [
        ("long", 7, 7), ("long", 8, 8), ("long", 8, 8), *(("short", n, n) for n in (7, 8, 8))
    ]  # fmt: skip
    assert bits(cut) == bits(whole)
    assert whole.rows["long"].frame["return"].nunique() == 23 and 0 < whole.total().value < 1, "else it shows nothing"
    assert all(p.is_file() for p in (exact / "cut" / "suites" / "points").iterdir()), "no pieces are left"


def test_pieces_of_a_network_differ_by_its_rounding_at_most(run, pieces):
    whole, cut = (evaluate_suite(GRADED, run, jobs=jobs, out=run / str(jobs)).rows for jobs in (1, 3))
    assert len(pieces) > 4
    for task in GRADED.tasks:
        assert whole[task].frame["return"].tolist() == pytest.approx(cut[task].frame["return"].tolist(), rel=1e-5)
        assert whole[task].successes() == cut[task].successes()


@pytest.mark.parametrize(
    ("sizes", "count", "numbers"),
    [
        ((50,) * 10, 2, [1] * 7 + [2, 2, 4]),
        ((50,) * 10, 1, [1] * 10),
        ((50,) * 3, 4, [3, 4, 8]),
        ((200, 9, 12), 2, [4, 1, 2]),  # by episodes, not by tasks; five or more in a piece
        ((4,), 8, [1]),
        ((50,), 8, [8]),  # not ten, of which two would wait for eight
    ],
)
def test_the_last_tasks_are_cut_the_smallest(tmp_path, sizes, count, numbers):
    """Of E episodes that are left, none gets more than E / (2 count)."""
    jobs = [
        Job(f"t{i}", {}, tmp_path, "p", "latest", list(range(n)), False, 20, "cpu", 1, tmp_path / f"t{i}.csv")
        for i, n in enumerate(sizes)
    ]
    plans = suite_jobs.plan_pieces(jobs, count)
    assert [len(plan.pieces) for plan in plans.values()] == numbers
    for job, plan in zip(jobs, plans.values(), strict=True):
        assert [seed for piece in plan.pieces for seed in piece.seeds] == job.seeds
        assert all(piece.num_envs == min(20, len(piece.seeds)) for piece in plan.pieces)
        assert len({piece.file for piece in plan.pieces}) == len(plan.pieces)


def test_a_piece_that_fails_is_done_again_alone(exact, pieces, monkeypatch):
    whole = evaluate_suite(GRADED, exact, jobs=1, out=exact / "whole")
    seeds, recorded = whole.rows["long"].seeds, eval_suite._evaluate
    del pieces[:]

    def failing(job: Job) -> None:
        if job.task == "long" and {seeds[0], seeds[12]} & set(job.seeds):
            raise DataError("a bad seed")
        recorded(job)

    monkeypatch.setattr(eval_suite, "_evaluate", failing)
    with pytest.raises(RobopolicyError, match=r"1 of 2 tasks failed; [^.]*\. long: a bad seed$"):  # named once
        evaluate_suite(GRADED, exact, jobs=3)
    assert [job.task for job in pieces] == ["long", "short", "short", "short"]
    assert pieces[0].seeds == seeds[15:], "the last of three"
    monkeypatch.setattr(eval_suite, "_evaluate", recorded)
    result = evaluate_suite(GRADED, exact, jobs=2)
    assert [seed for job in pieces[4:] for seed in job.seeds] == seeds[:15]
    assert bits(result) == bits(whole), "in the order of the seeds, not of their evaluation"


def interrupted(run: Path, pieces: list[Job], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A command that ends when all three pieces of "long" are done and one of "short": the seeds of that one."""
    recorded = eval_suite._evaluate

    def killed(job: Job) -> None:
        if len(pieces) == 4:
            raise KeyboardInterrupt
        recorded(job)

    with monkeypatch.context() as patch:
        patch.setattr(eval_suite, "_evaluate", killed)
        with pytest.raises(KeyboardInterrupt):
            evaluate_suite(GRADED, run, jobs=3)
    assert [job.task for job in pieces] == ["long", "long", "long", "short"]
    done = pieces[-1].seeds
    del pieces[:]
    return done


@pytest.mark.parametrize("jobs", [1, 2])
def test_pieces_of_an_interrupted_command_are_not_redone(exact, pieces, monkeypatch, jobs):
    done = interrupted(exact, pieces, monkeypatch)
    result = evaluate_suite(GRADED, exact, jobs=jobs)
    every = episode_seeds("test", 0, 23).tolist()
    assert {job.task for job in pieces} == {"short"}
    assert [seed for job in pieces for seed in job.seeds] == [seed for seed in every if seed not in done]
    assert result.rows["short"].seeds == result.rows["long"].seeds == every
    assert bits(result) == bits(evaluate_suite(GRADED, exact, jobs=1, out=exact / "whole"))


@pytest.mark.parametrize("changed", ["weights", "code", "uncommitted code", "settings", "task", "episodes"])
def test_pieces_of_something_else_are_redone(exact, pieces, monkeypatch, changed):
    if changed == "uncommitted code":
        code(monkeypatch, "1.0+abc.dirty")
    interrupted(exact, pieces, monkeypatch)
    suite, settings = replace(GRADED, tasks={"short": GRADED.tasks["short"]}), {}
    if changed == "weights":
        Checkpointer(exact).save(3, policy=gaussian(1), state={})
    elif changed == "code":
        code(monkeypatch, "1.0+def")
    elif changed == "settings":  # in the same folder
        monkeypatch.setattr(eval_suite, "label", lambda name, **how: name)
        settings = {"deterministic": True}
    elif changed == "task":
        suite = replace(suite, tasks={"short": {"name": "graded", "horizon": 6}})
    elif changed == "episodes":  # some of those of a piece
        settings = {"episodes": 3}
    rows = evaluate_suite(suite, exact, jobs=2, **settings).rows["short"]
    assert [seed for job in pieces for seed in job.seeds] == rows.seeds and len(rows) == settings.get("episodes", 23)


def test_pieces_that_nobody_joined_are_joined(exact, pieces, monkeypatch):
    def killed(plan: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(eval_suite, "join_pieces", killed)
        with pytest.raises(KeyboardInterrupt):
            evaluate_suite(GRADED, exact, jobs=2, only=("long",))
    result = evaluate_suite(GRADED, exact, jobs=2, only=("long",))
    assert len(pieces) == 4 and result.rows["long"].seeds == episode_seeds("test", 0, 23).tolist()


def test_two_commands_at_once_never_mix(exact, pieces, monkeypatch):
    recorded, refused = eval_suite._evaluate, []

    def meanwhile(job: Job) -> None:
        with pytest.raises(ConfigError, match=r"out=.*points: another process is at work in it") as error:
            evaluate_suite(GRADED, exact, jobs=1)
        refused.append(error)
        recorded(job)

    monkeypatch.setattr(eval_suite, "_evaluate", meanwhile)
    result = evaluate_suite(GRADED, exact, jobs=2)
    assert len(refused) == len(pieces) and {len(rows) for rows in result.rows.values()} == {23}


def test_progress_counts_tasks_not_pieces(run, pieces, monkeypatch):
    shown: list[int] = []

    @contextmanager
    def progress(self: Tracker, total: int, description: str) -> Iterator[Any]:
        assert (total, description) == (2, "tasks")
        yield type("Bar", (), {"update": lambda self, step: shown.append(step)})()

    monkeypatch.setattr(Tracker, "progress", progress)
    evaluate_suite(GRADED, run, jobs=3)
    assert len(shown) == 1 + 3 + 3 and shown == sorted(shown), "at the start and after every piece"
    assert shown[:3] == [0, 0, 0] and shown[-1] == 2


@pytest.mark.slow  # two processes import torch
def test_processes_change_nothing(exact):
    one, two = (evaluate_suite(GRADED, exact, jobs=jobs, out=exact / str(jobs)) for jobs in (1, 2))
    assert bits(one) == bits(two)


@pytest.mark.slow
def test_a_failure_in_a_process_leaves_the_others(run):
    suite = replace(POINTS, tasks={"near": {}, "broken": {}})
    with pytest.raises(RobopolicyError, match=r"broken: task\.name='broken'"):
        evaluate_suite(suite, run, jobs=2)
    assert len(list((run / "suites" / "points").glob("near-*.csv"))) == 1


def test_fixed_initial_states_are_taken_in_order():
    suite = replace(POINTS, seeds="in_order")
    assert suite.episode_seeds("test", 3).tolist() == [2 << 40, (2 << 40) + 1, (2 << 40) + 2]
    for split, episodes in (("validation", 1), ("test", 5)):  # the same states again
        with pytest.raises(ConfigError, match=f"a fixed list of 4 .*found split={split}, episodes={episodes}"):
            suite.episode_seeds(split, episodes)
    assert (
        EpisodeTable(make_rows([True, False]).frame.assign(seed=suite.episode_seeds("test", 2).tolist())).split
        == "test"
    )


def test_a_policy_of_many_tasks_is_told_which_one_it_is():
    env = named_point("near", 2)
    text = env.spec.tasks[0]
    wrapped = NumberedTask(env, ("another", text))
    assert wrapped.reset()[TASK].tolist() == [1, 1]
    assert wrapped.step(torch.zeros(2, 2)).next_obs[TASK].tolist() == [1, 1]
    assert wrapped.spec.tasks[1] == text
    with pytest.raises(ConfigError, match="is none of 'another'"):
        NumberedTask(env, ("another",))


def test_a_policy_of_many_tasks_is_evaluated_on_each(run, tmp_path):
    policy = gaussian(0)
    tasks = ("another", named_point("near", 1).spec.tasks[0])
    spec = replace(policy.spec, observation={**policy.spec.observation, TASK: Feature((), "int64")}, tasks=tasks)
    many = build_policy(policy.config, spec=spec, normalizer=Normalizer.from_limits(spec.observation, spec.action))
    Checkpointer(run).save(2, policy=many, state={})
    result = evaluate_suite(POINTS, run, out=tmp_path / "out", jobs=1)
    assert not result.missing and set(result.rows) == {"near", "far"}


def test_what_does_not_belong_together_is_refused(run):
    with pytest.raises(ConfigError, match="has its own tasks"):
        evaluate(checkpoint=run, suite=POINTS, name="x")
    with pytest.raises(ConfigError, match="has its own tasks"):
        evaluate(checkpoint=run, suite=POINTS, sampling={"sampling_steps": 1})
    with pytest.raises(ConfigError, match="are for suites"):
        evaluate(checkpoint=run, jobs=2)
    with pytest.raises(ConfigError, match=r"no task 'fur'\. Did you mean 'far'"):
        evaluate_suite(POINTS, run, only=("fur",))


@pytest.mark.parametrize("name", sorted(group_options()["suite"]))
def test_suites_are_whole(name):
    """Each says how it is run, for how long, and over which tasks; nothing is built."""
    config = compose(find_verb("eval"), [f"suite={name}", "checkpoint=x"], checked=False)["suite"]
    suite = Suite(**config)
    assert suite.name == name and len(suite.protocol) > 100 and suite.episodes >= 50
    assert all("name" in node and "_target_" in node for node in suite.nodes().values())
    sizes = {"metaworld_mt10": 10, "metaworld_mt50": 50, "libero_90": 90, "libero_10": 10}
    assert len(suite.tasks) == sizes.get(name, len(suite.tasks))


def test_a_worker_process_admits_what_its_parent_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_admitted", [])
    monkeypatch.setattr("sys.path", [*sys.path])
    eval_suite._begin(("tests.evaluation.points",), list(sys.path))
    assert registry.admitted() == ("tests.evaluation.points",)


def test_an_imagined_world_is_built_as_one(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def build(node: dict[str, Any], slot: str, **runtime: Any) -> None:
        built.append(slot)
        raise ConfigError("far enough")

    for module in (policy_ref, eval_verb):
        monkeypatch.setattr(module, "build", build)
    for given in ({"world": {"_target_": "imagined"}}, {"task": {"_target_": "named_point"}}):
        with pytest.raises(ConfigError, match="far enough"):
            evaluate(checkpoint=run, **given)
    assert built == ["world", "task"]
