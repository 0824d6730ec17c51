"""`robopolicy convert`: make a LeRobotDataset v3 of recorded deployments, to train on.

rosbag2 bags and the HDF5 files of others go the same way (real/ros2/bags/to_dataset.py, robopolicy/datasets/hdf5/). In
ours, a frame is a control step: the observation, and the action that was *executed*. That is the policy's own, clamped,
where it was carried out; where the limits slowed or held the arm, it is the action that has the effect of what was
commanded instead. Such frames are marked.

intervention   bool, the arm was commanded something else than the policy asked for: by the limits, or by a human
policy_action  [Da] the policy's action, also while a human drove; the executed action if nothing
driver         int64, who asked: 0 the policy, 1 a human, 2 the rewind that a human began
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robopolicy.config.schema import Count
from robopolicy.core.errors import ConfigError, DataError
from robopolicy.core.types import TASK, ActionSpec, Feature
from robopolicy.core.untrusted import refusing
from robopolicy.datasets.converted import Converted, UnusableError, add_episode
from robopolicy.datasets.files import visible
from robopolicy.datasets.hdf5.convert import convert_hdf5, find_hdf5
from robopolicy.datasets.hdf5.options import Hdf5Options
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.datasets.tables import DRIVERS
from robopolicy.real.datasets.bag_options import BagOptions
from robopolicy.real.datasets.recorded_header import check_same, observation_of, policy_of, seed_of
from robopolicy.real.recording.recording import Recording, read
from robopolicy.real.safety import Mode
from robopolicy.runs.logger import Tracker
from robopolicy.sim.arm import FINGER_STROKE
from robopolicy.utils.threads import set_threads

Array = NDArray[np.float64]
MARKS = ("intervention", "policy_action", "driver")


class Frames(NamedTuple):
    """One episode of T control steps."""

    obs: dict[str, NDArray[Any]]  # [T ...]
    action: Array  # [T Da] executed
    policy_action: Array  # [T Da]
    intervention: NDArray[np.bool_]  # [T]
    driver: NDArray[np.int64]  # [T] index into DRIVERS
    success: bool | None  # None: unknown


def convert(
    *,
    recording: Path,
    out: Path,
    only_success: bool = False,
    overwrite: bool = False,
    bag: BagOptions | None = None,
    hdf5: Hdf5Options | None = None,
    threads: Count | None = None,
) -> Converted:
    """Write the recordings in a folder, or one, as a LeRobotDataset v3; or such a dataset as rosbag2 bags.

    Episodes without a recorded success count as failures. The last control step, which was cut, is left out, and so
    are recordings that cannot be trained on or were cut off.
    With `bag.wiring`, `recording` is a rosbag2 bag, or a folder of such (real/ros2/bags/to_dataset.py); or it is a
    dataset, of which bags are made (real/ros2/bags/from_dataset.py). An HDF5 file, or a folder that holds one, is
    robomimic's, Minari's or ManiSkill's (robopolicy.datasets.hdf5).

    Args:
        recording: folder of `robopolicy deploy … record=<folder>` or one of its files, rosbag2 bags, an HDF5 file, or a
            dataset.
        out: directory of the dataset, or of the bags.
        only_success: keep only successful episodes.
        overwrite: replace a dataset in `out`.
        bag: options of rosbag2 bags.
        hdf5: options of HDF5 files.
        threads: of torch; None: torch's choice.

    Raises:
        DataError: a file is no recording, or of another policy, task or rate than the first; or no episode is left.
        ConfigError: `bag.wiring` without ROS 2, or options that do not fit the bags, the dataset or the HDF5 file.
    """
    set_threads(threads)
    is_dataset = (recording / "meta" / "info.json").is_file()
    if bag is not None and bag.wiring is not None:
        try:
            from robopolicy.real.ros2.bags.from_dataset import export_bags
            from robopolicy.real.ros2.bags.to_dataset import convert_bags
        except ImportError as error:
            raise ConfigError(
                f"bag.wiring: rosbag2 needs ROS 2 ({error}): ./scripts/setup.sh ros, or source an installation"
            ) from error
        if is_dataset:
            return export_bags(recording, out, bag, tracker=Tracker(), only_success=only_success, overwrite=overwrite)
        return convert_bags(recording, out, bag, tracker=Tracker(), only_success=only_success, overwrite=overwrite)
    if is_dataset:
        raise DataError(
            f"recording={recording}: a LeRobotDataset. Give bag.wiring=<robot> to make rosbag2 bags of it. `robopolicy "
            "data import` makes one of LeRobot's format v2.1 ready for training."
        )
    if (file := find_hdf5(recording)) is not None:
        options = hdf5 or Hdf5Options()
        return convert_hdf5(file, out, options, tracker=Tracker(), only_success=only_success, overwrite=overwrite)
    if any(recording.glob("**/metadata.yaml")):
        raise DataError(f"recording={recording}: a rosbag2 bag. Give bag.wiring=<robot>, which names its topics.")
    paths = visible(recording.glob("*.mcap")) if recording.is_dir() else [recording]
    if not paths:
        raise DataError(f"recording={recording}: holds no .mcap files. `robopolicy deploy … record=…` writes them.")
    return _convert_ours(recording, paths, out, only_success=only_success, overwrite=overwrite)


def _convert_ours(recording: Path, paths: list[Path], out: Path, *, only_success: bool, overwrite: bool) -> Converted:
    """See `convert`; `paths`: files of ours in, or at, `recording`."""
    first = read(paths[0], whole=False).header
    spec, observation = policy_of(first), observation_of(first)
    action, left_out = spec.action, dict[str, str]()
    frames = interventions = 0
    marks = (Feature((), "bool"), Feature((action.dim,), names=action.names), Feature((), "int64"))
    with DatasetWriter(
        out, observation=observation, action=action, dt=spec.dt, tasks=spec.tasks,
        provenance={k: first.get(k) for k in ("robopolicy", "digest", "task", "task_digest", "policy_id")},
        marks=dict(zip(MARKS, marks, strict=True)), overwrite=overwrite,
    ) as writer, Tracker().progress(len(paths), "converted recordings") as bar:  # fmt: skip
        for number, path in enumerate(paths):
            bar.update(number)
            found = read(path, whole=False)
            check_same(first, found.header, path)
            if found.cut_off:
                left_out[path.name] = found.cut_off
                continue
            try:
                episode = frames_of(found)
            except UnusableError as error:
                left_out[path.name] = str(error)
                continue
            if only_success and not episode.success:
                left_out[path.name] = "no success"
                continue
            task = int(episode.obs[TASK][0]) if TASK in episode.obs else 0
            if not 0 <= task < len(spec.tasks):
                raise DataError(f"{path}: {TASK} is {task}, its policy knows {len(spec.tasks)} tasks")
            add_episode(
                writer, episode.obs, episode.action, success=bool(episode.success), task=writer.meta.tasks[task],
                seed=seed_of(found.header), marks={name: getattr(episode, name) for name in MARKS},
            )  # fmt: skip
            frames, interventions = frames + len(episode.action), interventions + int(episode.intervention.sum())
        bar.update(len(paths))
        if not writer.num_episodes:
            raise DataError(f"recording={recording}: no episode to keep of {len(paths)}: {left_out}")
    why = "".join(f"\n  left out {name}: {reason}" for name, reason in left_out.items())
    print(f"{writer.num_episodes} episodes, {frames} frames in {out}; in {interventions} frames the arm was commanded "
          f"something else than the policy asked for{why}")  # fmt: skip
    return Converted(out, writer.num_episodes, frames, interventions, left_out)


def frames_of(recording: Recording) -> Frames:
    """Return the control steps of a recording except the last one.

    Raises:
        UnusableError: they cannot be trained on. DataError: the recording holds what none can.
    """
    with refusing(str(recording.path), DataError):
        return _frames_of(recording)


def _frames_of(recording: Recording) -> Frames:
    header = recording.header
    action, observation = policy_of(header).action, observation_of(header)
    if header.get("shadow"):
        raise UnusableError("recorded with dry_run: nothing moved")
    steps: list[dict[str, Any]] = []
    for topic, content in recording.messages:
        if topic == "step":
            steps.append({**content, "held": False, "changed": False})
        elif topic == "tick" and steps:
            steps[-1]["held"] |= Mode[content["mode"]] >= Mode.HOLD  # the stop was played
            steps[-1]["changed"] |= content["changed"]
    numbers = [(s["n"], s["step"]) for s in steps]
    if recording.lost or numbers != [(k, k) for k in range(len(steps))]:
        raise UnusableError("control steps are missing: the recorder or the loop was late")
    if len(steps) < 3:  # one frame would be no video
        raise UnusableError("it ended within its first two control steps")
    low, high, joints = np.array(action.low), np.array(action.high), header["profile"]["data"]["joints"]
    executed, asked, marks, drivers = [], [], [], []
    for now, after in pairwise(steps):
        wanted = None if now["action"] is None else np.clip(now["action"], low, high)
        other = wanted is None or now["limited"] or now["held"]
        effect = wanted
        if effect is None or other:
            effect = _effect(now["commanded"], after["commanded"], action, joints)
        executed.append(np.clip(effect, low, high))
        driver = now.get("driver", "policy")
        proposed = wanted if driver == "policy" else now.get("proposed")
        asked.append(executed[-1] if proposed is None else np.clip(proposed, low, high))
        marks.append(other or now["changed"] or driver != "policy")
        drivers.append(DRIVERS.index(driver))
    obs = {
        key: np.stack([value_of(s["obs"][key], feature) for s in steps[:-1]]) for key, feature in observation.items()
    }
    return Frames(
        obs, np.array(executed), np.array(asked), np.array(marks), np.array(drivers, dtype=np.int64),
        recording.footer["success"],
    )  # fmt: skip


def value_of(value: Any, feature: Feature) -> NDArray[Any]:
    """Restore an observation [...] of a record, where pictures are hexadecimal text."""
    if isinstance(value, str):
        return np.frombuffer(bytes.fromhex(value), dtype=np.uint8).reshape(feature.shape)
    found = np.array(value, dtype=np.float64)
    if found.shape != feature.shape:
        raise DataError(f"recording: an observation has shape {found.shape}, its header says {feature.shape}")
    return found.astype(feature.dtype)


# -- inside ---------------------------------------------------------------------------------------------------------
def _effect(before: dict[str, Any], after: dict[str, Any], action: ActionSpec, joints: list[str]) -> Array:
    """Return [Da] the action that leads from one commanded state to the next, of an arm with these `joints`."""
    if (action.reference, action.rotation) == ("commanded", "yaw"):
        way = np.array(after["pos"]) - np.array(before["pos"])
        return np.array([*way, after["yaw"] - before["yaw"], after["grip"]])
    if (action.reference, action.rotation) == ("absolute", "joint"):
        return np.array([_target(k, after, action, joints) for k in range(action.dim)])
    raise DataError(
        f"convert: knows actions that are increments of the commanded pose, or absolute joint targets; these are "
        f"{action.reference} with rotation {action.rotation!r}"
    )


def _target(k: int, after: dict[str, Any], action: ActionSpec, joints: list[str]) -> float:
    """Return channel `k` of absolute joint targets for the commanded pose."""
    name, grip = action.names[k].removesuffix(".pos"), float(after["grip"])
    if k == action.gripper:
        if action.units[k] == "%":
            raise DataError(
                f"convert: {action.names[k]!r} is in %, and a recording holds no opening at 100%. Expected m"
            )
        return (grip + 1) * FINGER_STROKE if action.units[k] == "m" else grip
    known = {**{f"q{i + 1}": i for i in range(len(joints))}, **{joint: i for i, joint in enumerate(joints)}}
    if name not in known:
        raise DataError(f"convert: the action {action.names[k]!r} is no joint of the limits' arm, which has {joints}")
    angle = float(after["q"][known[name]])
    return math.degrees(angle) if action.units[k] == "deg" else angle
