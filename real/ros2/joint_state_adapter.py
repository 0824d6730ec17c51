"""Observations and actions of a policy that was trained on a robot's own data, by joint names.

Elements of `observation.state`: `<joint>.pos` [rad], `<joint>.vel` [rad/s], `gripper.pos` (opening) [m], where <joint>
is a joint's name in the limits or on the wire; anything else is a named value on the features topic. Actions: absolute
targets `<joint>.pos` [rad] of all joints, in any order, and `gripper.pos` [m] or the simulator's −1 … 1. Where the
policy's actions are in `deg`, as LeRobot records them, its states are too; a gripper may be in `%` of its opening.
"""

from __future__ import annotations

import numpy as np
import torch

from robopolicy.core.errors import SpecError, closest
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import STATE, TASK, ActionSpec, EnvSpec, Obs
from robopolicy.real.control.arm_kinematics import kinematics_of
from robopolicy.real.control.robots import State
from robopolicy.real.ros2.observation import Arrivals
from robopolicy.real.ros2.wiring import Wiring
from robopolicy.real.safety.array_ops import Array
from robopolicy.sim.arm import FINGER_STROKE
from robopolicy.sim.control import GRIPPER_MEANING, JointPosition

GRIPPER = "gripper"
ANGLES = {"rad": 1.0, "deg": np.pi / 180}  # rad


def joints_of(wiring: Wiring) -> dict[str, int]:
    """Index by every name that a joint has."""
    names = wiring.profile().joints
    return {**{n: i for i, n in enumerate(wiring.joints)}, **{n: i for i, n in enumerate(names)}}


class JointStateObserver(Arrivals):
    """Observations from the arm's state, named values and pictures.

    Args:
        spec: the policy's. cameras: features whose pictures it sees.

    Raises:
        SpecError: the state's elements have no names, the policy does more than one task, or has a gripper that the
            wiring lacks.
    """

    def __init__(self, spec: PolicySpec, wiring: Wiring, cameras: tuple[str, ...] = ()) -> None:
        if TASK in spec.observation:
            raise SpecError(f"the policy does one of several tasks, {list(spec.tasks)}, and nothing here says which")
        elements = spec.observation[STATE].names if STATE in spec.observation else ()
        if elements is None:
            raise SpecError(
                f"{STATE}: its elements have no names, expected names of joints. Name them in the "
                "dataset's meta/info.json (features.observation.state.names) and train again."
            )
        grips = spec.action.gripper is not None or f"{GRIPPER}.pos" in elements
        if grips and not (wiring.gripper or wiring.opening):
            raise SpecError(
                f"{GRIPPER}.pos: the policy sees or commands a gripper, and the wiring has none: `gripper` names no "
                "joint. Name its joints there, and give topics.gripper"
            )
        joints, n = joints_of(wiring), len(wiring.joints)
        source = {f"{k}.pos": i for k, i in joints.items()} | {f"{k}.vel": n + i for k, i in joints.items()}
        source[f"{GRIPPER}.pos"] = 2 * n
        super().__init__(tuple(e for e in elements if e not in source), cameras)
        self.observed = tuple(spec.observation)
        self._from = np.array([source.get(e, -1) for e in elements], dtype=np.int64)  # in [q, qd, opening]
        units = units_of(spec.action, wiring)  # per [q, qd, opening, anything else]
        self._scale = 1 / np.array([*units[:-1], *units[:-1], units[-1], 1.0])[self._from]

    def __call__(self, state: State) -> Obs:
        """Single frames [1 …]; raises SpecError where something has not come."""
        self.check()
        obs: Obs = dict(self.pictures)
        if STATE in self.observed:
            values = np.concatenate([state.q, state.qd, [state.opening]])[self._from] * self._scale
            if self.features is not None:
                values[self._from < 0] = self.features
            obs[STATE] = torch.from_numpy(values).float()[None]
        return obs


def units_of(action: ActionSpec, wiring: Wiring) -> list[float]:
    """Return rad in a unit of each joint, and last m in one of the gripper, by the policy's actions."""
    joints, found = joints_of(wiring), [1.0] * (len(wiring.joints) + 1)
    for k, (name, unit) in enumerate(zip(action.names, action.units, strict=True)):
        if k == action.gripper:
            found[-1] = wiring.opening / 100 if unit == "%" and wiring.opening else 1.0
        elif (i := joints.get(name.removesuffix(".pos"))) is not None:
            found[i] = ANGLES.get(unit, 1.0)
    return found


class NamedJoints(JointPosition):
    """The simulator's joint control for one arm, with the actions of a policy of the robot's own data.

    `order` [n]: which element of an action is the limits' joint 0, 1, …

    Raises:
        SpecError: all the ways in which its actions are none that are understood.
    """

    def __init__(self, spec: ActionSpec, wiring: Wiring, *, dt: float) -> None:
        super().__init__(1, dt=dt, arm=kinematics_of(wiring.profile()))
        self.spec, found = spec, []
        if (spec.reference, spec.rotation) != ("absolute", "joint"):
            found.append(
                f"action: without a task, absolute joint targets are understood; these are {spec.reference} with "
                f"rotation {spec.rotation!r}. Trained in simulation? Then name its task."
            )
        joints = joints_of(wiring)
        index = [joints.get(name.removesuffix(".pos"), -1) for name in spec.names]
        for k, name in enumerate(spec.names):
            unit = spec.units[k]
            if k == spec.gripper:
                if unit == "%" and not wiring.opening:
                    found.append(f"action.{name}: in %, and this wiring gives no opening in m at 100%. Expected m")
                elif unit not in ("m", "%") and (unit, spec.gripper_meaning) != ("1", GRIPPER_MEANING):
                    found.append(
                        f"action.{name}: expected an opening in m or %, or {GRIPPER_MEANING!r}; found {unit!r}"
                    )
            elif index[k] < 0:
                found.append(f"action: {name!r} is no joint of {wiring.limits!r}. {closest(name, joints)}")
            elif unit not in ANGLES:
                found.append(f"action.{name}: expected rad or deg, found {unit!r}")
        used = [i for k, i in enumerate(index) if k != spec.gripper and i >= 0]
        if not found and sorted(used) != list(range(len(wiring.joints))):
            found.append(f"action: expected each of {list(wiring.joints)} once, found {list(spec.names)}")
        if found:
            raise SpecError("policy and robot do not fit:\n  - " + "\n  - ".join(found))
        *self.scale, self.grip_scale = units_of(spec, wiring)  # rad, and m, in a unit of the actions
        self.order = np.argsort([i if k != spec.gripper else len(index) for k, i in enumerate(index)])[: len(used)]

    def command(self, action: Array, tcp: Array, yaw: Array) -> Array:
        """Servo targets [1 n + 2] for clamped `action` [1 Da]."""
        g = self.spec.gripper
        grip = self.grip if g is None else action[:, g]
        if g is not None and self.spec.units[g] in ("m", "%"):
            grip = grip * self.grip_scale / FINGER_STROKE - 1.0
        q = action[:, self.order] * np.array(self.scale)
        return super().command(np.concatenate([q, grip[:, None]], axis=1), tcp, yaw)


def joint_state_spec(spec: PolicySpec, wiring: Wiring) -> EnvSpec:
    """Return the robot as an environment, for recordings."""
    return EnvSpec(
        id=wiring.limits, observation=dict(spec.observation), action=spec.action, tasks=spec.tasks, dt=spec.dt,
        horizon=1, digest="",
    )  # fmt: skip
