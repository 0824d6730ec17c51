"""`robopolicy convert recording=<dataset> bag.wiring=…`: a LeRobotDataset v3 as rosbag2 bags, one an episode.

The inverse of real/ros2/bags/to_dataset.py, with the same names: a robot's messages and commands
(`robopolicy.real.ros2.bags.messages`), so that every frame is found again exactly.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import DataError, closest
from robopolicy.core.protocols import ShowsProgress
from robopolicy.core.types import IMAGES, STATE, TASK
from robopolicy.datasets.converted import Converted
from robopolicy.datasets.episodes import Episodes
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.metadata import num_episodes
from robopolicy.datasets.source import DatasetInfo
from robopolicy.datasets.tables import read_table
from robopolicy.real.datasets.bag_options import BagOptions
from robopolicy.real.ros2.bags.checks import FASTER, SLOWER
from robopolicy.real.ros2.bags.messages import BEGIN, BagEpisode, S, messages_of, per_step
from robopolicy.real.ros2.bags.to_dataset import RATE_KEY, SUCCESS_KEY, TASK_KEY
from robopolicy.real.ros2.bags.writer import BagWriter
from robopolicy.real.ros2.joint_state_adapter import GRIPPER, NamedJoints, joints_of, units_of
from robopolicy.real.ros2.wiring import Wiring, load_wiring
from robopolicy.sim.arm import FINGER_STROKE
from robopolicy.utils.storage import MANIFEST, new_directory

Array = NDArray[np.float64]
HUMAN = "intervention"
PIXELS = 1 << 30  # bytes of pictures that are held at a time


def export_bags(
    dataset: Path, out: Path, options: BagOptions, *, tracker: ShowsProgress, only_success: bool = False,
    overwrite: bool = False,
) -> Converted:  # fmt: skip
    """Write each episode of a dataset as a bag `<out>/episode_000000`.

    A bag's metadata hold the rate, the instruction (`options.task`, where it is given) and, where the dataset knows,
    whether the episode succeeded; to_dataset.py reads them there.

    Raises:
        DataError: `out` is there, and is not to be replaced or is no folder of bags; the dataset is not readable, or
            its names are not those of the wiring.
        SpecError: its actions are no absolute joint targets; `bag.action=measured` leaves them out.
        ConfigError: the wiring has no topic of joint commands.
        CheckpointError: the disk is full; no bag is left behind.
    """
    robot, source = load_wiring(str(options.wiring)), DatasetInfo.open(dataset)
    columns = _Columns(source, robot, commanded=options.action == "commanded")
    _check_out(dataset, out, overwrite)
    frames = humans = 0
    made, left_out = list[str](), dict[str, str]()
    total = num_episodes(source.root)
    with new_directory(out) as folder, tracker.progress(total, "converted episodes") as bar:
        for number, rows, episode in columns.episodes():
            bar.update(number)
            name, success = f"episode_{number:06d}", bool(episode.success[rows].any())
            if only_success and not success:
                left_out[name] = "did not succeed" if episode.outcomes else "its success was not recorded"
                continue
            drive = columns.drive(episode, rows, number)
            text = options.task or episode.tasks[int(episode.obs[TASK][rows][0]) if TASK in episode.obs else 0]
            about = {TASK_KEY: text, RATE_KEY: repr(1.0 / episode.dt), "robopolicy.dataset": dataset.name}
            about |= {SUCCESS_KEY: str(success).lower()} if episode.outcomes else {}
            with BagWriter(folder / name, about=about) as bag:
                for topic, at, message in heapq.merge(*messages_of(drive, columns.features, robot), key=lambda m: m[1]):
                    bag.add(topic, BEGIN + at, message)
            made.append(name)
            frames += rows.stop - rows.start
            humans += 0 if drive.human is None else int(drive.human.sum())
        bar.update(total)
        if not made:
            raise DataError(f"{dataset}: no episode to keep: {left_out or 'it has none'}")
    print(f"{len(made)} bags of {frames} frames in {out}; in {humans} of them a human drove", *columns.remarks,
          sep="\n  ")  # fmt: skip
    return Converted(out, len(made), frames, humans, left_out)


def _check_out(dataset: Path, out: Path, overwrite: bool) -> None:
    """Refuse to replace a folder that holds no bags, or the dataset itself."""
    if not out.exists():
        return
    if not overwrite:
        raise DataError(f"{out}: exists already. Choose another path, or replace it with overwrite=true.")
    if dataset.resolve().is_relative_to(out.resolve()):
        raise DataError(f"{out}: holds the dataset itself, which would be lost. Choose another path.")
    foreign = [p.name for p in out.iterdir() if p.name != MANIFEST and not (p / "metadata.yaml").is_file()]
    if foreign:
        raise DataError(f"{out}: holds {foreign[0]!r}, which is no bag, so it is not replaced. Choose another path.")


class _Columns:
    """Map a dataset's columns to a wiring's topics; raises DataError where one has no place."""

    def __init__(self, source: DatasetInfo, wiring: Wiring, *, commanded: bool) -> None:
        self.source, self.wiring, self.commanded = source, wiring, commanded
        self.remarks: list[str] = []  # for the user
        names = source.offered[STATE].names if STATE in source.offered else None
        if names is None:
            raise DataError(f"{source.root}: {STATE} is missing or its elements have no names; a bag needs its joints")
        at = {name: k for k, name in enumerate(names)}
        joints, count = joints_of(wiring), len(wiring.joints)
        self.at = {what: [-1] * count for what in ("pos", "vel")}
        for joint, index in joints.items():
            for what, found in self.at.items():
                found[index] = at.pop(f"{joint}.{what}", found[index])
        if missing := [j for j, k in zip(wiring.joints, self.at["pos"], strict=True) if k < 0]:
            raise DataError(
                f"{source.root}: {STATE} has no '{missing[0]}.pos'. {closest(f'{missing[0]}.pos', names)} A bag needs "
                f"the position of each of {list(wiring.joints)}; tasks of the simulator observe none."
            )
        self.opening = at.pop(f"{GRIPPER}.pos", None)
        if (self.opening is None) == bool(wiring.gripper):
            has = "lacks" if wiring.gripper else "holds"
            raise DataError(
                f"{source.root}: {STATE} {has} '{GRIPPER}.pos', and the wiring's gripper is {list(wiring.gripper)}"
            )
        self.features = list(at)
        self._features_at = list(at.values())
        if self.features and wiring.topics["features"] is None:
            raise DataError(f"{source.root}: {STATE} holds {self.features}, and the wiring has no topics.features")
        self.cameras = [key for key in source.offered if key.startswith(IMAGES)]
        for key in self.cameras:
            if key not in wiring.cameras:
                raise DataError(f"{source.root}: {key!r} is no camera of the wiring. {closest(key, wiring.cameras)}")
        self._human = self._marks()
        self._remark()

    def _marks(self) -> tuple[NDArray[np.bool_], NDArray[np.int64]] | None:
        """Return [F] whether a human drove, and `starts` [E+1]."""
        if HUMAN not in self.source.columns or self.wiring.topics["intervention"] is None:
            return None
        columns, _ = read_table(self.source, None, [HUMAN])
        return columns(HUMAN, ()).astype(bool), columns.starts.numpy()

    def _remark(self) -> None:
        """Note columns without a place on the wiring's topics, and rates that to_dataset.py would refuse."""
        w, action = self.wiring, self.source.meta.action if self.source.meta else None
        if action is not None and action.gripper is not None and action.units[action.gripper] == "%":
            raise DataError(
                f"{self.source.root}: its gripper is in %, expected m: a wiring over ROS 2 says no width at 100%. "
                f"Convert {GRIPPER}.pos and the action to m first."
            )
        if self.commanded and w.topics["gripper"] is None and w.gripper and action and action.gripper is not None:
            raise DataError(
                f"{self.source.root}: has gripper commands, and the wiring's topics.gripper is null. "
                "bag.action=measured leaves all commands out."
            )
        if HUMAN in self.source.columns and w.topics["intervention"] is None:
            self.remarks.append("who drove is left out: the wiring's topics.intervention is null")
        if other := [k for k in self.source.offered if k not in (STATE, TASK, *self.cameras)]:
            self.remarks.append(f"left out: {other}, for which a wiring has no topic")
        own = {name: w.topic(name) for name in ("joint_states", "gripper_states") if w.topics[name] is not None}
        sent = {**own, **{k: w.cameras[k] for k in self.cameras}}
        for name, topic in sent.items():
            rate = self.source.fps * per_step(1.0 / self.source.fps, topic)
            if not SLOWER * topic.rate_hz <= rate <= FASTER * topic.rate_hz:
                self.remarks.append(
                    f"{name}: {rate:g} messages a second, the wiring says {topic.rate_hz:g}: to convert the bags again "
                    "takes a wiring that says so"
                )

    def episodes(self) -> Iterator[tuple[int, slice, Episodes]]:
        """Every episode: number, rows, and the episodes read together, whose pictures take at most `PIXELS` bytes."""
        root, count = self.source.root, num_episodes(self.source.root)
        size = sum(math.prod(self.source.offered[k].shape) for k in self.cameras) * self.source.info.total_frames
        many = max(1, int(count * PIXELS / max(size, 1)))
        for first in range(0, count, many):
            numbers = range(first, min(count, first + many))
            batch = load_episodes(root, episodes=list(numbers))
            for number, (begin, end) in zip(numbers, pairwise(batch.starts.tolist()), strict=True):
                yield number, slice(begin, end), batch

    def drive(self, episodes: Episodes, rows: slice, number: int) -> BagEpisode:
        """Episode `number`, which is in these rows of `episodes`, by the wiring's joints."""
        found = episodes.obs[STATE][rows].double().numpy()
        state = np.concatenate([found, found[-1:]])  # a dataset has no state after the last action
        units = units_of(episodes.action_spec, self.wiring)  # rad, and last m, in one of the dataset
        q = state[:, self.at["pos"]] * units[:-1]
        if min(self.at["vel"]) >= 0:
            qd = state[:, self.at["vel"]] * units[:-1]
        else:  # a node needs them; of the joints' positions then
            qd = np.zeros_like(q)
            if len(found) > 1:
                qd[:-1] = np.gradient(q[:-1], episodes.dt, axis=0)
                qd[-1] = qd[-2]
        commanded = grip = None
        if self.commanded:
            targets, grip = self._targets(episodes, rows)
            commanded = np.concatenate([q[:1], targets])
        human = None
        if self._human is not None:
            marks, starts = self._human
            human = marks[starts[number] : starts[number + 1]]
        return BagEpisode(
            dt_ns=episodes.dt * S, q=q, qd=qd,
            opening=None if self.opening is None else state[:, self.opening] * units[-1],
            features=state[:, self._features_at], commanded=commanded, grip=grip, human=human,
            pictures={key: episodes.obs[key][rows].numpy() for key in self.cameras},
        )  # fmt: skip

    def _targets(self, episodes: Episodes, rows: slice) -> tuple[Array, Array | None]:
        """Joints [T n] rad and opening [T] m."""
        spec, action = episodes.action_spec, episodes.action[rows].double().numpy()
        named = NamedJoints(spec, self.wiring, dt=episodes.dt)
        joints = action[:, named.order] * np.array(named.scale)
        if spec.gripper is None or not self.wiring.gripper:
            return joints, None
        grip = action[:, spec.gripper]
        return joints, grip if spec.units[spec.gripper] == "m" else (grip + 1.0) * FINGER_STROKE
