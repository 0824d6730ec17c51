"""One of LeRobot's arms as a LeRobot robot again, behind our limits: for lerobot-record, -teleoperate and -replay."""

from __future__ import annotations

from typing import Any

from lerobot.robots import Robot
from lerobot.utils.decorators import check_if_already_connected, check_if_not_connected

from robopolicy.core.errors import ConfigError
from robopolicy.lerobot_plugin.config_limited_robot import LimitedRobotConfig


class LimitedRobot(Robot):
    """Drive the arm of a wiring to LeRobot's targets as far as the limits permit.

    Features, calibration file and `robot_type` in datasets are those of the wrapped arm.

    Raises:
        ConfigError: `fps` or `speed` is out of its range.
        SafetyError: the wiring or a limit is wrong; says which key.
    """

    config_class = LimitedRobotConfig
    name = "robopolicy"

    def __init__(self, config: LimitedRobotConfig) -> None:
        # LeRobot's commands import every module of this package, also for tasks and policies, which need no servo bus.
        from robopolicy.real.deploy.deploy import feetech
        from robopolicy.real.safety.settings import tightened
        from robopolicy.real.safety.tracking import guarded

        with feetech():
            from robopolicy.real.lerobot.connection import make_robot
            from robopolicy.real.lerobot.limited_drive import LimitedDrive
            from robopolicy.real.lerobot.wiring import load_wiring

        for key, value, most in (("fps", config.fps, 100), ("speed", config.speed, 1)):
            if not 0 < value <= most:
                raise ConfigError(f"robot.{key}: expected more than 0 and at most {most}, found {value}")
        wiring = load_wiring(config.wiring)
        # A FAULT would end the command, and with it the torque: an arm that a human holds back waits.
        settings = {"stall": None, **guarded(tightened(wiring.arm.safety, config.safety, config.speed))}
        given = {"id": config.id, "port": config.port, "calibration_dir": config.calibration_dir}
        options = wiring.robot | {k: str(v) for k, v in given.items() if v is not None}
        self.arm = make_robot(options)
        self.drive = LimitedDrive(self.arm, wiring, settings=settings, period=1 / config.fps)
        super().__init__(type(config)(wiring=config.wiring, id=self.arm.id, calibration_dir=self.arm.calibration_dir))
        self.cameras = self.arm.cameras  # which LeRobot's commands count
        self.config, self.robot_type, self.name = config, self.arm.robot_type, self.arm.name
        self._wanted, self._written = dict[str, Any](), dict[str, Any]()
        self._dict: dict[str, Any] | None = None

    @property
    def observation_features(self) -> dict[str, Any]:
        return dict(self.arm.observation_features)

    @property
    def action_features(self) -> dict[str, Any]:
        return dict(self.arm.action_features)

    @property
    def is_connected(self) -> bool:
        return self.drive.running

    @property
    def is_calibrated(self) -> bool:
        return self.is_connected or bool(self.arm.is_calibrated)  # `connect` has checked, and the bus is in use

    @check_if_already_connected
    def connect(self, calibrate: bool = True) -> None:
        """Connect the arm, and hold it where it stands. An arm whose calibration does not fit is refused.

        Args:
            calibrate: ignored: limits count from the calibration, so it comes before, by lerobot-calibrate.

        Raises:
            SafetyError: arm, calibration and wiring do not fit, or the arm moves; says what to do.
        """
        from robopolicy.real.deploy.summary import limits_in_force
        from robopolicy.real.safety.tracking import not_claimed

        profile = self.drive.start()
        self.calibration = self.arm.calibration
        claims = not_claimed(profile) + self.drive.arm.units.not_measured
        print(limits_in_force(profile), *claims, sep="\n", flush=True)

    @check_if_already_connected
    def calibrate(self) -> None:
        """Calibrate the arm by LeRobot's own dialogue, while it is not driven."""
        self.arm.bus.connect()
        try:
            self.arm.calibrate()
        finally:
            self.arm.bus.disconnect()
        self.calibration = self.arm.calibration

    def configure(self) -> None:
        """Do nothing: `connect` configures the motors."""

    @check_if_not_connected
    def get_observation(self) -> dict[str, Any]:
        """Return a new reading of the arm, with its pictures.

        Raises:
            SafetyError: none comes, or a fault has ended the motion.
        """
        return self.drive.observe()

    @check_if_not_connected
    def send_action(self, action: dict[str, Any]) -> dict[str, float]:
        """Take a target, and return the action that the limits have let through to the motors as the period ends.

        LeRobot 0.6.1 records the dictionary that it gives, not the returned one. So the action that was sent is
        written into `action`, too.

        Raises:
            SafetyError: motors are missing or unknown, or a fault has ended the motion.
        """
        if action is not self._dict or action != self._written:  # else the caller repeats a target, overwritten here
            self._wanted = dict(action)
        sent = self.drive.want(self._wanted)
        action.update(sent)
        self._dict, self._written = action, sent
        return dict(sent)

    def disconnect(self) -> None:
        """Brake, and disconnect the arm."""
        self.drive.stop()
