"""ManiSkill's trajectories: traj_<i>/{actions, obs, env_states, success, terminated, truncated} in X.h5, beside X.json.

Observations have a frame more than actions. Where none were recorded (obs_mode "none") the simulator's own states stand
in for them. X.json says which task and control mode it was, and each episode's seed.
https://maniskill.readthedocs.io/en/latest/user_guide/datasets/demos.html
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robopolicy.data.hdf5.contents import Contents, Group, Trajectory, column, get, leaves, numbered, parsed
from robopolicy.errors import DataError

_GRIPPER = {"gripper_meaning": "position: -1 closes, +1 opens"}
_UNIT = {"units": ("1",), "low": (-1.0,), "high": (1.0,), "tcp": "panda_hand_tcp", **_GRIPPER}
_XYZ = ("dx", "dy", "dz")
# The suite turns the other way round than its action says, as in sim/suites/maniskill.py.
_TURN = ("minus_drx", "minus_dry", "minus_drz")
_POSE = {**_UNIT, "names": (*_XYZ, *_TURN, "gripper"), "frame": "base", "rotation": "rotvec", "gripper": 6}
_POS = {**_UNIT, "names": (*_XYZ, "gripper"), "frame": "base", "rotation": "none", "gripper": 3}
_JOINT = {**_UNIT, "names": (*(f"dq{i}" for i in range(1, 8)), "gripper"), "frame": "joint", "rotation": "joint",
          "gripper": 7}  # fmt: skip
# What a Panda makes of an action, by control mode.
CONTROL_MODES: Mapping[str, Mapping[str, Any]] = {
    "pd_ee_delta_pose": {**_POSE, "reference": "measured"},
    "pd_ee_target_delta_pose": {**_POSE, "reference": "commanded"},
    "pd_ee_delta_pos": {**_POS, "reference": "measured"},
    "pd_ee_target_delta_pos": {**_POS, "reference": "commanded"},
    "pd_joint_delta_pos": {**_JOINT, "reference": "measured"},
    "pd_joint_target_delta_pos": {**_JOINT, "reference": "commanded"},
    "pd_joint_pos": {
        **_GRIPPER, "names": (*(f"q{i}" for i in range(1, 8)), "gripper"), "units": (*("rad",) * 7, "1"),
        "frame": "joint", "tcp": "panda_hand_tcp", "rotation": "joint", "reference": "absolute", "gripper": 7,
    },
}  # fmt: skip


def recognises(file: Group) -> bool:
    return bool(numbered(file, "traj_"))


def read(file: Group, path: Path, filter_key: str | None) -> Contents:
    """What the file holds.

    Raises:
        DataError: no JSON file beside it, an episode or a column missing, several control modes.
    """
    beside = path.with_suffix(".json")
    if not beside.is_file():
        raise DataError(f"{path}: {beside.name} is missing, which belongs to it. Copy both.")
    facts = parsed(beside.read_text(encoding="utf-8"), str(beside))
    env, listed = facts.get("env_info") or {}, facts.get("episodes")
    if not listed:
        raise DataError(f"{beside}: lists no episodes")
    known = env.get("env_kwargs") or {}
    modes = sorted({str(e.get("control_mode") or known.get("control_mode")) for e in listed})
    if len(modes) > 1:
        raise DataError(f"{beside}: its episodes have several control modes, {modes}; convert them apart")
    arms = _robots(known)
    action = CONTROL_MODES.get(modes[0], {}) if not arms or arms <= {"panda", "panda_wristcam"} else {}
    rate = (known.get("sim_config") or {}).get("control_freq")
    return Contents(
        format="ManiSkill", episodes=tuple(_trajectory(file, e, beside) for e in listed), rate_hz=rate, action=action,
        control=modes[0], controls=tuple(CONTROL_MODES), successor=True,
        provenance={"env": env.get("env_id"), "control_mode": modes[0]},
        hints={"rate_hz": "ManiSkill's default is 20"},
    )  # fmt: skip


def _robots(known: Mapping[str, Any]) -> set[str]:
    uids = known.get("robot_uids") or ()
    return {uids} if isinstance(uids, str) else set(map(str, uids))


def _trajectory(file: Group, listed: Mapping[str, Any], beside: Path) -> Trajectory:
    if "episode_id" not in listed:
        raise DataError(f"{beside}: an episode lacks its episode_id: {dict(listed)}")
    group = get(file, f"traj_{listed['episode_id']}")
    obs = leaves(group["obs"]) if "obs" in group else {}
    obs = obs or {f"env_states/{k}": v for k, v in leaves(get(group, "env_states")).items()}
    recorded = listed.get("success")
    success: Any = column(group, "success")[()].astype(bool) if "success" in group else recorded
    seed = listed.get("episode_seed")
    seed = seed[0] if isinstance(seed, list) and seed else seed
    terminated = np.asarray(column(group, "terminated"))
    return Trajectory(
        group.name.lstrip("/"), obs, column(group, "actions"), column(group, "rewards") if "rewards" in group else None,
        success, bool(len(terminated) and terminated[-1]), seed=seed if isinstance(seed, int) else None,
        length=listed.get("elapsed_steps"),
    )  # fmt: skip
