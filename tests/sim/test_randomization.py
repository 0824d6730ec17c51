"""Domain randomisation, dense reward, cameras: the options of an env."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import STATE

SEEDS = episode_seeds("test", 0, 8)
WIDE = {"mass": (0.5, 2.0), "friction": (0.7, 1.3), "damping": (0.8, 1.25), "sensor_noise": 0.002, "latency": (0, 2)}


def test_episodes_keep_their_parameters_whatever_the_row():
    env, other = (sim.make("pick", n, randomization=WIDE) for n in (4, 2))
    env.reset(SEEDS), other.reset(SEEDS[2:])
    nominal = env.model.body_mass
    masses = [m.body("cube").mass[0] for m in env.physics.models]
    assert len(set(masses)) == 4 and all(0.03 <= m <= 0.12 for m in masses)
    assert all(np.array_equal(m.body_mass[1:9], nominal[1:9]) for m in env.physics.models), "the arm's mass is known"
    for _ in range(6):
        a = env.step(torch.full((4, 5), 0.01))
        b = other.step(torch.full((2, 5), 0.01))
    assert torch.equal(a.next_obs[STATE][2:], b.next_obs[STATE])


@pytest.mark.parametrize("task", sim.task_names())
def test_parameters_drawn_from_a_point_leave_the_physics_alone(task):
    drawn, plain = sim.make(task, 2, randomization={"mass": (1.0, 1.0 + 1e-12)}), sim.make(task, 2)
    drawn.reset(SEEDS[:2]), plain.reset(SEEDS[:2])
    for t in range(15):
        action = torch.full((2, plain.spec.action.dim), 0.01 * (-1) ** (t // 4))
        drawn.step(action), plain.step(action)
    assert np.allclose(drawn.physics.state, plain.physics.state, rtol=0, atol=1e-8)


def test_resume_restores_models_and_actions_on_their_way():
    env, other = (sim.make("pick", 3, randomization=WIDE, horizon=7) for _ in range(2))
    env.reset(SEEDS)
    for t in range(5):
        env.step(torch.full((3, 5), 0.02 * (-1) ** t))
    other.load_state_dict(env.state_dict())
    for t in range(5):
        a, b = (e.step(torch.full((3, 5), 0.01 * t)) for e in (env, other))
        assert torch.equal(a.obs[STATE], b.obs[STATE])


def test_latency_delays_the_action_by_whole_steps():
    late, prompt = sim.make("reach", 1, randomization={"latency": (2, 2)}), sim.make("reach", 1)
    late.reset(SEEDS[:1]), prompt.reset(SEEDS[:1])
    push, rest = torch.tensor([[0.02, 0.0, 0.0, 0.0, 1.0]]), torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]])
    for t in range(6):
        a = late.step(push if t < 4 else rest)
        b = prompt.step(push if 2 <= t < 6 else rest)
    assert torch.equal(a.next_obs[STATE], b.next_obs[STATE])


@pytest.mark.parametrize(("steps", "gripper"), [(1.4, 1), (1.6, 2), (0.25, 0)])
def test_an_action_may_be_late_by_a_part_of_a_step(steps, gripper):
    """The arm is where a target leads that follows the same ramps, so much later; the gripper goes at a whole step."""
    env = sim.make("reach", 1, randomization={"latency": (steps, steps)})
    env.reset(SEEDS[:1])
    start, sent, where = env.controller.pos[0].copy(), [np.zeros(3)], []
    for t in range(8):
        action = np.array([0.01 * np.sin(t), 0.01 * np.cos(t), 0.004 * (t % 3 - 1)])
        env.step(torch.tensor([[*action, 0.0, 1.0 - 0.2 * t]], dtype=torch.float32))
        sent.append(sent[-1] + action)
        where.append(env.controller.pos[0] - start)
        if t >= gripper:
            assert env.controller.grip[0] == pytest.approx(1.0 - 0.2 * (t - gripper), abs=1e-6)
    for t, found in enumerate(where):
        ramp = [np.interp(t + 1 - steps, np.arange(len(sent)), np.array(sent)[:, k]) for k in range(3)]
        assert found == pytest.approx(ramp, abs=1e-6)


def test_whole_numbers_stay_whole_steps():
    drawn = sim.make("reach", 16, randomization={"latency": (0, 1)}).draws[:, -1].astype(int)
    assert set(drawn) == {0, 1}
    parts = sim.make("reach", 16, randomization={"latency": (0.5, 1)}).draws[:, -1]
    assert (parts >= 0.5).all() and (parts <= 1.0).all() and len(set(parts)) == 16
    for wrong in ((0.5, 0.2), (-0.5, 1), (0, float("nan"))):
        with pytest.raises(ConfigError, match="latency"):
            sim.make("reach", 1, randomization={"latency": wrong})


def test_noise_is_on_the_observation_only():
    noisy, clean = sim.make("reach", 2, randomization={"sensor_noise": 0.01}), sim.make("reach", 2)
    gap = noisy.reset(SEEDS[:2])[STATE] - clean.reset(SEEDS[:2])[STATE]
    assert 0.003 < gap.std() < 0.03
    assert np.array_equal(noisy.physics.state, clean.physics.state)


def test_off_by_default_and_in_the_digest():
    plain, off = sim.make("pick", 1), sim.make("pick", 1, randomization={})
    assert plain.spec.digest == off.spec.digest != sim.make("pick", 1, randomization=WIDE).spec.digest
    assert all(m is plain.model for m in plain.physics.models), "one shared model unless physics vary"
    with pytest.raises(ConfigError, match="mass"):
        sim.make("pick", 1, randomization={"mass": (2.0, 1.0)})


@pytest.mark.parametrize("task", sim.task_names())
def test_dense_reward_grows_towards_success(task):
    env = sim.make(task, 16, reward="dense")
    expert = env.make_expert()
    obs = env.reset(episode_seeds("test", 3, 16))
    expert.reset(None, episode_seed=env.episode_seed)
    first, last = None, torch.zeros(16)
    for _ in range(env.spec.horizon):
        step = env.step(expert.act(obs))
        obs = step.obs
        first = step.reward.clone() if first is None else first
        last = torch.where(step.success, step.reward, last)
        shaped = step.reward - step.success.float()
        assert (shaped >= -1e-6).all() and (shaped <= 1 + 1e-6).all()
        if step.ended.any():
            break
    assert last.max() > first.mean() + 1, "success pays its 1 on top of a shaped reward that has grown"
    assert env.spec.digest != sim.make(task, 1).spec.digest


@pytest.mark.parametrize("task", sim.task_names())
def test_shaped_reward_is_a_difference_of_potentials(task):
    """Φ(s') − Φ(s), through resets and saving, where Φ is the dense reward; of a state that ends the task it is 0."""
    env, saved = (sim.make(task, 8, reward="shaped", horizon=6) for _ in range(2))
    env.reset(episode_seeds("test", 5, 40))
    low, high = torch.tensor(env.spec.action.low), torch.tensor(env.spec.action.high)
    generator, ended = torch.Generator().manual_seed(0), torch.zeros(8, dtype=torch.bool)

    def potential() -> torch.Tensor:
        return torch.from_numpy(env.task.dense(env.at, env._scene())).float()

    for _ in range(14):
        before = potential()
        saved.load_state_dict(env.state_dict())
        action = low + (high - low) * torch.rand(8, len(low), generator=generator)
        step = env.step(action)
        assert torch.equal(saved.step(action).reward, step.reward)
        growth, on = step.reward - step.success.float(), ~step.ended
        assert torch.allclose(growth[on], (potential() - before)[on], atol=1e-6)
        assert torch.allclose(growth[step.terminated], -before[step.terminated], atol=1e-6)
        ended |= step.ended
    assert ended.all(), "resets were among it"
    assert env.spec.digest != sim.make(task, 1, reward="dense").spec.digest


def test_shaped_reward_ends_with_nothing_left():
    """What a success is paid in all: 1, less where its episode began."""
    env = sim.make("pick", 4, reward="shaped")
    expert, total, paid = env.make_expert(), torch.zeros(4), torch.full((4,), torch.nan)
    obs = env.reset(episode_seeds("test", 3, 4))
    expert.reset(None, episode_seed=env.episode_seed)
    start = torch.from_numpy(env.task.dense(env.at, env._scene())).float()
    for _ in range(env.spec.horizon):
        step = env.step(expert.act(obs))
        obs, total = step.obs, total + step.reward
        paid = torch.where(step.success & paid.isnan(), total, paid)
    done = ~paid.isnan()
    assert done.any() and torch.allclose(paid[done], (1.0 - start)[done], atol=1e-5)


def test_pictures_are_observations_and_quality_is_recorded():
    fast = sim.make("reach", 2, cameras=("front", "wrist"), image_size=(48, 64))
    obs = fast.reset(SEEDS[:2])
    for name in ("front", "wrist"):
        picture = obs[f"observation.images.{name}"]
        assert picture.shape == (2, 3, 48, 64) and picture.dtype == torch.uint8
        assert picture.float().std() > 5, "a picture shows something"
    assert not torch.equal(obs["observation.images.front"][0], obs["observation.images.front"][1]), "targets differ"
    again = sim.make("reach", 1, cameras=("front", "wrist"), image_size=(48, 64)).reset(SEEDS[:1])
    assert torch.equal(again["observation.images.front"][0], obs["observation.images.front"][0])
    full = sim.make("reach", 1, cameras=("front", "wrist"), image_size=(48, 64), render_quality="full")
    assert full.spec.digest != fast.spec.digest
    assert fast.render(0, width=320, height=240).shape == (3, 240, 320)
    fast.close(), full.close()


@pytest.mark.parametrize(
    "ranges",
    [
        {"sensor_noise": float("nan")}, {"sensor_noise": float("inf")}, {"mass": (1.0, float("inf"))},
        {"friction": (float("nan"), 1.0)},
    ],
)  # fmt: skip
def test_numbers_that_are_not_finite_are_refused(ranges):
    with pytest.raises(ConfigError, match=rf"randomization.{next(iter(ranges))}: expected"):
        sim.make("pick", 1, randomization=ranges)


@pytest.mark.parametrize(("task", "warns"), [("peg_easy", True), ("reach", True), ("pick", False)])
def test_a_mass_that_changes_nothing_is_said(task, warns, caplog):
    with caplog.at_level("WARNING"):
        sim.make(task, 1, randomization={"mass": (2.0, 2.0)}).close()
    assert ("randomization.mass: nothing but the arm moves" in caplog.text) == warns
