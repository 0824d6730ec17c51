"""Vectorised kinematics against MuJoCo's own."""

from __future__ import annotations

import mujoco
import numpy as np

from robopolicy import sim
from robopolicy.sim.arm import HOME, JOINT_HIGH, JOINT_LOW, JOINT_VELOCITY
from robopolicy.sim.kinematics import forward, ik_step, twist, yaw_of


def random_joints(n: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(JOINT_LOW, JOINT_HIGH, (n, 7))


def test_forward_jacobian_and_twist_equal_mujoco():
    env = sim.make("pick", 1)
    model, data = env.model, mujoco.MjData(env.model)
    q, dq = random_joints(20), np.random.default_rng(1).normal(size=(20, 7))
    frame = forward(q)
    velocity = twist(frame, dq)
    site, jac = model.site("tcp").id, np.zeros((2, 3, model.nv))
    for i in range(20):
        data.qpos[:7], data.qvel[:7] = q[i], dq[i]
        mujoco.mj_forward(model, data)
        mujoco.mj_jacSite(model, data, jac[0], jac[1], site)
        np.testing.assert_allclose(frame.pos[i], data.site_xpos[site], atol=1e-9)
        np.testing.assert_allclose(frame.axes[i].T, data.site_xmat[site].reshape(3, 3), atol=1e-9)
        np.testing.assert_allclose(frame.jac[i].T, np.concatenate([jac[0], jac[1]])[:, :7], atol=1e-9)
        np.testing.assert_allclose(velocity[i], np.concatenate([jac[0], jac[1]]) @ data.qvel, atol=1e-9)


def test_links_without_collision_tests_cannot_reach_the_table():
    model = sim.make("pick", 1).model
    data = mujoco.MjData(model)
    links = [model.geom(f"link{i}").id for i in range(1, 8)]
    silent = [g for g in links if not model.geom_contype[g]]
    assert len(silent) == 4
    for q in random_joints(2000):
        data.qpos[:7] = q
        mujoco.mj_kinematics(model, data)
        reach = np.abs(data.geom_xmat[silent, 8]) * model.geom_size[silent, 1] + model.geom_size[silent, 0]
        assert (data.geom_xpos[silent, 2] - reach).min() > 0.1


def test_home_points_down_at_the_stated_place():
    frame = forward(HOME[None])
    np.testing.assert_allclose(frame.pos[0], [0.5, 0, 0.2], atol=1e-3)
    np.testing.assert_allclose(frame.axes[0, 2], [0, 0, -1], atol=1e-3)
    assert abs(yaw_of(frame)[0]) < 1e-3


def test_inverse_kinematics_reaches_targets_across_the_workspace_within_limits():
    rng = np.random.default_rng(2)
    n = 200
    target = np.stack([rng.uniform(0.35, 0.68, n), rng.uniform(-0.28, 0.28, n), rng.uniform(0.02, 0.4, n)], axis=1)
    yaw = rng.uniform(-1.5, 1.5, n)
    q = np.tile(HOME, (n, 1))
    for _ in range(60):
        new = ik_step(q, forward(q), target, yaw, dt=0.05)
        assert (np.abs(new - q) <= JOINT_VELOCITY * 0.05 + 1e-12).all(), "a joint moved faster than its limit"
        assert (new >= JOINT_LOW).all() and (new <= JOINT_HIGH).all()
        q = new
    frame = forward(q)
    assert np.abs(frame.pos - target).max() < 1e-3
    assert np.abs(yaw_of(frame) - yaw).max() < 5e-3
    assert frame.axes[:, 2, 2].max() < -0.9999


def test_one_row_gives_the_bits_of_many():
    q = random_joints(33)
    whole, part = forward(q), forward(q[7:8])
    for a, b in zip(whole, part, strict=True):
        assert np.array_equal(a[7:8], b)
    target, yaw = whole.pos + 0.01, np.zeros(33)
    a = ik_step(q, whole, target, yaw, dt=0.05)
    assert np.array_equal(a[7:8], ik_step(q[7:8], part, target[7:8], yaw[7:8], dt=0.05))
