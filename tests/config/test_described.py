"""described.py: arguments.json says what the constructors say, and answers without importing them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import gymnasium
import pytest

from robopolicy.cli.verbs import find_verb
from robopolicy.config import described, registry
from robopolicy.config.compose import compose
from robopolicy.config.plan import plan_call
from robopolicy.core.errors import UsageError
from scripts import describe_arguments


def test_the_file_says_what_the_constructors_say() -> None:
    now = json.loads(json.dumps(describe_arguments.described()))
    before = described.entries()
    changed = sorted(place for place in {*now, *before} if now.get(place) != before.get(place))
    assert changed == [], "run python scripts/describe_arguments.py"


@pytest.mark.parametrize(
    ("node", "key"),
    [
        ({"_target_": "metaworld", "name": "door-opn-v3"}, "task.name"),
        ({"_target_": "maniskill", "name": "PickCub-v1"}, "task.name"),
        ({"_target_": "robosuite", "name": "Lif"}, "task.name"),
        ({"_target_": "libero", "suite": "libero_gaol", "name": "0"}, "task.suite"),
        ({"_target_": "libero", "suite": "libero_goal", "name": "10"}, "task.name"),
        ({"_target_": "gymnasium", "name": "Pendulum-v9"}, "task.name"),
        ({"_target_": "gymnasium", "name": "FetchPush-v9", "package": "gymnasium_robotics"}, "task.name"),
        ({"_target_": "native", "task": "pik"}, "task.task"),
    ],
)
def test_an_unknown_task_of_a_suite_is_named(node: dict[str, Any], key: str) -> None:
    found = described.resolve(node, "task", "task").problems(node, "task")
    assert [p for p in found if p.startswith(f"{key}=")]
    right = {**node, key.partition(".")[2]: {"task.suite": "libero_10"}.get(key, _first(node, key))}
    assert not [p for p in described.resolve(right, "task", "task").problems(right, "task") if p.startswith(key)]


def test_names_that_a_program_registers_are_left_to_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gymnasium.registry, "Mine-v0", gymnasium.spec("CartPole-v1"))
    node = {"_target_": "gymnasium", "name": "Mine-v0"}
    assert described.resolve(node, "task", "task").problems(node, "task") == []


def _first(node: dict[str, Any], key: str) -> str:
    """A name that the key takes."""
    rules = described.resolve(node, "task", "task").entry["names"]
    fits = [r for r in rules if not r["when"][0] or node.get(r["when"][0], "") == r["when"][1]]
    return next(r["known"][0] for r in fits if key.endswith(r["key"]))


def test_names_of_another_version_are_left_to_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"_target_": "metaworld", "name": "new-task-v3"}
    monkeypatch.setattr(described, "require", lambda suite: "")
    for version, known in (("3.0.0", False), (None, False), ("4.0.0", True)):
        monkeypatch.setattr(described, "installed", lambda package, version=version: version)
        assert (described.resolve(node, "task", "task").problems(node, "task") == []) is known


def test_names_of_the_users_own_module_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"_target_": "native", "task": "mine", "of_mine": 3}
    monkeypatch.setattr(registry, "_admitted", ["my_robot"])
    config = {"task": node, "run_dir": "x", "loop": {"_target_": "offline"}, "tracker": {"_target_": "tracker"}}
    assert (
        plan_call(described.describe_target(find_verb("train").target), config, "", (), "", described.resolve)[1] == []
    )


def test_a_suite_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robopolicy.utils.suite_packages.installed", lambda package: None)
    with pytest.raises(UsageError, match=r"task: .*scripts/setup\.sh"):
        compose(find_verb("train"), ["task=metaworld", "run_dir=x"])


def test_a_config_is_checked_without_torch_or_a_simulator() -> None:
    code = (
        "import sys; from robopolicy.cli.main import main; code = main(sys.argv[1:]); "
        "print([m for m in ('torch', 'mujoco', 'gymnasium', 'metaworld', 'numpy') if m in sys.modules]); sys.exit(code)"
    )
    for arguments in (
        ["train", "algo=residual", "task=metaworld", "task.name=reech-v3", "run_dir=x"],
        ["train", "policy.horizonn=3", "run_dir=x"],
        ["train", "--help"],
    ):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == (0 if "--help" in arguments else 2), done.stderr
        assert done.stdout.splitlines()[-1] == "[]"


def test_numbers_are_put_in_place_of_what_stands_for_them() -> None:
    config = {"task": {"_target_": "native", "task": "pick", "horizon": "90"}, "run_dir": "x", "seed": 1e1,
              "loop": {"_target_": "offline", "steps": "3"}, "tracker": {"_target_": "tracker"}}  # fmt: skip
    target = described.describe_target(find_verb("train").target)
    assert plan_call(target, config, "", (), "", described.resolve, converts=True)[1] == []
    found = [config["seed"], config["loop"]["steps"], config["task"]["horizon"], config["run_dir"]]
    assert found == [10, 3, 90, "x"] and [type(value) for value in found] == [int, int, int, str]
