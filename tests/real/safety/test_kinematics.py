"""Kinematics and distances of the safety layer against MuJoCo and published numbers."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from robopolicy.real.safety import load_profile, profile_names
from robopolicy.real.safety.audit import dense, model_of
from robopolicy.real.safety.body import Body
from robopolicy.real.safety.geometry import nearest
from robopolicy.real.safety.motion import knots, upsample
from robopolicy.sim.arm import HOME, JOINT_HIGH, JOINT_LOW, JOINT_VELOCITY
from robopolicy.sim.kinematics import forward


def test_the_panda_is_the_simulated_arm():
    profile = load_profile("panda")
    q = np.random.default_rng(0).uniform(JOINT_LOW, JOINT_HIGH, (20, 7))
    ours, theirs = Body(profile).at(q), forward(q)
    np.testing.assert_allclose(ours.points[:, -1], theirs.pos, atol=1e-12)
    np.testing.assert_allclose(ours.jacobian, theirs.jac, atol=1e-12)
    np.testing.assert_array_equal(profile.maker["low"], JOINT_LOW)
    np.testing.assert_array_equal(profile.maker["velocity"], JOINT_VELOCITY)
    np.testing.assert_array_equal(profile.data["home"], HOME)


def test_ur5e_at_zero_is_where_its_data_sheet_puts_it():
    """All joints at zero: stretched along −x; x = a2 + a3, y = −(d4 + d6), z = d1 − d5."""
    body = Body(load_profile("ur5e"))
    tip = body.at(np.zeros((1, 6))).points[0, body.tcp]
    np.testing.assert_allclose(tip, [-0.425 - 0.3922, -0.1333 - 0.0996, 0.1625 - 0.0997], atol=1e-9)


@pytest.mark.parametrize("robot", profile_names())
def test_distances_agree_with_mujoco(robot):
    profile = load_profile(robot)
    body, model = Body(profile), model_of(profile)
    data = mujoco.MjData(model)
    rng, size = np.random.default_rng(1), len(body.radius)
    q = rng.uniform(profile.low, profile.high, (20, len(profile.joints)))
    p = body.at(q).points
    gap = [[nearest(at, i, j, size)[0] - body.radius[i] - body.radius[j] for i, j in body.pairs.T] for at in p]
    for m in range(20):
        data.qpos[:] = q[m]
        mujoco.mj_kinematics(model, data)
        np.testing.assert_allclose(data.site("tcp").xpos, p[m, body.tcp], atol=1e-9)
        for k, (a, b) in enumerate(profile.data["pairs"]):
            theirs = mujoco.mj_geomDistance(model, data, model.geom(a).id, model.geom(b).id, 2.0, np.zeros(6))
            if gap[m][k] > 1e-3:  # penetration depth is another matter
                assert abs(theirs - gap[m][k]) < 1e-6


def test_upsampling_follows_the_spline():
    c = np.cumsum(np.random.default_rng(2).normal(size=(9, 3)), axis=0)
    whole = dense(c, 4)
    ours = np.concatenate([upsample(c[k : k + 4], 4) for k in range(6)])
    np.testing.assert_allclose(ours, whole[1:], atol=1e-12)
    np.testing.assert_allclose(knots(c, 0.004)[0], whole[::4], atol=1e-12)
    rest = np.tile(c[:1], (4, 1))
    assert np.array_equal(upsample(rest, 4), rest), "rest is rest, bit for bit"
