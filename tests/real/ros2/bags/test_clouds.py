"""Bags with depth images become datasets with the clouds that a policy node would have made. No DDS."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import yaml
from scipy.spatial import KDTree

pytest.importorskip("rclpy")

from robopolicy import sim
from robopolicy.core.errors import DataError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Feature
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.real.control.depth_cameras import DepthPicture
from robopolicy.real.datasets.bag_options import BagOptions
from robopolicy.real.datasets.convert import convert
from robopolicy.real.ros2.bags.to_dataset import action_of
from robopolicy.real.ros2.channels import WiringError
from robopolicy.real.ros2.depth import camera_info, depth_image
from robopolicy.real.ros2.observation import depth_cameras
from robopolicy.real.ros2.wiring import FOLDER, load_wiring
from tests.real.ros2.bags import test_to_dataset as bags

KEY = "observation.points.wrist"
CLOUD = {"box": [[0.0, -0.7, 0.005], [1.0, 0.7, 1.0]], "count": 256, "frame": "tool"}
TOPIC = load_wiring("mujoco_panda").depth_cameras[KEY]
ENV = sim.make("reach", 1, points=("wrist",), joint_noise=0.0)


def wiring(folder, **changes):
    data = yaml.safe_load((FOLDER / "mujoco_panda.yaml").read_text())
    data["depth_cameras"][KEY] |= {"cloud": CLOUD, **changes}
    path = folder / "wiring.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def depth_at(q):
    qpos = ENV.physics.qpos.copy()
    qpos[0, :7] = q
    ENV.sense(qpos, np.zeros_like(ENV.physics.qvel), pictures=False)
    return ENV.depth(0, "wrist")


def recorded(*, lens=True, blank=False):
    """A drive with 25 depth images a second, each taken between two states."""
    found = bags.recorded(camera=False)
    for k in range(2, round(bags.LONG * 250) - 1, 10):
        ns, at = bags.BOOT + k * 4_000_000 + 1_000_000, bags.START + k * 4_000_000 + 1_000_000 + bags.WAY
        view = depth_at(bags.joints(k / 250 + 0.001))
        found.append((TOPIC.name, at, depth_image(0 * view.depth if blank else view.depth, ns, TOPIC)))
        if lens:
            found.append((TOPIC.camera_info, at, camera_info(view.camera, view.depth.shape, ns, TOPIC)))
    return sorted(found, key=lambda m: m[1])


OPTIONS = {"wiring": "", "task": "reach", "success": True}


def made(folder, found, path):
    bags.write(folder / "bag", found)
    options = BagOptions(**{**OPTIONS, "wiring": str(path)})
    return convert(recording=folder / "bag", out=folder / "dataset", bag=options)


def test_the_clouds_of_a_bag_are_those_of_the_node(tmp_path):
    """Each of the newest depth image that had arrived, with the arm between two states at its exposure."""
    path = wiring(tmp_path)
    assert made(tmp_path, recorded(), path).episodes == 1
    clouds = load_episodes(tmp_path / "dataset").obs[KEY].numpy()
    robot = load_wiring(str(path))
    features = json.loads((tmp_path / "dataset" / "meta" / "info.json").read_text())["features"]
    feature = Feature((256, 3), names=tuple(features[KEY]["names"]))
    spec = PolicySpec({KEY: feature}, action_of(robot), 0.05, 1, 1, 1, ("reach",))
    camera = depth_cameras([spec], robot, None)[KEY]
    assert clouds.shape[1:] == (256, 3) and len(clouds) > 20
    camera.cloud = replace(camera.cloud, count=96 * 96)  # all points: which are drawn, rounding may decide
    found, moments = 0, [k / 250 + 0.001 for k in range(2, round(bags.LONG * 250) - 1, 10)]
    views = [depth_at(bags.joints(t)) for t in moments]
    whole = [KDTree(camera(DepthPicture(v.depth, 1.0, v.camera, 0, 0), bags.joints(t)))
             for v, t in zip(views, moments, strict=True)]  # fmt: skip
    for cloud in clouds:
        off = [tree.query(cloud)[0].max() for tree in whole[found:]]
        assert min(off) < 1e-5, min(off)
        found += int(np.argmin(off))
    assert found > len(whole) - 5 and whole[-1].query(clouds[-20])[0].max() > 1e-3, "of its own moment"


def test_a_depth_camera_without_a_cloud_is_left_out(tmp_path):
    made(tmp_path, recorded(), wiring(tmp_path, cloud=None))
    assert KEY not in load_episodes(tmp_path / "dataset").obs


@pytest.mark.parametrize(
    ("changes", "how", "error", "what"),
    [
        ({}, {"lens": False}, DataError, f"{KEY}: nothing on 'camera/wrist/depth/camera_info', which holds the lens"),
        ({}, {"blank": True}, DataError, f"{KEY}: point cloud is empty"),
        ({"frame_id": "front"}, {}, WiringError, "camera: expected 'front', the file is of 'wrist'"),
        ({"fewest": 9217}, {}, DataError, "expected 9217 or more"),
    ],
)
def test_bags_without_good_clouds_are_named(changes, how, error, what, tmp_path):
    with pytest.raises(error, match=what):
        made(tmp_path, recorded(**how), wiring(tmp_path, **changes))
