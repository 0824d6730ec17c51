"""Wirings, configs/robots/*.yaml: which topic is which feature, and the driver's names of the joints."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from robopolicy import configs
from robopolicy.core.errors import DataError
from robopolicy.core.untrusted import below, checked, refusing
from robopolicy.real.arms.camera_file import CameraCalibration, read_camera
from robopolicy.real.ros2.channels import (
    CameraTopic,
    GripperTopic,
    LineDelay,
    OutputTopic,
    Topic,
    WiringError,
    read_preset,
)
from robopolicy.real.ros2.depth_topic import DepthTopic
from robopolicy.real.ros2.wiring_file import WiringFile
from robopolicy.real.safety import Profile, SafetyError, profile_names, read_profile
from robopolicy.real.safety.decision import Patience
from robopolicy.real.safety.profile import FOLDER as PROFILES

GRIPPER = "gripper_states"  # role of the topic of a gripper's own messages
FOLDER = Path(configs.__file__).parent / "robots"
CAMERAS = FOLDER.parent / "cameras"  # calibrations of simulated cameras
WATCHED = {"state": ("joint_states", "joint_commands")} | {
    name: (name,) for name in ("features", "enable", "gripper_states")
}  # and images


@dataclass(frozen=True)
class Wiring:
    """One robot's wiring, checked.

    Args:
        limits: name of the limit profile, which lies in `limits_file`.
        tick_s: s between commands. lead_ticks: ticks from a decision to the one in which its command is played.
        joints: names on the wire, in the order of the limits.
        gripper: joints that sum up to the opening [m], with their factors.
        frames: `base` and `tcp`, as the policy's spec calls them.
        topics: by role; None where the robot has none.
        cameras: by feature ("observation.images.<name>"); a policy subscribes to those that it sees.
        watchdogs: patience with `state`, `features`, `images` and `enable`.
        plan_ahead_s, grace_s: s before a control step at which a plan is asked for, and by which it may be late.
        safety: settings of the limits in this cell; a deployment may be tighter, never looser.
        depth_cameras: by feature ("observation.points.<name>"). calibrations: of these cameras.
        changed: day of the last mechanical change of arm or cameras; None: unknown.
        delay: of the states, where it was measured.
        opening: m of the gripper at 100%, for policies that command percentages; 0: none.
    """

    limits: str
    limits_file: Path
    tick_s: float
    lead_ticks: int
    joints: tuple[str, ...]
    gripper: dict[str, float]
    frames: dict[str, str]
    topics: dict[str, Topic | None]
    cameras: dict[str, CameraTopic]
    watchdogs: dict[str, Patience]
    plan_ahead_s: float
    grace_s: float
    safety: dict[str, Any]
    depth_cameras: dict[str, DepthTopic] = field(default_factory=dict)
    calibrations: dict[str, CameraCalibration] = field(default_factory=dict)
    changed: datetime.date | None = None
    delay: LineDelay | None = None
    opening: float = 0.0

    def profile(self, **settings: Any) -> Profile:
        """Read the limits of this robot under `settings`."""
        return read_profile(self.limits_file, **settings)

    def topic(self, role: str) -> Topic:
        """Return the topic of a role that this robot must have."""
        found = self.topics[role]
        if found is None:
            raise WiringError(f"topics.{role}: this robot has none, and it is needed here")
        return found

    @property
    def output(self) -> OutputTopic:
        """The topic of commands to the arm's driver."""
        return cast(OutputTopic, self.topics["trajectory"])

    @property
    def grip(self) -> GripperTopic | None:
        """The topic of the gripper's opening; None without a gripper."""
        return cast("GripperTopic | None", self.topics["gripper"])

    def calibration(self, key: str) -> CameraCalibration:
        """Return the calibration of a depth camera.

        Raises:
            WiringError: it is of another camera, of another arm, or older than the arm's last change.
        """
        topic, found = self.depth_cameras[key], self.calibrations[key]
        for problem in found.problems(topic.frame_id, self.profile(), self.changed):
            raise WiringError(f"depth_cameras.{key}.calibration: {topic.calibration}: {problem}")
        return found

    @property
    def answer_s(self) -> float:
        """Time from the moment of a state to the begin of the action that answers it, planning left out, s."""
        there_and_back = 0.0 if self.delay is None else 2 * (self.delay.latency_s + self.delay.jitter_s)
        return self.plan_ahead_s + max(self.lead_ticks * self.tick_s, there_and_back)

    @property
    def dt_ns(self) -> int:
        return round(self.tick_s * 1e9)


def camera_names() -> list[str]:
    return sorted(p.stem for p in CAMERAS.glob("*.json"))


def load_wiring(name: str) -> Wiring:
    """Load a preset by name, or a file by path; raises WiringError, which names key, found and expected."""
    data, path = read_preset(name, FOLDER, "an arm over ROS 2")
    with refusing(path.name, WiringError):
        return parse(data, path.name, path.parent)


def parse(data: Any, where: str = "wiring", folder: Path = Path()) -> Wiring:
    """Build a wiring from YAML values, checked; a path in `limits` is relative to `folder`. See `load_wiring`."""
    found: Any = checked(WiringFile, data, where, error=WiringError)
    found["topics"].setdefault("gripper_states", None)
    file, safety, profile = limits_of(found, where, folder)
    known: dict[str, Any] = {"limits": profile.robot, "limits_file": file, "safety": safety,
                             "joints": tuple(found["joints"].values())}  # fmt: skip
    files = {key: camera.calibration for key, camera in found.get("depth_cameras", {}).items()}
    known["calibrations"] = calibrations(files, where, folder)
    wiring = Wiring(**{**found, **known})
    for problem in _problems(wiring, list(found["joints"])):
        raise WiringError(f"{where}: {problem}")
    return wiring


def limits_of(found: Mapping[str, Any], where: str, folder: Path) -> tuple[Path, dict[str, float], Profile]:
    """Return the file of a wiring's limits, its own settings `safety`, and the profile of both.

    Raises:
        WiringError: there is no such file, or it is wrong, or a setting is.
    """
    file, safety = limits_file(found["limits"], where, folder), found.get("safety", {})
    try:
        return file, safety, read_profile(file, **safety)
    except SafetyError as error:
        raise WiringError(f"{where}: limits, safety: {error}") from error


def limits_file(limits: str, where: str, folder: Path) -> Path:
    """Return the file of a limit profile that is named, or given as a path to a JSON file."""
    if limits in profile_names():
        return PROFILES / f"{limits}.json"
    path = folder / limits
    if limits.endswith(".json") and path.is_file():
        return path.resolve()
    missing = f"no such file: {path}" if limits.endswith(".json") else "there are no limits of this name"
    raise WiringError(
        f"{where}: limits: {limits!r}: {missing}. Expected one of {', '.join(profile_names())}, or the path of a JSON "
        "file of your own, relative to this file (docs/bring_your_own/arm.md)"
    )


def calibrations(files: Mapping[str, str], where: str, folder: Path) -> dict[str, CameraCalibration]:
    """Read the calibrations of a wiring's depth cameras, by feature.

    Args:
        files: names in configs/cameras, or files, by feature.
        where: the wiring's name, for messages. folder: in which it lies.

    Raises:
        WiringError: no such file, or one that is wrong.
    """
    found = {}
    for key, file in files.items():
        key_of = f"{where}: depth_cameras.{key}.calibration"
        try:
            known = CAMERAS / f"{file}.json"
            path = known if file in camera_names() else below(folder, file, where=key_of, error=WiringError)
            found[key] = read_camera(path)
        except DataError as error:
            raise WiringError(
                f"{key_of}: {error}. Expected a file of `robopolicy arm camera` below the wiring, or one of "
                f"{', '.join(camera_names())}"
            ) from error
    return found


def _problems(wiring: Wiring, joints: list[str]) -> Iterator[str]:
    """Name contradictions between the parts of a wiring, one sentence each; `joints`: the limits' names in it."""
    expected, names = list(wiring.profile().joints), wiring.joints
    if abs(wiring.tick_s * 1e9 - wiring.dt_ns) > 1e-3:  # the ticks of an epoch would drift by minutes
        yield f"tick_s: expected whole nanoseconds, found {wiring.tick_s!r}. Give {1e-9 * wiring.dt_ns:.9f}"
    if joints != expected:
        yield f"joints: expected the joints of the limits {wiring.limits!r}, in order: {expected}; found {joints}"
    if len(set(names)) < len(names):
        yield f"joints: one name on the wire stands for two joints: {list(names)}"
    if moved := [n for i, n in enumerate(names) if n in expected and expected.index(n) != i]:
        yield f"joints: {moved[0]!r} stands for another joint than the limits call so"
    if wiring.topics["gripper_states"] is not None and not wiring.gripper:
        yield "topics.gripper_states: expected null, as `gripper` names no joint; or name its joints there"
    if wiring.grip is not None and not wiring.gripper:
        yield "topics.gripper: expected null, as `gripper` names no joint to measure; or name its joints there"
    if shared := set(wiring.gripper) & set(names):
        yield f"gripper: {sorted(shared)} are joints of the arm"
    topics = [camera.name for camera in (*wiring.cameras.values(), *wiring.depth_cameras.values())]
    if len(set(topics)) < len(topics):
        yield f"cameras, depth_cameras: two of them have one topic: {topics}"
    for key, depth in wiring.depth_cameras.items():
        yield from (f"depth_cameras.{key}.{why}" for why in depth.problems())
    for why in wiring.grip.problems() if wiring.grip is not None else ():
        yield f"topics.gripper: {why}"
    echoed = wiring.topics["joint_commands"] is not None
    for why in wiring.output.problems(tick_s=wiring.tick_s, lead_ticks=wiring.lead_ticks, echoed=echoed):
        yield f"topics.trajectory: {why}"
    yield from _watchdog_problems(wiring)


def _watchdog_problems(wiring: Wiring) -> Iterator[str]:
    """Name watchdogs that never fire, or that fire between two messages that are on time."""
    watched = {dog: {f"topics.{role}": wiring.topics[role] for role in roles} for dog, roles in WATCHED.items()}
    watched["images"] = {f"cameras.{key}": way for key, way in wiring.cameras.items()}
    watched["images"] |= {f"depth_cameras.{key}": way for key, way in wiring.depth_cameras.items()}
    for dog, ways in watched.items():
        if (patience := wiring.watchdogs.get(dog)) is None:
            if any(ways.values()):
                yield f"watchdogs.{dog}: expected seconds for hold or fault, as topics.{dog} has messages of its own"
            continue
        if dog == "gripper_states" and not any(ways.values()):
            yield f"watchdogs.{dog}: expected none, as there is no topics.{dog}: the arm would be held for good"
        shortest = min(patience.slow, patience.hold, patience.fault)
        for key, way in ways.items():
            if way is not None and way.rate_hz * shortest < 2.0:
                yield (
                    f"watchdogs.{dog}: {shortest} s is less than two messages of {key} at {way.rate_hz:g} Hz: the arm "
                    f"would be held for good. Give {2.0 / way.rate_hz:g} s or more, or a rate of {2.0 / shortest:g} Hz "
                    "or more."
                )
