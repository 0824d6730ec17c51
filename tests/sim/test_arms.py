"""The simulated UR5e and SO-101: frames against MuJoCo, tasks by the scripted experts, and the Panda as it was."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.core.errors import ConfigError
from robopolicy.real.control.arm_kinematics import check_arm
from robopolicy.real.deploy.simulated_arm import SimulatedArm
from robopolicy.real.safety import load_profile
from robopolicy.real.safety.audit import joint_violations
from robopolicy.sim.arms import ARMS
from robopolicy.sim.kinematics import forward, ik_step, serial_arm, twist
from tests.real.control.test_robots import Drive


@pytest.mark.parametrize("name", sorted(ARMS))
def test_forward_jacobian_and_twist_equal_mujoco(name):
    env = sim.make("pick", 1, arm=name)
    model, data, arm = env.model, mujoco.MjData(env.model), serial_arm(ARMS[name])
    rng, n = np.random.default_rng(0), arm.dof
    q, dq = rng.uniform(arm.low, arm.high, (10, n)), rng.normal(size=(10, n))
    frame = forward(q, arm)
    site, jac = model.site("tcp").id, np.zeros((6, model.nv))
    for i in range(10):
        data.qpos[:n] = q[i]
        mujoco.mj_forward(model, data)
        mujoco.mj_jacSite(model, data, jac[:3], jac[3:], site)
        np.testing.assert_allclose(frame.pos[i], data.site_xpos[site], atol=1e-9)
        np.testing.assert_allclose(frame.axes[i].T, data.site_xmat[site].reshape(3, 3), atol=1e-9)
        np.testing.assert_allclose(frame.jac[i].T, jac[:, :n], atol=1e-9)
        np.testing.assert_allclose(twist(frame, dq)[i], jac[:, :n] @ dq[i], atol=1e-9)


@pytest.mark.parametrize("name", sorted(ARMS))
def test_home_points_down_before_the_arm_and_is_kept(name):
    arm = serial_arm(ARMS[name])
    home = forward(arm.home[None], arm)
    above = (*ARMS[name].layout.centre, 0.09 if name == "so101" else 0.2)
    np.testing.assert_allclose(home.pos[0], above, atol=1e-4)
    np.testing.assert_allclose(home.axes[0, 2], [0, 0, -1], atol=1e-4)
    np.testing.assert_allclose(home.axes[0, 1], [0, -1, 0], atol=1e-4)
    step = ik_step(arm.home[None], home, home.pos, np.zeros(1), dt=0.05, arm=arm)
    np.testing.assert_allclose(step[0], arm.home, atol=1e-3)


@pytest.mark.parametrize(("arm", "n", "least"), [("ur5e", 16, 0.9), ("so101", 64, 0.95)])
@pytest.mark.parametrize("task", ["reach", "pick"])
def test_the_experts_do_it(task, arm, n, least):
    env = sim.make(task, n, arm=arm)
    expert = sim.make_expert(env)
    obs = env.reset(torch.arange(n))
    expert.reset(None, episode_seed=env.episode_seed)
    done, succeeded = torch.zeros(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)
    for _ in range(env.task.horizon):
        step = env.step(expert.act(obs))
        obs, succeeded = step.obs, succeeded | (step.terminated & ~done)
        done |= step.terminated | step.truncated
    assert succeeded.float().mean() >= least


@pytest.mark.parametrize(("arm", "limits", "way"), [("ur5e", "ur5e_hand", 0.05), ("so101", "so101", 0.1)])
def test_it_is_deployed_behind_limits_of_its_own(arm, limits, way):
    env = sim.make("reach", 1, joint_noise=0.0, arm=arm)
    check_arm(env.arm, load_profile(env.task.model.limits))
    it = SimulatedArm(env, Drive(env, [0.01, 0.005, 0.0, 0.0, 0.0], steps=8), settings={"tcp_speed": 0.6})
    played = []
    it.ticked = lambda: played.append(it.arm.points[-1].copy())
    episode = it.run(1)
    assert episode.aborted == "" and it.arm.profile.robot == limits
    commands = np.array([played[0]] * 4 + played)[:, None]
    assert sum(joint_violations(commands, it.arm.profile, it.dt).values()) == 0
    assert np.abs(played[-1] - played[0]).max() > way


@pytest.mark.parametrize("arm", ["ur5e", "so101"])
def test_joint_control_and_randomisation_have_its_joints(arm):
    randomization, n = sim.Randomization(damping=(0.8, 1.2)), ARMS[arm].dof
    env = sim.make("reach", 2, arm=arm, control="joint_position", randomization=randomization)
    assert env.spec.action.dim == n + 1 and env.spec.action.gripper == n
    env.step(torch.tensor(np.append(ARMS[arm].home, 1.0), dtype=torch.float32).expand(2, n + 1).clone())


def test_other_names_and_tasks_are_refused_and_the_panda_keeps_its_digest():
    with pytest.raises(ConfigError, match=r"task\.arm='ur5' .*ur5e"):
        sim.make("reach", 1, arm="ur5")
    for arm in ("ur5e", "so101"):
        with pytest.raises(ConfigError, match=r"'stack' is done by panda alone\. \w+ does: pick, reach"):
            sim.make("stack", 1, arm=arm)
    assert sim.make("reach", 1).spec.digest == "f35c9603273028ab" != sim.make("reach", 1, arm="ur5e").spec.digest


def test_things_lie_before_the_arm_and_cameras_see_them():
    env = sim.make("pick", 64, arm="so101")
    cube = env.layout.unpack(env.reset(torch.arange(64))["observation.state"].numpy())["cube"]
    low, high = (np.array(v) for v in ARMS["so101"].layout.workspace)
    assert (cube[:, :2] > low[:2]).all() and (cube[:, :2] < high[:2]).all()
    assert (cube[:, 1] < -0.15).all() and abs(cube[:, 0].mean() - 0.02) < 0.02  # it points along -y
    front, side = (env.model.camera(name).pos for name in ("front", "side"))
    np.testing.assert_allclose(front, [0.0204, -0.9, 0.5], atol=1e-9)
    np.testing.assert_allclose(side, [-0.8296, -0.18, 0.45], atol=1e-9)
