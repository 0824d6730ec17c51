"""ManiSkill's cubes: experts that succeed, fail as asked, and leave demonstrations that train."""

from __future__ import annotations

import pytest

pytest.importorskip("mani_skill", reason="needs ./scripts/setup.sh bench")

import gymnasium
import numpy as np
import torch

from robopolicy.cli import main
from robopolicy.data.lerobot import load_episodes
from robopolicy.errors import ConfigError
from robopolicy.types import STATE
from sim.gym_adapter import GymVecEnv
from sim.suites import maniskill
from sim.suites.maniskill_batch import ManiSkillBatch
from sim.suites.workers import identified
from tests.sim.played import success


@pytest.mark.slow
@pytest.mark.parametrize("name", maniskill.task_names())
def test_the_expert_succeeds_and_its_errors_make_it_fail(name):
    env = maniskill.make(name, 4)
    assert success(env, torch.arange(40, 44)) == 4
    assert success(env, torch.arange(40, 48), imperfection=1.0) < 8
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
    from sim.suites.turns import yaw

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


def batched(backend: str, num_envs: int, horizon: int) -> GymVecEnv:
    env = ManiSkillBatch(maniskill.suites_own("PickCube-v1", num_envs, backend), horizon)
    return GymVecEnv(identified(env, "batch", horizon=horizon))


def test_the_batched_simulators_adapter_plays_the_same_episodes():
    """On the suite's CPU backend, a batch of one, beside an env that makes its scene anew for every episode."""
    batch, plain = batched("physx_cpu", 1, 6), maniskill.make("PickCube-v1", 1, horizon=6)
    seeds = torch.tensor([5, 2**40 + 6])
    b = plain.reset(seeds)
    assert torch.equal(batch.reset(seeds)[STATE], b[STATE])
    expert = plain.make_expert()
    expert.reset(None, episode_seed=plain.episode_seed)
    for t in range(8):
        action = expert.act(b)
        x, y = batch.step(action), plain.step(action)
        torch.testing.assert_close(x.next_obs[STATE], y.next_obs[STATE], atol=1e-4, rtol=0)
        torch.testing.assert_close(x.obs[STATE], y.obs[STATE], atol=1e-4, rtol=0)
        assert bool(x.truncated) == bool(y.truncated) == (t == 5)
        assert torch.equal(batch.episode_seed, plain.episode_seed)
        b = y.obs
    batch.close()
    plain.close()


class Scenes:
    """Three scenes that observe the seed of their episode and its age."""

    num_envs, device = 3, torch.device("cpu")
    single_action_space = gymnasium.spaces.Box(-1.0, 1.0, (7,))

    def __init__(self) -> None:
        self.obs = torch.zeros(3, 2)

    def reset(self, *, seed, options=None):
        rows = (options or {}).get("env_idx", torch.arange(3))
        self.obs[rows] = torch.tensor([float(seed[0]), 0.0])  # as the suite does
        return self.obs, {}

    def step(self, action):
        self.obs[:, 1] += 1
        return self.obs, None, None, None, {"success": (self.obs[:, 1] == 2) & (self.obs[:, 0] == 11)}


def test_of_many_scenes_the_ended_ones_are_reset_each_with_its_seed():
    env = GymVecEnv(identified(ManiSkillBatch(Scenes(), 3), "batch", horizon=3))
    assert env.reset(torch.arange(10, 15))[STATE].tolist() == [[10, 0], [11, 0], [12, 0]]
    found = [env.step(torch.zeros(3, 7)) for _ in range(3)]
    assert [s.terminated.tolist() for s in found] == [[False] * 3, [False, True, False], [False] * 3]
    assert [s.truncated.tolist() for s in found] == [[False] * 3, [False] * 3, [True, False, True]]
    assert found[1].next_obs[STATE].tolist() == [[10, 2], [11, 2], [12, 2]] and found[1].reward.tolist() == [0, 1, 0]
    assert found[1].obs[STATE].tolist() == [[10, 2], [13, 0], [12, 2]]
    assert found[2].next_obs[STATE].tolist() == [[10, 3], [13, 1], [12, 3]]
    assert found[2].obs[STATE][0].tolist() == [14, 0] and found[2].obs[STATE][1].tolist() == [13, 1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_batched_simulator_resets_ended_envs_alone():
    env = batched("physx_cuda", 4, 3)
    env.reset(torch.arange(10, 18))
    for _ in range(3):
        step = env.step(torch.zeros(4, 7))
    assert step.truncated.all() and env.episode_seed.tolist() == [14, 15, 16, 17]
    again = env.reset(torch.tensor([16, 14, 3, 15]))[STATE]  # as they began among others
    torch.testing.assert_close(again[[1, 3, 0]], step.obs[STATE][[0, 1, 2]], atol=1e-4, rtol=0)
    env.env.step(torch.zeros(4, 7))
    before = env.env.reset(options={"reset_mask": np.zeros(4, dtype=bool)})[0]
    after = env.env.reset(seed=[None, 7, None, None], options={"reset_mask": np.arange(4) == 1})[0]
    assert (before != after).any(axis=1).tolist() == [False, True, False, False]
    env.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "gpu"}, "expected 'cpu' or 'cuda'"),
        ({"backend": "cuda", "mass": 2.0}, r"task.mass=1 .* found \{'mass': 2.0\}"),
        ({"backend": "cuda", "processes": 2}, "found processes=2"),
    ],
)
def test_a_backend_that_cannot_be_is_named(options, said):
    with pytest.raises(ConfigError, match=said):
        maniskill.make("PickCube-v1", 1, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_batched_simulator_is_refused():
    with pytest.raises(ConfigError, match=r"no CUDA device here. Take task.backend=cpu"):
        maniskill.make("PickCube-v1", 1, backend="cuda")


def test_what_there_is_not_is_named():
    with pytest.raises(ConfigError, match=r"not one of the tasks.*PickCube-v1"):
        maniskill.make("PickCub-v1", 1)
    with pytest.raises(ConfigError, match="expected at least 1 step, found 0"):
        maniskill.make("PickCube-v1", 1, horizon=0)


def test_its_demonstrations_train(tmp_path):
    """By the command line, like any task."""
    task = ["task=maniskill", "task.name=PushCube-v1"]
    data = f"{tmp_path}/data"
    assert main(["demos", *task, f"out={data}", "episodes=2", "num_envs=2", "imperfection=0.2"]) == 0
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
