"""Depth over ROS 2: clouds as in the simulator, and images and lenses that are refused with the reason. No DDS."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial import KDTree

pytest.importorskip("rclpy")

from robopolicy import sim
from robopolicy.core.errors import SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Feature
from robopolicy.real.control.depth_cameras import CloudMaker, DepthPicture
from robopolicy.real.ros2.depth import DepthReader, camera_info, depth_image
from robopolicy.real.ros2.depth_inputs import DepthInputs
from robopolicy.real.ros2.observation import check_robot, depth_cameras
from robopolicy.real.ros2.wiring import load_wiring
from robopolicy.real.safety import SafetyError
from robopolicy.utils.point_clouds import Intrinsics, PointCloud, depth_to_points
from tests.real.ros2.test_images import FakeArm, FakeNode
from tests.real.ros2.test_images import Watched as WatchedPictures

WIRING = load_wiring("mujoco_panda")
KEY, FRONT = "observation.points.wrist", "observation.points.front"
TOPIC, FILE = WIRING.depth_cameras[KEY], WIRING.calibrations[KEY]
ALONE = replace(TOPIC, camera_info=None)
DEPTH = np.random.default_rng(0).uniform(0.3, 2.0, FILE.size).astype(np.float32)
HOME = np.array(sim.make("reach", 1).task.start)


def reader(topic=ALONE, file=FILE) -> DepthReader:
    return DepthReader(KEY, topic, file)


def changed(**fields):
    message = depth_image(DEPTH, 0, TOPIC)
    for name, value in fields.items():
        setattr(message, name, value)
    return message


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize(("encoding", "kind", "unit"), [("16UC1", "u2", 1000.0), ("32FC1", "f4", 1.0)])
@pytest.mark.parametrize("padding", [0, 8])
def test_depth_in_metres_of_every_encoding(encoding, kind, unit, big, padding):
    numbers = (DEPTH * unit).astype(np.dtype(kind).newbyteorder(">" if big else "<"))
    height, width = DEPTH.shape
    step = width * numbers.itemsize + padding
    rows = np.zeros((height, step), np.uint8)
    rows[:, : step - padding] = numbers.view(np.uint8).reshape(height, -1)
    found = np.multiply(*reader().read(changed(encoding=encoding, is_bigendian=big, step=step, data=rows.tobytes())))
    np.testing.assert_allclose(found, DEPTH, atol=1.1 / unit if unit > 1 else 0)


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (lambda: changed(encoding="rgb8"), r"encoding 'rgb8', expected one of \['16UC1', '32FC1'\]"),
        (lambda: changed(height=97), "96 × 97 pixels, the calibration is for 96 × 96"),
        (lambda: changed(width=2**31), "2147483648 × 96 pixels"),
        (lambda: changed(step=380), "36864 bytes for 96 rows of 380 and 96 pixels of 4"),
        (lambda: changed(step=386), "bytes for 96 rows of 386"),
        (lambda: changed(data=b"1234"), "4 bytes for 96 rows"),
        (lambda: depth_image(DEPTH, 0, replace(TOPIC, frame_id="front")), "frame 'front', expected 'wrist'.*swapped"),
        (lambda: depth_image(DEPTH[::2, ::2], 0, TOPIC), "48 × 48 pixels, the calibration is for 96 × 96"),
    ],
)
def test_a_depth_image_that_is_wrong_is_refused(message, what):
    with pytest.raises(SafetyError, match=f"(?s){KEY}.*{what}"):
        reader().read(message())


LENS = Intrinsics(60.0, 61.0, 47.0, 48.0, (0.1, -0.05, 0.001, 0.002))


def lens(**fields):
    message = camera_info(LENS, (96, 96), 0, TOPIC)
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def test_the_lens_of_camera_info_counts_in_place_of_the_file():
    it = reader(TOPIC)
    with pytest.raises(SafetyError, match=f"{KEY}.*nothing has come on 'camera/wrist/depth/camera_info'"):
        it.read(changed())
    it.on_lens(lens())
    assert it.lens == LENS and it.read(changed())[0].shape == (96, 96)
    it.on_lens(lens(height=48, width=48))
    with pytest.raises(SafetyError, match="96 × 96 pixels, 'camera/wrist/depth/camera_info' is for 48 × 48"):
        it.read(changed())
    rectified = reader(replace(TOPIC, rectified=True))
    rectified.on_lens(lens(p=[50.0, 0, 40.0, 0, 0, 51.0, 41.0, 0, 0, 0, 1.0, 0], d=[9.0] * 8, distortion_model="other"))
    assert rectified.lens == Intrinsics(50.0, 51.0, 40.0, 41.0)


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (lambda: lens(k=[0.0] * 9), "fx, fy > 0"),
        (lambda: lens(k=[float("nan")] * 9), "finite"),
        (lambda: lens(d=[0.1, 0.0, 0.0, 0.0, 0.3]), "plumb_bob with k3 = 0.*rectified: true"),
        (lambda: lens(distortion_model="rational_polynomial"), "distortion 'rational_polynomial'"),
        (lambda: lens(d=[-9.0, 0.0, 0.0, 0.0, 0.0]), "cannot be undone"),
        (lambda: lens(binning_x=2), "binning"),
        (lambda: lens(height=0), "96 × 0 pixels"),
        (lambda: camera_info(LENS, (96, 96), 0, replace(TOPIC, frame_id="front")), "'front', expected 'wrist'"),
    ],
)
def test_a_lens_that_is_wrong_is_refused(message, what):
    it = reader(TOPIC)
    with pytest.raises(SafetyError, match=f"(?s){KEY}.*{what}"):
        it.on_lens(message())
    assert not it.heard


# -- clouds -----------------------------------------------------------------------------------------------------------


class Scene:
    """The simulator with depth cameras; what a policy of them is given."""

    def __init__(self, *, frame: str = "base", count: int = 96 * 96, **cloud) -> None:
        self.env = sim.make(
            "reach", 1, points=("wrist", "front"), cloud=PointCloud(frame=frame, count=count, **cloud), joint_noise=0.0
        )
        self.env.reset(torch.tensor([3]))
        self.spec = PolicySpec(
            self.env.spec.observation, self.env.spec.action, self.env.dt, 1, 1, 1, self.env.spec.tasks
        )
        self.depths = depth_cameras([self.spec], WIRING, self.env.views.cloud)
        self.clouds: dict[str, np.ndarray] = {}

    def put(self, q: np.ndarray) -> dict:
        """Put the arm at `q`, and return its clouds."""
        qpos = self.env.physics.qpos.copy()
        qpos[0, :7] = q
        return self.env.sense(qpos, np.zeros_like(self.env.physics.qvel))[0]

    def take_cloud(self, key, cloud) -> None:
        self.clouds[key] = cloud


class Inputs(DepthInputs):
    """Inputs that are connected by hand."""

    def __init__(self, scene: Scene, *, follow: bool = True) -> None:
        self.heard, self.found = {}, []
        arm = FakeArm(WIRING)
        arm.clock.follow = follow
        super().__init__(WIRING, scene, arm)
        self.connect(lambda role, kind, topic, handle: self.heard.update({role: handle}))
        self.scene = scene

    def state(self, stamp: float, q: np.ndarray) -> None:
        self.arm.clock.learn(stamp, stamp)
        self.arm.clock.newest = stamp
        self.arm.log.take(stamp, q)

    def picture(self, stamp: float, q: np.ndarray, key: str = KEY) -> None:
        """An image comes that was taken at `stamp` s with the arm at `q`."""
        self.scene.put(q)
        view, topic = self.scene.env.depth(0, key.rpartition(".")[2]), WIRING.depth_cameras[key]
        self.heard[f"{key}.camera_info"](camera_info(view.camera, view.depth.shape, 1, topic), stamp)
        self.heard[key](depth_image(view.depth, round(stamp * 1e9), topic), stamp)

    def results(self) -> list:
        found = []
        self.collect(lambda key, at: found.append((key, at)), lambda key, at, error: found.append((key, str(error))))
        return found


@pytest.mark.parametrize("key", [KEY, FRONT])
@pytest.mark.parametrize("frame", ["base", "tool"])
def test_clouds_are_those_of_the_simulator_at_the_pictures_exposure(key, frame):
    """The arm moves; the picture lies between two states, and comes before the later one."""
    scene = Scene(frame=frame)
    it, move = Inputs(scene), np.array([0.0, 0.01, 0.0, 0.02, 0.0, 0.0, 0.05])
    it.state(100.0, HOME)
    it.picture(100.003, HOME + 0.75 * move, key)
    assert it.results() == [], "where the arm stood is not known yet"
    it.state(100.004, HOME + move)
    assert it.results() == [(key, 100.003)] and it.arm.inputs == [key]
    expected = scene.put(HOME + 0.75 * move)[key][0].numpy()
    np.testing.assert_allclose(scene.clouds[key], expected, atol=1e-6)
    if key == KEY or frame == "tool":
        for q in (HOME, HOME + move):
            assert np.abs(expected - scene.clouds[key]).max() < 1e-5 < off(scene.put(q)[key][0].numpy(), expected)


def shown(depth: np.ndarray, lens: Intrinsics = FILE.intrinsics, at: float = 0.0) -> DepthPicture:
    return DepthPicture(depth, 1.0, lens, at, at)


def off(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max())


def test_the_newest_picture_counts_and_the_thread_does_the_same():
    scene = Scene(count=512, sampling="random")
    it = Inputs(scene, follow=False)
    it.state(100.0, HOME)
    it.picture(100.001, HOME + 0.1)
    it.picture(100.002, HOME)  # the one before still waited
    it.state(100.008, HOME)
    found, until = it.results(), time.monotonic() + 60
    while not found and time.monotonic() < until:
        time.sleep(0.01)
        found = it.results()
    assert found == [(KEY, 100.002)] and it.results() == []
    it.close()
    again = Inputs(scene)
    scene.depths[KEY].begin(0)
    again.state(100.0, HOME)
    threaded = scene.clouds.pop(KEY)
    again.picture(100.0, HOME)
    assert again.results() and np.array_equal(scene.clouds[KEY], threaded), "random points are keyed by seed and step"


def test_a_picture_with_too_few_points_is_stale():
    scene = Scene()
    it = Inputs(scene)
    it.state(100.0, HOME)
    image = depth_image(np.zeros((96, 96)), round(100e9), TOPIC)
    it.heard[f"{KEY}.camera_info"](camera_info(FILE.intrinsics, FILE.size, 1, TOPIC), 100.0)
    it.heard[KEY](image, 100.0)
    ((key, why),) = it.results()
    assert key == KEY and why.startswith(f"{KEY}: point cloud is empty") and "no depth at all" in why
    assert it.arm.inputs == [] and KEY not in scene.clouds, "its watchdog hears nothing"


def test_depth_out_of_range_has_no_point():
    scene = Scene()
    camera = scene.depths[FRONT]
    depth = np.full((96, 96), 0.01)  # a finger on the lens
    depth[40:60, 40:60] = 0.7
    depth[0] = 60.0
    depth[1], depth[2] = np.nan, 0.0
    camera.cloud = replace(camera.cloud, box=None)
    points = camera(shown(depth), HOME)
    reach = np.linalg.norm(points - WIRING.calibrations[FRONT].pose[:3, 3], axis=1)
    assert (reach >= 0.7).all() and (reach < 1.0).all()
    camera.source = replace(camera.source, fewest=401)
    with pytest.raises(Exception, match="400 points, expected 401 or more"):
        camera(shown(depth), HOME)


def test_a_larger_picture_gives_the_same_surface():
    """Of 480 × 480 pixels every fifth is looked at, so that a cloud costs no more than in training."""
    scene = Scene()
    scene.put(HOME)
    scene.env.views.cloud = replace(scene.env.views.cloud, size=(480, 480))
    view = scene.env.depth(0, "front")
    found = scene.depths[FRONT](shown(view.depth, view.camera), HOME)
    assert len(found) == 96 * 96 and len(np.unique(found, axis=0)) > 500
    assert KDTree(depth_to_points(*view)).query(found)[0].max() < 1e-5, "each of its points is one of the whole picture"


# -- inside a node ----------------------------------------------------------------------------------------------------


class Watched(WatchedPictures):
    """Subscriptions with a depth camera alone, on a clock of their own."""

    def __init__(self, monkeypatch) -> None:
        super().__init__(monkeypatch, WIRING)
        self.scene = Scene()
        self.camera.cameras, self.camera.depths = {}, {KEY: self.scene.depths[KEY]}
        self.camera.take_cloud = self.scene.take_cloud
        self.node, self.arm = FakeNode(), FakeArm(WIRING)
        self.arm.clock.learn(1100.0, 100.0)
        self.subscriptions = type(self.subscriptions)(self.node, WIRING, self.camera, self.arm, lambda: None)
        self.subscriptions._depth.clouds._pool = None  # no thread
        self.log = self.arm.log

    def show(self, depth: np.ndarray, age: float = 0.01) -> None:
        """A depth image comes with its lens and the arm's states around it."""
        stamp = self.now + 1000.0 - age
        self.log.take(round(stamp * 1e9) * 1e-9, HOME)
        self.node.heard[TOPIC.camera_info](camera_info(FILE.intrinsics, FILE.size, round(stamp * 1e9), TOPIC))
        self.node.heard[TOPIC.name](depth_image(depth, round(stamp * 1e9), TOPIC))
        self.subscriptions.empty(self.now)


def test_no_episode_begins_without_a_good_cloud(monkeypatch):
    it = Watched(monkeypatch)
    assert it.subscriptions.problems() == [f"{KEY}: nothing has come on {TOPIC.name!r}"]
    it.scene.put(HOME)
    depth = it.scene.env.depth(0, "wrist").depth
    it.show(depth)
    assert it.subscriptions.problems() == [] and it.arm.inputs == [KEY] and KEY in it.scene.clouds
    it.now += 0.1
    it.show(np.zeros((96, 96)))
    assert "point cloud is empty" in it.subscriptions.problems()[0] and it.arm.inputs == [KEY]
    assert it.arm.counts[f"{KEY}_refused"] == 1
    it.now += 0.1
    it.show(depth[:48])
    assert f"{KEY}: topic {TOPIC.name!r}: 96 × 48 pixels" in it.subscriptions.problems()[0]
    it.now += 0.1
    it.show(depth, age=1.0)
    assert it.arm.counts[f"{KEY}_late"] == 1
    it.now += 0.1
    it.show(depth)
    assert it.subscriptions.problems() == [] and it.arm.inputs == [KEY, KEY]
    it.now += 0.3
    assert it.subscriptions.problems() == [f"{KEY}: the newest on {TOPIC.name!r} is 0.30 s old"]


def test_an_error_in_a_cloud_ends_no_node(monkeypatch):
    it = Watched(monkeypatch)
    it.camera.depths[KEY].cloud = None
    with pytest.raises(AttributeError):
        it.camera.depths[KEY](shown(DEPTH), HOME)
    maker = CloudMaker(it.camera.depths, it.log, threaded=True)
    it.log.take(5.0, HOME)
    maker.put(KEY, shown(DEPTH, at=5.0))
    found, until = maker.finished(), time.monotonic() + 60
    while not found and time.monotonic() < until:
        time.sleep(0.01)
        found = maker.finished()
    assert found[0].cloud is None and "AttributeError" in str(found[0].error)
    maker.close()


# -- does the policy fit ----------------------------------------------------------------------------------------------


BASE = ("base_x", "base_y", "base_z")


def spec(key: str = KEY, shape=(512, 3), names=BASE) -> PolicySpec:
    env = Scene().spec
    return replace(env, observation={key: Feature(shape, names=names)})


def test_a_policy_of_clouds_needs_a_depth_camera_of_that_name():
    alone = replace(WIRING, depth_cameras={})
    with pytest.raises(SpecError, match=f"{KEY}: the policy sees it, the wiring's `depth_cameras` lack it"):
        check_robot(spec(), alone)
    with pytest.raises(SpecError, match=r"points\.wrost: .*`depth_cameras` lack it.*points\.wrist"):
        check_robot(spec("observation.points.wrost"), WIRING)
    with pytest.raises(SpecError, match=r"images\.wrist: .*`cameras` lack it.*points\.wrist"):
        check_robot(spec("observation.images.wrist"), replace(WIRING, cameras={}))
    check_robot(spec(), WIRING)


@pytest.mark.parametrize(
    ("given", "task", "own", "what"),
    [
        ({}, None, None, "there is no task that says how clouds are made"),
        ({}, PointCloud(count=100), None, r"the policy sees \[512, 3\].*\[100, 3\]"),
        ({}, PointCloud(frame="tool"), None, "base_x.*tool_x"),
        ({}, None, PointCloud(frame="tool"), "base_x.*tool_x"),
        ({}, PointCloud(), PointCloud(sampling="random"), "expected that of the policy's task"),
    ],
)
def test_clouds_must_be_made_as_the_policy_was_trained(given, task, own, what):
    topic = replace(TOPIC, cloud=own)
    wiring = replace(WIRING, depth_cameras={KEY: topic})
    with pytest.raises(SpecError, match=rf"depth_cameras\.{KEY}\.cloud: .*{what}"):
        depth_cameras([spec(**given)], wiring, task)


def test_a_policy_of_the_robots_own_data_takes_the_cloud_of_the_wiring():
    own = PointCloud(box=((0, -1, 0), (1, 1, 1)))
    wiring = replace(WIRING, depth_cameras={KEY: replace(TOPIC, cloud=own)})
    found = depth_cameras([spec(names=None)], wiring, None)
    assert list(found) == [KEY] and found[KEY].cloud == own
    assert depth_cameras([spec("observation.images.front")], WIRING, None) == {}
