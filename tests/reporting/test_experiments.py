"""What scripts/experiments.py makes of finished runs."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml
from yaml import YAMLError

from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose
from robopolicy.core.errors import RobopolicyError, UsageError
from robopolicy.evaluation.statistics import unpaired_difference, wilson
from robopolicy.reporting.result_rows import ALL, Evidence, write
from robopolicy.reporting.results_page import _colours, _groups, _over, _routes, _whiskers, generate
from scripts import experiments
from scripts.experiment_plan import EXPERIMENTS, Base, Experiment, Setting, read_plan, trains
from scripts.experiment_record import Found, record, save_rows
from tests.evaluation.points import make_rows

REACH, PUSH = (Setting(Base(task, 5, 0.5), {"refined": ("algo=x",)}, f"{task}/") for task in ("reach", "push"))
BOTH = Experiment((REACH, PUSH), seeds=(0, 1), extra=("mean",))
JOBS = [(setting, "refined", seed) for setting in (REACH, PUSH) for seed in (0, 1)]


def found(successes: int, commit: str = "abc") -> Found:
    rows = (make_rows([i < n for i in range(20)]) for n in (8, successes))
    base, refined = rows
    refined.frame["version"] = f"0.1.0+g{commit}"
    return Found(base, refined, {}, {}, env_steps=100, wall_s=2.0, jobs=2, commits=(commit, commit))


def pools(rows: list[Evidence]) -> dict[tuple[str, str], float]:
    return {(r.setting, r.metric): r.value for r in rows if r.seeds == ALL}


def test_a_part_never_stands_for_the_whole():
    part = record("suite", BOTH, JOBS[:3], [found(20), found(18), found(10)], [])
    assert pools(part) == {("reach/base", "success_rate"): 0.4, ("reach/refined", "success_rate"): 0.95}
    whole = pools(record("suite", BOTH, JOBS[3:], [found(14)], part))
    assert whole["push/refined", "success_rate"] == 0.6
    assert whole["refined", "mean_success_rate"] == (0.95 + 0.6) / 2


def test_the_mean_is_of_the_settings_that_count():
    rows = record("suite", replace(BOTH, settings=(REACH, replace(PUSH, in_mean=False))), JOBS[:2], [found(20)] * 2, [])
    assert pools(rows)["refined", "mean_success_rate"] == 1.0


def test_a_setting_may_have_fewer_training_seeds_than_its_experiment():
    slow = replace(PUSH, seeds=(0,))
    rows = record("suite", replace(BOTH, settings=(REACH, slow)), JOBS[:3], [found(20), found(18), found(10)], [])
    assert pools(rows)["push/refined", "success_rate"] == 0.5 and pools(rows)["refined", "mean_success_rate"] == 0.725
    stray = [replace(r, seeds=1) for r in rows if r.setting == "push/refined" and r.seeds == 0]
    again = record("suite", replace(BOTH, settings=(REACH, slow)), JOBS[:1], [found(20)], [*rows, *stray])
    assert {r.seeds for r in again if r.setting == "push/refined"} == {0, ALL}, "a row outside its mean is dropped"


def test_two_settings_are_compared_once_all_their_seeds_are_there():
    both = replace(BOTH, extra=(), compared={"gain": ("reach/refined", "push/refined")})
    part = record("suite", both, JOBS[:3], [found(10), found(8), found(14)], [])
    assert "gain" not in {r.setting for r in part}
    rows = [r for r in record("suite", both, JOBS[3:], [found(16)], part) if r.setting == "gain"]
    assert [(r.metric, r.seeds, r.episodes) for r in rows] == [
        ("difference", s, n) for s, n in ((0, 20), (1, 20), (ALL, 40))
    ]
    assert [r.value for r in rows] == pytest.approx([0.2, 0.4, 0.3])
    low = unpaired_difference(wilson(9, 20), wilson(15, 20)).low
    assert rows[2].low == pytest.approx(low), "Newcombe: both seeds meet the same 20 episodes"


@pytest.mark.parametrize("more", [["--seeds", "2"], ["--seeds", "0", "--only", "nothing"]])
def test_a_command_that_leaves_nothing_to_run_is_refused(more, capsys):
    with pytest.raises(SystemExit):
        experiments.main(["suites_dppo", "--only", "maniskill-PushCube-v1", *more])
    assert "no setting of suites_dppo is left to run" in capsys.readouterr().err


@pytest.mark.parametrize(("only", "known"), [("pick-flow/refined", [0, 1, 2, 3, 4]), ("stack", [0, 1, 2])])
def test_a_seed_that_is_not_recorded_is_refused(only, known, capsys):
    with pytest.raises(SystemExit):
        experiments.main(["ogpo_native", "--only", only, "--seeds", "9"])
    assert f"--seeds [9]: ogpo_native is recorded over {known}" in capsys.readouterr().err


def test_a_row_names_the_commits_that_made_it_not_the_one_that_wrote_it():
    row = record("suite", BOTH, JOBS[:1], [found(20, "abc")], [])[1]
    assert row.commit == "abc"
    dirty = found(20, "abc")
    dirty.rows.frame["version"] = "0.1.0+gdef.dirty"
    row = record("suite", BOTH, JOBS[:1], [dirty], [])[1]
    assert row.commit == "abc def+dirty"


def test_rows_of_other_commands_stay_where_the_experiment_says_so():
    other = replace(record("suite", BOTH, JOBS[:1], [found(20)], [])[1], setting="first_try/refined", seeds=7)
    for kept, expected in (((), 0), (("first_try/",), 1)):
        rows = record("suite", replace(BOTH, kept=kept), JOBS[:1], [found(18)], [other])
        assert [r.setting for r in rows].count(other.setting) == expected


def test_a_training_time_that_was_not_measured_is_no_number():
    rows = record("suite", BOTH, JOBS[:1], [replace(found(18), wall_s=None)], [])
    assert {r.wall_s for r in rows if r.setting.endswith("refined")} == {None}


def test_a_variant_of_the_task_is_a_rate_and_no_difference():
    """Its episodes are others than the base's; a training whose task is another than its base's is a mistake."""
    other = replace(found(12), env_steps=0, wall_s=0.0)
    other.rows.frame["digest"] = "another"
    variant = replace(
        REACH, refine={"instructed": ("task.instruction_goal=other",), "refined": ("algo=x", "task.horizon=3")}
    )
    rows = record("suite", Experiment((variant,), seeds=(0, 1)), [(variant, "instructed", 0)], [other], [])
    assert [r.metric for r in rows] == ["success_rate", "success_rate"]
    with pytest.raises(RobopolicyError, match="another"):
        record("suite", Experiment((variant,), seeds=(0, 1)), [(variant, "refined", 0)], [other], [])


def test_variants_of_language_are_those_of_the_command_line():
    variants = yaml.safe_load((Path(__file__).parents[2] / "configs/variants/language.yaml").read_text())
    wanted = {tuple(f"task.{k}={v}" for k, v in changes.items()) for changes in variants.values() if changes}
    (setting,) = EXPERIMENTS["vla_base"].settings
    few_steps = {words[1:] for name, words in setting.refine.items() if name.startswith("one_step_")}
    assert few_steps == wanted, "the recorded rows have names of their own"


def test_what_is_a_training():
    assert trains(("algo=dppo", "task.horizon=9")) and trains(("task.horizon=9", "experiment=vla_dppo"))
    assert not trains(("sampling={sampling_steps: 1}",)) and not trains(
        ("task.instruction_goal=other", "task.success_goal=instructed")
    )


def test_of_several_instructions_a_row_says_how_many_fell():
    result = found(0)
    for rows in (result.base, result.rows):
        rows.frame["task"] = ["pick", "push"] * 10
    (row,) = [r for r in record("suite", BOTH, JOBS[:1], [result], []) if r.metric == "difference"]
    assert row.notes.endswith("0 of 2 instructions fell by more than noise")  # 4 of 4 lost: p = 1/16 before Holm
    assert "instructions" not in record("suite", BOTH, JOBS[:1], [found(20)], [])[2].notes


def test_curves_are_drawn_over_steps_and_time_and_replaced_whole(tmp_path):
    watched = Experiment((REACH,), seeds=(0, 1), extra=("curve",))

    def run(*steps: int) -> Found:
        evaluations = {step: make_rows([i < step // 10 for i in range(20)]) for step in steps}
        return replace(found(20), evaluations=evaluations, seconds={step: 0.6 * step for step in steps})

    rows = record("routes", watched, JOBS[:2], [run(0, 100), run(0, 100)], [])
    rows = record("routes", watched, JOBS[1:2], [run(0, 200)], rows)
    curve = {(r.setting, r.seeds): (r.value, r.env_steps, r.wall_s) for r in rows if r.metric == "curve_success_rate"}
    assert curve == {
        ("reach/refined/at_0", 0): (0.0, 0, 0.0),
        ("reach/refined/at_100", 0): (0.5, 100, 60.0),
        ("reach/refined/at_0", 1): (0.0, 0, 0.0),
        ("reach/refined/at_200", 1): (1.0, 200, 120.0),
    }
    write(rows, root=tmp_path / "docs" / "results")
    files = generate(tmp_path / "docs")
    assert {p.name for p in files} == {"results.md", "routes.svg", "routes-steps.svg", "routes-minutes.svg"}
    page = files[tmp_path / "docs" / "results.md"]
    assert "routes-minutes.svg" in page and "at_100" not in page


def test_routes_that_nobody_watched_are_dots_at_what_they_cost(tmp_path):
    both = Setting(REACH.base, {"slow": (), "quick": ()})
    work = [(both, "slow", 0), (both, "slow", 1), (both, "quick", 0)]
    results = [found(20), found(10), replace(found(16), env_steps=40, wall_s=30.0)]
    rows = record("routes", Experiment((both,), seeds=(0, 1)), work, results, [])
    over_steps, over_minutes = (_routes(rows, end) for end in ("-steps", "-minutes"))
    before = results[0].base.success_rate().value
    assert [(s.name, s.x, s.y) for s in over_steps] == [
        ("base", [0.0], [before]), ("slow", [100.0], [0.75]), ("quick", [40.0], [0.8])
    ]  # fmt: skip
    assert over_minutes[2].x == [0.5]
    write(rows, root=tmp_path / "docs" / "results")
    assert {p.name for p in generate(tmp_path / "docs")} >= {"routes-steps.svg", "routes-minutes.svg"}
    assert not _routes([r for r in rows if r.setting != "quick"], "-steps"), "one alone is in the other chart"


def test_dots_stand_beside_the_curves_of_what_was_watched():
    both = Setting(REACH.base, {"slow": (), "quick": ()})
    watched = replace(found(20), evaluations={0: make_rows([False] * 20), 100: make_rows([True] * 20)},
                      seconds={0: 0.0, 100: 60.0})  # fmt: skip
    experiment, work = Experiment((both,), seeds=(0,), extra=("curve",)), [(both, "slow", 0), (both, "quick", 0)]
    series = _over(record("routes", experiment, work, [watched, found(16)], []), "-steps")
    assert [(s.name, s.x, s.colour) for s in series] == [
        ("slow", [0.0, 100.0], "c1"), ("base", [0.0], "c0"), ("quick", [100.0], "c2")
    ]  # fmt: skip
    series = _over(record("routes", experiment, work, [watched, watched], []), "-steps")
    assert [s.name for s in series] == ["slow", "quick"], "the base is where curves begin"


def test_more_curves_than_colours_are_a_chart_for_each_group(tmp_path):
    watched = replace(found(20), evaluations={0: make_rows([False] * 20), 100: make_rows([True] * 20)},
                      seconds={0: 0.0, 100: 60.0})  # fmt: skip
    many = {f"route_{i}": () for i in range(7)}
    settings = [Setting(REACH.base, many, "reach/"), Setting(REACH.base, {"alone": ()}, "reach/offline/")]
    work = [(s, name, 0) for s in settings for name in s.refine]
    rows = record("crossed", Experiment(tuple(settings), (0,), ("curve",)), work, [watched] * 8, [])
    groups = _groups(rows)
    assert list(groups) == ["reach", "reach/offline"]
    assert [s.name for s in _over(groups["reach"], "-steps")] == list(many)
    assert len({s.colour for s in _over(groups["reach"], "-steps")}) == 7
    write(rows, root=tmp_path / "docs" / "results")
    charts = {p.name for p in generate(tmp_path / "docs")}
    assert {"crossed-reach-steps.svg", "crossed-reach-offline-minutes.svg"} <= charts
    assert [r.setting for r in rows if r.setting.endswith("base")] == ["reach/base"] * 2, "one base, and its pool"


def test_a_setting_has_one_colour_in_all_charts():
    many = [found(n) for n in (20, 10, 16)]
    both = Setting(REACH.base, {"tried/first": (), "slow": (), "quick": ()})
    rows = record("routes", Experiment((both,), seeds=(0,)), [(both, n, 0) for n in both.refine], many, [])
    assert _colours(rows) == {"base": "c0", "slow": "c1", "quick": "c2", "tried/first": "c3"}
    assert [(s.name, s.colour) for s in _routes(rows, "-steps")] == [("base", "c0"), ("slow", "c1"), ("quick", "c2")]
    assert [(w.name.split(",")[0], w.colour) for w in _whiskers(rows)] == list({
        "base": "c0", "tried/first": "c3", "slow": "c1", "quick": "c2"
    }.items())  # fmt: skip


def test_episodes_of_other_runs_stay_in_the_file(tmp_path):
    path = tmp_path / "rows.parquet"
    save_rows(path, JOBS[:2], [found(20), found(18)])
    save_rows(path, JOBS[1:3], [found(5), found(10)])
    frame = pd.read_parquet(path)
    sums = frame.groupby(["setting", "train_seed"])["success_once"].sum().to_dict()
    assert sums == {("reach/base", 0): 8, ("reach/base", 1): 8, ("push/base", 0): 8,
                    ("reach/refined", 0): 20, ("reach/refined", 1): 5, ("push/refined", 0): 10}  # fmt: skip


def test_every_experiment_says_what_it_runs():
    for experiment in EXPERIMENTS.values():
        labels = [f"{s.prefix}{name}" for s in experiment.settings for name in s.refine]
        assert len(set(labels)) == len(labels) > 0


TRAININGS = {
    (f"task={s.base.task}", *s.base.options, *words): f"{id}:{s.prefix}{name}"
    for id, experiment in EXPERIMENTS.items() for s in experiment.settings
    for name, words in s.with_rollouts(Path("x")).refine.items() if trains(words)
}  # fmt: skip


@pytest.mark.parametrize("words", [pytest.param(words, id=name) for words, name in TRAININGS.items()])
def test_the_words_of_every_training_fit_the_command_line(words):
    verb, given = ("refine", ["base=x", "out=x"]) if "refine" in words else ("train", ["run_dir=x"])
    try:
        compose(find_verb(verb), [*given, "tracker=local", *(word for word in words if word != "refine")])
    except UsageError as error:  # a suite that is not installed here says so
        if "which is not installed: ./scripts/setup.sh" not in str(error):
            raise


PLAN = """
bases:
  here: {task: reach, demos: 5, expert_noise: 0.5}
  there: {task: metaworld, options: [task.name=Push-v3], demos: 5, expert_noise: 0.5}
experiments:
  both:
    settings:
      - bases: {here: , there: [seed=7]}
        overrides: [algo=residual]
        refine: {refined: [], long: [loop.total_steps=9]}
      - {bases: [here], refine: {mode: [deterministic=true]}}
"""


def test_a_setting_of_several_bases_is_one_for_each(tmp_path):
    (file := tmp_path / "plan.yaml").write_text(PLAN)
    here, there, alone = read_plan(file)[1]["both"].settings
    assert (here.prefix, there.prefix, alone.prefix) == ("reach/", "metaworld-push-v3/", "")
    assert here.refine == {"refined": ("algo=residual",), "long": ("algo=residual", "loop.total_steps=9")}
    assert there.refine["long"] == ("algo=residual", "loop.total_steps=9", "seed=7")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("demos", "demoes"), ("[here]", "[her]"), ("task: reach", "task: 7"), ("{bases:", "{prefx: x/, bases:")],
)
def test_a_typo_in_the_plan_is_named(tmp_path, right, wrong):
    (file := tmp_path / "plan.yaml").write_text(PLAN.replace(right, wrong, 1))
    with pytest.raises((ValueError, RobopolicyError), match=r"demoes|'here'|task|prefx"):
        read_plan(file)


def test_a_base_that_stands_twice_in_the_plan_is_named(tmp_path):
    (file := tmp_path / "plan.yaml").write_text(PLAN.replace("  there:", "  here:", 1))
    with pytest.raises(YAMLError, match="duplicate key here"):
        read_plan(file)


def test_a_base_of_lerobot_is_trained_by_its_own_command(tmp_path, monkeypatch):
    commands = []

    def call(module, *arguments, threads, log):
        commands.append((module, arguments))
        if module.startswith("lerobot"):
            (tmp_path / "bases" / "reach-5x0.5-act-3" / "lerobot" / "checkpoints" / "last").mkdir(parents=True)
            return
        out = next((a.removeprefix("out=") for a in arguments if a.startswith("out=")), None)
        if arguments[0] == "eval" and out:
            make_rows([True, False]).save(Path(out) / "episodes.csv")

    monkeypatch.setattr(experiments, "call", call)
    base = Base("reach", 5, 0.5, (), "act", lerobot=("--policy.type=act", "--steps=7"))
    experiments.train_base(tmp_path, base, 3, 1)
    folder = tmp_path / "bases" / "reach-5x0.5-act-3"
    assert [(module, *arguments[:1]) for module, arguments in commands] == [
        ("robopolicy", "demos"),
        ("lerobot.scripts.lerobot_train", "--dataset.repo_id=local/reach-5x0.5-act"),
        ("robopolicy", "eval"),
    ]
    options = commands[1][1]
    assert {f"--dataset.root={folder / 'data'}", "--seed=3", "--policy.type=act", "--steps=7"} <= set(options)
    assert f"checkpoint={folder / 'lerobot'}" in commands[2][1]
    assert json.loads((folder / "bc" / "provenance.json").read_text())["command"].startswith("lerobot-train")
    experiments.train_base(tmp_path, base, 3, 1)
    assert [module for module, _ in commands].count("lerobot.scripts.lerobot_train") == 1, "done once"
    with pytest.raises(FileNotFoundError):  # no training behind it
        experiments.refine(tmp_path, "x", Setting(base, {"refined": ("algo=residual",)}), "refined", 3, 1)
    trained = next(arguments for _, arguments in commands if arguments[0] == "train")
    assert f"base={folder / 'lerobot'}" in trained and f"dataset={folder / 'data'}" in trained


def test_a_base_by_another_sampler_is_evaluated_and_not_trained(tmp_path, monkeypatch):
    base, at, commands = Base("reach", 5, 0.5), tmp_path / "bases" / "reach-5x0.5-0" / "bc", []

    def call(module, *arguments, threads, log):
        commands.append(arguments)
        make_rows([True, False]).save(tmp_path / "x" / "few-0" / "episodes-few.csv")

    monkeypatch.setattr(experiments, "call", call)
    make_rows([False, False]).save(at / "episodes.csv")
    (at / "provenance.json").write_text('{"commit": "abc"}')
    setting = Setting(base, {"few": ("sampling={sampling_steps: 1}",)})
    found = experiments.refine(tmp_path, "x", setting, "few", 0, 1)
    assert [arguments[0] for arguments in commands] == ["eval"]
    assert {"task=reach", "sampling={sampling_steps: 1}", f"checkpoint={at}", "name=few"} <= set(commands[0])
    assert (found.env_steps, found.commits, found.rows.success_rate().value) == (0, ("abc", "abc"), 0.5)


def test_a_student_of_the_base_is_imitated_first_and_refined_in_its_place(tmp_path, monkeypatch):
    base, out, commands = Base("reach", 5, 0.5), tmp_path / "x", []
    at, begin = tmp_path / "bases" / "reach-5x0.5-0" / "bc", out / "s-begin-0"

    def call(module, *arguments, threads, log):
        commands.append(arguments)
        make_rows([True, False]).save(out / "s-student-0" / "episodes-student.csv")
        begin.mkdir(parents=True, exist_ok=True)
        (begin / "provenance.json").write_text('{"commit": "def"}')

    monkeypatch.setattr(experiments, "call", call)
    make_rows([False, False]).save(at / "episodes.csv")
    (at / "provenance.json").write_text('{"commit": "abc"}')
    setting = Setting(
        base,
        {"student": (), "rpd": ("algo=rpd",), "ppo": ("algo=ppo",)},
        "s/",
        student=("algo=bc", "policy=frozen_encoder_student"),
    )
    found = experiments.refine(tmp_path, "x", setting, "student", 0, 1)
    assert [arguments[0] for arguments in commands] == ["train", "eval"]
    wanted = {"policy=frozen_encoder_student", f"base={at}", f"run_dir={begin}", f"dataset={at.parent / 'data'}"}
    assert wanted <= set(commands[0])
    assert f"checkpoint={begin}" in commands[1] and found.commits == ("abc", "def")
    with pytest.raises(FileNotFoundError):  # no training behind it
        experiments.refine(tmp_path, "x", setting, "rpd", 0, 1)
    assert {f"teacher={at}", f"base={begin}", "algo=rpd"} <= set(commands[3])
    with pytest.raises(FileNotFoundError):
        experiments.refine(tmp_path, "x", setting, "ppo", 0, 1)
    assert [a for a in commands[6] if a.startswith(("base=", "teacher="))] == [f"base={begin}"]


def test_rollouts_of_the_base_are_recorded_once_and_named_in_the_words(tmp_path, monkeypatch):
    commands, at = [], tmp_path / "bases" / "reach-5x0.5-0"

    def call(module, *arguments, threads, log):
        commands.append(arguments)

    monkeypatch.setattr(experiments, "call", call)
    monkeypatch.setattr(experiments, "recorded", lambda data: "whole" if len(commands) else "nothing")
    make_rows([False, False]).save(at / "bc" / "episodes.csv")
    learn = ("algo=residual", "loop.rollouts.own={rollouts}")
    setting = Setting(Base("reach", 5, 0.5), {"kept": learn}, rollouts=7, student=("algo=offline", learn[1]))
    for _ in range(2):
        with pytest.raises(FileNotFoundError):  # no training behind it
            experiments.refine(tmp_path, "x", setting, "kept", 0, 1)
    assert [arguments[0] for arguments in commands] == ["demos", "train", "train", "eval"] + ["train", "train", "eval"]
    data, policy = at / "rollouts-7", at / "bc"
    wanted = {f"out={data}", "episodes=7", "only_success=false", f"expert.checkpoint={policy}", "seed=1000"}
    assert wanted <= set(commands[0])
    assert f"loop.rollouts.own={data}" in commands[1] and f"loop.rollouts.own={data}" in commands[2]


@pytest.mark.parametrize("fails", ["train_base", "refine"])
def test_after_a_failure_nothing_further_begins(tmp_path, monkeypatch, capsys, fails):
    begun = []

    def stage(name):
        def run(*arguments):
            begun.append(name)
            time.sleep(0.05)  # a stage takes longer than it takes to notice that one failed
            if name == fails:
                raise RobopolicyError(f"{name} failed")

        return run

    for name in ("train_base", "refine"):
        monkeypatch.setattr(experiments, name, stage(name))
    assert experiments.main(["pick_residual_fast", "--out", str(tmp_path), "--jobs", "1", "--no-record"]) == 1
    assert capsys.readouterr().err == f"error: {fails} failed\n"
    assert 1 <= begun.count(fails) <= 2, "one that began while the failure was noticed, at most"


def test_an_evaluation_of_the_newest_checkpoint_is_not_repeated(tmp_path):
    rows = tmp_path / "episodes.csv"
    assert not experiments.finished(rows, tmp_path)
    rows.touch()
    assert not experiments.finished(rows, tmp_path), "no checkpoint, so of what?"
    older, newer = (tmp_path / "checkpoints" / name for name in ("000000100", "000000200"))
    older.mkdir(parents=True)
    os.utime(older, (1.0, 1.0))
    assert experiments.finished(rows, tmp_path)
    newer.mkdir()
    os.utime(rows, (2.0, 2.0))
    assert not experiments.finished(rows, tmp_path), "the training went on"
