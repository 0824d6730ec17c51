"""An episode as messages and commands of a robot on the topics of a wiring, by time.

A topic has as many messages in a control step as its rate gives, the first of them at the step's beginning; joints and
commands between frames lie on a line, everything else stays until the next frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from std_msgs.msg import Bool, Float64

from robopolicy.core.errors import ConfigError
from robopolicy.real.ros2 import messages
from robopolicy.real.ros2.channels import GripperTopic
from robopolicy.real.ros2.clock import oldest
from robopolicy.real.ros2.images import image
from robopolicy.real.ros2.wiring import CameraTopic, Topic, Wiring

Array = NDArray[np.float64]
S = 1_000_000_000
BEGIN = S  # ns of the recorder's clock, and of the arm's, at which every bag begins
Message = tuple[str, int, Any]  # topic, ns since the beginning, message


class BagEpisode(NamedTuple):
    """One episode of T control steps, by the wiring's joints; T + 1 rows where a step's end counts too."""

    dt_ns: float
    q: Array  # [T+1 n] rad
    qd: Array  # [T+1 n] rad/s
    opening: Array | None  # [T+1] m
    features: Array  # [T+1 K]
    commanded: Array | None  # [T+1 n] rad, commanded at each step's beginning
    grip: Array | None  # [T] m, commanded in each step
    human: NDArray[np.bool_] | None  # [T]
    pictures: dict[str, NDArray[np.uint8]]  # [T 3 H W]


def messages_of(episode: BagEpisode, features: Sequence[str], wiring: Wiring) -> list[Iterator[Message]]:
    """Yield the messages of each topic, in order."""
    fingers = [] if wiring.topics["gripper_states"] is None else [_fingers(episode, wiring)]
    made = [*fingers, _states(episode, wiring), _commands(episode, wiring), _grip(episode, wiring)]
    age = oldest(wiring, episode.pictures)
    if features:
        topic, names = wiring.topic("features"), tuple(features)
        made.append(_held(episode, topic, lambda row, ns: messages.joint_state(names, ns, episode.features[row]), age))
    for key, taken in episode.pictures.items():
        made.append(_pictures(episode, taken, wiring.cameras[key], age))
    if (human := episode.human) is not None:
        last = len(human) - 1
        made.append(_held(episode, wiring.topic("intervention"),
                          lambda row, ns: Bool(data=bool(human[min(row, last)]))))  # fmt: skip
    return made


def _states(episode: BagEpisode, w: Wiring) -> Iterator[Message]:
    """Yield the arm's states, with the fingers where these have no messages of their own."""
    topic = w.topic("joint_states")
    fingers = () if w.topics["gripper_states"] is not None else tuple(w.gripper)
    for ns, row, part in _times(episode, topic):
        q, qd = _between(episode.q, row, part), _between(episode.qd, row, part)
        position = np.concatenate([q, _at_opening(episode, w, row, part)[: len(fingers)]])
        velocity = np.concatenate([qd, np.zeros(len(fingers))])
        yield topic.name, ns, messages.joint_state((*w.joints, *fingers), BEGIN + ns, position, velocity)


def _fingers(episode: BagEpisode, w: Wiring) -> Iterator[Message]:
    topic = w.topic("gripper_states")
    for ns, row, part in _times(episode, topic):
        position = _at_opening(episode, w, row, part)
        yield topic.name, ns, messages.joint_state(tuple(w.gripper), BEGIN + ns, position, np.zeros(len(position)))


def _at_opening(episode: BagEpisode, w: Wiring, row: int, part: float) -> Array:
    """Return the positions of the fingers, whose weighted sum is the opening."""
    weights = np.array(list(w.gripper.values()))
    opening = 0.0 if episode.opening is None else float(_between(episode.opening, row, part))
    return opening * weights / max(float(weights @ weights), 1e-12)


def _commands(episode: BagEpisode, w: Wiring) -> Iterator[Message]:
    if episode.commanded is None:
        return
    if (topic := w.topics["joint_commands"]) is not None:
        for ns, row, part in _times(episode, topic):
            yield topic.name, ns, messages.joint_state(w.joints, BEGIN + ns, _between(episode.commanded, row, part))
    elif w.output.type == "trajectory":
        points = [(ns, _between(episode.commanded, row, part)) for ns, row, part in _times(episode, w.output)]
        for (ns, a), (then, b) in pairwise([*points, (points[-1][0] + w.dt_ns, points[-1][1])]):
            ahead = messages.trajectory(w.joints, BEGIN + ns, np.array([a, b]), then - ns)
            yield w.output.name, ns, ahead
    else:
        raise ConfigError(
            f"bag.wiring: what joints were told is read of joint_commands, or of trajectories; this wiring has "
            f"neither (type {w.output.type}). Give bag.action=measured."
        )


def _grip(episode: BagEpisode, w: Wiring) -> Iterator[Message]:
    topic = w.topics["gripper"]
    if episode.grip is not None and isinstance(topic, GripperTopic) and topic.type == "opening":
        for row in np.flatnonzero(np.diff(episode.grip, prepend=np.inf)):  # a command comes after its state
            at = round(row * episode.dt_ns) + w.dt_ns
            yield topic.name, at, Float64(data=float(episode.grip[row]))


def _held(
    episode: BagEpisode, topic: Topic, make: Callable[[int, int], Any], age: float = 0.0, latency: float = 0.0
) -> Iterator[Message]:
    """Yield messages that `make` builds of a row and a stamp [ns].

    Args:
        age: s by which they come after the state of their row. latency: s from their stamp until they come.
    """
    late, on_its_way = round(age * S), round(latency * S)
    for ns, row, _ in _times(episode, topic):
        yield topic.name, ns + late, make(row, BEGIN + ns + late - on_its_way)


def _pictures(episode: BagEpisode, taken: NDArray[np.uint8], camera: CameraTopic, age: float) -> Iterator[Message]:
    def make(row: int, ns: int) -> Any:
        return image(taken[min(row, len(taken) - 1)], ns, camera)

    yield from _held(episode, camera, make, age, camera.latency_s)


def per_step(dt: float, topic: Topic) -> int:
    """Messages on a topic in a control step of `dt` s."""
    return max(1, round(topic.rate_hz * dt))


def _times(episode: BagEpisode, topic: Topic) -> Iterator[tuple[int, int, float]]:
    """ns since the beginning, row, and the share of the way to the next row, of all messages on a topic."""
    rows, count = len(episode.q), per_step(episode.dt_ns / S, topic)
    for row in range(rows):
        for k in range(count if row < rows - 1 else 1):
            yield round((row + k / count) * episode.dt_ns), row, k / count


def _between(rows: Array, row: int, part: float) -> Array:
    """Exactly rows[row] where `part` is 0."""
    return rows[row] if part == 0 else rows[row] + part * (rows[row + 1] - rows[row])
