"""Names and meanings of a ManiSkill task's numbers: elements of the state, and channels of the action."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from robopolicy.core.types import ActionSpec
from robopolicy.datasets.hdf5.actions import known_actions
from robopolicy.sim.experts.quaternion_utils import frame
from robopolicy.sim.experts.suites import slices

PEG = "PegInsertionSide-v1"
_POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")
_PANDAS = ("panda", "panda_wristcam")  # whose control modes are described in robopolicy/datasets/hdf5/actions.yaml
_LAYOUTS = {  # what our experts read, behind the arm's positions and speeds
    "PickCube-v1": {"held": 1, "tcp": 7, "goal": 3, "cube": 7, "to_cube": 3, "to_goal": 3},
    "PushCube-v1": {"tcp": 7, "goal": 3, "cube": 7},
    "PullCube-v1": {"tcp": 7, "goal": 3, "cube": 7},
    "StackCube-v1": {"tcp": 7, "cube": 7, "base": 7, "to_cube": 3, "to_base": 3, "cube_to_base": 3},
    PEG: {"tcp": 7, "peg": 7, "half_size": 3, "hole": 7, "hole_radius": 1},
}


_DIFFERENCES = {"tcp_to_peg": 3, "head_in_hole": 3, "peg_to_hole": 3}  # behind PegInsertionSide's state


def read(name: str) -> dict[str, slice]:
    """Return the parts of an observation for the expert (quaternions are w x y z)."""
    return slices({"qpos": 9, "qvel": 9, **_LAYOUTS[name]})


def element_names(name: str, *, relative: bool = False) -> list[str]:
    """Return our names of a task with an expert: qpos_0 … (7 and 8: the fingers), tcp_x, tcp_qw …, tcp_to_cube_x …

    Args:
        relative: with what `differences` appends.
    """
    ends = {1: [""], 3: ["_x", "_y", "_z"], 7: [f"_{end}" for end in _POSE], 9: [f"_{i}" for i in range(9)]}
    whose = {"to_cube": "tcp_to_cube", "to_base": "tcp_to_base", "to_goal": "cube_to_goal"}
    sizes = {k: place.stop - place.start for k, place in read(name).items()} | (_DIFFERENCES if relative else {})
    return [whose.get(k, k) + end for k, size in sizes.items() for end in ends[size]]


def differences(state: Any) -> Any:
    """Return differences that PegInsertionSide's state [43] lacks, float32 [9].

    It is the peg from the tool, the peg's head in the frame of the hole (m), whose x axis leads into it, and the
    rotation vector (small angles) that would turn the peg's axis into the hole's.
    """
    part = {key: torch.as_tensor(state[place], dtype=torch.float64) for key, place in read(PEG).items()}
    peg, into = frame(part["peg"][None, 3:])[0], frame(part["hole"][None, 3:])[0]
    head = part["peg"][:3] + part["half_size"][0] * peg[:, 0]
    found = [part["peg"][:3] - part["tcp"][:3], (head - part["hole"][:3]) @ into,
             torch.linalg.cross(peg[:, 0], into[:, 0])]  # fmt: skip
    return torch.cat(found).float().numpy()


def names(obs: Mapping[str, Any]) -> list[str]:
    """Return the names of a state, in the suite's order: qpos_0 …, then tcp_pose_x … as the task calls its parts.

    Args:
        obs: the observation of a batch, before it is flattened; `agent` and `extra` make up the state.
    """
    found = [(path, value) for whole in ("agent", "extra") for path, value in _leaves(obs.get(whole, {}), (whole,))]
    last = [path[-1] for path, _ in found]
    short = [path[-1] if last.count(path[-1]) == 1 else ".".join(path) for path, _ in found]
    return [
        name
        for key, (path, value) in zip(short, found, strict=True)
        for name in _counted(key, int(np.prod(tuple(value.shape[1:]))), robot=path[0] == "agent")
    ]


def _leaves(tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _counted(key: str, size: int, *, robot: bool) -> list[str]:
    """Return the names of `size` elements: x, y, z of places and poses, else numbers."""
    if size == 1 and not robot:
        return [key]
    ends = {3: _POSE[:3], 7: _POSE}.get(size) if not robot else None
    return [f"{key}_{end}" for end in ends or map(str, range(size))]


def action(inner: Any, robot: str | None, control: str) -> ActionSpec:
    """Return the meaning of a robot's actions in a control mode.

    Joint and pose controllers are described; other channels have numbers and no unit.
    """
    space, uid = inner.single_action_space, robot or inner.agent.uid
    low, high = tuple(space.low.astype(float).tolist()), tuple(space.high.astype(float).tolist())
    if uid in _PANDAS and (known := known_actions("ManiSkill").get(control)):
        units = tuple(known["units"] * (len(low) if len(known["units"]) == 1 else 1))
        return ActionSpec(**{**known, "units": units, "low": low, "high": high})
    parts, controllers = [], getattr(inner.agent.controller, "controllers", None) or {"": inner.agent.controller}
    for key, controller in controllers.items():
        parts.append(_channels(key, controller))
    channels = [name for part in parts for name in part]
    if len(channels) != len(low) or len(set(channels)) != len(low):
        channels = [f"a{i}" for i in range(len(low))]
    grip = [i for i, name in enumerate(channels) if name.startswith("gripper")]
    arm: Any = next(iter(controllers.values())).config
    moves_tool, delta = hasattr(arm, "ee_link"), bool(getattr(arm, "use_delta", False))
    rotates = moves_tool and hasattr(arm, "rot_lower")
    return ActionSpec(
        names=tuple(channels), units=("1",) * len(low), low=low, high=high, frame="base" if moves_tool else "joint",
        tcp=str(getattr(arm, "ee_link", None) or uid),
        rotation="rotvec" if rotates else "none" if moves_tool else "joint",
        reference="absolute" if not delta else "commanded" if getattr(arm, "use_target", False) else "measured",
        gripper=grip[0] if len(grip) == 1 else None,
        gripper_meaning="position, in the suite's own range" if len(grip) == 1 else "",
    )  # fmt: skip


def _channels(key: str, controller: Any) -> list[str]:
    """Return the names of one controller's channels: dx …, or its joints'."""
    size, config = int(np.prod(controller.single_action_space.shape)), controller.config
    if size == 0:
        return []
    if size == 1 and "gripper" in key:
        return ["gripper"]
    mark = "d" if getattr(config, "use_delta", False) else ""
    if hasattr(config, "ee_link"):
        # The suite rotates the other way round than its action says (`rot_lower` scales it).
        turn = "minus_dr" if mark else "r"
        return [*(f"{mark}{axis}" for axis in "xyz"), *(f"{turn}{axis}" for axis in "xyz")][:size]
    joints = [joint.name for joint in controller.joints]
    if len(joints) == size:
        return [f"{mark}{name}" for name in joints]
    if 2 * len(joints) == size:  # positions and speeds
        return [*(f"{mark}{name}" for name in joints), *(f"v_{name}" for name in joints)]
    return [f"{prefix}{i}" for prefix, i in itertools.product((f"{key or 'a'}_",), range(size))]
