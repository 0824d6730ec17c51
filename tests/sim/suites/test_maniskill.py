"""ManiSkill's cubes: experts that succeed, fail as asked, and leave demonstrations that train."""

from __future__ import annotations

import pytest

pytest.importorskip("mani_skill", reason="needs ./scripts/setup.sh bench")

import torch

from robopolicy.cli.main import main
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import STATE
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.sim.suites import maniskill
from tests.sim.played import success


@pytest.mark.slow
@pytest.mark.parametrize("name", maniskill.task_names())
def test_the_expert_succeeds_and_its_errors_make_it_fail(name):
    env = maniskill.make(name, 4)
    assert success(env, torch.arange(40, 44)) == 4
    assert success(env, torch.arange(40, 48), expert_noise=1.0) < 8
    env.close()


def test_what_an_expert_reads_is_where_it_says():
    """The suite's own differences of positions, at the end of the observation, agree with the positions before them."""
    env = maniskill.make("StackCube-v1", 1)
    at = maniskill.read("StackCube-v1")
    state = env.reset(torch.tensor([3]))[STATE]
    assert at["cube_to_base"].stop == state.shape[1] == 48
    f = {key: state[:, part] for key, part in at.items()}
    assert torch.allclose(f["to_cube"], f["cube"][:, :3] - f["tcp"][:, :3], atol=1e-6)
    assert torch.allclose(f["cube_to_base"], f["base"][:, :3] - f["cube"][:, :3], atol=1e-6)
    assert maniskill.read("PickCube-v1")["to_goal"].stop == 42 and maniskill.read("PushCube-v1")["cube"].stop == 35
    env.close()


def test_a_turn_is_the_other_way_round_than_the_action_says():
    """As the spec's names have it: dimension 5 at +1 turns the tool by about -0.1 rad a step."""
    from robopolicy.sim.experts.quaternion_utils import yaw

    env = maniskill.make("PickCube-v1", 1)
    at = maniskill.read("PickCube-v1")["tcp"]
    before = yaw(env.reset(torch.tensor([3]))[STATE][:, at][:, 3:])
    action = torch.zeros(1, 7)
    action[0, 5] = 1.0
    for _ in range(4):
        step = env.step(action)
    assert env.spec.action.names[5] == "minus_drz"
    assert -0.4 < float(yaw(step.next_obs[STATE][:, at][:, 3:]) - before) < -0.05
    env.close()


def test_what_there_is_not_is_named():
    with pytest.raises(ConfigError, match=r"no such task.*PickCube-v1"):
        maniskill.make("PickCub-v1", 1)
    with pytest.raises(ConfigError, match="expected 1 to any number of steps, found 0"):
        maniskill.make("PickCube-v1", 1, horizon=0)


def test_its_demonstrations_train(tmp_path):
    """By the command line, like any task."""
    task = ["task=maniskill", "task.name=PushCube-v1"]
    data = f"{tmp_path}/data"
    assert main(["demos", *task, f"out={data}", "episodes=2", "num_envs=2", "expert_noise=0.2"]) == 0
    assert load_episodes(data).tasks == ("push the cube into the circle",)
    more = [
        f"dataset={data}",
        f"run_dir={tmp_path}/run",
        "loop.steps=5",
        "tracker=quiet",
        "policy=gaussian",
        "num_envs=2",
    ]
    assert main(["train", "algo=bc", *task, *more]) == 0
