"""Build one of LeRobot's arms, check it against the wiring, and connect it. Nothing moves before all checks passed."""

from __future__ import annotations

import datetime
import importlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import draccus
import numpy as np
from draccus.utils import DraccusException
from lerobot.robots import Robot, RobotConfig
from lerobot.robots.utils import make_robot_from_config

from robopolicy.core.errors import closest
from robopolicy.core.untrusted import read_bytes, refusing
from robopolicy.real.lerobot.units import MotorUnits, units_of
from robopolicy.real.lerobot.wiring import LeRobotWiring
from robopolicy.real.ros2.channels import WiringError
from robopolicy.real.safety import Profile
from robopolicy.utils.install_commands import pip_install

# LeRobot's classes of one arm with a motor bus, and its cameras, by the module that registers their options.
ARMS = {"so101_follower": "so_follower", "so100_follower": "so_follower", "koch_follower": "koch_follower"}
CAMERAS = {"opencv": "opencv", "intelrealsense": "realsense"}
NAME = re.compile(r"\w[\w.-]*")  # of a calibration file, in LeRobot's folder
SWEPT = 0.9  # of the limits' range: by half of what is missing the middle of a calibration, the zero, may be off


def make_robot(options: Mapping[str, Any]) -> Robot:
    """Build LeRobot's arm from `robot` of a wiring.

    Raises:
        WiringError: the type is unknown, an option is wrong, or a package of LeRobot's extra is missing.
    """
    kind = options.get("type", "")
    if kind not in ARMS:
        raise WiringError(f"robot.type={kind!r}: no arm of LeRobot that can be driven here. {closest(str(kind), ARMS)}")
    if not isinstance(cameras := options.get("cameras", {}), Mapping):
        raise WiringError(f"robot.cameras: expected cameras by name, found {cameras!r}")
    importlib.import_module(f"lerobot.robots.{ARMS[kind]}")
    for name, camera in cameras.items():
        found = camera.get("type", "") if isinstance(camera, Mapping) else ""
        if found not in CAMERAS:
            raise WiringError(f"robot.cameras.{name}.type={found!r}: no camera of LeRobot. {closest(found, CAMERAS)}")
        importlib.import_module(f"lerobot.cameras.{CAMERAS[found]}")
    try:
        with refusing("robot", WiringError):
            config = draccus.decode(RobotConfig, dict(options))
        if not NAME.fullmatch(str(config.id)):
            raise WiringError(f"robot.id={config.id!r}: expected the name of a calibration file, e.g. my_follower")
        if config.calibration_dir is not None and (file := config.calibration_dir / f"{config.id}.json").exists():
            read_bytes(file, error=WiringError)  # of a usable size
        return make_robot_from_config(config)
    except DraccusException as error:
        said = " ".join(str(error).split())
        raise WiringError(
            f"calibration: the file of robot.id={config.id} is damaged ({said}). Run lerobot-calibrate"
        ) from error
    except ImportError as error:
        fix = pip_install("robopolicy[so101]")
        raise WiringError(f"robot.type={kind}: {error}. Install it: {fix}") from error


def check_names(robot: Robot, wiring: LeRobotWiring) -> None:
    """Raise WiringError where the arm lacks a motor or a camera of the wiring, or has a motor that it does not name."""
    motors = {k.removesuffix(".pos") for k in robot.action_features}
    pictures = [k for k, v in robot.observation_features.items() if isinstance(v, tuple)]
    for name in wiring.motors:
        if name not in motors or f"{name}.pos" not in robot.observation_features:
            raise WiringError(f"joints: LeRobot's {robot.name} has no motor {name!r}. {closest(name, motors)}")
    if idle := sorted(motors - set(wiring.motors)):
        raise WiringError(f"joints: LeRobot's {robot.name} has motors that no joint stands for: {idle}. Name them")
    for feature, camera in wiring.arm.cameras.items():
        if camera.name not in pictures:
            raise WiringError(
                f"cameras.{feature}: LeRobot's {robot.name} has no camera {camera.name!r}. "
                f"{closest(camera.name, pictures) if pictures else 'Give it under robot.cameras'}"
            )
    for feature, depth in wiring.arm.depth_cameras.items():
        if f"{depth.name}_depth" not in pictures:
            raise WiringError(f"depth_cameras.{feature}: LeRobot's {robot.name} gives no depth of {depth.name!r}")


def check_calibration(robot: Robot, wiring: LeRobotWiring) -> None:
    """Raise WiringError where LeRobot's calibration file is missing, or older than the arm's last change."""
    how = f"Run lerobot-calibrate --robot.type={wiring.robot['type']} --robot.id={robot.id} --robot.port=…"
    file = robot.calibration_fpath
    if not file.is_file():
        raise WiringError(f"calibration: {file} is missing. {how}")
    made = datetime.date.fromtimestamp(file.stat().st_mtime)
    if wiring.arm.changed is not None and made < wiring.arm.changed:
        raise WiringError(
            f"calibration: {file} is of {made}, older than the arm's last change (changed: {wiring.arm.changed}). {how}"
        )


def connect(robot: Robot, wiring: LeRobotWiring, profile: Profile) -> tuple[MotorUnits, Profile]:
    """Connect the arm, and return its units and the limits, which end where the calibrated ranges end.

    Raises:
        WiringError: names or calibration do not fit, a motor does not answer, or its memory holds another calibration.
    """
    check_names(robot, wiring)
    check_calibration(robot, wiring)
    bus: Any = getattr(robot, "bus", None)
    units = units_of(bus, wiring)
    limited = within_calibration(profile, units, str(robot.id))
    what = f"does not answer on {wiring.robot.get('port')!r}"
    try:
        bus.connect()  # before the class configures the motors, which turns their torque on
        fits = robot.is_calibrated
        bus.disconnect(disable_torque=False)
        what = "the motors answer, but it or a camera of it cannot be connected"
        if fits:
            robot.connect(calibrate=False)
    except (ConnectionError, OSError, RuntimeError) as error:
        raise WiringError(f"robot: {what}: {' '.join(str(error).split())}") from error
    if not fits:
        raise WiringError(
            f"calibration: the motors hold another one than {robot.calibration_fpath}: a motor was changed or "
            "calibrated since, or the file is of another arm. Run lerobot-calibrate again, or give the arm's own id"
        )
    return units, limited


def within_calibration(profile: Profile, units: MotorUnits, ident: str) -> Profile:
    """Return the limits, narrowed to the calibrated ranges.

    Raises:
        WiringError: a range covers so little of the limits that the joint was not swept whole.
    """
    m = profile.maker
    for name, low, high, l, h in zip(units.motors, units.low, units.high, m["low"], m["high"], strict=True):
        if high - low < SWEPT * (h - l):
            raise WiringError(
                f"calibration: {name} was moved through {np.rad2deg(high - low):.0f}°, the limits have "
                f"{np.rad2deg(h - l):.0f}°: its middle is not the arm's zero. Run lerobot-calibrate, from stop to stop"
            )
    if (units.low <= m["low"]).all() and (units.high >= m["high"]).all():
        return profile
    position = {**profile.data["position"], f"calibration {ident}": {"range": [[*units.low], [*units.high]]}}
    return replace(profile, data={**profile.data, "position": position})
