"""LeRobot's SO-101 class on the mock bus, without physics: servos stand where their goals are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from robopolicy.real.lerobot.connection import make_robot
from robopolicy.real.lerobot.lockstep import Lockstep
from robopolicy.real.lerobot.mock_arm import mock_calibration
from robopolicy.real.lerobot.mock_port import BusTrouble, MockPort, mount
from robopolicy.real.lerobot.wiring import LeRobotWiring, load_wiring
from robopolicy.real.safety import load_profile

PROFILE = load_profile("so101")


class Rig:
    """An arm that is not connected yet. `file` holds the calibration, `memory` that of the motors."""

    def __init__(self, folder: Path, *, trouble: BusTrouble | None = None, **options: Any) -> None:
        self.wiring: LeRobotWiring = load_wiring("so101_follower")
        self.calibration = mock_calibration(
            self.wiring.motors, PROFILE.maker["low"], PROFILE.maker["high"], self.wiring.gripper
        )
        self.file = folder / "mine.json"
        self.save(self.calibration)
        self.time = Lockstep()
        self.options = {"type": "so101_follower", "id": "mine", "port": "/dev/mock", "calibration_dir": str(folder)}
        self.options |= options
        self.port = MockPort(self.calibration, clock=self.time.clock, sleep=self.time.sleep, trouble=trouble)
        self.port.positions = lambda: dict.fromkeys(range(1, 7), 2047) | self.port.goals

    def save(self, calibration: Any) -> None:
        self.file.write_text(json.dumps({k: vars(c) for k, c in calibration.items()}))

    def robot(self) -> Any:
        """LeRobot's arm, on the mock bus."""
        robot = make_robot(self.options)
        mount(robot, self.port)
        return robot
