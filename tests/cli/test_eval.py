"""The verbs around training: no evaluation is taken for another, or written over it."""

from __future__ import annotations

import importlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from robopolicy.cli import compare, eval
from robopolicy.cli.main import main
from robopolicy.cli.task_label import task_label
from robopolicy.core.errors import CheckpointError, ConfigError, DataError
from robopolicy.evaluation import code_version, policy_ref, rollout, saved
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.policy_ref import PolicyRef
from robopolicy.evaluation.statistics import wilson
from robopolicy.evaluation.training_seeds import PooledComparison
from robopolicy.reporting.html_report import write_report
from robopolicy.reporting.run_reader import label, read_run
from robopolicy.runs.checkpointer import Checkpointer, save_policy
from robopolicy.runs.inputs import write_inputs
from robopolicy.world_models.envs.recorded import RecordedEnv
from tests.evaluation.points import make_rows
from tests.evaluation.test_off_policy_evaluation import one_chunk
from tests.fakes import PointEnv
from tests.runs.test_checkpointer import gaussian
from tests.world_models.point import point_env


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """`bc`, and `refined` on it with an older, a best and a newest checkpoint, on the point env."""
    bc, refined = tmp_path / "bc", tmp_path / "refined"
    for run, base in ((bc, ""), (refined, bc)):
        run.mkdir()
        (run / "config.yaml").write_text(f"task: {{_target_: point}}\nbase: '{base}'\n")
    Checkpointer(bc).save(1, policy=gaussian(0), state={})
    checkpointer = Checkpointer(refined, keep=3)
    for step in (1, 2, 3):
        checkpointer.save(step, policy=gaussian(step), state={}, best=step == 2)
    for verb in (compare, eval):
        monkeypatch.setattr(verb, "env_of", lambda task, place, num_envs, changes=None: PointEnv(num_envs))
    return bc, refined


def files(run: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in run.glob("*.*") if p.suffix in (".csv", ".json")}


def test_the_rate_counts_the_episodes_that_end_first(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    eval.evaluate(checkpoint=runs[0], episodes=1, videos=0)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("evaluating bc: 1/1, ")
    assert not re.search(r"(\b0|–)/s", line), line


def test_every_kind_of_evaluation_has_a_file_of_its_own(runs: tuple[Path, Path]) -> None:
    run = runs[1]
    usual: dict[str, Any] = {"checkpoint": run, "episodes": 3, "videos": 0}
    written = {"": "episodes.csv"}
    for options, name in (
        ({}, "episodes.csv"),
        ({"which": "best"}, "episodes-best.csv"),
        ({"split": "validation"}, "episodes-validation.csv"),
        ({"which": "best", "split": "validation"}, "episodes-best-validation.csv"),
        ({"deterministic": True}, "episodes-deterministic.csv"),
        ({"name": "mine", "split": "validation"}, "episodes-mine-validation.csv"),
        ({"checkpoint": run / "checkpoints" / "step_0000000001"}, "episodes-step_0000000001.csv"),
    ):
        before = files(run)
        rows = eval.evaluate(**{**usual, **options})  # type: ignore[arg-type]
        after = files(run)
        assert set(after) - set(before) == {name}
        assert {k: after[k] for k in before} == before, "the others are as they were"
        assert EpisodeTable.load(run / name).frame["policy"].tolist() == rows.frame["policy"].tolist()
        written[name] = name
    for path in ("latest", "best", "step_0000000002", "step_0000000003"):
        assert eval.evaluate(**{**usual, "checkpoint": run / "checkpoints" / path}) is not None
    assert set(files(run)) == set(written) - {""}, "pointers and names of the same checkpoints share their files"


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ({"_target_": "point"}, ""),
        ({"_target_": "point", "processes": 2}, ""),  # the same episodes
        ({"_target_": "point", "horizon": 10}, "horizon_10-[0-9a-f]{6}"),
        ({"_target_": "point", "mass": [-1, 1]}, "mass__1_1-[0-9a-f]{6}"),
        ({"_target_": "point", "words": ["w" * 400]}, "words__w{53}-[0-9a-f]{6}"),
        ({"_target_": "native", "task": "reach"}, "reach-[0-9a-f]{6}"),
    ],
)
def test_rows_of_another_task_are_not_the_runs_own(runs: tuple[Path, Path], task: dict[str, Any], name: str) -> None:
    found = task_label(task, PolicyRef.of(runs[1], "latest", None))
    assert re.fullmatch(name, found)
    eval.evaluate(checkpoint=runs[1], task=task, episodes=3, videos=0)
    compare.compare(b=runs[1], task=task, episodes=3, videos=0)
    mark = f"-{found}" if found else ""
    assert set(files(runs[1])) == {f"episodes{mark}.csv", f"episodes-base{mark}.csv", f"comparison{mark}.json"}


def test_a_folder_of_a_comparison_has_its_command_and_a_page_without_what_trainings_have(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (bc, refined), out = runs, runs[0].parent / "compared"
    monkeypatch.setattr("sys.argv", ["robopolicy", "compare", f"a={bc}", f"b={refined}"])
    compare.compare(a=bc, b=refined, episodes=3, videos=0, out=out)
    assert f"robopolicy report run_dir={out}" in capsys.readouterr().out
    read = read_run(out)
    assert [e.name for e in read.evaluations] == ["base", "refined"], "not after the folder"
    assert str(read.provenance["command"]).startswith("robopolicy compare a=")
    assert read.missing == ["videos/ (filmed episodes)"]
    compare.compare(a=bc, b=refined, episodes=3, videos=0)
    assert not (refined / "provenance.json").exists(), "a run directory has that of its training"
    compare.compare(a=bc, b=refined, episodes=3, videos=0, out=refined.parent)
    assert not (refined.parent / "provenance.json").exists(), "so has the folder of a sweep"


def test_a_checkpoint_saved_meanwhile_is_not_evaluated_under_the_older_ones_name(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, load, loaded = runs[1], eval.load_policy, list[Path]()

    def env_of(task: object, place: object, num_envs: int, changes: object = None) -> PointEnv:
        Checkpointer(run, keep=9).save(9, policy=gaussian(9), state={})
        return PointEnv(num_envs)

    monkeypatch.setattr(eval, "env_of", env_of)
    monkeypatch.setattr(eval, "load_policy", lambda path, **how: loaded.append(path) or load(path, **how))
    rows = eval.evaluate(checkpoint=run, episodes=3, videos=0)
    assert "step_0000000003@" in rows.frame["policy"].iloc[0] and loaded[0].parent.name == "step_0000000003"


def test_a_folder_that_cannot_be_written_to_fails_before_the_episodes(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "evaluate", lambda *_, **__: pytest.fail("evaluated"))
    with pytest.raises(ConfigError, match=r"^out=/proc/self: cannot be written to"):
        eval.evaluate(checkpoint=runs[0], episodes=3, videos=0, out=Path("/proc/self"))


def test_comparisons_on_other_splits_leave_those_on_test_episodes(runs: tuple[Path, Path]) -> None:
    bc, refined = runs
    compare.compare(a=bc, b=refined, episodes=3, videos=0)
    before = files(refined)
    assert set(before) == {"episodes-base.csv", "episodes.csv", "comparison.json"}
    compare.compare(a=bc, b=refined, episodes=3, videos=0, split="validation")
    after = files(refined)
    assert {k: after[k] for k in before} == before
    assert set(after) - set(before) == {
        "episodes-base-validation.csv", "episodes-validation.csv", "comparison-validation.json",
    }  # fmt: skip
    best = compare.compare(a=refined, b=refined / "checkpoints" / "best", episodes=3, videos=0, out=refined)
    assert {k: v for k, v in files(refined).items() if k in after} == after
    assert (best.a, best.b) == ("refined (a)", "refined (b)")


def test_without_a_the_reference_is_the_base(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    bc, refined = runs
    result = compare.compare(b=refined, episodes=3, videos=0)
    assert (result.a, result.b) == ("base", "refined")
    assert set(files(refined)) == {"episodes-base.csv", "episodes.csv", "comparison.json"}
    assert EpisodeTable.load(refined / "episodes-base.csv").frame["policy"].str.startswith("bc/").all()
    own = refined / "checkpoints" / "step_0000000003" / "policy" / "base"
    save_policy(gaussian(7), own)  # the run's own copy goes before a directory that may have changed
    compare.compare(b=refined, episodes=3, videos=0)
    assert EpisodeTable.load(refined / "episodes-base.csv").frame["policy"].str.startswith("refined/base@").all()
    with pytest.raises(ConfigError, match=r"a: .*bc was not refined from a base"):
        compare.compare(b=bc, episodes=3, videos=0)
    pooled = compare.compare(b=(refined,), episodes=3, videos=0)
    assert isinstance(pooled, PooledComparison) and [c.a for c in pooled.seeds] == ["base"]
    assert main(["compare", f"b={refined}", "episodes=3", "videos=0", "threads=1"]) == 0
    assert "was refined from" not in capsys.readouterr().out


def test_a_policy_that_was_trained_without_a_task_is_compared_on_that_of_its_base(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/offline_rl.md does: algo=offline needs no task."""
    bc, refined = runs
    (refined / "config.yaml").write_text(f"base: '{bc}'\n")
    monkeypatch.setattr(policy_ref, "build", lambda node, *_, num_envs, seed: PointEnv(num_envs))
    monkeypatch.setattr(compare, "env_of", policy_ref.env_of)
    assert compare.compare(a=bc, b=refined, episodes=3, videos=0).a == "base"
    (bc / "config.yaml").write_text("seed: 0\n")
    with pytest.raises(ConfigError, match=r"task: bc has no task in its config; choose one: task=<name>"):
        compare.compare(a=bc, b=refined, episodes=3, videos=0)


def test_a_base_is_known_by_its_files_and_another_policy_is_no_base(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bc, refined = runs
    write_inputs(refined, {"base": str(bc)})
    moved = bc.rename(tmp_path / "moved")
    assert compare.compare(a=moved, b=refined, episodes=3, videos=0).a == "base"
    assert "was refined from" not in capsys.readouterr().out
    save_policy(gaussian(9), tmp_path / "other")
    assert compare.compare(a=tmp_path / "other", b=refined, episodes=3, videos=0).a == "other"
    assert f"refined was refined from {bc}, not from {tmp_path / 'other'}" in capsys.readouterr().out


def test_a_base_that_was_trained_on_since_is_no_base(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    bc, refined = runs
    write_inputs(refined, {"base": str(bc)})
    Checkpointer(bc, keep=2).save(2, policy=gaussian(9), state={})
    with pytest.raises(ConfigError, match=r"a: .*refined was refined from .*bc, where another policy lies now"):
        compare.compare(b=refined, episodes=3, videos=0)
    assert compare.compare(a=bc, b=refined, episodes=3, videos=0).a == "bc"
    assert f"refined was refined from an earlier policy of {bc}, not from {bc}\n" in capsys.readouterr().out
    earlier = bc / "checkpoints" / "step_0000000001"
    assert compare.compare(a=earlier, b=refined, episodes=3, videos=0).a == "base"
    shutil.rmtree(bc)
    with pytest.raises(ConfigError, match=r"a: .*refined was refined from .*bc, where nothing lies now"):
        compare.compare(b=refined, episodes=3, videos=0)


def test_results_of_a_policy_in_no_run_lie_beside_it(runs: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "act"
    save_policy(gaussian(5), folder)
    eval.evaluate(checkpoint=folder, task={"_target_": "point"}, episodes=3, videos=0)
    results = folder.with_name("act-results")
    assert {p.name for p in results.iterdir()} == {"episodes.csv", "provenance.json"}
    (results / "episodes.csv").rename(tmp_path / "rows")
    (results / "videos").symlink_to(tmp_path)
    with pytest.raises(CheckpointError, match="videos"):
        PolicyRef.of(folder, "latest", None)
    (results / "videos").unlink()
    shutil.rmtree(results)
    results.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="act-results: results do not follow links"):
        PolicyRef.of(folder, "latest", None)


def test_results_of_a_run_made_in_python_outlive_its_checkpoints(tmp_path: Path) -> None:
    run = tmp_path / "mine"
    checkpointer = Checkpointer(run, keep=1)
    checkpointer.save(1, policy=gaussian(0), state={})
    ref = PolicyRef.of(run, "latest", None)
    assert (ref.run, ref.out, ref.name, ref.checkpoint) == (None, run, "mine", "")
    (run / "videos").symlink_to(tmp_path)
    with pytest.raises(CheckpointError, match="videos"):
        PolicyRef.of(run, "latest", None)


def test_policies_of_different_tasks_are_compared_with_a_remark(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    bc, refined = runs
    compare.compare(a=bc, b=refined, episodes=3, videos=0)
    assert "was trained on" not in capsys.readouterr().out
    (bc / "config.yaml").write_text("task: {_target_: point, horizon: 9}\n")
    compare.compare(a=bc, b=refined, episodes=3, videos=0)
    said = capsys.readouterr().out
    assert "task: base was trained on horizon=9, refined on its defaults; they are compared on the latter" in said


def test_lists_are_training_seeds_and_are_pooled(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = tuple(runs[1] / "checkpoints" / f"step_{i:010d}" for i in (1, 3))
    found = compare.compare(a=(runs[0], runs[0]), b=(steps[1], runs[0]), names=("x", "y"), episodes=3, videos=0)
    assert isinstance(found, PooledComparison) and [c.pairs.total for c in found.seeds] == [3, 3]
    assert found.text() in capsys.readouterr().out
    assert (runs[1] / "training_seeds.json").is_file() and (runs[0] / "comparison.json").is_file()
    compare.compare(a=(runs[0], runs[0]), b=runs, names=("x", "y"), episodes=3, videos=0, out=tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"bc", "refined", "training_seeds.json"}
    with pytest.raises(ConfigError, match=r"^a, b: .*found 1 and 2"):
        compare.compare(a=runs[0], b=runs, episodes=3)
    with pytest.raises(ConfigError, match=r"^b: "):
        compare.compare(a=runs, b=(runs[1], runs[1]), episodes=3)
    shutil.copytree(runs[1], tmp_path / "copy")
    with pytest.raises(ConfigError, match=r"^b: .*refined and .*copy hold the same policy"):
        compare.compare(a=(runs[0], runs[0]), b=(runs[1], tmp_path / "copy"), episodes=3)


@pytest.mark.parametrize("names", [("x", "x"), ("", "x"), ("x", "")])
def test_compared_policies_have_different_names(runs: tuple[Path, Path], names: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="names: expected two different names, found"):
        compare.compare(a=runs[0], b=runs[1], names=names, episodes=3, videos=0)
    assert not files(runs[1])


def test_names_cannot_stand_for_evaluations_of_another_kind() -> None:
    assert label("a-b", checkpoint="best", split="validation") == "a-b-best-validation"
    assert label("best", checkpoint="best") == "best", "said once is enough"
    for name in ("best", "x-validation", "deterministic", "step_0000000001"):
        with pytest.raises(ConfigError, match="marks evaluations of another kind"):
            label(name)
    for name in ("a/b", ".."):
        with pytest.raises(ConfigError, match="without '/'"):
            label(name)


@pytest.mark.parametrize("name", ["..", "test", "pairs", "pairs-validation"])
def test_films_of_named_rows_replace_no_others(runs: tuple[Path, Path], name: str) -> None:
    usual: dict[str, Any] = {"checkpoint": runs[0], "episodes": 3}
    mine = runs[0] / "mine.mp4"
    mine.write_text("")
    with pytest.raises(ConfigError, match=f"name '{name}': "):
        eval.evaluate(**usual, name=name)
    assert mine.exists() and not files(runs[0])
    eval.evaluate(**usual, name="tests", videos=0)


def test_rows_of_other_code_are_not_reused_silently(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated, evaluate = [], rollout.evaluate

    def counted(*arguments: Any, **options: Any) -> EpisodeTable:
        evaluated.append(1)
        return evaluate(*arguments, **options)

    def look(version: str) -> str:
        for module, name in ((saved, "version"), (code_version, "version")):
            monkeypatch.setattr(module, name, lambda: version)
        eval.evaluate(checkpoint=runs[0], episodes=3, videos=0)
        return capsys.readouterr().out

    monkeypatch.setattr(rollout, "evaluate", counted)
    look("1+ga")
    assert "episodes.csv: rows of 1+ga are used again\n" in look("1+ga") and len(evaluated) == 1
    fewer = eval.evaluate(checkpoint=runs[0], episodes=2, videos=0)
    assert len(evaluated) == 1 and len(fewer) == 2, "the first of the same"
    assert len(EpisodeTable.load(runs[0] / "episodes.csv")) == 3, "which stay"
    assert "episodes.csv: is of code 1+ga, this is 1+gb: evaluated again" in look("1+gb")
    assert len(evaluated) == 2 and set(EpisodeTable.load(runs[0] / "episodes.csv").frame["version"]) == {"1+gb"}
    look("1+gb.dirty")
    assert "rows of 1+gb.dirty are used again; its code has uncommitted changes" in look("1+gb.dirty")
    assert len(evaluated) == 3
    (runs[0] / "episodes.csv").write_text("cut")
    with pytest.raises(DataError, match=r"Evaluate again; remove .*episodes\.csv first"):
        look("1+gb")
    (runs[0] / "episodes.csv").unlink()


def test_a_task_with_a_list_of_starts_has_no_more_episodes(runs: tuple[Path, Path], monkeypatch) -> None:
    class Listed(PointEnv):
        fixed_starts = 5

    monkeypatch.setattr(eval, "env_of", lambda task, place, num_envs, changes=None: Listed(num_envs))
    for wrong in ({"episodes": 6}, {"episodes": 5, "split": "validation"}):
        with pytest.raises(ConfigError, match=r"a fixed list of 5 initial states.* at most episodes=5"):
            eval.evaluate(checkpoint=runs[1], videos=0, **wrong)
    rows = eval.evaluate(checkpoint=runs[1], episodes=5, videos=0)
    assert sorted(seed % 5 for seed in rows.seeds) == [0, 1, 2, 3, 4], "each start once"


def test_rows_of_an_env_that_its_owner_changed_are_not_used_again(
    runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(code_version, "admitted", lambda: ("my_env.tasks",))
    (tmp_path / "my_env").mkdir()
    for name, text in (("__init__", ""), ("tasks", "NEAR = 0.1")):
        (tmp_path / "my_env" / f"{name}.py").write_text(text)
    code_version._digest.cache_clear()
    importlib.import_module("my_env.tasks")
    first = eval.evaluate(checkpoint=runs[0], episodes=3, videos=0)
    assert eval.evaluate(checkpoint=runs[0], episodes=3, videos=0) is not None
    assert "are used again" in capsys.readouterr().out
    (tmp_path / "my_env" / "tasks.py").write_text("NEAR = 0.02")
    assert eval.evaluate(checkpoint=runs[0], episodes=3, videos=0) is not None
    assert "are used again" in capsys.readouterr().out, "this process runs the old code"
    code_version._digest.cache_clear()  # another process
    later = eval.evaluate(checkpoint=runs[0], episodes=3, videos=0)
    assert "evaluated again" in capsys.readouterr().out
    versions = [set(rows.frame["version"]) for rows in (first, later)]
    assert versions[0] != versions[1] and first.commits == later.commits


def test_a_report_is_about_the_newest_checkpoint_on_test_episodes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    rates = {"-base": 40, "-best": 99, "": 90, "-deterministic": 97, "-step_0000000001": 50, "-base-validation": 41,
             "-best-validation": 98}  # fmt: skip
    for name, rate in rates.items():
        stem, split = f"episodes{name}", 1 if name.endswith("validation") else 2
        make_rows([i < rate for i in range(100)], policy=stem, split=split).save(run / f"{stem}.csv")
    (run / "config.yaml").write_text("seed: 0\n")
    page = write_report(run, tmp_path / "r.html").read_text()
    assert "+50.0 points" in page and "run is better" in page and "5 more evaluations are below" in page
    for evaluation in read_run(run).evaluations:
        assert f"<tr><td>{evaluation.name}<td" in page, "the others are shown by name"


def test_rows_with_a_name_of_signs_are_not_the_runs_own(tmp_path: Path) -> None:
    for name, rate in (("", 9), ("--", 1), ("-base_", 5)):
        make_rows([i < rate for i in range(10)]).save(tmp_path / f"episodes{name}.csv")
    assert {e.label: e.rows.success_rate().value for e in read_run(tmp_path).evaluations} == {
        "base_": 0.5,
        "": 0.9,
        "-": 0.1,
    }


def test_a_world_that_only_replays_is_no_evaluation(runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = [RecordedEnv(one_chunk(10), 3), PointEnv(3)]
    monkeypatch.setattr(eval, "build", lambda node, slot, **_: made.pop(0))
    with pytest.raises(ConfigError, match=r"world=recorded: plays what was recorded, whatever the policy does"):
        eval.evaluate(checkpoint=runs[0], world={"_target_": "recorded"}, episodes=3)
    assert len(eval.evaluate(checkpoint=runs[0], world={"_target_": "mine"}, episodes=3)) == 3, "one's own will do"


def test_imagined_episodes_of_few_starts_say_so() -> None:
    env = point_env([[0.1, 0.1], [0.2, 0.1], [0.1, 0.3]], 4)
    rows = make_rows([True] * 20 + [False] * 20)
    said = eval._by_starts(rows, env)
    low, high = wilson(1.5, 3)[1:]
    assert (
        said == f"They begin in 3 recorded starts. By their number the interval is {100 * low:.1f}–{100 * high:.1f}%."
    )
