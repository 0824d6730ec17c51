"""The whole way: control loop, limits, driver, LeRobot's class, mock bus, simulated SO-101."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from robopolicy import sim
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.real.deploy.deploy import check_options
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.deploy.simulated_arm import SimulatedArm
from robopolicy.real.lerobot.mock_arm import MockArm
from robopolicy.real.lerobot.mock_port import BusTrouble
from robopolicy.real.lerobot.simulated import MockedArm
from robopolicy.real.lerobot.wiring import load_wiring, parse
from robopolicy.real.ros2.channels import WiringError
from robopolicy.real.safety import load_profile
from robopolicy.real.safety.audit import joint_violations
from tests.real.control.test_robots import Drive
from tests.real.lerobot.test_wiring import data

WAY = [0.002, -0.002, 0.0, 0.0, 0.0]  # m a step: slow enough for servos that trail


def run(trouble, *, seed=1, steps=12):
    env = sim.make("reach", 1, joint_noise=0.0, arm="so101")
    it = MockedArm(env, Drive(env, WAY, steps=steps), load_wiring("so101_follower"), settings={}, trouble=trouble)
    commands = []

    def note():
        commands.append(it.chain.limiter.c[0, -1].copy())

    it.ticked = note
    with closing(it.arm):
        episode = it.run(seed)
        q = it.arm.data.qpos[:5].copy()
    return episode, np.array(commands), it.arm.driver.counts, q


def test_the_arm_goes_where_the_strict_one_goes():
    env = sim.make("reach", 1, joint_noise=0.0, arm="so101")
    strict = SimulatedArm(env, Drive(env, WAY, steps=12), settings={})
    strict.run(1)
    episode, commands, counts, q = run(BusTrouble())
    assert episode.mode == "RUN" and not counts["reads_failed"]
    np.testing.assert_allclose(q, strict.arm.data.qpos[:5], atol=0.05)  # of a way of 0.27 rad
    assert np.abs(commands[-1] - commands[0]).max() > 0.1


def test_a_bus_that_lags_and_drops_breaks_no_limit():
    trouble = BusTrouble(drop=0.03, lag=0.1, lag_s=0.03)
    episode, commands, counts, _ = run(trouble, steps=40)
    profile = load_profile("so101")
    padded = np.array([commands[0]] * 4 + [*commands])[:, None]
    assert sum(joint_violations(padded, profile, 0.01).values()) == 0
    assert np.abs(commands[-1] - commands[0]).max() > 0.05 and counts["caught_up"] > 0, counts
    assert episode.mode != "FAULT"


def test_a_bus_that_is_silent_holds_the_arm_and_then_faults():
    env = sim.make("reach", 1, joint_noise=0.0, arm="so101")
    it = MockedArm(env, Drive(env, WAY), load_wiring("so101_follower"), settings={}, trouble=BusTrouble())
    modes = []

    def note():
        modes.append(it.chain.mode.name)
        if len(modes) == 60:
            it.arm.port.trouble = BusTrouble(drop=1.0)

    it.ticked = note
    with closing(it.arm):
        episode = it.run(1)
        moved = np.abs(it.arm.data.qvel[:5]).max()
    hold, fault = modes.index("HOLD"), modes.index("FAULT")
    assert 60 + 10 <= hold <= 60 + 14, "0.12 s of patience"
    assert 60 + 48 <= fault <= 60 + 54, "0.5 s"
    assert episode.mode == "FAULT" and episode.reasons["fault:state"] == 1 and moved < 0.02
    assert it.arm.driver.counts["reads_failed"] >= 2 and "Failed to sync read" in it.arm.driver.error


def test_the_same_seed_gives_the_same_episode():
    trouble = BusTrouble(drop=0.05, lag=0.1)
    (a, first, *_), (b, second, *_) = run(trouble), run(trouble)
    np.testing.assert_array_equal(first, second)
    assert a == b


def test_wirings_of_other_arms_are_refused(tmp_path):
    env = sim.make("reach", 1, arm="so101")
    profile = load_profile("so101")
    with pytest.raises(WiringError, match=r"robot\.type='koch_follower': the mock bus has motors of so101_follower"):
        MockArm(env.task, parse(data(robot={**data()["robot"], "type": "koch_follower"})), profile)


def test_a_policy_of_another_arm_is_refused():
    from robopolicy.real.control.arm_kinematics import check_arm

    with pytest.raises(SpecError, match="its arm has 7 joints, the limits 'so101' have 5"):
        check_arm(sim.make("reach", 1).arm, load_wiring("so101_follower").arm.profile())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"robot": "mujoco_lerobto"}, "robot='mujoco_lerobto'.*mujoco_lerobot"),
        ({"robot": "mujoco_lerobot", "lockstep": True}, "lockstep=True: robot=mujoco_lerobot would ignore it"),
        ({"robot": "mujoco", "wiring": "so101_follower"}, "wiring=so101_follower: robot=mujoco would ignore it"),
    ],
)
def test_options_that_the_robot_would_ignore_are_refused(options, expected):
    with pytest.raises(ConfigError, match=expected):
        check_options(DeployConfig(checkpoint="runs/x", **options))
