"""The simulated arm behind LeRobot's own class, on a mock of its servo bus."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path

import mujoco
import numpy as np
from lerobot.motors import MotorCalibration

from robopolicy.real.control.robots import State
from robopolicy.real.lerobot.arm import LeRobotArm
from robopolicy.real.lerobot.connection import connect, make_robot
from robopolicy.real.lerobot.lockstep import Lockstep
from robopolicy.real.lerobot.mock_port import BusTrouble, MockPort, mount
from robopolicy.real.lerobot.wiring import LeRobotWiring
from robopolicy.real.ros2.channels import WiringError
from robopolicy.real.safety import Profile, SafetyError
from robopolicy.real.safety.array_ops import Array
from robopolicy.sim.tasks.base import Task

COUNT = 2 * math.pi / 4095  # rad of an STS3215, as LeRobot counts a turn
FEETECH = ("so101_follower", "so100_follower")
GRIPPER = (1024, 3072)  # counts of the mock's jaw, closed and open
PERIOD = 0.001  # s of physics
FIRST = 2.0  # s of simulated time in which the first state must come


def mock_calibration(
    motors: tuple[str, ...], low: Array, high: Array, gripper: str | None
) -> dict[str, MotorCalibration]:
    """Return LeRobot's calibration of motors that reach just beyond `low` and `high` [n] rad, zero in the middle."""
    found = {}
    for i, name in enumerate(motors):
        half = min(2047, math.ceil(max(-low[i], high[i]) / COUNT) + 1) if name != gripper else 0
        ends = (2047 - half, 2047 + half) if name != gripper else GRIPPER
        found[name] = MotorCalibration(id=i + 1, drive_mode=0, homing_offset=0, range_min=ends[0], range_max=ends[1])
    return found


class MockArm:
    """Simulate a task's arm with servos on a mock bus. LeRobot's class and the driver talk to it by packets.

    Its servos hold the newest goal, as an STS3215 does; they are those of the simulator, and trail by SERVO_LAG.

    Args:
        task: scene and physics; time step 1 ms whatever the task says.
        wiring: of the arm. profile: limits.
        trouble: how the bus misbehaves; `seed` draws when.

    Attributes:
        driver: between the control loop and LeRobot.
        aborted: always "": no maker's controller judges the goals.
    """

    aborted = ""

    def __init__(
        self, task: Task, wiring: LeRobotWiring, profile: Profile, *, trouble: BusTrouble | None = None, seed: int = 0
    ) -> None:
        if wiring.robot.get("type") not in FEETECH:
            raise WiringError(
                f"robot.type={wiring.robot.get('type')!r}: the mock bus has motors of {', '.join(FEETECH)}"
            )
        self.task, self.dt, self.joints, self.dof = task, wiring.arm.tick_s, profile.joints, len(profile.joints)
        self.model = task.compile()
        self.model.opt.timestep = PERIOD
        self.data = mujoco.MjData(self.model)
        self.time, self.wiring = Lockstep(), wiring
        self.extra: Array = np.zeros((1, task.extra_size))
        calibration = mock_calibration(wiring.motors, profile.maker["low"], profile.maker["high"], wiring.gripper)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "mock.json"
            file.write_text(json.dumps({k: vars(c) for k, c in calibration.items()}))
            robot = make_robot({**wiring.robot, "id": "mock", "port": "mock", "calibration_dir": folder, "cameras": {}})
            self.port = MockPort(
                calibration, clock=self.time.clock, sleep=self.time.sleep, trouble=trouble, seed=seed
            )  # fmt: skip
            self.port.positions = self._counts
            mount(robot, self.port)
            self.units, self.profile = connect(robot, wiring, profile)
        self.robot = robot
        self.driver = LeRobotArm(robot, self.units, self.profile, dt=self.dt, clock=self.time.clock)
        self.time.start(self._serve)

    def place(self, qpos: Array, extra: Array) -> None:
        """Start over at rest in `qpos` [nq], and wait for the first state; `extra` [1 E] is the task's."""
        self.extra = extra.copy()
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = qpos
        self.data.ctrl[: self.dof + 2] = qpos[: self.dof + 2]
        self.port.goals.clear()
        mujoco.mj_forward(self.model, self.data)
        self.driver.forget()
        until = self.time.now + FIRST
        while not self.driver.fresh:
            if self.time.now > until:
                raise SafetyError(f"robot: no state has come within {FIRST} s. {self.driver.error}")
            self.time.advance(self.time.now + PERIOD)

    def read(self) -> State | None:
        return self.driver.read()

    def write(self, command: Array, opening: float, stop: Array) -> None:
        self.driver.write(command, opening, stop)

    def advance(self) -> None:
        """Advance physics and bus by a tick."""
        for _ in range(round(self.dt / PERIOD)):
            self.time.advance(self.time.now + PERIOD)
            self._follow()
            mujoco.mj_step(self.model, self.data)

    def close(self) -> None:
        self.time.end()
        self.robot.disconnect()

    # -- inside -----------------------------------------------------------------------------------------------------
    def _serve(self) -> None:
        """Exchange with the bus, again and again, in the thread that waits for it."""
        due = self.time.now
        while True:
            self.driver.exchange()
            due = max(due + self.dt, self.time.now)
            self.time.sleep(due - self.time.now)

    def _counts(self) -> Mapping[int, int]:
        """Return positions in counts by the ids of motors."""
        q, n = self.data.qpos, self.dof
        found = {i + 1: 2047 + round(float(q[i]) / COUNT * self._sign(i)) for i in range(n)}
        if self.wiring.gripper is not None:
            share = float(q[n : n + 2].sum()) / self.wiring.arm.opening
            found[n + 1] = round(GRIPPER[0] + (GRIPPER[1] - GRIPPER[0]) * share)
        return found

    def _follow(self) -> None:
        """Let the servos hold the newest goals."""
        n = self.dof
        for motor, counts in self.port.goals.items():
            if motor <= n:
                self.data.ctrl[motor - 1] = (counts - 2047) * COUNT * self._sign(motor - 1)
            else:
                share = (counts - GRIPPER[0]) / (GRIPPER[1] - GRIPPER[0])
                self.data.ctrl[n : n + 2] = np.clip(share, 0.0, 1.0) * self.wiring.arm.opening / 2

    def _sign(self, joint: int) -> int:
        return -1 if self.wiring.arm.joints[joint] in self.wiring.reversed else 1
