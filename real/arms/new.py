"""`robopolicy arm new`: a limit profile and a wiring of an arm's URDF."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import numpy as np
import pydantic

from robopolicy.core.errors import RobopolicyError
from robopolicy.core.untrusted import read_text
from robopolicy.real.arms.fingers import Fingers, fingers_of
from robopolicy.real.arms.profile_of_urdf import PerJoint, Sheet, profile_of
from robopolicy.real.arms.urdf import LARGEST, UrdfError, read_urdf
from robopolicy.real.arms.urdf_chain import ArmChain, arm_of
from robopolicy.real.arms.wiring_text import wiring_text
from robopolicy.real.ros2.wiring import load_wiring
from robopolicy.real.safety.kinematics import pose
from robopolicy.real.safety.profile import Profile, profile_names
from robopolicy.utils.atomic import write_atomically

Controller = Annotated[str, pydantic.Field(pattern=r"^/?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*$")]
Rate = Annotated[float, pydantic.Field(ge=10.0, le=2000.0)]
LONGEST_STOP = 3.0  # s; the arms that ship need less than one


def arm_new(
    *, urdf: Path, out: Path, name: str | None = None, base: str | None = None, tip: str | None = None,
    source: str | None = None, low: PerJoint = None, high: PerJoint = None, velocity: PerJoint = None,
    acceleration: PerJoint = None, jerk: PerJoint = None, torque: PerJoint = None, torque_rate: PerJoint = None,
    radius: Annotated[float, pydantic.Field(gt=0.0, le=1.0)] | None = None, home: tuple[float, ...] | None = None,
    controller: Controller = "joint_trajectory_controller", rate_hz: Rate = 100.0,
) -> Path:  # fmt: skip
    """Write `<name>.json` (limits) and `<name>.yaml` (wiring) of an arm's URDF, and say where each number is from.

    Args:
        urdf: file; meshes that it names are not needed.
        out: folder; files of that name are not overwritten.
        name: of the arm, none that ships; None: the URDF's.
        base, tip: links at the ends of the arm; None: the root, and the one end.
        source: the maker's sheet that the numbers given here are from.
        low, high, velocity, acceleration, jerk, torque, torque_rate: of the sheet, one number or one a joint, in rad
            and N·m per s, s², s³.
        radius: m, of the capsules around the links.
        home: rad, a pose inside the limits.
        controller: name of the joint_trajectory_controller, led by its namespace. rate_hz: 1/s of /joint_states.

    Returns:
        The wiring's path.

    Raises:
        UrdfError: the URDF, or a key, cannot be used; named.
    """
    text = read_text(urdf, limit=LARGEST, error=UrdfError)
    robot = read_urdf(text)
    chain = arm_of(robot, base=base, tip=tip)
    name = re.sub(r"[^a-zA-Z0-9_-]+", "_", name or robot.name or urdf.stem)
    if name in profile_names():
        raise UrdfError(f"name: limits called {name!r} ship with robopolicy. Give yours another name: name=my_{name}")
    sheet = Sheet(source, low, high, velocity, acceleration, jerk, torque, torque_rate)
    data = profile_of(chain, text, name=name, sheet=sheet, radius=radius, home=home)
    limits, wiring = out / f"{name}.json", out / f"{name}.yaml"
    for path in (limits, wiring):
        if path.exists():
            raise UrdfError(f"out: {path} exists. Expected a new file: give another out= or name=, or remove it")
    fingers = fingers_of(robot, chain)
    write_atomically(limits, _json(data))
    write_atomically(wiring, wiring_text(
        chain, name=name, limits=limits.name, fingers=fingers, controller=controller.removeprefix("/"), rate_hz=rate_hz
    ))  # fmt: skip
    try:
        profile = load_wiring(str(wiring)).profile()
        if profile.longest_stop > LONGEST_STOP:
            raise UrdfError(
                f"velocity, acceleration, jerk: with them a stop takes up to {profile.longest_stop:.1f} s, expected "
                f"at most {LONGEST_STOP:g} s. They are of different sheets, or not in rad per s, s², s³"
            )
    except RobopolicyError:  # nothing that cannot be used stays
        for path in (limits, wiring):
            path.unlink()
        raise
    print(f"{limits}: {len(chain.joints)} joints from {chain.base!r} to {chain.tip!r}")
    _say(profile, chain, fingers)
    print(f"  the URDF's {robot.meshes} meshes were not read")
    print(f"{wiring}: compare it with the running arm: robopolicy arm check wiring={wiring}")
    return wiring


def _say(profile: Profile, chain: ArmChain, fingers: Fingers) -> None:
    """Print where each number is from, and what its owner can compare with the arm."""
    sources = profile.data["sources"]
    width = max(map(len, sources))
    print(*(f"  {key:{width}}  {text}" for key, text in sources.items()), sep="\n")
    for what, q in (("zero", np.zeros(len(chain.joints))), ("home", np.array(profile.data["home"]))):
        x, y, z = pose(profile.chain, q[None], np.array([len(q)]), chain.tcp[None]).points[0, 0]
        print(f"  tool at {what}: x {x:.3f}, y {y:.3f}, z {z:.3f} m in {chain.base!r}, in which planes and boxes lie")
    if fingers.factors:
        print(
            f"  gripper: {dict(fingers.factors)}, closed at 0, {1000 * fingers.high:g} mm open: compare with the jaws"
        )
    elif fingers.why_none:
        print(f"  no gripper: {fingers.why_none}. Write `gripper` and topics.gripper")
    print(f"  longest stop: {profile.longest_stop:.2f} s")


def _json(data: dict[str, object]) -> str:
    """One key a line, so that a number is easily found and changed."""
    rows = [f"  {json.dumps(key)}: {_value(key, value)}" for key, value in data.items()]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def _value(key: str, value: object) -> str:
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n  }"
    if key in ("capsules", "pairs") and isinstance(value, list):
        return "[\n" + ",\n".join(f"    {json.dumps(v)}" for v in value) + "\n  ]"
    return json.dumps(value)
