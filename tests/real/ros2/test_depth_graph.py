"""Clouds over real DDS: the simulated arm publishes depth, and the policy sees the simulator's own clouds."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from scipy.spatial import KDTree

pytest.importorskip("rclpy")

from rclpy.qos import QoSProfile
from sensor_msgs.msg import JointState

from robopolicy.real.recording.recording import read
from robopolicy.real.ros2 import messages, policy_node, sim_arm_node
from robopolicy.real.ros2.observation import one_env
from robopolicy.real.ros2.sim_launcher import activate
from robopolicy.real.ros2.wiring import FOLDER
from tests.real.ros2_graph import TASK, graph, private_domain

pytestmark = [pytest.mark.timeout(1500), pytest.mark.slow]
PICTURE = 10  # ticks from one picture to the next
WAITED = 250  # ticks before the episode of which the first pictures may be: 1 s
NEXT = 3e-3  # m, by which clouds of two pictures in motion differ


@pytest.fixture(autouse=True)
def domain(monkeypatch):
    for key, value in private_domain().items():
        monkeypatch.setenv(key, value)


def patient(tmp_path):
    """The preset, with watchdogs that a busy machine does not wake."""
    text = (FOLDER / "mujoco_panda.yaml").read_text()
    path = tmp_path / "wiring.yaml"
    path.write_text(re.sub(r"fault: [\d.]+", "fault: 30.0", text))
    return path


def to_nearest(cloud: np.ndarray, points: np.ndarray) -> float:
    """Largest distance [m] of a point of `cloud` [P 3] to the nearest of `points` [M 3]."""
    return float(KDTree(points).query(cloud)[0].max())


@pytest.mark.parametrize(("camera", "frame"), [("front", "tool"), ("wrist", "base")])
def test_the_policy_sees_the_clouds_of_the_simulator(camera, frame, tmp_path):
    """Of a camera beside the arm and of one that moves with it, for the joints at the picture's exposure."""
    key = f"observation.points.{camera}"
    task = {**TASK, "cameras": (), "points": (camera,), "cloud": {"frame": frame}}
    states: dict[int, np.ndarray] = {}

    def hear(message: JointState) -> None:
        states[round(messages.to_ns(message.header.stamp) * 1e-9 / 0.004)] = np.array(message.position)

    with graph(patient(tmp_path), record=tmp_path / "r", task=task) as (operator, _):
        operator.create_subscription(JointState, "joint_states", hear, QoSProfile(depth=1000))
        operator.transition("configure")
        operator.begin_episode(3)
        activate(operator)
        for tick in sorted(states)[:-WAITED]:  # the arm waited there
            del states[tick]
        operator.wait(lambda: int(operator.status[sim_arm_node.NAME]["step"]) >= 12, 300.0, "control steps")
        counts = json.loads(operator.status[policy_node.NAME]["counts"])
        operator.transition("deactivate")
    early = counts.get(f"{key}_ahead", 0)  # on a busy machine a picture may come before the states until then
    assert early <= 2 and counts.get(f"{key}_refused", 0) == early, counts
    steps = read(tmp_path / "r" / "episode_000000.mcap").of("step")
    clouds = [np.array(step["obs"][key], dtype=np.float32).reshape(-1, 3) for step in steps]
    assert len(clouds) >= 10

    env, dense = one_env(task), one_env({**task, "cloud": {"frame": frame, "count": 96 * 96}})
    expected, whole = [], []
    for tick in [tick for tick in sorted(states) if tick % PICTURE == 0]:
        for each, seen in ((env, expected), (dense, whole)):
            each.reset(torch.tensor([3]))
            qpos = each.physics.qpos.copy()
            qpos[0, : len(states[tick])] = states[tick]
            seen.append(each.sense(qpos, np.zeros_like(each.physics.qvel))[0][key][0].numpy())
    off = [min((to_nearest(cloud, all_points), k) for k, all_points in enumerate(whole)) for cloud in clouds]
    found = [k for _, k in off]
    assert max(off)[0] < 1e-5, off
    # Rounding may decide which of two points is farther, and with it the rest of a sample: it covers as much, then.
    same = [max(to_nearest(cloud, expected[k]), to_nearest(expected[k], cloud)) < 1e-5
            for cloud, k in zip(clouds, found, strict=True)]  # fmt: skip
    assert any(same), "the simulator draws the same points"
    holes = [to_nearest(whole[k], cloud) / to_nearest(whole[k], expected[k])
             for cloud, k in zip(clouds, found, strict=True)]  # fmt: skip
    assert max(holes) < 1.1, holes
    assert found == sorted(found) and len(set(found)) >= 6, "the newest picture is seen"
    moved = [to_nearest(expected[k], whole[k + 1]) for k in found if k + 1 < len(whole)]
    assert max(moved) > NEXT, "another moment's cloud would have been noticed"
