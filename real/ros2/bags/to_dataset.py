"""`robopolicy convert recording=<bag> wiring=…`: rosbag2 bags of a robot as a LeRobotDataset v3 to train on.

Topics of the wiring become the columns of joint_state_adapter.py: `observation.state` of joints, gripper and features
by name, pictures by feature, absolute joint targets as actions. A frame holds the messages that had *arrived* at its
time, as a policy node would have seen them: pictures that are `latency_s` old with the state of then. An action is the
commanded pose at the end of the control step.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError, DataError
from robopolicy.core.protocols import ShowsProgress
from robopolicy.core.types import STATE, TASK, ActionSpec, Feature
from robopolicy.datasets.converted import Converted, UnusableError, add_episode
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.real.datasets.bag_options import BagOptions
from robopolicy.real.ros2.bags.checks import check_stream
from robopolicy.real.ros2.bags.reader import Bag, bags_in
from robopolicy.real.ros2.bags.streams import Streams
from robopolicy.real.ros2.wiring import Wiring, load_wiring
from robopolicy.sim.arm import FINGER_STROKE

Array = NDArray[np.float64]
RATE = 20.0  # Hz, by default
# In the custom_data of bags that were made of a dataset, whose frames are all kept:
TASK_KEY, SUCCESS_KEY, RATE_KEY = "robopolicy.task", "robopolicy.success", "robopolicy.rate_hz"
MOVED = 2e-3  # rad or m: the first motion is larger


class BagFrames(NamedTuple):
    """One episode of T control steps."""

    obs: dict[str, NDArray[Any]]  # [T ...]
    action: Array  # [T Da]
    intervention: NDArray[np.bool_]  # [T]


def convert_bags(
    recording: Path, out: Path, options: BagOptions, *, tracker: ShowsProgress, only_success: bool = False,
    overwrite: bool = False,
) -> Converted:  # fmt: skip
    """Write a bag, or a folder of bags, as a dataset with one episode a bag.

    Instruction, rate and success are those of `options`, else those that bags/from_dataset.py left in the bag.

    Raises:
        DataError: a bag is damaged, lacks a topic, holds other types, or other cameras or another rate than the first;
            none is usable.
        ConfigError: the bag has no commands, or, with `only_success`, no success; the rate is too high.
    """
    o, robot = options, load_wiring(str(options.wiring))
    bags, left_out = [Bag(path) for path in bags_in(recording)], dict[str, str]()
    tasks = _tasks_of(bags, o)
    rate = _rate_of(bags, o)
    if rate > 0.5 / robot.tick_s:
        raise ConfigError(f"bag.rate_hz: expected up to {0.5 / robot.tick_s:.0f}, found {rate:g}")
    if only_success and not o.success and (silent := [b.path.name for b in bags if SUCCESS_KEY not in b.about]):
        raise ConfigError(f"only_success: nothing in {silent[0]} says whether it succeeded. Leave it out.")

    def streams_of(bag: Bag) -> Streams:
        return Streams(bag, robot, commanded=o.action == "commanded", image_size=o.image_size)

    begun, ungripped = streams_of(bags[0]), list[str]()
    first, frames, marked = features_of(begun, robot), 0, 0
    with DatasetWriter(
        out, observation=first | ({TASK: Feature((), "int64")} if len(set(tasks)) > 1 else {}),
        action=action_of(robot), dt=1.0 / rate, tasks=tuple(dict.fromkeys(tasks)),
        provenance={"source": "rosbag2", "wiring": robot.limits, "action": o.action},
        marks={"intervention": Feature((), "bool")}, overwrite=overwrite,
    ) as writer, tracker.progress(len(bags), "converted bags") as bar:  # fmt: skip
        for number, (bag, task) in enumerate(zip(bags, tasks, strict=True)):
            bar.update(number)
            path, success = bag.path, o.success or bag.about.get(SUCCESS_KEY, "").lower() == "true"
            if only_success and not success:
                left_out[path.name] = "did not succeed"
                continue
            streams = streams_of(bag) if number else begun
            if (found := features_of(streams, robot)) != first:
                raise DataError(f"{path}: holds {_brief(found)}, the first bag {_brief(first)}; convert them apart")
            try:
                episode = frames_of(streams, robot, 1.0 / rate, whole=RATE_KEY in bag.about)
            except UnusableError as error:
                left_out[path.name] = str(error)
                continue
            marks = {"intervention": episode.intervention}
            add_episode(writer, episode.obs, episode.action, success=success, task=task, seed=number, marks=marks)
            frames, marked = frames + len(episode.action), marked + int(episode.intervention.sum())
            if streams.commanded and robot.gripper and not streams.told_gripper:
                ungripped.append(path.name)
        bar.update(len(bags))
        if not writer.num_episodes:
            raise DataError(f"recording={recording}: no episode to keep of {len(bags)}: {left_out}")
    why = "".join(f"\n  left out {name}: {reason}" for name, reason in left_out.items()) + _measured(robot, ungripped)
    print(f"{writer.num_episodes} episodes, {frames} frames of {_brief(first)} in {out}; in {marked} of them a human "
          f"drove{why}")  # fmt: skip
    return Converted(out, writer.num_episodes, frames, marked, left_out)


def _measured(robot: Wiring, bags: list[str]) -> str:
    """Say that the gripper's actions of some bags are measured ones; "" where there are none."""
    if not bags:
        return ""
    topic = None if robot.grip is None else robot.grip.name
    return (
        f"\n  gripper: no opening that was asked for is in {bags} (topics.gripper: {topic}; goals of an action never "
        "are), so actions hold the measured one. Around an object that is its width: a policy that asks for it does "
        "not press"
    )


def _tasks_of(bags: list[Bag], options: BagOptions) -> list[str]:
    """Return the instruction of each bag."""
    tasks = [options.task or bag.about.get(TASK_KEY, "") for bag in bags]
    if "" in tasks:
        path = bags[tasks.index("")].path
        raise ConfigError(f"bag.task: {path.name} does not say what was done; give the instruction, bag.task='…'")
    return tasks


def _rate_of(bags: list[Bag], options: BagOptions) -> float:
    if options.rate_hz is not None:
        return options.rate_hz
    rates = {bag.path.name: _rate_in(bag) for bag in bags}
    if len(set(rates.values())) > 1:
        raise DataError(f"bag.rate_hz: the bags were made of datasets of different rates, {rates}; give one of them")
    return next(iter(rates.values()))


def _rate_in(bag: Bag) -> float:
    """Return the frames a second of the dataset that a bag was made of, RATE where it was made of none."""
    said = bag.about.get(RATE_KEY, repr(RATE))
    try:
        rate = float(said)
    except ValueError:
        rate = math.nan
    if not 0.0 < rate < math.inf:
        raise DataError(
            f"{bag.path}/metadata.yaml: custom_data.{RATE_KEY}: expected frames a second, found {said[:40]!r}. Correct "
            "it, or give bag.rate_hz"
        )
    return rate


def action_of(wiring: Wiring) -> ActionSpec:
    """Absolute targets of all joints and, where there is one, of the gripper's opening."""
    profile = wiring.profile()
    grip = bool(wiring.gripper)
    least, most = (0.0, 2 * FINGER_STROKE) if wiring.grip is None else (wiring.grip.low, wiring.grip.high)
    names = [f"{joint}.pos" for joint in profile.joints]
    return ActionSpec(
        names=(*names, "gripper.pos") if grip else tuple(names), units=("rad",) * len(names) + ("m",) * grip,
        low=(*profile.maker["low"].tolist(), *[least] * grip),
        high=(*profile.maker["high"].tolist(), *[most] * grip),
        frame="joint", tcp=wiring.frames["tcp"], rotation="joint", reference="absolute",
        gripper=len(names) if grip else None, gripper_meaning="opening" if grip else "",
    )  # fmt: skip


def features_of(streams: Streams, wiring: Wiring) -> dict[str, Feature]:
    """Build the observations of a policy."""
    joints = wiring.profile().joints
    names = [f"{j}.{what}" for what in ("pos", "vel") for j in joints] + ["gripper.pos"] * bool(wiring.gripper)
    names += streams.feature_names
    images = {key: Feature(shape, "uint8") for key, shape in streams.shapes.items()}
    return {STATE: Feature((len(names),), names=tuple(names)), **images, **streams.depth.features}


def frames_of(streams: Streams, wiring: Wiring, dt: float, *, whole: bool = False) -> BagFrames:
    """Return the control steps of a bag, from the first motion on, or all of them (`whole`).

    Raises:
        UnusableError: messages are missing, late or out of order; or the arm did not move.
    """
    s = streams
    for name, stream, topic, patience in s.checked():
        check_stream(name, stream, topic.rate_hz, patience)
    begin = max(stream.arrived[0] for _, stream, _, _ in s.checked())
    end = min(stream.arrived[-1] for _, stream, _, _ in s.checked())
    count = math.floor((end - begin) / dt + 1e-6)
    at = begin + dt * np.arange(count + 1)  # s; the last one only ends the step before it
    commanded = s.commanded_at(at)
    if not whole:
        moved = np.flatnonzero(np.abs(commanded - commanded[0]).max(axis=1) > MOVED) if count > 0 else np.array([])
        if not len(moved):
            raise UnusableError("nothing moved")
        at, commanded = at[max(0, moved[0] - 1) :], commanded[max(0, moved[0] - 1) :]
    if len(at) < 4:
        raise UnusableError(f"only {len(at) - 1} control steps after the first motion")
    seen = at[:-1]
    spec = action_of(wiring)
    inside = (np.array(spec.low) - MOVED <= commanded) & (commanded <= np.array(spec.high) + MOVED)  # NaN fails
    if (outside := ~inside).any():
        step, k = np.argwhere(outside)[0]
        raise UnusableError(
            f"{spec.names[k]} was told {commanded[step, k]:.3f} {spec.units[k]}, expected {spec.low[k]:.3f} to "
            f"{spec.high[k]:.3f}"
        )
    clouds = s.depth.at(seen, s.states)
    obs: dict[str, NDArray[Any]] = {STATE: s.state(seen).astype(np.float32), **s.pictures(seen), **clouds}
    return BagFrames(obs, np.clip(commanded[1:], spec.low, spec.high), s.intervened(seen))


def _brief(features: dict[str, Feature]) -> list[str]:
    return [f"{key} {list(f.shape)}" for key, f in features.items()]
