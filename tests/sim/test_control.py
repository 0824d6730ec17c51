"""Control modes: what an action does to the arm."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import STATE
from robopolicy.sim.arm import HOME, JOINT_HIGH
from robopolicy.sim.control import LAG_M
from robopolicy.sim.tasks.scene import turn_between


def state(env: sim.SimEnv, obs) -> dict[str, np.ndarray]:
    return env.layout.unpack(obs[STATE].numpy())


def test_delta_moves_the_tool_by_what_it_says_and_keeps_it_upright():
    env = sim.make("reach", 1, joint_noise=0.0)
    obs = env.reset()
    start = state(env, obs)["tcp"].copy()
    for _ in range(5):
        obs = env.step(torch.tensor([[0.01, -0.02, 0.01, 0.06, 0.0]])).obs
    for _ in range(10):
        obs = env.step(torch.zeros(1, 5)).obs
    f = state(env, obs)
    np.testing.assert_allclose(f["tcp"] - start, [[0.05, -0.1, 0.05]], atol=1e-3)
    np.testing.assert_allclose(f["yaw"], 0.3, atol=5e-3)
    np.testing.assert_allclose(f["opening"], 0.04, atol=1e-3)  # gripper channel 0: half open


def test_the_commanded_pose_cannot_wind_up_against_an_obstacle():
    env = sim.make("reach", 1)
    env.reset()
    env.controller.low[2] = -1.0  # let the command go below the table
    for _ in range(30):
        step = env.step(torch.tensor([[0.0, 0.0, -0.02, 0.0, -1.0]]))
    lag = state(env, step.next_obs)["lag"][0]
    assert -LAG_M - 1e-3 < lag[2] < -0.01, "pressed on the table, the command stays within its leash"


def test_commands_stay_inside_the_workspace():
    env = sim.make("reach", 4)
    env.reset()
    high = env.task.workspace[1]
    for t in range(30):
        env.step(torch.tensor([[0.02, 0.02, 0.02, 0.12, 1.0]]).repeat(4, 1) * (1 if t % 2 else 3))
    assert (env.controller.pos <= np.array(high) + 1e-9).all()
    assert (env.controller.q <= JOINT_HIGH).all()


def test_joint_mode_goes_where_it_is_told():
    env = sim.make("reach", 2, control="joint_position", joint_noise=0.0)
    env.reset()
    target = torch.tensor(HOME, dtype=torch.float32) + 0.1
    for _ in range(20):
        step = env.step(torch.cat([target, torch.tensor([1.0])]).repeat(2, 1))
    np.testing.assert_allclose(env.physics.qpos[:, :7], target.expand(2, -1), atol=5e-3)
    assert np.abs(state(env, step.next_obs)["lag"]).max() < 0.01
    assert env.spec.action.reference == "absolute" and env.spec.joint_access


@pytest.mark.parametrize("control", ["delta_pose", "joint_position"])
def test_the_joint_filter_sits_between_ik_and_physics(control):
    seen = []

    def hold(q: np.ndarray) -> np.ndarray:
        seen.append(q.copy())
        return np.where(np.arange(7) == 0, 0.0, q)  # joint 1 may not leave zero

    env = sim.make("reach", 3, control=control, joint_filter=hold, joint_noise=0.0)
    env.reset()
    action = torch.tensor([0.0, 0.02, 0.0, 0.0, 1.0]) if control == "delta_pose" else torch.full((8,), 0.3)
    for _ in range(5):
        step = env.step(action.repeat(3, 1))
    assert seen[0].shape == (3, 7) and np.abs(seen[-1][:, 0]).min() > 1e-3
    assert np.abs(env.physics.qpos[:, 0]).max() < 0.02, "the arm did not turn where the filter forbade it"
    assert step.info["intervened"].all()


def test_experts_need_the_mode_they_drive():
    with pytest.raises(ConfigError, match="delta_pose"):
        sim.make("pick", 1, control="joint_position").make_expert()


def test_the_lag_of_the_yaw_is_the_shorter_turn():
    turn = turn_between(np.array([3.0, 0.1, -3.0]), np.array([-3.0, 0.4, 3.0]))
    np.testing.assert_allclose(turn, [2 * np.pi - 6, 0.3, 6 - 2 * np.pi])
    start = np.random.default_rng(0).uniform(-1.5, 1.5, (2, 100))
    np.testing.assert_array_equal(turn_between(*start), start[1] - start[0], "the same bits within half a turn")


def test_a_joint_that_passes_half_a_turn_leaves_the_lag_small():
    env = sim.make("reach", 1, control="joint_position", joint_noise=0.0, horizon=80)
    obs, q = env.reset(), torch.tensor(HOME, dtype=torch.float32)
    lags, yaws = [], []
    for _ in range(60):
        q[6] = max(-2.8, float(q[6]) - 0.08)
        obs = env.step(torch.cat([q, torch.tensor([1.0])])[None]).next_obs
        lags.append(abs(float(state(env, obs)["lag"][0, 3])))
        yaws.append(float(state(env, obs)["yaw"][0]))
    assert max(np.abs(np.diff(yaws))) > 6, "it passed π"
    assert max(lags) < 0.1  # rad
