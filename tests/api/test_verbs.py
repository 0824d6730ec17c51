from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from typing import Any

import pytest

import robopolicy as rp
from robopolicy.cli.main import main
from robopolicy.core.errors import ConfigError
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.runs.run_dir import read_config

API = ("api.figures", "api.objects", "api.verbs")
SMALL = ["episodes=6", "num_envs=4", "videos=0"]


@pytest.mark.parametrize("module", API)
def test_examples_of_the_docstrings_run(module: str, folder: Path) -> None:
    tried = doctest.testmod(
        importlib.import_module(f"robopolicy.{module}"), globs={"rp": rp}, optionflags=doctest.ELLIPSIS
    )
    assert tried.attempted > 0 and tried.failed == 0


def test_every_function_has_arguments_units_errors_and_an_example() -> None:
    for name in set(rp.__all__) - {"RobopolicyError"}:
        text = getattr(rp, name).__doc__
        assert all(f"\n    {part}:" in text for part in ("Args", "Returns", "Raises", "Example")), name


def same(a: EpisodeTable, b: EpisodeTable) -> None:
    """Everything but what is measured by a clock, and the name of the weights where there is none."""
    assert a.frame.drop(columns=["wall_s", "policy"]).equals(b.frame.drop(columns=["wall_s", "policy"]))


def test_python_and_the_command_line_evaluate_alike(folder: Path, tmp_path: Path) -> None:
    assert main(["eval", "checkpoint=runs/base", f"out={tmp_path}/a", *SMALL]) == 0
    there = EpisodeTable.load(tmp_path / "a" / "episodes.csv")
    same(rp.evaluate("runs/base", episodes=6, num_envs=4, out=tmp_path / "b"), there)
    assert (tmp_path / "b" / "episodes.csv").is_file()
    policy, env = rp.load_policy("runs/base"), rp.make_env("reach", num_envs=4)
    same(rp.rollout(policy, env, episodes=6), there)
    same(rp.evaluate(policy, task="reach", episodes=6, num_envs=4), there)
    assert len(there) == 6 and there.split == "test"


def test_python_and_the_command_line_compare_alike(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = ["a=runs/base", "b=runs/base", "names=[one,two]", f"out={tmp_path}/a"]
    assert main(["compare", *pair, *SMALL]) == 0
    printed = capsys.readouterr().out
    again = rp.compare("runs/base", "runs/base", names=("one", "two"), episodes=6, num_envs=4, out=tmp_path / "b")
    assert again.text() in printed
    policy = rp.load_policy("runs/base")
    assert rp.compare(policy, policy, task="reach", episodes=6, num_envs=4, names=("one", "two")) == again
    seeds = rp.compare(["runs/base"], ["runs/base"], names=("one", "two"), episodes=6, num_envs=4, out=tmp_path / "c")
    assert seeds.seeds == (again,) and (tmp_path / "c" / "training_seeds.json").is_file()
    assert seeds.verdict in rp.plot(seeds).about
    assert rp.compare([policy], [policy], task="reach", episodes=6, num_envs=4).difference == seeds.difference


def test_python_and_the_command_line_train_alike(folder: Path, tmp_path: Path) -> None:
    python, command = tmp_path / "python", tmp_path / "command"
    loop = {"steps": 3, "batch_size": 32}
    rp.train(python, policy="gaussian", dataset="data/reach", loop=loop, tracker="quiet", threads=1)
    assert main(["train", "policy=gaussian", "dataset=data/reach", "loop.steps=3", "loop.batch_size=32", "threads=1",
                 "tracker=quiet", f"run_dir={command}"]) == 0  # fmt: skip
    configs: list[Any] = [{**(read_config(run) or {}), "run_dir": None} for run in (python, command)]
    assert configs[0] == configs[1]
    policies = [rp.load_policy(run).state_dict() for run in (python, command)]
    assert all(policies[0][key].equal(policies[1][key]) for key in policies[1])


def test_other_seeds_are_other_episodes(folder: Path) -> None:
    before = sorted(Path("runs/base").glob("episodes*"))
    usual = rp.evaluate(rp.load_policy("runs/base"), task="reach", episodes=4)
    other = rp.evaluate("runs/base", episodes=4, seed=1)
    assert not set(usual.seeds) & set(other.seeds) and other.split == "test"
    assert sorted(Path("runs/base").glob("episodes*")) == before, "rows of other seeds are not taken for the usual"


def test_an_empty_variant_is_one_too(folder: Path, tmp_path: Path) -> None:
    variants = {"own": {}, "short": {"horizon": 9}}
    rp.run("eval", checkpoint="runs/base", task="reach", episodes=2, videos=0, out=tmp_path, variants=variants)
    assert {path.name for path in tmp_path.glob("episodes*.csv")} == {"episodes-own.csv", "episodes-short.csv"}


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: rp.make_env("reach", seed=2**80), r"seed: expected an int of 64 bits"),
        (lambda: rp.run("demos", task="reach", out="x", seed=2**64), r"^seed: expected int of 64 bits"),
        (lambda: rp.run("replay", recording=7), r"""found 7 .int.. As text: 'recording="7"'"""),
        (lambda: rp.run("evall"), "unknown verb 'evall'"),
        (lambda: rp.evaluate("runs/base", epsiodes=3), r"^epsiodes: unknown key"),
        (lambda: rp.evaluate("runs/base", task="reech"), r"^task=reech: no such option"),
        (lambda: rp.evaluate("runs/base", episodes="many"), r"^episodes: "),
        (lambda: rp.evaluate(rp.load_policy("runs/base"), episodes=3), r"^task: "),
        (lambda: rp.evaluate(rp.load_policy("runs/base"), task="reach", which="best"), r"'which'"),
        (lambda: rp.evaluate("runs/base", seed=1, videos=2), r"'videos'"),
        (lambda: rp.compare("runs/base", rp.load_policy("runs/base")), r"^a, b: "),
        (lambda: rp.compare("runs/base", ["runs/base"]), r"^a, b: "),
        (lambda: rp.compare(["runs/base"], ["runs/base", "runs/base"]), r"^a, b: .*found 1 and 2"),
        (lambda: rp.train("runs/x", loop={"stepz": 3}), r"loop\.stepz: unknown key"),
    ],
)
def test_mistakes_name_their_key(call: Any, key: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=key):
        call()
    assert not Path("runs/x").exists()


def test_config_groups_of_the_users_own(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "mine.yaml").write_text("# My task.\n_target_: native\ntask: reach\nhorizon: 33\n")
    rows = rp.evaluate("runs/base", task="mine", config_dir=tmp_path, episodes=2, out=tmp_path / "out")
    assert rows.frame["length"].max() <= 33
    with pytest.raises(ConfigError, match=r"^task=mine: .*config_dir="):
        rp.evaluate("runs/base", task="mine", episodes=2, out=tmp_path / "out")
    with pytest.raises(ConfigError, match="no such folder"):
        rp.train(tmp_path / "run", config_dir=tmp_path / "nothing")
