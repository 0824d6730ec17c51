"""ManiSkill's trajectories: traj_<i>/{actions, obs, env_states, success, terminated, truncated} in X.h5, beside X.json.

Observations have a frame more than actions. Where none were recorded (obs_mode "none") the simulator's own states stand
in for them. X.json says which task and control mode it was, and each episode's seed.
https://maniskill.readthedocs.io/en/latest/user_guide/datasets/demos.html
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic

from robopolicy.core.errors import DataError
from robopolicy.datasets.checks import Defect
from robopolicy.datasets.files import read_json
from robopolicy.datasets.hdf5 import contents as h5

_GRIPPER = {"gripper_meaning": "position: -1 closes, +1 opens"}
_UNIT = {"units": ("1",), "low": (-1.0,), "high": (1.0,), "tcp": "panda_hand_tcp", **_GRIPPER}
_XYZ = ("dx", "dy", "dz")
# The suite turns the other way round than its action says, as in sim/suites/maniskill.py.
_TURN = ("minus_drx", "minus_dry", "minus_drz")
_POSE = {**_UNIT, "names": (*_XYZ, *_TURN, "gripper"), "frame": "base", "rotation": "rotvec", "gripper": 6}
_POS = {**_UNIT, "names": (*_XYZ, "gripper"), "frame": "base", "rotation": "none", "gripper": 3}
_JOINT = {**_UNIT, "names": (*(f"dq{i}" for i in range(1, 8)), "gripper"), "frame": "joint", "rotation": "joint",
          "gripper": 7}  # fmt: skip
# Meaning of a Panda's action, by control mode.
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


class _Sim(pydantic.BaseModel):
    control_freq: h5.Rate | None = None


class _Kwargs(pydantic.BaseModel):
    control_mode: str | None = None
    robot_uids: str | list[str] | None = None
    sim_config: _Sim | None = None


class _ManiSkillEnv(pydantic.BaseModel):
    env_id: str | None = None
    env_kwargs: _Kwargs | None = None


class _Facts(pydantic.BaseModel):
    """X.json."""

    env_info: _ManiSkillEnv | None = None
    episodes: Annotated[list[Any], pydantic.Field(min_length=1)]


class _Listed(pydantic.BaseModel):
    """An episode of X.json."""

    episode_id: Annotated[int, pydantic.Field(strict=True, ge=0)]
    episode_seed: int | list[int] | None = None
    control_mode: str | None = None
    elapsed_steps: int | None = None
    success: Any = None


def recognises(file: h5.Group) -> bool:
    return bool(h5.numbered(file, "traj_"))


def read(file: h5.Group, path: Path, filter_key: str | None) -> h5.Contents:
    """Return the content of the file; broken parts are in its `defects`.

    Raises:
        DataError: no JSON file beside it, or an unreadable one.
    """
    beside = path.with_suffix(".json")
    if not beside.is_file():
        raise DataError(f"{path}: {beside.name} is missing, which belongs to it. Copy both.")
    facts, found = h5.modelled(_Facts, read_json(beside), beside.name), h5.Defects()
    known = (facts.env_info.env_kwargs if facts.env_info else None) or _Kwargs()
    listed: dict[int, _Listed] = {}
    for k, entry in enumerate(facts.episodes):
        with found.noted():
            one = h5.modelled(_Listed, entry, f"{beside.name}, episodes.{k}")
            if listed.setdefault(one.episode_id, one) is not one:
                raise h5.BrokenError(f"{beside.name}, episodes.{k}, episode_id", f"is {one.episode_id} again")
    for name in h5.numbered(file, "traj_"):
        if int(name.removeprefix("traj_")) not in listed:
            found.append(
                Defect(f"/{name}", f"is not listed in {beside.name}", "Copy both files again; they are a pair")
            )
    modes = sorted({str(e.control_mode or known.control_mode) for e in listed.values()})
    if len(modes) > 1:
        problem = f"its episodes have several control modes, {modes}"
        found.append(Defect(f"{beside.name}, control_mode", problem, "Convert them apart"))
    episodes = found.collect(listed.values(), lambda one: _trajectory(file, one, beside))
    uids, mode = known.robot_uids or [], modes[0] if modes else ""
    arms = {uids} if isinstance(uids, str) else set(uids)
    action = CONTROL_MODES.get(mode, {}) if not arms or arms <= {"panda", "panda_wristcam"} else {}
    return h5.Contents(
        format="ManiSkill", episodes=tuple(episodes), rate_hz=(known.sim_config or _Sim()).control_freq, action=action,
        control=mode, controls=tuple(CONTROL_MODES), successor=True,
        provenance={"env": facts.env_info.env_id if facts.env_info else None, "control_mode": mode},
        hints={"rate_hz": "ManiSkill's default is 20"}, defects=tuple(found),
    )  # fmt: skip


def _trajectory(file: h5.Group, listed: _Listed, beside: Path) -> h5.Trajectory:
    group = h5.get(file, f"traj_{listed.episode_id}")
    obs = h5.leaves(h5.get(group, "obs")) if "obs" in group else {}
    obs = obs or {f"env_states/{k}": v for k, v in h5.leaves(h5.get(group, "env_states")).items()}
    success: Any = None
    if "success" in group:
        success = h5.flags(h5.column(group, "success")[()], f"{group.name}/success")
    elif listed.success is not None:
        success = bool(h5.flags([listed.success], f"{beside.name}, episode {listed.episode_id}, success")[0])
    seed = listed.episode_seed
    seed = next(iter(seed), None) if isinstance(seed, list) else seed
    terminated = h5.flags(h5.column(group, "terminated")[()], f"{group.name}/terminated")
    return h5.Trajectory(
        group.name.lstrip("/"), obs, h5.column(group, "actions"), h5.optional_column(group, "rewards"),
        success, bool(len(terminated) and terminated[-1]), seed=seed, length=listed.elapsed_steps,
    )  # fmt: skip
