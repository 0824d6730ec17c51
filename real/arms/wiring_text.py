"""The text of a wiring for an arm behind a joint_trajectory_controller, to be read and changed by its owner."""

from __future__ import annotations

import json
import math
import re

from robopolicy.real.arms.fingers import Fingers
from robopolicy.real.arms.urdf_chain import ArmChain
from robopolicy.real.ros2.channels import LineDelay

_TEXT = """\
# {name}: made by `robopolicy arm new`. Read every line; `robopolicy arm check wiring=…` compares it with the arm.
#
# Units are those of ROS (REP 103): rad, rad/s, m, N·m, s. Joints are matched by name, in whatever order they come.
limits: {limits}
safety: {{tcp_speed: 0.1}}  # m/s; settings of this cell, which no deployment loosens. Set planes and workspace here
tick_s: 0.004            # s between commands; the commands are control points of a cubic B-spline
lead_ticks: {lead}            # a command is for so many ticks later: what its way there may take
joints:                  # name in the limits: name on the wire
{joints}
gripper: {gripper}  # opening between the pads [m] = sum of factor × position of these joints
frames: {{base: base, tcp: tcp}}  # as policies call them: the links {base} and {tip}. Planes and boxes lie in {base}
topics:
  joint_states: {{name: /joint_states, rate_hz: {rate:g}, reliability: reliable, depth: 10}}
{gripper_states}  joint_commands: null
  robot_description: {{name: /robot_description, rate_hz: 1, reliability: reliable, durability: transient_local}}
  features: null
  enable: {{name: enable, rate_hz: 50, reliability: reliable, depth: 10}}
  keys: {{name: keys, rate_hz: 50, reliability: reliable, depth: 50}}
  trajectory:            # the controller needs interpolate_from_desired_state: true and a position interface
    {{name: /{controller}/joint_trajectory, rate_hz: 250, reliability: reliable, depth: 100, points: spline,
     node: {node}}}
  gripper: {grip}
  intervention: {{name: intervention, rate_hz: 20, reliability: reliable, depth: 1}}
  diagnostics: {{name: /diagnostics, rate_hz: 20, reliability: reliable, depth: 10}}
cameras: {{}}              # pictures: docs/ros2.md. depth_cameras, of which clouds are made: docs/points.md
watchdogs:               # s of silence after which each level begins; braking begins there
  state: {{hold: {hold:g}, fault: {fault:g}}}
  features: {{slow: 0.05, hold: 0.1, fault: 1.0}}
  images: {{slow: 0.1, hold: 0.2, fault: 1.0}}
  enable: {{fault: 0.1}}
plan_ahead_s: 0.02
grace_s: 0.02
"""


def wiring_text(chain: ArmChain, *, name: str, limits: str, fingers: Fingers, controller: str, rate_hz: float) -> str:
    """Return the YAML text.

    Args:
        limits: file of the profile, beside the wiring.
        fingers: the gripper, or none.
        rate_hz: 1/s of /joint_states.
    """
    grip = "null               # none, or one whose joints turn: write its factors above and its range here"
    if fingers.factors:
        grip = (
            "{name: gripper, rate_hz: 20, reliability: reliable, depth: 1, durability: transient_local,\n"
            f"            low: 0.0, high: {fingers.high:g}, speed: 0.05, squeeze: 0.01, after_fault: keep}}"
        )
    hold = max(0.05, math.ceil(250 / rate_hz) / 100)
    return _TEXT.format(
        name=name, base=json.dumps(chain.base), tip=json.dumps(chain.tip), limits=json.dumps(limits),
        controller=controller, node=controller.rpartition("/")[2], rate=rate_hz, grip=grip, gripper_states="",
        joints="\n".join(f"  {json.dumps(j.name)}: {json.dumps(j.name)}" for j in chain.joints),
        gripper=json.dumps(dict(fingers.factors)), hold=hold, fault=max(0.2, 4 * hold), lead=3,
    )  # fmt: skip


def with_delay(text: str, delay: LineDelay) -> str:
    """Return a wiring's YAML text with this delay, in place of an earlier one; all other lines stay."""
    found = re.sub(r"^delay:.*\n(?:[ \t].*\n)*", "", text if text.endswith("\n") else text + "\n", flags=re.MULTILINE)
    return found + (
        f"delay: {{latency_s: {delay.latency_s:.6f}, jitter_s: {delay.jitter_s:.6f}, lost: {delay.lost:.6f}, "
        f"resolution_rad: {delay.resolution_rad:.9f}}}  # measured by robopolicy arm check write=true\n"
    )
