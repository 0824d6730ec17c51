"""Wirings of LeRobot's arms, configs/lerobot/*.yaml: which motor is which joint, and options of LeRobot's class."""

from __future__ import annotations

import dataclasses
import datetime
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import pydantic

from robopolicy import configs
from robopolicy.core.errors import closest
from robopolicy.core.untrusted import below, checked, inside, refusing
from robopolicy.real.ros2.channels import STRICT, CameraTopic, WiringError, read_preset
from robopolicy.real.ros2.depth_topic import DepthCloud, DepthTopic
from robopolicy.real.ros2.wiring import Wiring, calibrations, limits_of
from robopolicy.real.ros2.wiring_file import FrameNames, ImageKey, PointsKey, Short, Watched

FOLDER = Path(configs.__file__).parent / "lerobot"
SILENT = ("joint_states", "joint_commands", "robot_description", "keys", "trajectory", "gripper", "intervention")


# Devices that a wiring file may name: LeRobot opens them, and writes to the port.
PORT = re.compile(
    r"/dev/(tty(ACM|AMA|GS|HS|mxc|O|S|SC|THS|USB|XRUSB)\d+|(tty|cu)\.[\w.-]+|rfcomm\d+|serial/by-(id|path)/[\w.:+-]+)|COM\d+"
)
CAMERA = re.compile(r"/dev/(video\d+|v4l/by-(id|path)/[\w.:+-]+)")


class _Gripper(TypedDict):
    motor: str
    opening_m: Annotated[float, pydantic.Field(gt=0.0, le=1.0)]


class _Camera(TypedDict):
    name: str
    latency_s: Annotated[float, pydantic.Field(ge=0.0, le=1.0)]


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class LeRobotDepth(DepthCloud):
    """A depth camera, see DepthCloud. `name`: of a RealSense camera in `robot.cameras`, with `use_depth`."""

    name: str = dataclasses.field(kw_only=True)


class _LeRobotDogs(TypedDict):
    state: Watched
    images: Watched


@pydantic.with_config(STRICT)
class LeRobotFile(TypedDict):
    """A wiring file. All keys but `safety` and `depth_cameras` must be given."""

    robot: dict[str, Any]
    changed: datetime.date | None
    limits: str
    safety: NotRequired[dict[str, Any]]
    tick_s: Annotated[float, pydantic.Field(ge=0.004, le=0.02)]
    joints: dict[str, str]
    reversed: tuple[str, ...]
    gripper: _Gripper | None
    frames: FrameNames
    cameras: dict[ImageKey, _Camera]
    depth_cameras: NotRequired[dict[PointsKey, LeRobotDepth]]
    watchdogs: _LeRobotDogs
    plan_ahead_s: Short
    grace_s: Short


@dataclass(frozen=True)
class LeRobotWiring:
    """Wiring of one arm of LeRobot, checked.

    Args:
        arm: ticks, limits, frames, cameras and patience, as those of an arm over ROS 2; it has no topics.
        robot: options of LeRobot's class, with its `type`.
        reversed: motors whose positive direction is the limits' negative one.
        gripper: motor of the gripper; None: there is none.
    """

    arm: Wiring
    robot: dict[str, Any]
    reversed: tuple[str, ...]
    gripper: str | None

    @property
    def motors(self) -> tuple[str, ...]:
        """Names of all motors, the gripper's last."""
        return self.arm.joints if self.gripper is None else (*self.arm.joints, self.gripper)


def load_wiring(name: str) -> LeRobotWiring:
    """Load a preset by name, or a file by path.

    Raises:
        WiringError: there is none, or it is wrong; names key, found and expected.
    """
    data, path = read_preset(name, FOLDER, "a LeRobot arm")
    with refusing(path.name, WiringError):
        return parse(data, path.name, path.parent)


def parse(data: Any, where: str = "wiring", folder: Path = Path()) -> LeRobotWiring:
    """Build a wiring from YAML values, checked; a path in `limits` is relative to `folder`. See `load_wiring`."""
    found: Any = checked(LeRobotFile, data, where, error=WiringError)
    file, safety, profile = limits_of(found, where, folder)
    gripper = found["gripper"]
    names, expected = tuple(found["joints"].values()), profile.joints
    if tuple(found["joints"]) != expected:
        raise WiringError(f"{where}: joints: expected {list(expected)}, in order; found {list(found['joints'])}")
    motors = (*names, *([gripper["motor"]] if gripper else ()))
    if len(set(motors)) < len(motors):
        raise WiringError(f"{where}: joints, gripper: one motor stands for two joints: {list(motors)}")
    if unknown := set(found["reversed"]) - set(names):
        raise WiringError(f"{where}: reversed: {sorted(unknown)} are no motors of `joints`: {list(names)}")
    options = _options(found["robot"], where, folder)
    dogs = found["watchdogs"]
    if min(dogs["state"].slow, dogs["state"].hold, dogs["state"].fault) < 2 * found["tick_s"]:
        raise WiringError(f"{where}: watchdogs.state: less than two ticks of {found['tick_s']} s. Give more")
    rate, depth = 1 / found["tick_s"], found.get("depth_cameras", {})
    arm = Wiring(
        limits=profile.robot, limits_file=file, tick_s=found["tick_s"], lead_ticks=1, joints=names, gripper={},
        frames=found["frames"], topics={**dict.fromkeys(SILENT), "features": None},
        cameras={k: CameraTopic(c["name"], rate, latency_s=c["latency_s"]) for k, c in found["cameras"].items()},
        watchdogs=dict(dogs), plan_ahead_s=found["plan_ahead_s"], grace_s=found["grace_s"], safety=safety,
        opening=gripper["opening_m"] if gripper else 0.0, changed=found["changed"],
        depth_cameras={k: _depth_topic(k, c, options, rate, where) for k, c in depth.items()},
        calibrations=calibrations({k: c.calibration for k, c in depth.items()}, where, folder),
    )  # fmt: skip
    return LeRobotWiring(arm, options, found["reversed"], gripper["motor"] if gripper else None)


def _depth_topic(key: str, camera: LeRobotDepth, options: dict[str, Any], rate: float, where: str) -> DepthTopic:
    """Return a depth camera as one over ROS 2, whose frame is its serial number.

    Raises:
        WiringError: it is no RealSense camera of `robot.cameras`, or not set to give depth as it is.
    """
    cameras = options.get("cameras")
    known = cameras if isinstance(cameras, dict) else {}
    own, at = known.get(camera.name), f"{where}: robot.cameras.{camera.name}"
    if not isinstance(own, dict) or own.get("type") != "intelrealsense" or own.get("use_depth") is not True:
        raise WiringError(
            f"{where}: depth_cameras.{key}.name: expected a camera of robot.cameras with type: intelrealsense and "
            f"use_depth: true; found {camera.name!r}: {own}. {closest(camera.name, known)}"
        )
    serial = own.get("serial_number_or_name")
    if not isinstance(serial, str) or not serial.isdigit():
        raise WiringError(
            f"{at}.serial_number_or_name: expected the serial number in quotes, which tells this camera's calibration "
            f"from another's; found {serial!r}. `lerobot-find-cameras realsense` shows it"
        )
    if own.get("rotation", 0) not in (0, "NO_ROTATION"):
        raise WiringError(f"{at}.rotation: expected none, as the calibration is of pictures that are not turned")
    parts = {k: getattr(camera, k) for k in ("calibration", "range_m", "fewest", "latency_s", "cloud")}
    topic = DepthTopic(name=camera.name, rate_hz=rate, frame_id=serial, **parts)
    for why in topic.problems():
        raise WiringError(f"{where}: depth_cameras.{key}.{why}")
    return topic


def _options(robot: dict[str, Any], where: str, folder: Path) -> dict[str, Any]:
    """Check the devices and the folder that options of LeRobot's class name; the file may come from anyone.

    Raises:
        WiringError: a port or camera is no device, or `calibration_dir` lies elsewhere than below `folder`.
    """
    if not isinstance(port := robot.get("port"), str) or not (PORT.fullmatch(port) or _is_port(port)):
        raise WiringError(
            f"{where}: robot.port: expected a serial device, e.g. /dev/ttyACM0, /dev/serial/by-id/… or COM3; found "
            f"{port!r}. `lerobot-find-port` finds it"
        )
    cameras = robot.get("cameras")
    for name, camera in cameras.items() if isinstance(cameras, dict) else ():
        path = camera.get("index_or_path", 0) if isinstance(camera, dict) else 0
        if type(path) is not int and not (isinstance(path, str) and CAMERA.fullmatch(path)):
            raise WiringError(
                f"{where}: robot.cameras.{name}.index_or_path: expected a number, or a device such as /dev/video0; "
                f"found {path!r}"
            )
    if (given := robot.get("calibration_dir")) is None:
        return robot
    calibration = below(folder, given, where=f"{where}: robot.calibration_dir", error=WiringError)
    if not calibration.is_dir():
        raise WiringError(f"{where}: robot.calibration_dir: expected a folder beside this file, found none: {given!r}")
    file = f"{robot.get('id')}.json"
    inside(calibration, file, where=f"{where}: robot.id", error=WiringError)
    return {**robot, "calibration_dir": str(calibration)}


def _is_port(name: str) -> bool:
    """Whether a name below /dev is a link of udev to a serial device."""
    path = Path(name)
    return name.startswith("/dev/") and path.is_symlink() and bool(PORT.fullmatch(str(path.resolve())))
