"""robomimic's files (Mandlekar et al. 2021): /data/demo_<i>/{obs/<key>, actions, rewards, dones}, /mask/<filter key>.

`env_args`, an attribute of /data, says which simulator recorded them and with which controller. LIBERO's and MimicGen's
files are of this kind. Rewards are 0 or 1 unless `reward_shaping` says otherwise: then they are the success.
https://robomimic.github.io/docs/datasets/overview.html
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopolicy.data.hdf5.contents import Contents, Group, Trajectory, column, get, leaves, numbered, parsed
from robopolicy.errors import ConfigError, DataError, closest

ROBOSUITE = 1  # env_args["type"]
_GRIPPER = {"gripper_meaning": "velocity: -1 opens, +1 closes"}
_POSE = ("dx", "dy", "dz", "drx", "dry", "drz")
_UNIT = {"units": ("1",), "low": (-1.0,), "high": (1.0,), "reference": "measured", **_GRIPPER}
_SITE = {"tcp": "gripper0_grip_site"}
# (controller, deltas): what robosuite's single arms make of an action; sim/suites/robosuite.py has the first, too.
CONTROLLERS: Mapping[tuple[str, bool], Mapping[str, Any]] = {
    ("OSC_POSE", True): {**_UNIT, **_SITE, "names": (*_POSE, "gripper"), "rotation": "rotvec", "gripper": 6},
    ("OSC_POSITION", True): {**_UNIT, **_SITE, "names": (*_POSE[:3], "gripper"), "rotation": "none", "gripper": 3},
    ("OSC_POSE", False): {
        **_SITE, **_GRIPPER, "names": ("x", "y", "z", "rx", "ry", "rz", "gripper"), "rotation": "rotvec", "gripper": 6,
        "units": ("m", "m", "m", "rad", "rad", "rad", "1"), "reference": "absolute",
    },
    ("JOINT_POSITION", True): {
        **_UNIT, **_SITE, "names": (*(f"dq{i}" for i in range(1, 8)), "gripper"), "rotation": "joint", "gripper": 7,
        "frame": "joint",
    },
}  # fmt: skip


def recognises(file: Group) -> bool:
    return "data" in file and hasattr(file["data"], "keys") and bool(numbered(file["data"], "demo_"))


def read(file: Group, path: Path, filter_key: str | None) -> Contents:
    """What the file holds, or the part of it that a filter key names.

    Raises:
        DataError: no `env_args`, missing columns, a number of samples that is not what the file says.
        ConfigError: an unknown filter key.
    """
    data = file["data"]
    if "env_args" not in data.attrs:
        raise DataError(f"{path}: /data lacks the attribute env_args. {closest('env_args', data.attrs)}")
    args = parsed(data.attrs["env_args"], f"{path}: env_args")
    known = args.get("env_kwargs") or {}
    problem = parsed(data.attrs["problem_info"], f"{path}: problem_info") if "problem_info" in data.attrs else {}
    control, action = _action(known) if args.get("type") == ROBOSUITE else ("", {})
    sparse = known.get("reward_shaping") is False
    said = problem.get("language_instruction")
    task = "".join(said) if said else None  # LIBERO's early files hold it letter by letter
    names = numbered(data, "demo_") if filter_key is None else _filtered(file, filter_key)
    episodes = tuple(_trajectory(get(data, name), sparse, task) for name in names)
    total, found = data.attrs.get("total"), sum(e.length or 0 for e in episodes)
    if filter_key is None and total is not None and all(e.length is not None for e in episodes) and total != found:
        raise DataError(f"{path}: its demonstrations have {found} samples, the attribute total says {total}")
    return Contents(
        format="robomimic", episodes=episodes, rate_hz=known.get("control_freq"), action=action, control=control,
        controls=tuple(_words(*key) for key in CONTROLLERS), successor=False,
        usual=("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object"),
        provenance={"env": args.get("env_name"), "env_version": args.get("env_version"), "filter": filter_key},
    )  # fmt: skip


def _trajectory(demo: Group, sparse: bool, task: str | None) -> Trajectory:
    rewards = column(demo, "rewards") if "rewards" in demo else None
    success: NDArray[np.bool_] | None = None
    if sparse and rewards is not None:
        success = rewards[()] > 0
    if "ep_meta" in demo.attrs:  # RoboCasa's
        task = parsed(demo.attrs["ep_meta"], f"{demo.name}: ep_meta").get("lang") or task
    length = demo.attrs.get("num_samples")
    return Trajectory(
        demo.name.removeprefix("/data/"), leaves(get(demo, "obs")), column(demo, "actions"), rewards, success,
        None, task, length=None if length is None else int(length),
    )  # fmt: skip


def _filtered(file: Group, key: str) -> list[str]:
    keys = list(file["mask"]) if "mask" in file else []
    if key not in keys:
        raise ConfigError(f"hdf5.filter={key}: no such filter key in /mask. {closest(key, keys)}")
    return [n.decode() if isinstance(n, bytes) else str(n) for n in file["mask"][key][()]]


def _action(known: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The controller in words, and what its actions mean as far as that is known."""
    given = known.get("controller_configs") or {}
    config: dict[str, Any] = given[0] if isinstance(given, list) else given
    config = (config.get("body_parts") or {}).get("right", config)  # robosuite 1.5 has one for each part of the body
    kind = str(config.get("type"))
    delta = config.get("control_delta", config.get("input_type", "delta") == "delta")
    facts = dict(CONTROLLERS.get((kind, bool(delta)), {}))
    if facts:
        facts.setdefault("frame", config.get("input_ref_frame", "world"))
        if facts["reference"] != "absolute":
            facts["low"], facts["high"] = ((float(config.get(k, s)),) for k, s in (("input_min", -1), ("input_max", 1)))
    return _words(kind, bool(delta)), facts


def _words(kind: str, delta: bool) -> str:
    return f"{kind} ({'deltas' if delta else 'absolute'})"
