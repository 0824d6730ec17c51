"""ManiSkill's batched simulator: its adapter on a batch of one, on made-up scenes and, where there is one, on a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("mani_skill", reason="needs ./scripts/setup.sh bench")

import gymnasium
import numpy as np
import torch

from robopolicy.core.errors import ConfigError
from robopolicy.core.types import STATE
from robopolicy.sim.gymnasium.adapter import GymVecEnv
from robopolicy.sim.suites import maniskill, maniskill_gpu
from robopolicy.sim.suites.maniskill_gpu import ManiSkillBatch
from robopolicy.sim.suites.maniskill_meaning import action
from robopolicy.sim.suites.maniskill_registry import CONTROL, suites_own
from robopolicy.sim.suites.vector_env import identified


def test_episodes_begin_as_their_seeds_say_whatever_was_grasped_before():
    """On the suite's CPU simulator, beside an env that makes its scene anew for every episode."""
    held = maniskill.read("PickCube-v1")["held"]
    inner = suites_own("PickCube-v1", 1, "physx_cpu", "panda", CONTROL)
    batch = ManiSkillBatch(inner, horizon=50, felt=held)
    batch.metadata["action"] = action(inner, "panda", CONTROL)
    env = maniskill.vec_env("PickCube-v1", identified(batch, "batch", horizon=50), usual=True)
    plain, expert, successes = maniskill.make("PickCube-v1", 1), env.make_expert(), 0
    seeds = torch.tensor([5, 6, 2**40 + 7])
    obs = env.reset(seeds)
    assert torch.equal(obs[STATE], plain.reset(seeds[:1])[STATE])
    expert.reset(None, episode_seed=env.episode_seed)
    while successes < 2:
        step = env.step(expert.act(obs))
        assert not step.truncated.any(), "the expert succeeds"
        if step.success.any():
            successes += 1
            assert step.next_obs[STATE][0, held] == 1.0, "it is in the hand at the goal"
            assert env.episode_seed[0] == seeds[successes]
            assert torch.equal(step.obs[STATE], plain.reset(env.episode_seed)[STATE])
            expert.reset(step.ended, episode_seed=env.episode_seed)
        obs = step.obs
    env.close()
    plain.close()


class Scenes:
    """Three scenes that observe what was drawn for their episode, and its age. As the suite does, a reset draws for all
    of its scenes at once, and what is set is set where `_reset_mask` says."""

    num_envs, device, control_freq = 3, torch.device("cpu"), 20
    single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
    single_action_space = gymnasium.spaces.Box(-1.0, 1.0, (7,))

    def __init__(self) -> None:
        self.scene, self._reset_mask, self._episode_rng = self, torch.ones(3, dtype=torch.bool), None
        self.obs = torch.zeros(3, 3)

    def reset(self, *, options):
        self._reset_mask = torch.zeros(3, dtype=torch.bool)
        self._reset_mask[options["env_idx"]] = True
        self._initialize_episode(options["env_idx"], options)
        self._reset_mask = torch.ones(3, dtype=torch.bool)
        return self.obs, {}

    def _initialize_episode(self, chosen, options):
        drawn = torch.stack([torch.rand(len(chosen)), torch.from_numpy(self._episode_rng.rand(len(chosen)))], dim=1)
        self.obs[self._reset_mask] = torch.cat([drawn, torch.zeros(len(chosen), 1)], dim=1).float()

    def step(self, action):
        self.obs[:, 2] += 1
        return self.obs, None, None, None, {"success": action[:, 0] > 0.5}


def test_of_many_scenes_the_ended_ones_begin_anew_each_as_its_seed_says():
    env = GymVecEnv(identified(ManiSkillBatch(Scenes(), horizon=3), "batch", horizon=3))
    drawn = {s: env.reset(torch.tensor([s] * 3))[STATE][1, :2].tolist() for s in range(10, 15)}
    assert len({tuple(d) for d in drawn.values()}) == 5
    before = torch.random.get_rng_state()
    first = env.reset(torch.arange(10, 15))[STATE]
    assert first[:, :2].tolist() == [drawn[10], drawn[11], drawn[12]]
    succeed = torch.zeros(3, 7)
    found = [env.step(succeed)]
    succeed[1, 0] = 1.0
    found += [env.step(succeed), env.step(0 * succeed)]
    assert torch.equal(torch.random.get_rng_state(), before), "nobody else's numbers are drawn"
    assert [s.terminated.tolist() for s in found] == [[False] * 3, [False, True, False], [False] * 3]
    assert [s.truncated.tolist() for s in found] == [[False] * 3, [False] * 3, [True, False, True]]
    assert found[1].reward.tolist() == [0, 1, 0]
    assert found[1].next_obs[STATE].tolist() == [[*first[i, :2].tolist(), 2] for i in range(3)]
    assert found[1].obs[STATE][1].tolist() == [*drawn[13], 0] and found[1].obs[STATE][0, 2] == 2
    assert found[2].obs[STATE].tolist() == [[*drawn[14], 0], [*drawn[13], 1], found[2].obs[STATE][2].tolist()]


def test_gymnasiums_own_ways_to_seed():
    batch = ManiSkillBatch(Scenes(), horizon=3)
    one, same = batch.reset(seed=4)[0], batch.reset(seed=[4, 5, 6])[0]
    assert np.array_equal(one, same) and len(np.unique(one[:, 0])) == 3
    assert np.array_equal(batch.reset(seed=np.int64(4))[0], one)
    for drawn in (batch.reset()[0], batch.reset(seed=[None] * 3)[0]):
        assert not np.array_equal(drawn, one) and len(np.unique(drawn[:, 0])) == 3


# The sizes of PegInsertionSide's peg and hole are drawn with the scene, so an episode is no function of its seed there.
@pytest.mark.parametrize("name", sorted(set(maniskill.TASKS) - {"PegInsertionSide-v1"}))
def test_made_as_on_a_gpu_it_is_a_suite_of_its_own(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        maniskill_gpu, "suites_own", lambda name, count, _, *how: suites_own(name, count, "physx_cpu", *how)
    )
    envs = [maniskill_gpu.make(name, 1), maniskill_gpu.make(name, 1, horizon=4), maniskill.make(name, 1)]
    assert [e.spec.id.split("/")[0] for e in envs] == ["maniskill_gpu"] * 2 + ["maniskill"]
    assert [e.spec.deterministic for e in envs] == [False, False, True]
    assert len({e.spec.digest for e in envs}) == 3 and [e.spec.horizon for e in envs] == [50, 4, 50]
    seeds = torch.tensor([3])
    assert torch.equal(envs[0].reset(seeds)[STATE], envs[2].reset(seeds)[STATE])
    assert envs[0].env.felt == maniskill.read(name).get("held", slice(0, 0))
    for env in envs:
        env.close()


def test_what_cannot_be_is_named(monkeypatch):
    with pytest.raises(ConfigError, match=r"no such task.*PickCube-v1"):
        maniskill_gpu.make("PickCub-v1", 1)
    with pytest.raises(ConfigError, match=r"no function of its seed. Take task=maniskill"):
        maniskill_gpu.make("PegInsertionSide-v1", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"no CUDA device. On the CPU: task=maniskill"):
        maniskill_gpu.make("PickCube-v1", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def fail(*_):
        raise OSError("libcuda.so: cannot open shared object file")

    monkeypatch.setattr(maniskill_gpu, "suites_own", fail)
    with pytest.raises(ConfigError, match=r"num_envs=8 \(OSError: libcuda.so.*libPhysXGpu_64.so.*task=maniskill"):
        maniskill_gpu.make("PickCube-v1", 8)


ON_A_GPU = """
import numpy as np, torch
from robopolicy.sim.suites import maniskill_gpu
env = maniskill_gpu.make("PickCube-v1", 4, horizon=3)
first = env.reset(torch.arange(10, 18))
for _ in range(3):
    step = env.step(torch.zeros(4, 7))
assert step.truncated.all() and env.episode_seed.tolist() == [14, 15, 16, 17]
key = "observation.state"
again = env.reset(torch.tensor([16, 14, 3, 15]))[key]
torch.testing.assert_close(again[[1, 3, 0]], step.obs[key][[0, 1, 2]], atol=1e-5, rtol=0)
batch = env.env
batch.step(np.ones((4, 7)))
before = batch.inner.get_obs().cpu()
batch.reset(seed=[None, 7, None, None], options={"reset_mask": np.arange(4) == 1})
after = batch.inner.get_obs().cpu()
torch.testing.assert_close(after[[0, 2, 3]], before[[0, 2, 3]], atol=1e-5, rtol=0)
assert not torch.allclose(after[1], before[1], atol=1e-3)
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_reset_of_one_scene_leaves_the_others_alone():
    """In a process of its own: PhysX on the GPU starts only where none ran on the CPU before."""
    done = subprocess.run([sys.executable, "-c", ON_A_GPU], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
