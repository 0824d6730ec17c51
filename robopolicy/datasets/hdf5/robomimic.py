"""robomimic's files (Mandlekar et al. 2021): /data/demo_<i>/{obs/<key>, actions, rewards, dones}, /mask/<filter key>.

`env_args`, an attribute of /data, says which simulator recorded them and with which controller. LIBERO's and MimicGen's
files are of this kind. Rewards are 0 or 1 unless `reward_shaping` says otherwise: then they are the success.
https://robomimic.github.io/docs/datasets/overview.html
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError, closest
from robopolicy.datasets.hdf5 import contents as h5

_Finite = Annotated[float, pydantic.Field(strict=True, allow_inf_nan=False)]
_Range = _Finite | list[_Finite]

ROBOSUITE = 1  # env_args["type"]
_GRIPPER = {"gripper_meaning": "velocity: -1 opens, +1 closes"}
_POSE = ("dx", "dy", "dz", "drx", "dry", "drz")
_UNIT = {"units": ("1",), "low": (-1.0,), "high": (1.0,), "reference": "measured", **_GRIPPER}
_SITE = {"tcp": "gripper0_grip_site"}
# (controller, deltas) → meaning of an action of robosuite's single arms; sim/suites/robosuite.py has the first too.
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


class _EnvKwargs(pydantic.BaseModel):
    """Fields of `env_kwargs` that all simulators share."""

    control_freq: h5.Rate | None = None
    reward_shaping: bool | None = None
    controller_configs: Any = None


class _EnvArgs(pydantic.BaseModel):
    type: int | None = None
    env_name: str | None = None
    env_version: str | None = None
    env_kwargs: _EnvKwargs | None = None


class _Controller(pydantic.BaseModel):
    """A controller of robosuite's; its input range is one number, or one for each channel without the gripper's."""

    type: str | None = None
    control_delta: bool | None = None
    input_type: str = "delta"
    input_ref_frame: Literal["base", "world"] = "world"
    input_min: _Range = -1.0
    input_max: _Range = 1.0


class _Problem(pydantic.BaseModel):
    language_instruction: str | list[str] | None = None


class _RobomimicEpisode(pydantic.BaseModel):
    lang: str | None = None


def recognises(file: h5.Group) -> bool:
    return "data" in file and hasattr(file["data"], "keys") and bool(h5.numbered(file["data"], "demo_"))


def read(file: h5.Group, path: Path, filter_key: str | None) -> h5.Contents:
    """Return the content of the file, or of the part that a filter key names; broken parts are in its `defects`.

    Raises:
        DataError: no `env_args`.
        ConfigError: an unknown filter key.
    """
    data, found = file["data"], h5.Defects()
    if "env_args" not in data.attrs:
        raise h5.BrokenError(f"{path}, /data, attribute env_args", f"is missing. {closest('env_args', data.attrs)}")
    control, action = "", dict[str, Any]()
    args = found.model(_EnvArgs, data.attrs["env_args"], "env_args")
    problem = found.model(_Problem, data.attrs.get("problem_info"), "problem_info")
    known = args.env_kwargs or _EnvKwargs()
    with found.noted():
        if args.type == ROBOSUITE:
            control, action = _action(known.controller_configs)
    said = problem.language_instruction
    task = "".join(said) if said else None  # LIBERO's early files hold it letter by letter
    names = h5.numbered(data, "demo_") if filter_key is None else _filtered(file, filter_key)
    sparse = known.reward_shaping is False
    episodes = found.collect(names, lambda name: _trajectory(h5.get(data, name), sparse, task))
    with found.noted():
        total, frames = h5.whole_attribute(data, "total"), sum(e.length or 0 for e in episodes)
        counted = len(episodes) == len(names) and all(e.length is not None for e in episodes)
        if filter_key is None and counted and total not in (None, frames):
            raise h5.BrokenError("/data, attribute total", f"says {total}, its demonstrations have {frames} samples")
    return h5.Contents(
        format="robomimic", episodes=tuple(episodes), rate_hz=known.control_freq, action=action, control=control,
        controls=tuple(_words(*key) for key in CONTROLLERS), successor=False,
        usual=("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object"),
        provenance={"env": args.env_name, "env_version": args.env_version, "filter": filter_key}, defects=tuple(found),
    )  # fmt: skip


def _trajectory(demo: h5.Group, sparse: bool, task: str | None) -> h5.Trajectory:
    rewards = h5.optional_column(demo, "rewards")
    success: NDArray[np.bool_] | None = None
    if sparse and rewards is not None:
        success = rewards[()] > 0
    if "ep_meta" in demo.attrs:  # RoboCasa's
        where = f"{demo.name}, attribute ep_meta"
        task = h5.modelled(_RobomimicEpisode, h5.parsed(demo.attrs["ep_meta"], where), where).lang or task
    return h5.Trajectory(
        demo.name.removeprefix("/data/"), h5.leaves(h5.get(demo, "obs")), h5.column(demo, "actions"), rewards, success,
        None, task, length=h5.whole_attribute(demo, "num_samples"),
    )  # fmt: skip


def _filtered(file: h5.Group, key: str) -> list[str]:
    keys = list(file["mask"]) if "mask" in file else []
    if key not in keys:
        raise ConfigError(f"hdf5.filter={key}: no such filter key in /mask. {closest(key, keys)}")
    return [n.decode() if isinstance(n, bytes) else str(n) for n in file["mask"][key][()]]


def _action(given: Any) -> tuple[str, dict[str, Any]]:
    """Return the controller's name, and the fields of `ActionSpec` that it defines."""
    where = "env_args.env_kwargs.controller_configs"
    config = given[0] if isinstance(given, list) and given else given or {}
    parts = config.get("body_parts") if isinstance(config, dict) else None
    if isinstance(parts, dict):  # robosuite 1.5 has one for each part of the body
        config = parts.get("right", config)
    found = h5.modelled(_Controller, config, where)
    kind = str(found.type)
    delta = found.input_type == "delta" if found.control_delta is None else found.control_delta
    facts = dict(CONTROLLERS.get((kind, delta), {}))
    if facts:
        facts.setdefault("frame", found.input_ref_frame)
        if facts["reference"] != "absolute":
            facts["low"] = _limits(found.input_min, facts, -1.0, f"{where}.input_min")
            facts["high"] = _limits(found.input_max, facts, 1.0, f"{where}.input_max")
            if not all(low < high for low, high in zip(facts["low"], facts["high"], strict=True)):
                problem = f"is {found.input_min}, not below input_max {found.input_max}"
                raise h5.BrokenError(f"{where}.input_min", problem)
    return _words(kind, delta), facts


def _limits(given: float | list[float], facts: Mapping[str, Any], grip: float, where: str) -> tuple[float, ...]:
    """Return one limit for each channel; robosuite itself sets that of the gripper."""
    arm = len(facts["names"]) - 1
    limits = given if isinstance(given, list) else [given] * arm
    if len(limits) != arm:
        names = ", ".join(facts["names"][:-1])
        raise h5.BrokenError(where, f"expected one number, or {arm} for {names}, found {len(limits)}")
    return (*map(float, limits), grip)


def _words(kind: str, delta: bool) -> str:
    return f"{kind} ({'deltas' if delta else 'absolute'})"
