"""Observations of a robot: of a forecast of the arm, all else moves as it does in the simulator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("rclpy")

from robopolicy import sim
from robopolicy.core.errors import SpecError
from robopolicy.core.types import STATE
from robopolicy.real.control.depth_cameras import JointLog, Moment
from robopolicy.real.control.robots import State
from robopolicy.real.control.state_forecast import ForecastState
from robopolicy.real.ros2.observation import Observer, feature_values, folded_elements, moving_elements
from robopolicy.sim.tasks import task_names


def scene(*, speed: float):
    """A pick env with a cube that moves at `speed` m/s; its observer has the features; the arm's state."""
    env = sim.make("pick", 1, joint_noise=0.0)
    env.reset(torch.tensor([3]))
    qpos, qvel = env.physics.qpos.copy(), env.physics.qvel.copy()
    observer = Observer(sim.make("pick", 1, joint_noise=0.0))
    qvel[0, env.at.v + 2] = speed
    obs, _ = env.sense(qpos, qvel)
    observer.take(observer.names, feature_values(env, obs))
    return env, observer, qpos, qvel, State(qpos[0, :7].copy(), qvel[0, :7].copy(), 0.08)


@pytest.mark.parametrize("speed", [0.0, 0.25])
def test_a_forecast_of_the_arm_moves_what_is_seen_relative_to_it(speed):
    env, observer, qpos, qvel, state = scene(speed=speed)
    now = observer(state)[STATE][0]
    assert torch.allclose(now, env.sense(qpos, qvel)[0][STATE][0], atol=1e-5)
    q = state.q + np.array([0.02, 0.03, 0.0, 0.02, 0.0, 0.0, 0.01])
    qd = np.full(7, 0.1)
    later = observer(ForecastState(q, qd, 0.08, measured=state, ahead=0.06))[STATE][0]
    qpos[0, :7], qvel[0, :7] = q, qd
    qpos[0, env.at.q + 2] += 0.06 * speed  # as if the hand carried it
    expected = env.sense(qpos, qvel)[0][STATE][0]
    assert torch.allclose(later, expected, atol=1e-5) and not torch.allclose(later, now, atol=1e-3)
    assert torch.equal(observer(state)[STATE], now[None]), "nothing of a forecast stays"


@pytest.mark.parametrize("age", [0.0, 0.008, 0.05, 0.09])
def test_features_that_are_older_than_the_state_are_forecast_from_when_they_were_seen(age):
    """A cube that moves by itself, seen by a tracker that is late; the arm moves on meanwhile, and so does the tool."""
    env, observer, qpos, qvel, _ = scene(speed=0.25)
    home, qd = qpos[0, :7].copy(), np.array([0.25, 0.1, 0.0, -0.2, 0.0, 0.0, 0.1])
    cube, log = qpos[0, env.at.q + 2], JointLog(1.0)

    def at(t: float):
        qpos[0, :7], qvel[0, :7] = home + qd * t, qd
        qpos[0, env.at.q + 2] = cube + 0.25 * t
        return env.sense(qpos, qvel)[0]

    for stamp in np.arange(9.8, 10.0, 0.004):
        log.take(stamp, home + qd * (stamp - 10.0))
    log.take(10.0, home)
    observer.take(observer.names, feature_values(env, at(-age)), Moment(10.0 - age, log))
    now = State(home, qd, 0.08, stamp=10.0)
    later = observer(ForecastState(home + 0.03 * qd, qd, 0.08, measured=now, ahead=0.03))[STATE][0]
    assert torch.allclose(later, at(0.03)[STATE][0], atol=2e-4)
    observer.take(observer.names, feature_values(env, at(-age)), Moment(4.0, log))  # as old as nothing that is known
    lost = observer(ForecastState(home + 0.03 * qd, qd, 0.08, measured=now, ahead=0.03))[STATE][0]
    assert torch.allclose(lost, later, atol=2e-4) == (age == 0.0)


@pytest.mark.parametrize(("task", "names"), [("pick", {"cube", "cube_rel"}), ("push", {"block", "block_rel"}),
                                             ("reach", set())])  # fmt: skip
def test_groups_with_a_velocity_move(task, names):
    env = sim.make(task, 1)
    moves, speeds = (x.tolist() for x in moving_elements(env))
    slices = env.layout.slices
    found = {n for n, s in slices.items() if s.stop > s.start and set(range(s.start, s.stop)) <= set(moves)}
    assert found == names & set(slices) and len(moves) == len(speeds)
    assert all(env.layout.names[s].replace("_vel", "") == env.layout.names[m].replace("_rel", "")
               for m, s in zip(moves, speeds, strict=True))  # fmt: skip


@pytest.mark.parametrize("yaw", np.linspace(-0.8, 0.8, 9))
def test_the_turn_to_the_nearest_face_is_forecast_past_the_middle_between_two(yaw):
    env, observer, qpos, qvel, state = scene(speed=0.0)
    qpos[0, env.at.q + 3 : env.at.q + 7] = np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)
    observer.take(observer.names, feature_values(env, env.sense(qpos, qvel)[0]))
    for turn in (-0.3, 0.3):
        q = state.q + turn * np.eye(7)[6]
        later = observer(ForecastState(q, state.qd, 0.08, measured=state, ahead=0.06))[STATE][0]
        qpos[0, :7] = q
        assert torch.allclose(later, env.sense(qpos, qvel)[0][STATE][0], atol=1e-5)


def test_a_period_of_what_is_not_observed_is_refused(monkeypatch):
    env = sim.make("pick", 1)
    monkeypatch.setattr(type(env.task), "periods", {"trun": np.pi})
    with pytest.raises(SpecError, match=r"pick\.periods: 'trun' is not observed.*'turn'"):
        folded_elements(env)


@pytest.mark.parametrize("task", task_names())
def test_folded_angles_are_declared(task):
    env = sim.make(task, 64)
    env.reset(torch.arange(64))
    angles, periods = folded_elements(env)
    where = [i for i, name in enumerate(env.layout.names) if name.endswith("turn")]
    assert sorted(angles.tolist()) == where
    rng, qpos = np.random.default_rng(0), env.physics.qpos.copy()
    qpos[:, env.task.model.dof - 1] += rng.uniform(-3, 3, 64)
    seen = env.sense(qpos, env.physics.qvel)[0][STATE][:, angles].double().numpy()
    assert (np.abs(seen) <= periods / 2 + 1e-6).all()
    assert task == "peg" or (np.abs(seen) > 0.9 * periods / 2).any(axis=0).all(), "its peg is not fixed to the hand"
