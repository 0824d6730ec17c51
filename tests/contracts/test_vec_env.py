"""The VecEnv contract, held over every registered native task."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.core.errors import SpecError
from robopolicy.core.rng import episode_seeds, keyed_uniform
from robopolicy.core.types import STATE, Renderable, Stateful, VecEnv
from robopolicy.sim.env import SimEnv

TASKS = sim.task_names()
# At expert noise 0 over 64 episodes. Peg insertion slips.
EXPERT_BAR = {"peg": 0.85}
pytestmark = pytest.mark.parametrize("task", TASKS)


def random_actions(env: SimEnv, seeds: torch.Tensor, t: int) -> torch.Tensor:
    """[N Da] uniform actions keyed by seed and step, a third beyond the limits."""
    unit = keyed_uniform(seeds, torch.full_like(seeds, t), (env.spec.action.dim,), stream=1)
    low, high = torch.tensor(env.spec.action.low), torch.tensor(env.spec.action.high)
    return low + (high - low) * (1.5 * unit - 0.25)


def trajectory(task: str, seeds: torch.Tensor, steps: int, threads: int) -> torch.Tensor:
    """[T N Ds] successors of the episodes `seeds` [N] under random actions."""
    env = sim.make(task, len(seeds), threads=threads)
    env.reset(seeds)
    out = [env.step(random_actions(env, seeds, t)).next_obs[STATE] for t in range(steps)]
    env.close()
    return torch.stack(out)


def play(env: SimEnv, seeds: torch.Tensor, policy) -> torch.Tensor:
    """[N] bool: success of one episode each. `policy(obs, t)` -> action."""
    obs = env.reset(seeds)
    done, success = torch.zeros(env.num_envs, dtype=torch.bool), torch.zeros(env.num_envs, dtype=torch.bool)
    for t in range(env.spec.horizon):
        step = env.step(policy(obs, t))
        success |= step.success & ~done
        done |= step.ended
        obs = step.obs
    assert done.all(), "an episode outlived the horizon"
    return success


def test_follows_the_protocols_and_its_own_spec(task):
    env = sim.make(task, 3)
    assert isinstance(env, VecEnv) and isinstance(env, Stateful) and isinstance(env, Renderable)
    obs = env.reset()
    step = env.step(torch.zeros(3, env.spec.action.dim))
    for found in (obs, step.obs, step.next_obs):
        assert found.keys() == env.spec.observation.keys()
        for key, feature in env.spec.observation.items():
            assert found[key].shape == (3, *feature.shape) and found[key].dtype == feature.torch_dtype, key
    assert len(env.spec.observation[STATE].names) == obs[STATE].shape[1]
    assert step.obs is step.next_obs, "nothing ended: obs and next_obs are the same object"
    assert env.spec.tasks and all(env.spec.tasks)
    assert sim.make(task, 1).spec.digest == env.spec.digest != sim.make(task, 1, horizon=7).spec.digest


def test_episodes_are_the_same_bits_whatever_n_threads_and_neighbours(task):
    seeds = episode_seeds("test", 0, 5)
    reference = trajectory(task, seeds, 15, threads=2)
    order = torch.tensor([3, 0, 4, 2, 1])
    assert torch.equal(trajectory(task, seeds[order], 15, threads=1), reference[:, order])
    for i in (1, 4):
        assert torch.equal(trajectory(task, seeds[i : i + 1], 15, threads=1)[:, 0], reference[:, i])


def test_resets_cover_the_stated_ranges(task):
    env = sim.make(task, 1)
    numbers = env._queue.numbers(episode_seeds("train", 3, 1000))
    assert env.task.ranges, "every task varies between episodes"
    for name, (low, high) in env.task.ranges.items():
        values = numbers[:, env.draw_names.index(name)]
        assert low <= values.min() and values.max() <= high
        counts, _ = np.histogram(values, bins=5, range=(low, high))
        assert counts.min() > 140, f"{name} is not uniform over [{low}, {high}]: {counts}"
    states = torch.cat([env.reset(s[None])[STATE] for s in episode_seeds("test", 1, 20)])
    assert len(states.unique(dim=0)) == 20


def test_resets_start_at_rest_without_penetration(task):
    env = sim.make(task, 16)
    env.reset(episode_seeds("test", 2, 16))
    data = mujoco.MjData(env.model)
    for i in range(16):
        mujoco.mj_setState(env.model, data, env.physics.state[i], int(mujoco.mjtState.mjSTATE_FULLPHYSICS))
        mujoco.mj_forward(env.model, data)
        depth = min((c.dist for c in data.contact[: data.ncon]), default=0.0)
        assert depth > -1e-3, f"episode {i} starts with objects {-depth * 1e3:.1f} mm inside each other"
        assert not data.qvel.any()


def test_success_is_reachable_by_the_expert_and_not_trivial(task):
    seeds = episode_seeds("validation", 0, 64)
    env = sim.make(task, 64)
    expert = env.make_expert()
    expert.reset(None, episode_seed=seeds)
    rate = play(env, seeds, lambda obs, t: expert.act(obs)).float().mean()
    assert rate >= EXPERT_BAR.get(task, 0.95), f"the expert succeeds in {rate:.0%}"
    idle = torch.zeros(64, env.spec.action.dim)
    assert play(env, seeds, lambda obs, t: idle).float().mean() <= 0.05, "doing nothing succeeds"
    assert play(env, seeds, lambda obs, t: random_actions(env, seeds, t)).float().mean() <= 0.15, "noise succeeds"


def test_demonstrations_are_a_function_of_the_seed(task):
    seeds = episode_seeds("train", 5, 4)

    def actions(order: list[int]) -> torch.Tensor:
        env = sim.make(task, len(order))
        expert = env.make_expert(expert_noise=0.5)
        obs = env.reset(seeds[order])
        expert.reset(None, episode_seed=env.episode_seed)
        out = []
        for _ in range(12):
            out.append(expert.act(obs))
            obs = env.step(out[-1]).obs
        return torch.stack(out)

    together = actions([0, 1, 2, 3])
    assert torch.equal(actions([2]), together[:, [2]])
    assert not torch.equal(together[:, 0], together[:, 1])


def test_truncation_is_not_termination_and_next_obs_is_the_true_successor(task):
    short, long = sim.make(task, 3, horizon=6), sim.make(task, 3, horizon=20)
    seeds = episode_seeds("test", 4, 6)
    short.reset(seeds), long.reset(seeds)
    for t in range(6):
        action = random_actions(short, seeds[:3], t)
        a, b = short.step(action), long.step(action)
        assert torch.equal(a.next_obs[STATE], b.next_obs[STATE]), "the successor is the state before the reset"
        assert a.truncated.all() == (t == 5) and not a.terminated.any() and not b.ended.any()
    assert torch.equal(short.episode_seed, seeds[3:]), "seeds given to reset are handed out in order"
    assert torch.equal(a.obs[STATE], sim.make(task, 3).reset(seeds[3:])[STATE]), "obs starts the next episode"
    assert a.obs is not a.next_obs


def test_diverged_physics_ends_that_episode_only(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo logs the warning to a file in the working directory
    env, twin = sim.make(task, 3), sim.make(task, 3)
    seeds = episode_seeds("test", 6, 4)
    before = env.reset(seeds)
    twin.reset(seeds)
    action = random_actions(env, seeds[:3], 0)
    env.physics.qvel[1, 0] = float("nan")
    step, good = env.step(action), twin.step(action)
    assert step.valid.tolist() == [True, False, True] and step.info["diverged"].tolist() == [False, True, False]
    assert step.truncated.tolist() == [False, True, False] and not step.terminated.any()
    assert torch.equal(step.next_obs[STATE][1], before[STATE][1]), "the last finite observation"
    others = [0, 2]
    assert torch.equal(step.next_obs[STATE][others], good.next_obs[STATE][others])
    assert env.episode_seed[1] == seeds[3]
    for t in range(1, 4):
        step = env.step(random_actions(env, seeds[:3], t))
        assert step.valid.all() and all(torch.isfinite(v).all() for v in step.obs.values())
        assert torch.equal(step.obs[STATE][others], twin.step(random_actions(env, seeds[:3], t)).obs[STATE][others])


def test_a_saved_env_goes_on_bit_for_bit(task):
    env = sim.make(task, 3, seed=1, horizon=5)
    env.reset(episode_seeds("train", 9, 5))
    keys = torch.arange(3)
    for t in range(4):
        env.step(random_actions(env, keys, t))
    other = sim.make(task, 3, seed=1, horizon=5)
    other.load_state_dict(env.state_dict())
    assert torch.equal(other.observe()[STATE], env.observe()[STATE])
    for t in range(4, 12):  # over episode ends, from the given seeds into the training stream
        a, b = env.step(random_actions(env, keys, t)), other.step(random_actions(env, keys, t))
        for x, y in zip(a, b, strict=True):
            pairs = [(x[k], y[k]) for k in x] if isinstance(x, dict) else [(x, y)]
            assert all(torch.equal(p, q) for p, q in pairs)
        assert torch.equal(env.episode_seed, other.episode_seed)


def test_bad_actions_are_refused_by_name(task):
    env = sim.make(task, 2)
    with pytest.raises(SpecError, match="shape"):
        env.step(torch.zeros(2, env.spec.action.dim + 1))
    action = torch.zeros(2, env.spec.action.dim)
    action[1, 0] = float("nan")
    with pytest.raises(SpecError, match=env.spec.action.names[0]):
        env.step(action)
    wild = torch.full((2, env.spec.action.dim), 1e3)
    assert torch.equal(env.step(wild).executed, torch.tensor(env.spec.action.high).expand(2, -1))
