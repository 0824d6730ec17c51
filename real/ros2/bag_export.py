"""`robopolicy convert recording=<dataset> bag.wiring=…`: a LeRobotDataset v3 as rosbag2 bags, one an episode.

The way back of `real.ros2.bag_dataset`, with the same names: what a wiring's robot would have sent and been told. A
topic has as many messages in a control step as its rate gives, the first of them at the step's beginning, so a frame is
found again exactly; joints and commands between frames lie on a line, everything else stays until the next frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from std_msgs.msg import Bool, Float64

from real.bag_options import BagOptions
from real.dataset import Converted
from real.ros2 import messages
from real.ros2.bag_dataset import SUCCESS_KEY, TASK_KEY
from real.ros2.bag_writer import BagWriter
from real.ros2.images import image
from real.ros2.plain import GRIPPER, NamedJoints, joints_of
from real.ros2.wiring import Topic, Wiring, load_wiring
from robopolicy.data.episodes import Episodes
from robopolicy.data.lerobot import load_episodes
from robopolicy.data.meta import num_episodes
from robopolicy.data.source import Source
from robopolicy.data.tables import Columns, read_table
from robopolicy.errors import ConfigError, DataError, closest
from robopolicy.storage import new_directory
from robopolicy.types import IMAGES, STATE, TASK
from sim.arm import FINGER_STROKE

Array = NDArray[np.float64]
S = 1_000_000_000
BEGIN = S  # ns of the recorder's clock, and of the arm's, at which every bag begins
HUMAN = "intervention"

Message = tuple[str, int, Any]  # topic, ns since the beginning, message


class Drive(NamedTuple):
    """One episode of T control steps, by the wiring's joints; T + 1 rows where a step's end counts too."""

    dt_ns: float
    q: Array  # [T+1 n] rad
    qd: Array  # [T+1 n] rad/s
    opening: Array | None  # [T+1] m
    features: Array  # [T+1 K]
    told: Array | None  # [T+1 n] rad, where the arm is told to be at each step's beginning
    grip: Array | None  # [T] m, told in each step
    human: NDArray[np.bool_] | None  # [T]
    pictures: dict[str, NDArray[np.uint8]]  # [T 3 H W]


def export_bags(
    dataset: Path, out: Path, options: BagOptions, *, only_success: bool = False, overwrite: bool = False
) -> Converted:
    """Write each episode of a dataset as a bag `<out>/episode_000000`.

    A bag's metadata hold the instruction and whether the episode succeeded, which the way back reads there.

    Raises:
        DataError: `out` is there; the dataset is not readable, or its names are not those of the wiring.
        SpecError: its actions are no absolute joint targets; `bag.action=measured` leaves them out.
    """
    robot, source = load_wiring(str(options.wiring)), Source.open(dataset)
    columns = _Columns(source, robot)
    if out.exists() and not overwrite:
        raise DataError(f"{out}: exists already. Choose another path, or replace it with overwrite=true.")
    made = frames = humans = 0
    with new_directory(out) as folder:
        for number in range(num_episodes(dataset)):
            episode = load_episodes(dataset, episodes=[number])
            success = bool(episode.success.any())
            if only_success and not success:
                continue
            drive = columns.drive(episode, number, commanded=options.action == "commanded")
            text = episode.tasks[int(episode.obs[TASK][0])] if TASK in episode.obs else episode.tasks[0]
            about = {TASK_KEY: text, SUCCESS_KEY: str(success).lower(), "robopolicy.dataset": dataset.name}
            with BagWriter(folder / f"episode_{number:06d}", about=about) as bag:
                for topic, at, message in sorted(columns.messages(drive), key=lambda m: m[1]):
                    bag.add(topic, BEGIN + at, message)
            made, frames = made + 1, frames + episode.num_frames
            humans += 0 if drive.human is None else int(drive.human.sum())
        if not made:
            raise DataError(f"{dataset}: no episode succeeded, and only_success=true")
    print(f"{made} bags of {frames} frames in {out}; in {humans} of them a human drove")
    return Converted(out, made, frames, humans, {})


class _Columns:
    """Which column of a dataset is what on a wiring's topics; raises DataError where one has no place."""

    def __init__(self, source: Source, wiring: Wiring) -> None:
        self.source, self.wiring = source, wiring
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

    def drive(self, episode: Episodes, number: int, *, commanded: bool) -> Drive:
        """Episode `number` by the wiring's joints."""

        def last_twice(rows: Array) -> Array:  # what came after the last action is not in a dataset
            return np.concatenate([rows, rows[-1:]])

        state = last_twice(episode.obs[STATE].double().numpy())
        q = state[:, self.at["pos"]]
        if min(self.at["vel"]) >= 0:
            qd = state[:, self.at["vel"]]
        else:  # a node needs them; of the joints' positions then
            qd = np.gradient(q, episode.dt, axis=0) if len(q) > 2 else np.zeros_like(q)
        told = grip = None
        if commanded:
            targets, grip = self._targets(episode)
            told = np.concatenate([q[:1], targets])
        human = None
        if HUMAN in self.source.columns and self.wiring.topics["intervention"] is not None:
            table, starts = read_table(self.source, [number], [HUMAN])
            human = Columns(table, starts, self.source)(HUMAN, ()).astype(bool)
        return Drive(
            dt_ns=episode.dt * S, q=q, qd=qd, opening=None if self.opening is None else state[:, self.opening],
            features=state[:, self._features_at], told=told, grip=grip, human=human,
            pictures={key: episode.obs[key].numpy() for key in self.cameras},
        )  # fmt: skip

    def _targets(self, episode: Episodes) -> tuple[Array, Array | None]:
        """Joints [T n] rad and opening [T] m."""
        spec, action = episode.action_spec, episode.action.double().numpy()
        order = NamedJoints(spec, self.wiring, dt=episode.dt).order
        if spec.gripper is None or not self.wiring.gripper:
            return action[:, order], None
        grip = action[:, spec.gripper]
        return action[:, order], grip if spec.units[spec.gripper] == "m" else (grip + 1.0) * FINGER_STROKE

    # -- messages -----------------------------------------------------------------------------------------------------
    def messages(self, drive: Drive) -> Iterator[Message]:
        """All of a bag, in no order."""
        w = self.wiring
        topic, fingers = w.topic("joint_states"), np.array(list(w.gripper.values()))
        names, share = (*w.joints, *w.gripper), fingers / max(float(fingers @ fingers), 1e-12)
        for ns, row, part in _times(drive, topic):
            q, qd = _between(drive.q, row, part), _between(drive.qd, row, part)
            opening = 0.0 if drive.opening is None else float(_between(drive.opening, row, part))
            position = np.concatenate([q, opening * share])
            velocity = np.concatenate([qd, np.zeros(len(share))])
            yield topic.name, ns, messages.joint_state(names, BEGIN + ns, position, velocity)
        if self.features:
            topic = w.topic("features")
            for ns, row, _ in _times(drive, topic):
                yield topic.name, ns, messages.joint_state(tuple(self.features), BEGIN + ns, drive.features[row])
        yield from self._commands(drive)
        for key, pictures in drive.pictures.items():
            camera = w.cameras[key]
            for ns, row, _ in _times(drive, camera):
                yield camera.name, ns, image(pictures[min(row, len(pictures) - 1)], BEGIN + ns, camera)
        if drive.human is not None:
            topic = w.topic("intervention")
            for ns, row, _ in _times(drive, topic):
                yield topic.name, ns, Bool(data=bool(drive.human[min(row, len(drive.human) - 1)]))

    def _commands(self, drive: Drive) -> Iterator[Message]:
        if drive.told is None:
            return
        w = self.wiring
        if (topic := w.topics["joint_commands"]) is not None:
            for ns, row, part in _times(drive, topic):
                yield topic.name, ns, messages.joint_state(w.joints, BEGIN + ns, _between(drive.told, row, part))
        elif w.output.type == "trajectory":
            points = [(ns, _between(drive.told, row, part)) for ns, row, part in _times(drive, w.output)]
            for (ns, a), (then, b) in pairwise([*points, (points[-1][0] + w.dt_ns, points[-1][1])]):
                ahead = messages.trajectory(w.joints, BEGIN + ns, np.array([a, b]), then - ns)
                yield w.output.name, ns, ahead
        else:
            raise ConfigError(
                f"bag.wiring: what joints were told is read of joint_commands, or of trajectories; this wiring has "
                f"neither (type {w.output.type}). Give bag.action=measured."
            )
        if drive.grip is not None and (topic := w.topics["gripper"]) is not None:
            for row in np.flatnonzero(np.diff(drive.grip, prepend=np.inf)):  # a command comes after what it answers
                yield topic.name, round(row * drive.dt_ns) + w.dt_ns, Float64(data=float(drive.grip[row]))


def _times(drive: Drive, topic: Topic) -> Iterator[tuple[int, int, float]]:
    """ns since the beginning, row, and the share of the way to the next row, of all messages on a topic."""
    rows, count = len(drive.q), max(1, round(topic.rate_hz * drive.dt_ns / S))
    for row in range(rows):
        for k in range(count if row < rows - 1 else 1):
            yield round((row + k / count) * drive.dt_ns), row, k / count


def _between(rows: Array, row: int, part: float) -> Array:
    """Exactly rows[row] where `part` is 0."""
    return rows[row] if part == 0 else rows[row] + part * (rows[row + 1] - rows[row])
