"""A bag's messages on a wiring's topics, as arrays over time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64
from trajectory_msgs.msg import JointTrajectory

from robopolicy.core.errors import DataError
from robopolicy.real.control.joint_order import JointOrder
from robopolicy.real.control.robots import State
from robopolicy.real.ros2 import messages
from robopolicy.real.ros2.bags.checks import Stream, newest
from robopolicy.real.ros2.bags.clouds import DepthClouds
from robopolicy.real.ros2.bags.reader import Bag, Item, decode, stamp_of, type_name
from robopolicy.real.ros2.clock import oldest
from robopolicy.real.ros2.images import ImageReader, message_type, size_of
from robopolicy.real.ros2.wiring import GRIPPER, CameraTopic, Topic, Wiring
from robopolicy.real.safety import SafetyError

Array = NDArray[np.float64]


class Streams:
    """A bag read as the wiring says.

    Args:
        commanded: joint commands are needed.
        image_size: (height, width) of pictures; None: as they come.

    Raises:
        DataError: a topic is missing, of another type, or holds messages that the robot would refuse.
    """

    def __init__(self, bag: Bag, wiring: Wiring, *, commanded: bool, image_size: tuple[int, int] | None) -> None:
        self.bag, self.wiring, self.commanded = bag, wiring, commanded
        self._profile = wiring.profile()
        self.fingers: Stream | None = None  # of the gripper's own messages, where there are any
        self.states = self._states()
        assert self.states.stamped is not None
        self._ahead = float(np.min(self.states.arrived - self.states.stamped))  # of the arm's clock, by the fastest
        self.commands = self._commands() if commanded else None
        self.feature_names: list[str] = []
        self.features = self._features()
        self.grip = self._simple("gripper", Float64)
        self._human = self._simple("intervention", Bool)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.cameras: dict[str, Stream] = {}  # values: number of the message on its topic
        for key, camera in wiring.cameras.items():
            if (name := self._find(camera, message_type(camera))) is not None:
                self.cameras[key] = self._camera(key, name, camera, image_size)
        self.depth = DepthClouds(bag, wiring, self._find, self._take)
        self._wait_for_pictures()

    # -- at times -----------------------------------------------------------------------------------------------------
    def checked(self) -> Iterator[tuple[str, Stream, Topic, float]]:
        """List name, stream, topic and patience [s] of the topics that must not be silent."""
        w = self.wiring
        patience = {name: min(dog.hold, dog.fault) for name, dog in w.watchdogs.items()}
        yield "joint_states", self.states, w.topic("joint_states"), patience["state"]
        if self.fingers is not None:
            yield GRIPPER, self.fingers, w.topic(GRIPPER), patience[GRIPPER]
        if self.commands is not None:
            role = "joint_commands" if w.topics["joint_commands"] is not None else "trajectory"
            yield role, self.commands, w.topic(role), patience["state"]
        if self.features is not None:
            yield "features", self.features, w.topic("features"), patience["features"]
        for key, stream in self.cameras.items():
            yield key, stream, w.cameras[key], patience["images"]
        yield from self.depth.checked(patience["images"])

    def state(self, at: Array) -> Array:
        """Return [T Ds] positions, velocities, opening and features at `at` [T] s."""
        found = self.states.values[newest(self.states, at)]
        if self.features is not None:
            found = np.concatenate([found, self.features.values[newest(self.features, at)]], axis=1)
        return found

    def commanded_at(self, at: Array) -> Array:
        """Return the commanded joints and gripper opening [T Da] at `at` [T] s."""
        n, measured = len(self.wiring.joints), self.states.values[newest(self.states, at)]
        joints = measured[:, :n] if self.commands is None else self._commanded(at)
        if not self.wiring.gripper:
            return joints
        opening = measured[:, 2 * n]
        if self.grip is not None and self.commanded and self.told_gripper:
            index = newest(self.grip, at)
            opening = np.where(index >= 0, self.grip.values[index], opening)
        return np.concatenate([joints, opening[:, None]], axis=1)

    @property
    def told_gripper(self) -> bool:
        """Whether an opening that was asked for is in the bag."""
        return self.grip is not None and len(self.grip.arrived) > 0

    def intervened(self, at: Array) -> NDArray[np.bool_]:
        """Return [T] whether a human drove."""
        if self._human is None or not len(self._human.arrived):
            return np.zeros(len(at), dtype=bool)
        index = newest(self._human, at)
        return (index >= 0) & (self._human.values[index] > 0)

    def pictures(self, at: Array) -> dict[str, NDArray[np.uint8]]:
        """Return [T 3 H W] by feature; read now, as a bag's pictures may be more than memory holds."""
        out: dict[str, NDArray[np.uint8]] = {}
        for key, stream in self.cameras.items():
            camera, wanted = self.wiring.cameras[key], newest(stream, at)
            reader, kind = ImageReader(key, self.shapes[key], camera), message_type(camera)
            out[key] = np.empty((len(at), *self.shapes[key]), np.uint8)
            frames = {int(m): np.flatnonzero(wanted == m) for m in np.unique(wanted)}
            name = self.bag.topic(camera.name)
            for number, item in enumerate(self.bag.items([name] if name else [])):
                if number in frames:
                    out[key][frames[number]] = self._take(item, reader.read, kind)
        return out

    # -- inside -----------------------------------------------------------------------------------------------------
    def _find(self, topic: Topic | None, kind: type) -> str | None:
        """Return the bag's name of `topic`; None where either has none."""
        name = None if topic is None else self.bag.topic(topic.name)
        if name is not None and (found := self.bag.types[name]) != (wanted := type_name(kind)):
            raise DataError(f"{self.bag.path}: {name!r} holds {found}, the wiring expects {wanted}")
        return name

    def _need(self, role: str, kind: type) -> str:
        topic = self.wiring.topic(role)
        if (name := self._find(topic, kind)) is None:
            more = " Guided by hand? Then give bag.action=measured." if role in ("joint_commands", "trajectory") else ""
            raise DataError(
                f"{self.bag.path}: no topic {topic.name!r} (topics.{role} of the wiring); it holds "
                f"{sorted(self.bag.types)}.{more}"
            )
        return name

    def _take(self, item: Item, read: Any, kind: type) -> Any:
        """Read a message."""
        try:
            return read(decode(item, kind))
        except SafetyError as error:
            raise DataError(f"{self.bag.path}: {item.topic}: {error}") from error

    def _stream(self, name: str, kind: type, read: Any, *, stamped: bool = True) -> Stream:
        found: list[tuple[float, float, Any]] = []
        for item in self.bag.items([name]):
            found.append((item.arrived, stamp_of(item) if stamped else 0.0, self._take(item, read, kind)))
        arrived, stamps = (np.array([f[k] for f in found]) for k in (0, 1))
        return Stream(arrived, stamps if stamped else None, np.array([f[2] for f in found]))

    def _wait_for_pictures(self) -> None:
        """Pair pictures and features with the state of when the slowest picture was taken, as a policy node does."""
        age = oldest(self.wiring, [*self.cameras, *self.depth.streams])
        for streams in (self.cameras, self.depth.streams):
            streams.update({key: s._replace(arrived=s.arrived - age) for key, s in streams.items()})
        if self.features is not None:
            self.features = self.features._replace(arrived=self.features.arrived - age)

    def _states(self) -> Stream:
        """States of the arm; messages of others are left out, and a gripper's own ones give the opening."""
        reader, found = messages.StateReader(self.wiring, self._profile), list[tuple[float, float, Array]]()
        arm, grip = self._need("joint_states", JointState), self.wiring.topics["gripper_states"]
        fingers = None if grip is None else self._need("gripper_states", JointState)
        gripped = list[tuple[float, float]]()

        def take(item: Item, message: JointState) -> State | None:
            if item.topic == fingers and reader.has_gripper(message):
                reader.read_gripper(message)
                gripped.append((item.arrived, stamp_of(item)))
            return reader.read(message) if item.topic == arm and reader.has_arm(message) else None

        for item in self.bag.items([arm] if fingers in (None, arm) else [arm, fingers]):
            state = self._take(item, partial(take, item), JointState)
            if state is not None and (grip is None or np.isfinite(state.opening)):  # before, the robot is not whole
                opening = [state.opening] * bool(self.wiring.gripper)
                found.append((item.arrived, stamp_of(item), np.concatenate([state.q, state.qd, opening])))
        if not found:
            raise DataError(f"{self.bag.path}: {arm!r} holds no state of {list(self.wiring.joints)}")
        if fingers is not None:
            times = np.array(gripped).reshape(-1, 2)
            self.fingers = Stream(times[:, 0], times[:, 1], np.zeros(len(gripped)))
        arrived, stamps = (np.array([f[k] for f in found]) for k in (0, 1))
        return Stream(arrived, stamps, np.array([f[2] for f in found]))

    def _commands(self) -> Stream:
        """Joints by time; of trajectories the serialised number alone, see `_commanded`."""
        if self.wiring.topics["joint_commands"] is not None:
            order = JointOrder(self.wiring.joints, extra=tuple(self.wiring.gripper))
            name = self._need("joint_commands", JointState)
            return self._stream(name, JointState, lambda m: order.arrange(list(m.name), m.position))
        if self.wiring.output.type != "trajectory":
            raise DataError(
                f"{self.bag.path}: what the joints were told is read of joint_commands, or of trajectories; this "
                f"wiring has neither (type {self.wiring.output.type}). Give bag.action=measured."
            )
        name = self._need("trajectory", JointTrajectory)
        items = [i for i in self.bag.items([name]) if len(self._plan(i)[1])]
        self._plans = items
        arrived = np.array([i.arrived for i in items])
        return Stream(arrived, None, np.arange(len(items), dtype=np.float64))

    def _plan(self, item: Item) -> tuple[Array, Array]:
        """Times [K] s of the arm and joints [K n] rad."""
        order = JointOrder(self.wiring.joints)

        def read(m: JointTrajectory) -> tuple[Array, Array]:
            start = messages.to_ns(m.header.stamp) or round(1e9 * (item.arrived - self._ahead))  # 0: from receipt on
            times = [1e-9 * (start + messages.to_ns(p.time_from_start)) for p in m.points]
            return np.array(times), np.array([order.arrange(list(m.joint_names), p.positions) for p in m.points])

        return self._take(item, read, JointTrajectory)

    def _commanded(self, at: Array) -> Array:
        assert self.commands is not None
        index = newest(self.commands, at)
        if self.wiring.topics["joint_commands"] is not None:
            return self.commands.values[index]
        out = np.empty((len(at), len(self.wiring.joints)))
        for row, (number, t) in enumerate(zip(index, at, strict=True)):
            times, points = self._plan(self._plans[number])
            out[row] = [np.interp(t - self._ahead, times, column) for column in points.T]
        return out

    def _features(self) -> Stream | None:
        name = self._find(self.wiring.topics["features"], JointState)
        first = None if name is None else next(iter(self.bag.items([name])), None)
        if name is None or first is None:
            return None
        self.feature_names = list(decode(first, JointState).name)
        order = JointOrder(self.feature_names, what="features")
        return self._stream(name, JointState, lambda m: order.arrange(list(m.name), m.position))

    def _simple(self, role: str, kind: type) -> Stream | None:
        name = self._find(self.wiring.topics[role], kind)
        return None if name is None else self._stream(name, kind, lambda m: float(m.data), stamped=False)

    def _camera(self, key: str, name: str, camera: CameraTopic, size: tuple[int, int] | None) -> Stream:
        found: list[tuple[float, float]] = []
        for item in self.bag.items([name]):
            if not found:
                self.shapes[key] = (3, *(size or self._take(item, size_of, message_type(camera))))
            found.append((item.arrived, stamp_of(item)))
        times = np.array(found).reshape(-1, 2)
        return Stream(times[:, 0], times[:, 1], np.arange(len(times), dtype=np.float64))
