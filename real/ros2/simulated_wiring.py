"""Wirings that the simulated arm of `robot=mujoco_ros2` can play."""

from __future__ import annotations

from robopolicy.real.ros2.wiring import Wiring, WiringError

SIMULATED = "mujoco_arm"  # node of the simulated arm


def check_lockstep(wiring: Wiring) -> None:
    """Raise WiringError for simulated time with the wiring of a real arm, whose silence would be no fault."""
    if problems := simulated_problems(wiring, len(wiring.joints)):
        raise WiringError(
            "lockstep=true: expected the wiring of a simulated arm, found one of a real arm. Remove lockstep, or "
            f"change the wiring: {'; '.join(problems)}"
        )


def simulated_problems(wiring: Wiring, joints: int) -> list[str]:
    """List why a simulated arm of so many joints (`robot=mujoco_ros2`) cannot play a wiring, and what helps."""
    found, out = [], wiring.output
    if (out.type, out.points) != ("trajectory", "control"):
        found.append(
            f"topics.trajectory: it plays control points alone: set type: trajectory and points: control, found type "
            f"{out.type!r} with points {out.points!r}"
        )
    for role, driver in (("trajectory", out), ("gripper", wiring.grip)):
        if driver is not None and driver.node not in ("", SIMULATED):
            found.append(f"topics.{role}.node: leave it out, as its node is {SIMULATED!r}; found {driver.node!r}")
    if wiring.topics["joint_commands"] is None:
        found.append("topics.joint_commands: name a topic, with depth: 50: it says what it plays; found null")
    if wiring.topics["robot_description"] is not None:
        found.append("topics.robot_description: set null: no URDF describes it")
    if wiring.grip is None:
        found.append("topics.gripper: name a topic: its fingers take an opening; found null")
    if len(wiring.joints) != joints:
        found.append(
            f"limits: the task's arm has {joints} joints, these limits {len(wiring.joints)}; give the wiring "
            "of another arm (mujoco_panda, mujoco_ur5e), or task.arm"
        )
    return found
