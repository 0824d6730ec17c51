"""Pictures over ROS 2: what comes through, and what is refused with the reason named. No DDS."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image as Picture

pytest.importorskip("rclpy")

from sensor_msgs.msg import CompressedImage

from robopolicy import sim
from robopolicy.core.errors import SpecError
from robopolicy.real.control.depth_cameras import JointLog
from robopolicy.real.control.robots import State
from robopolicy.real.ros2 import subscriptions as subscriptions_module
from robopolicy.real.ros2.clock import ArmClock, stamps_of
from robopolicy.real.ros2.images import ImageReader, image
from robopolicy.real.ros2.observation import Observer
from robopolicy.real.ros2.qos import profile_of
from robopolicy.real.ros2.subscriptions import Subscriptions
from robopolicy.real.ros2.wiring import CameraTopic
from robopolicy.real.safety import SafetyError, load_profile
from tests.real.ros2.test_messages import HOME, WIRING

KEY = "observation.images.front"
RAW = CameraTopic("camera/front", 25.0, frame_id="front")
COMPRESSED = replace(RAW, type="compressed")
PICTURE = np.random.default_rng(0).integers(0, 256, (3, 24, 32), dtype=np.uint8)


def reader(topic=RAW, shape=(3, 24, 32)) -> ImageReader:
    return ImageReader(KEY, shape, topic)


@pytest.mark.parametrize("topic", [RAW, COMPRESSED])
def test_a_picture_survives_the_way(topic):
    message = image(PICTURE, 5, topic)
    assert message.header.frame_id == "front" and message.header.stamp.nanosec == 5
    assert np.array_equal(reader(topic).read(message), PICTURE)


def test_bgr_and_padded_rows_are_understood():
    message = image(PICTURE, 0, RAW)
    rows = np.zeros((24, 100), np.uint8)
    rows[:, :96] = PICTURE.transpose(1, 2, 0)[:, :, ::-1].reshape(24, 96)
    message.encoding, message.step, message.data = "bgr8", 100, rows.tobytes()
    assert np.array_equal(reader().read(message), PICTURE)


def test_a_larger_picture_is_averaged_down():
    large = PICTURE.repeat(2, axis=1).repeat(2, axis=2)
    large[:, ::2] = np.minimum(large[:, ::2], 200)  # two halves that differ
    small = reader().read(image(large, 0, RAW)).astype(int)
    mean = large.reshape(3, 24, 2, 32, 2).mean((2, 4))
    assert np.abs(small - mean).max() <= 1


def jpeg(data: bytes) -> CompressedImage:
    message = CompressedImage(format="jpeg", data=data)
    message.header.frame_id = "front"
    return message


def damaged() -> bytes:
    data = bytearray(image(PICTURE, 0, COMPRESSED).data)
    data[11] = 2  # the first chunk says that it is shorter than it is
    return bytes(data)


def grey() -> bytes:
    out = io.BytesIO()
    Picture.fromarray(PICTURE[0]).save(out, "PNG")
    return out.getvalue()


def changed(**fields):
    message = image(PICTURE, 0, RAW)
    for name, value in fields.items():
        setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    ("message", "topic", "what"),
    [
        (lambda: image(PICTURE, 0, replace(RAW, frame_id="wrist")), RAW, "frame 'wrist', expected 'front'.*swapped"),
        (lambda: changed(encoding="mono8"), RAW, r"encoding 'mono8', expected one of \['rgb8', 'bgr8'\]"),
        (lambda: changed(height=25), RAW, "2304 bytes for 25 rows of 96"),
        (lambda: changed(step=95), RAW, "bytes for 24 rows of 95"),
        (lambda: changed(width=2**31), RAW, "2147483648 × 24 pixels"),
        (lambda: image(PICTURE[:, ::2, ::2], 0, RAW), RAW, "16 × 12 pixels are fewer than the 32 × 24"),
        (lambda: image(np.tile(PICTURE, (1, 2, 1)), 0, RAW), RAW, "32 × 48 pixels are of another shape.*crop"),
        (lambda: jpeg(b"no picture"), COMPRESSED, "no whole JPEG or PNG"),
        (lambda: jpeg(bytes(image(PICTURE, 0, COMPRESSED).data)[:800]), COMPRESSED, "no whole JPEG or PNG"),
        (lambda: jpeg(damaged()), COMPRESSED, "no whole JPEG or PNG"),
        (lambda: jpeg(grey()), COMPRESSED, "pixels of mode 'L', expected RGB"),
    ],
)
def test_a_picture_that_is_wrong_is_refused(message, topic, what):
    with pytest.raises(SafetyError, match=f"(?s)observation.images.front.*{what}"):
        reader(topic).read(message())


def test_the_policy_is_shown_the_newest_picture():
    env = sim.make("reach", 1)
    observer, state = Observer(env, (KEY,)), State(HOME, np.zeros(7), 0.08)
    observer.take(observer.names, np.zeros(len(observer.names)))
    with pytest.raises(SpecError, match="no picture has come"):
        observer(state)
    observer.take_image(KEY, PICTURE)
    assert np.array_equal(observer(state)[KEY][0].numpy(), PICTURE)
    observer.forget()
    with pytest.raises(SpecError, match="nothing has come"):
        observer(state)


class FakeNode:
    """As much of a node as `Subscriptions` needs."""

    def __init__(self) -> None:
        self.heard = {}

    def create_subscription(self, kind, name, callback, qos, *, event_callbacks):
        self.heard[name] = callback

    def create_lifecycle_publisher(self, *_, **__):
        pass

    def destroy_subscription(self, entity):
        pass

    destroy_publisher = destroy_subscription

    def resolve_topic_name(self, name):
        return name

    def get_publishers_info_by_topic(self, name):
        return []

    def get_subscriptions_info_by_topic(self, name):
        driver = SimpleNamespace(node_name="driver", qos_profile=profile_of(WIRING.output))
        return [driver] if name == WIRING.output.name else []


class FakeArm:
    def __init__(self, wiring=WIRING) -> None:
        self.counts, self.inputs, self.clock = Counter(), [], ArmClock(0.004)
        self.chain = SimpleNamespace(profile=load_profile("panda"))
        self.stamps, self.running, self.log = stamps_of(wiring, self.clock), False, JointLog(1.0)

    def hear(self, name, at):
        self.inputs.append(name)


class Camera:
    def __init__(self) -> None:
        self.names, self.cameras, self.depths, self.press = (), {KEY: (3, 24, 32)}, {}, None

    def take_image(self, key, picture):
        self.seen = picture


class Watched:
    """Subscriptions with a camera, on a clock of their own; the arm's clock is 1000 s ahead."""

    def __init__(self, monkeypatch, wiring=WIRING) -> None:
        self.now = 100.0
        monkeypatch.setattr(subscriptions_module.time, "monotonic", lambda: self.now)
        self.node, self.camera, self.arm = FakeNode(), Camera(), FakeArm(wiring)
        self.subscriptions = Subscriptions(self.node, wiring, self.camera, self.arm, lambda: None)
        self.wired = wiring.cameras[KEY]
        self.arm.clock.learn(1100.0, 100.0)

    def take(self, age: float) -> str:
        """A picture comes that was taken `age` s ago by the arm's clock; why it was refused."""
        return self.stamped(self.now + 1000.0 - age)

    def stamped(self, stamp: float) -> str:
        self.node.heard[self.wired.name](image(PICTURE, round(stamp * 1e9), self.wired))
        return self.subscriptions.refused.get(KEY, "")


def test_no_episode_begins_on_an_old_picture(monkeypatch):
    """Missing, silent or unreadable pictures speak against a start, and end no node."""
    it = Watched(monkeypatch)
    assert it.subscriptions.problems() == [f"{KEY}: nothing has come on {it.wired.name!r}"]
    assert it.take(0.01) == "" and it.arm.inputs == [KEY] and np.array_equal(it.camera.seen, PICTURE)
    assert it.subscriptions.problems() == []
    it.now += 0.3
    assert it.subscriptions.problems() == [f"{KEY}: the newest on {it.wired.name!r} is 0.30 s old"]
    it.arm.clock.follow = True  # simulated time: the wall clock says nothing
    assert it.subscriptions.problems() == []
    it.arm.clock.follow = False
    assert it.take(0.01) == "" and it.subscriptions.problems() == []
    monkeypatch.setattr(ImageReader, "read", lambda *_: 1 / 0)
    it.take(0.005)
    assert it.subscriptions.problems() == [f"{KEY}: ZeroDivisionError: division by zero"]
    assert it.arm.counts[f"{KEY}_refused"] == 1


LOOP = (1099.97, 1099.98, 1099.99)  # s, of pictures that were used


@pytest.mark.parametrize(
    ("stamps", "reason"),
    [(LOOP, "repeated"), (LOOP[::-1], "repeated"), (LOOP[-1:], "repeated"), ((0.0,), "unstamped"),
     ((1100.04 + 3600.0, 1100.1), "ahead"), ((1098.0, 1099.8), "late")],
)  # fmt: skip
def test_a_picture_of_another_moment_is_not_used_and_the_next_good_one_is(stamps, reason, monkeypatch):
    """Of long ago, of the future, without a stamp, and loops of any length; refusals are counted by reason."""
    it = Watched(monkeypatch)
    assert [it.stamped(stamp) for stamp in LOOP] == ["", "", ""]
    it.now += 0.04
    for stamp in stamps:
        assert it.stamped(stamp).startswith(f"{KEY}: stamp:"), stamp
    assert it.arm.counts[f"{KEY}_{reason}"] == it.arm.counts[f"{KEY}_refused"] == len(stamps)
    assert KEY in it.subscriptions.problems()[0] and len(it.arm.inputs) == 3
    assert it.take(0.0) == "" and it.subscriptions.problems() == [], "it recovers"
    assert it.stamped(LOOP[0]), "and what was used before stays refused"


@pytest.mark.parametrize(("age", "reason"), [(0.05, "latency"), (0.25, ""), (0.5, ""), (0.65, "late")])
def test_the_latency_of_a_camera_must_be_the_one_that_the_wiring_says(age, reason, monkeypatch):
    """Within the patience with pictures, 0.2 s; by it the arm is shown to the policy as it was then."""
    wiring = replace(WIRING, cameras={**WIRING.cameras, KEY: replace(WIRING.cameras[KEY], latency_s=0.4)})
    it = Watched(monkeypatch, wiring)
    assert bool(it.take(age)) == bool(reason)
    assert it.arm.counts[f"{KEY}_{reason}"] == bool(reason)
    assert not reason or KEY in it.subscriptions.problems()[0]


def test_a_picture_cannot_be_dated_before_the_arm_has_said_what_time_it_is(monkeypatch):
    it = Watched(monkeypatch)
    it.arm.clock = ArmClock(0.004)
    it.arm.stamps = stamps_of(WIRING, it.arm.clock)
    assert it.take(0.0).startswith(f"{KEY}: stamp:") and it.arm.counts[f"{KEY}_undated"] == 1
