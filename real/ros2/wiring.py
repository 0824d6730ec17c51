"""Wirings, configs/robots/*.yaml: which topic is which feature, and the driver's names of the joints."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from robopolicy import configs
from robopolicy.core.errors import closest
from robopolicy.core.types import IMAGES
from robopolicy.core.untrusted import read_yaml, refusing
from robopolicy.real.ros2 import channels
from robopolicy.real.ros2.channels import (
    CameraTopic,
    GripperTopic,
    OutputTopic,
    Topic,
    WiringError,
    camera,
    number,
    output,
    topic,
)
from robopolicy.real.safety import load_profile
from robopolicy.real.safety.safety_mode import Patience

FOLDER = Path(configs.__file__).parent / "robots"
INPUTS = ("joint_states", "joint_commands", "robot_description", "features", "enable")
TOPICS = (*INPUTS, "keys", "trajectory", "gripper", "intervention", "diagnostics")
WATCHED = {"state": ("joint_states", "joint_commands"), "features": ("features",), "enable": ("enable",)}  # and images
OPTIONAL = ("joint_commands", "robot_description", "features", "keys", "gripper", "intervention")  # may be null


@dataclass(frozen=True)
class Wiring:
    """One robot's wiring, checked.

    Args:
        limits: name of the limit profile.
        tick_s: s between commands.
        lead_ticks: ticks from the decision on a command to the one in which it is played.
        joints: names on the wire, in the order of the limits.
        gripper: joints that sum up to the opening [m], with their factors.
        frames: `base` and `tcp`, as the policy's spec calls them.
        topics: by role; None where the robot has none.
        cameras: by feature ("observation.images.<name>"); a policy subscribes to those that it sees.
        watchdogs: patience with `state`, `features`, `images` and `enable`.
        plan_ahead_s, grace_s: s before a control step at which a plan is asked for, and by which it may be late.
    """

    limits: str
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

    @property
    def dt_ns(self) -> int:
        return round(self.tick_s * 1e9)


def wiring_names() -> list[str]:
    return sorted(p.stem for p in FOLDER.glob("*.yaml"))


def load_wiring(name: str) -> Wiring:
    """Load a preset by name, or a file by path.

    Raises:
        WiringError: there is none, or it is wrong; names key, found and expected.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise WiringError(f"wiring={name!r}: no such file or preset. {closest(name, wiring_names())}")
    data = read_yaml(path, error=WiringError)
    with refusing(path.name, WiringError):
        return parse(data, path.name)


def parse(data: Any, where: str = "wiring") -> Wiring:
    """Build a wiring from YAML values, checked; see `load_wiring`."""
    known = [f.name for f in fields(Wiring)]
    if not isinstance(data, dict):
        raise WiringError(f"{where}: expected a mapping with the keys {known}")
    _same_keys(data, known, where)
    profile = load_profile(str(data["limits"]))
    joints = _mapping(data, "joints", where)
    if list(joints) != list(profile.joints):
        raise WiringError(
            f"{where}: joints: expected the joints of the limits {data['limits']!r}, in their order: "
            f"{list(profile.joints)}; found {list(joints)}"
        )
    names = tuple(str(v) for v in joints.values())
    if len(set(names)) < len(names):
        raise WiringError(f"{where}: joints: one name on the wire stands for two joints: {list(names)}")
    if moved := [n for i, n in enumerate(names) if n in profile.joints and profile.joints.index(n) != i]:
        raise WiringError(f"{where}: joints: {moved[0]!r} stands for another joint than the limits call so")
    gripper = {str(k): number(v, f"{where}: gripper.{k}") for k, v in _mapping(data, "gripper", where).items()}
    if shared := set(gripper) & set(names):
        raise WiringError(f"{where}: gripper: {sorted(shared)} are joints of the arm")
    frames = {k: str(v) for k, v in _mapping(data, "frames", where).items()}
    _same_keys(frames, ["base", "tcp"], f"{where}: frames")
    topics = _mapping(data, "topics", where)
    _same_keys(topics, TOPICS, f"{where}: topics")
    cameras = {str(k): camera(v, f"{where}: cameras.{k}") for k, v in _mapping(data, "cameras", where).items()}
    if wrong := [k for k in cameras if not k.startswith(IMAGES)]:
        raise WiringError(f"{where}: cameras: expected features called {IMAGES + '<name>'!r}, found {wrong[0]!r}")
    if len({c.name for c in cameras.values()}) < len(cameras):
        raise WiringError(f"{where}: cameras: two of them have one topic: {[c.name for c in cameras.values()]}")
    dogs = _mapping(data, "watchdogs", where)
    _same_keys(dogs, ("state", "features", "images", "enable"), f"{where}: watchdogs")
    tick, lead = number(data["tick_s"], f"{where}: tick_s"), data["lead_ticks"]
    if not 0.001 <= tick <= 0.02:
        raise WiringError(f"{where}: tick_s: expected 0.001 to 0.02 s, found {tick}")
    if not isinstance(lead, int) or isinstance(lead, bool) or not 1 <= lead <= 25:
        raise WiringError(f"{where}: lead_ticks: expected a whole number from 1 to 25, found {lead!r}")
    later = {k: number(data[k], f"{where}: {k}") for k in ("plan_ahead_s", "grace_s")}
    if not all(0.0 <= v <= 0.1 for v in later.values()):
        raise WiringError(f"{where}: plan_ahead_s and grace_s: expected 0 to 0.1 s, found {later}")
    driver = {"tick_s": tick, "lead_ticks": lead, "echoed": topics["joint_commands"] is not None}
    found = Wiring(
        limits=str(data["limits"]), tick_s=tick, lead_ticks=lead, joints=names, gripper=gripper, frames=frames,
        topics={role: _topic(value, role, where, driver) for role, value in topics.items()}, cameras=cameras,
        watchdogs={k: _patience(v, f"{where}: watchdogs.{k}") for k, v in dogs.items()}, **later,
    )  # fmt: skip
    _heard_in_time(found, where)
    return found


def _heard_in_time(wiring: Wiring, where: str) -> None:
    """Raise WiringError where a watchdog would bark between two messages that are on time."""
    watched = {dog: {f"topics.{role}": wiring.topics[role] for role in roles} for dog, roles in WATCHED.items()}
    watched["images"] = {f"cameras.{key}": way for key, way in wiring.cameras.items()}
    for dog, ways in watched.items():
        patience = wiring.watchdogs[dog]
        shortest = min(patience.slow, patience.hold, patience.fault)
        for key, way in ways.items():
            if way is not None and way.rate_hz * shortest < 2.0:
                raise WiringError(
                    f"{where}: watchdogs.{dog}: {shortest} s is less than two messages of {key} at {way.rate_hz:g} Hz: "
                    f"the arm would be held for good. Give {2.0 / way.rate_hz:g} s or more, or a rate of "
                    f"{2.0 / shortest:g} Hz or more."
                )


def _same_keys(data: dict[str, Any], known: Any, where: str) -> None:
    unknown = [str(k) for k in data if k not in known]
    if unknown:
        raise WiringError(f"{where}: unknown key {unknown[0]!r}. {closest(unknown[0], list(known))}")
    if missing := [k for k in known if k not in data]:
        raise WiringError(f"{where}: {missing} must be given")


def _mapping(data: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value = data[key]
    if not isinstance(value, dict):
        raise WiringError(f"{where}: {key}: expected a mapping, found {value!r}")
    return value


def _topic(value: Any, role: str, where: str, driver: dict[str, Any]) -> Topic | None:
    where = f"{where}: topics.{role}"
    if value is None and role in OPTIONAL:
        return None
    if role == "gripper":
        return channels.gripper(value, where)
    return output(value, where, **driver) if role == "trajectory" else topic(value, where)


def _patience(value: Any, where: str) -> Patience:
    if not isinstance(value, dict) or not value:
        raise WiringError(f"{where}: expected seconds for slow, hold or fault, found {value!r}")
    _same_keys({**dict.fromkeys(("slow", "hold", "fault")), **value}, ("slow", "hold", "fault"), where)
    found = {k: number(v, f"{where}.{k}") for k, v in value.items()}
    if min(found.values()) <= 0:
        raise WiringError(f"{where}: expected seconds > 0, found {value}")
    return Patience(**found)
