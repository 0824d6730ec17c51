"""HDF5 files of robomimic, Minari and ManiSkill with one thing about each changed; for scripts/foreign_data.py."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from robopolicy.datasets.hdf5.options import ActionFacts, Hdf5Options
from scripts.foreign_datasets import NESTED, Case, both
from tests.datasets import hdf5_files as files

OPTIONS = {
    "robomimic": Hdf5Options(task="lift the cube"),
    "minari": Hdf5Options(
        task="go there", rate_hz=10.0,
        action=ActionFacts(names=("fx", "fy"), units=("N",), frame="world", tcp="ball", rotation="none",
                           reference="absolute", gripper="none"),
    ),
    "maniskill": Hdf5Options(task="pick", rate_hz=20.0),
}  # fmt: skip
FILES = {"robomimic": "a.hdf5", "minari": "data/main_data.hdf5", "maniskill": "a.h5"}
META, BESIDE = "data/metadata.json", "a.json"


def write(folder: Path, kind: str) -> None:
    """The untouched file, in a folder of its own."""
    if kind == "minari":
        files.minari(folder)
        return
    folder.mkdir()
    {"robomimic": files.robomimic, "maniskill": files.maniskill}[kind](folder / FILES[kind])


# -- changes -----------------------------------------------------------------------------------------------------------
def inside(kind: str, change: Callable[[Any], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        with h5py.File(folder / FILES[kind], "r+") as file:
            change(file)

    return apply


def data(kind: str, key: str, value: Any) -> Callable[[Path], None]:
    """Replace a dataset; None removes it."""

    def change(file: Any) -> None:
        if key in file:
            del file[key]
        if value is not None:
            file[key] = value

    return inside(kind, change)


def attribute(kind: str, group: str, key: str, value: Any) -> Callable[[Path], None]:
    def change(file: Any) -> None:
        if value is None:
            del file[group].attrs[key]
        else:
            file[group].attrs[key] = value

    return inside(kind, change)


def env_args(**kwargs: Any) -> Callable[[Path], None]:
    """Change robomimic's `env_kwargs`."""

    def change(file: Any) -> None:
        args = json.loads(file["data"].attrs["env_args"])
        args["env_kwargs"] |= kwargs
        file["data"].attrs["env_args"] = json.dumps(args)

    return inside("robomimic", change)


def controller(**values: Any) -> Callable[[Path], None]:
    return env_args(controller_configs={**files.OSC, **values})


def beside(file: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Change the JSON beside a file; `change` edits it, or returns another."""

    def apply(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        new = change(content)
        (folder / file).write_text(json.dumps(content if new is None else new))

    return apply


def listed(**values: Any) -> Callable[[Path], None]:
    """Change ManiSkill's second episode."""
    return beside(BESIDE, lambda d: d["episodes"][1].update(values))


def sim(**values: Any) -> Callable[[Path], None]:
    return beside(BESIDE, lambda d: d["env_info"]["env_kwargs"].update(values))


def space(**values: Any) -> Callable[[Path], None]:
    return beside(META, lambda d: d.update(action_space=json.dumps({**files.SPACE, **values})))


def linked(kind: str, key: str) -> Callable[[Path], None]:
    """Have a dataset lead into another file."""

    def apply(folder: Path) -> None:
        with h5py.File(folder / "other.bin", "w") as other:
            other["x"] = np.zeros((4, 7))

        def change(file: Any) -> None:
            del file[key]
            file[key] = h5py.ExternalLink(str(folder / "other.bin"), "/x")

        inside(kind, change)(folder)

    return apply


def ring(file: Any) -> None:
    file["data/demo_0/obs/again"] = file["data/demo_0/obs"]


# -- cases -------------------------------------------------------------------------------------------------------------
def cases() -> Iterator[Case]:
    """Every change of an HDF5 file."""
    for make in (_robomimic, _minari, _maniskill):
        for name, change, key, *more in make():
            kind = make.__name__.removeprefix("_")
            works, clean = (more[0], True) if more else (False, False)
            yield Case(f"{kind}: {name}", kind, change, key, works=works, clean=clean)


def _robomimic() -> Iterator[tuple[Any, ...]]:
    for name, value in {"0": 0, "text": "20", "NaN": math.nan, "negative": -20, "a list": [20]}.items():
        yield f"control_freq {name}", env_args(control_freq=value), "control_freq"
    yield "control_freq null", env_args(control_freq=None), "rate_hz", False
    yield "input_min and input_max are lists", controller(input_min=[-1] * 6, input_max=[1] * 6), "", True
    for name, value in {"a short list": [-1] * 3, "text": "x", "above input_max": 2.0, "NaN": math.nan,
                        "a list of nulls": [None] * 6}.items():  # fmt: skip
        yield f"input_min {name}", controller(input_min=value), "input_min"
    yield "input_ref_frame unknown", controller(input_ref_frame="moon"), "input_ref_frame"
    yield "no controllers", env_args(controller_configs=[]), "hdf5.action", False
    yield "controllers are a number", env_args(controller_configs=3), "controller_configs"
    yield "env_kwargs a list", attribute("robomimic", "data", "env_args", '{"type": 1, "env_kwargs": []}'), "env_kwargs"
    for name, value in {"no JSON": "{", "a list": "[]", "nested": NESTED[:60000], "a number": 3}.items():
        yield f"env_args {name}", attribute("robomimic", "data", "env_args", value), "env_args"
    yield "no env_args", attribute("robomimic", "data", "env_args", None), "env_args"
    for name, value in {"wrong": 99, "text": "seven", "NaN": math.nan}.items():
        yield f"total {name}", attribute("robomimic", "data", "total", value), "total"
    for name, value in {"wrong": 9, "text": "three", "a fraction": 2.5}.items():
        yield f"num_samples {name}", attribute("robomimic", "data/demo_0", "num_samples", value), "demo_0"
    yield "problem_info no JSON", attribute("robomimic", "data", "problem_info", "{"), "problem_info"
    number = '{"language_instruction": 3}'
    yield "instruction a number", attribute("robomimic", "data", "problem_info", number), "language_instruction"
    for key, value in {"rewards": np.full(3, np.nan), "actions": np.full((3, 7), np.nan)}.items():
        yield f"{key} NaN", data("robomimic", f"data/demo_0/{key}", value), f"demo_0/{key}"
    yield "actions text", data("robomimic", "data/demo_0/actions", [b"a", b"b", b"c"]), "demo_0/actions"
    yield "actions a number", data("robomimic", "data/demo_0/actions", 3.0), "demo_0/actions"
    yield "actions of one axis", data("robomimic", "data/demo_0/actions", np.zeros(3)), "actions"
    yield "actions a group", both(data("robomimic", "data/demo_0/actions", None),
                                  data("robomimic", "data/demo_0/actions/x", 3.0)), "demo_0/actions"  # fmt: skip
    yield "rewards of two axes", data("robomimic", "data/demo_0/rewards", np.zeros((3, 2))), "demo_0/rewards"
    yield "observations text", data("robomimic", "data/demo_1/obs/object", [b"a"] * 4), "demo_1/object"
    yield "no observations", data("robomimic", "data/demo_0/obs", None), "demo_0/obs"
    yield "a demonstration an array", data("robomimic", "data/demo_1", np.zeros(3)), "demo_1"
    yield "actions in another file", linked("robomimic", "data/demo_0/actions"), "demo_0/actions"
    yield "groups in a ring", inside("robomimic", ring), "obs/again"

    def huge(file: Any) -> None:
        del file["data/demo_0/actions"]
        file.create_dataset("data/demo_0/actions", shape=(2**40, 7), dtype="f8", chunks=(1, 7))

    yield "actions of no machine's memory", inside("robomimic", huge), "demo_0/actions"


def _minari() -> Iterator[tuple[Any, ...]]:
    success = "episode_0/infos/success"
    for name, value in {"NaN": np.full(4, np.nan), "fractions": np.full(4, 0.25), "texts": [b"False"] * 4,
                        "of another length": np.zeros(7), "of two axes": np.zeros((4, 2))}.items():  # fmt: skip
        yield f"success {name}", data("minari", success, value), "success"
    yield "success in one column", data("minari", success, np.array([[0], [0], [0], [1]])), "", True
    for name, texts in {
        "no JSON": ["{"] * 4, "lists": ["[]"] * 4, "success 'False'": ['{"success": "False"}'] * 4,
        "success NaN": ['{"success": NaN}'] * 4, "success null": ['{"success": null}'] * 4,
        "success in some": ["{}", "{}", "{}", '{"success": true}'], "nested": [NESTED[:9000]] * 4,
    }.items():  # fmt: skip
        yield f"infos {name}", data("minari", "episode_0/infos", texts), "infos"
    for name, value in {"NaN": np.full(3, np.nan), "texts": [b"a"] * 3, "empty": np.zeros(0)}.items():
        yield f"terminations {name}", data("minari", "episode_0/terminations", value), "terminations"
    yield "observations NaN", data("minari", "episode_0/observations/observation", np.full((4, 2), np.nan)), "observ"
    yield "observations one short", data("minari", "episode_1/observations/observation", np.zeros((4, 2))), "observ"
    yield "rewards text", data("minari", "episode_0/rewards", [b"a"] * 3), "rewards"
    yield "seed in words", attribute("minari", "episode_0", "seed", "none"), "", True
    for name, value in {"wrong": 9, "text": "three", "NaN": math.nan}.items():
        yield f"total_steps {name}", attribute("minari", "episode_0", "total_steps", value), "episode_0"
    for name, change in {
        "a list": lambda d: [], "total_episodes text": lambda d: d.update(total_episodes="some"),
        "total_episodes wrong": lambda d: d.update(total_episodes=5),
        "env_spec a number": lambda d: d.update(env_spec=3), "env_spec no JSON": lambda d: d.update(env_spec="{"),
        "action_space no JSON": lambda d: d.update(action_space="{"),
        "action_space a list": lambda d: d.update(action_space="[]"),
    }.items():  # fmt: skip
        yield f"metadata {name}", beside(META, change), name.split()[0] if "_" in name.split()[0] else "metadata"
    yield "metadata cut off", lambda folder: (folder / META).write_text("{") and None, "metadata.json"
    yield "action_space Discrete", space(type="Discrete"), "action_space"
    for name, low in {"null": None, "nulls": [None, None], "above high": [3.0, 3.0], "short": [-1.0],
                      "texts": ["a", "b"], "NaN": [math.nan, -1.0]}.items():  # fmt: skip
        yield f"low {name}", space(low=low), "action_space"
    yield "limits of other channels", space(low=[-1.0] * 3, high=[1.0] * 3), ""
    beyond = both(space(low=[-1.0, -math.inf]), data("minari", "episode_0/actions", np.full((3, 2), 9.0)))
    yield "beyond limits with an infinite end", beyond, "hdf5.action.low", False


def _maniskill() -> Iterator[tuple[Any, ...]]:
    yield "fewer listed than there are", beside(BESIDE, lambda d: d["episodes"].pop() and None), "traj_2"
    yield "more listed than there are", beside(BESIDE, lambda d: d["episodes"].append({"episode_id": 7})), "traj_7"
    yield "an episode twice", listed(episode_id=0), "episode_id"
    for name, value in {"a fraction": 0.5, "text": "0", "null": None, "negative": -1}.items():
        yield f"episode_id {name}", listed(episode_id=value), "episode_id"
    yield "elapsed_steps wrong", listed(elapsed_steps=9), "traj_2"
    yield "elapsed_steps text", listed(elapsed_steps="many"), "elapsed_steps"
    yield "episode_seed text", listed(episode_seed="x"), "episode_seed"
    yield "episode_seed a list", listed(episode_seed=[9]), "", True
    yield "control_mode of its own", listed(control_mode="pd_joint_pos"), "control_mode"
    yield "control_mode a number", listed(control_mode=3), "control_mode"
    for name, value in {"0": 0, "NaN": math.nan, "text": "20"}.items():
        yield f"control_freq {name}", sim(sim_config={"control_freq": value}), "sim_config"
    yield "sim_config a list", sim(sim_config=[]), "sim_config"
    yield "robot_uids a number", sim(robot_uids=3), "robot_uids"
    gone = data("maniskill", "traj_2/success", None)
    for name, value in {"'False'": "False", "NaN": math.nan, "a fraction": 0.5, "a list": [True, False]}.items():
        yield f"success listed as {name}", both(gone, listed(success=value)), "success"
    yield "success listed as 0", both(gone, listed(success=0)), "", True
    for key in ("success", "terminated"):
        yield f"{key} NaN", data("maniskill", f"traj_2/{key}", np.full(3, np.nan)), key
        yield f"{key} texts", data("maniskill", f"traj_2/{key}", [b"no"] * 3), key
    for content in ({"episodes": []}, {"episodes": {}}, {"episodes": None}, {"env_info": []}):
        key = next(iter(content))
        yield f"JSON {content}", beside(BESIDE, lambda d, c=content: {**d, **c}), key
    yield "JSON a list", beside(BESIDE, lambda d: []), "a.json"
    yield "JSON cut off", lambda folder: (folder / BESIDE).write_text("{") and None, "a.json"
    yield "JSON nested", lambda folder: (folder / BESIDE).write_text(NESTED) and None, "a.json"
    yield "no JSON", lambda folder: (folder / BESIDE).unlink(), "a.json"
    yield "actions NaN", data("maniskill", "traj_0/actions", np.full((3, 7), np.nan)), "traj_0/actions"
    yield "cut off", lambda folder: (folder / "a.h5").write_bytes((folder / "a.h5").read_bytes()[:900]) and None, "a.h5"
    yield "an AppleDouble", lambda folder: (folder / "._a.h5").write_bytes(b"\x00\x05\x16\x07") and None, "", True
