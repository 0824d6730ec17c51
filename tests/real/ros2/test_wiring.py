"""Wirings: limits by name or from a file of one's own, a cell's settings, and what the simulated arm can play."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import yaml

from robopolicy import sim
from robopolicy.core.errors import RobopolicyError
from robopolicy.real.ros2.simulated_wiring import check_lockstep, simulated_problems
from robopolicy.real.ros2.wiring import CAMERAS, FOLDER, WiringError, load_wiring, parse
from robopolicy.real.safety import load_profile
from robopolicy.real.safety.profile import FOLDER as PROFILES

PANDA = yaml.safe_load((FOLDER / "mujoco_panda.yaml").read_text())


def wiring(folder: Path, base: str = "mujoco_panda", **changes: object) -> str:
    data = yaml.safe_load((FOLDER / f"{base}.yaml").read_text())
    path = folder / "cell.yaml"
    path.write_text(yaml.safe_dump({**data, **changes}))
    return str(path)


def test_limits_may_lie_beside_the_wiring(tmp_path):
    data = json.loads((PROFILES / "panda.json").read_text())
    (tmp_path / "mine.json").write_text(json.dumps({**data, "robot": "mine", "velocity": [0.5] * 7}))
    found = load_wiring(wiring(tmp_path, limits="mine.json"))
    assert found.limits == "mine" and found.profile(velocity=1.0).velocity.tolist() == [0.5] * 7
    assert load_wiring("mujoco_panda").profile(tcp_speed=0.1).digest == load_profile("panda", tcp_speed=0.1).digest


@pytest.mark.parametrize("limits", ["cell1_fr3", "none.json", "panda.yaml", "", "../panda"])
def test_unknown_limits_are_refused_by_key_file_and_what_there_is(tmp_path, limits):
    with pytest.raises(WiringError, match=r"cell\.yaml: limits.*fr3, panda, so101, ur5e, ur5e_hand.*JSON"):
        load_wiring(wiring(tmp_path, limits=limits))


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": 2}', "no"])
def test_limits_that_are_none_are_refused(tmp_path, content):
    (tmp_path / "mine.json").write_text(content)
    with pytest.raises(WiringError, match=r"cell\.yaml: limits.*mine\.json"):
        load_wiring(wiring(tmp_path, limits="mine.json"))


def test_a_cell_has_settings_of_its_own(tmp_path):
    assert load_wiring(wiring(tmp_path, safety={"joint_speed": 0.5})).safety == {"joint_speed": 0.5}
    assert load_wiring("fr3").safety == {}
    for wrong in ({"joint_sped": 0.5}, {"joint_speed": [0.5]}, {"velocity": "fast"}):
        with pytest.raises(WiringError, match=r"cell\.yaml.*safety"):
            load_wiring(wiring(tmp_path, safety=wrong))


def test_the_simulated_arm_says_what_it_cannot_play():
    assert simulated_problems(load_wiring("mujoco_panda"), 7) == []
    found = simulated_problems(load_wiring("fr3"), 6)
    assert [p.split(":")[0] for p in found] == [
        "topics.trajectory", "topics.trajectory.node", "topics.joint_commands", "topics.robot_description", "limits",
    ]  # fmt: skip


# -- depth cameras ----------------------------------------------------------------------------------------------------

KEY = "observation.points.wrist"
DEPTH = {"name": "depth", "rate_hz": 25, "frame_id": "wrist", "calibration": "wrist.json"}


def with_depth(folder: Path, camera: dict | None = None, *, file: dict | None = None, **changes: object) -> str:
    """Write a wiring with a depth camera, and its calibration: those of the preset, changed."""
    data = json.loads((CAMERAS / "panda_wrist.json").read_text()) | (file or {})
    (folder / "wrist.json").write_text(json.dumps({k: v for k, v in data.items() if v is not None}))
    return wiring(folder, depth_cameras={KEY: DEPTH | (camera or {})}, **changes)


def test_a_depth_camera_has_a_calibration_beside_the_wiring(tmp_path):
    found = load_wiring(with_depth(tmp_path, changed="2026-11-27"))
    assert found.calibration(KEY).size == (96, 96) and found.depth_cameras[KEY].range_m == (0.05, 10.0)
    moved = with_depth(tmp_path, file={"mount": "base", "tcp": [0, 0, 0.3]})
    assert load_wiring(moved).calibration(KEY).mount == "base", "where the tool's point is, matters on the tool alone"


@pytest.mark.parametrize(
    ("file", "changes", "what"),
    [
        ({"camera": "front"}, {}, r"wrist\.json: camera: expected 'wrist', the file is of 'front'"),
        ({"camera": None}, {}, r"wrist\.json: camera: the file does not say which camera.*'wrist'"),
        ({"robot": "fr3"}, {}, "robot: calibrated on 'fr3', the limits are of 'panda'"),
        ({"kinematics": "0123456789abcdef"}, {}, "kinematics: expected '[0-9a-f]{16}', found '0123456789abcdef'"),
        ({"kinematics": None}, {}, "kinematics: expected '[0-9a-f]{16}', found None"),
        ({"tcp": [0.0, 0.0, 0.3]}, {}, r"tcp: expected \[0\.0, 0\.0, 0\.2104\] m, found \(0\.0, 0\.0, 0\.3\)"),
        ({"tcp": None}, {}, "tcp: expected .* found None"),
        ({}, {"changed": "2026-11-28"}, r"made: 2026-11-27, before the arm's last change \(`changed`.*2026-11-28"),
        ({"made": None}, {"changed": "2026-11-28"}, "made: None, before the arm's last change"),
        ({"pose": [[1, 0, 0, 0]]}, {}, r"wrist\.json is damaged:\n  - pose"),
        ({"distortion": [-9.0, 0, 0, 0]}, {}, "distortion.*cannot be undone"),
        ({"code": "x"}, {}, r"wrist\.json is damaged:\n  - code"),
    ],
)
def test_a_calibration_of_another_camera_arm_or_time_is_refused(file, changes, what, tmp_path):
    """The first ones of a policy that needs the camera; others are not kept from the arm."""
    with pytest.raises(WiringError, match=rf"(?s)depth_cameras\.{KEY}\.calibration: .*{what}"):
        load_wiring(with_depth(tmp_path, file=file, **changes)).calibration(KEY)


@pytest.mark.parametrize(
    ("camera", "what"),
    [
        ({"calibration": "none.json"}, "calibration: .*none.json is missing.*panda_front"),
        ({"calibration": "../wrist.json"}, "calibration: expected the name of a file beside it"),
        ({"range_m": [2.0, 1.0]}, "range_m: expected the nearest depth before the farthest"),
        ({"range_m": [-1.0, 1.0]}, "range_m"),
        ({"rectified": True}, "rectified: is for a camera_info"),
        ({"frame_id": ""}, "frame_id"),
        ({"frame_id": None}, "frame_id"),
        ({"fewest": 0}, "fewest"),
        ({"rate_hz": 5}, "watchdogs.images: 0.1 s is less than two messages of depth_cameras"),
        ({"name": "camera/front/image_raw"}, "two of them have one topic"),
        ({"cloud": {"frame": "world"}}, "frame"),
        ({"cloud": {"box": [[0, 0, 0], [0, 1, 1]]}}, "box"),
        ({"calibratoin": "x"}, "calibratoin: unknown key.*calibration"),
    ],
)
def test_a_depth_camera_that_is_wrong_is_refused_by_key(camera, what, tmp_path):
    with pytest.raises(RobopolicyError, match=f"(?s){what}"):
        load_wiring(with_depth(tmp_path, camera))


def test_a_link_out_of_the_folder_is_no_calibration(tmp_path):
    cell = tmp_path / "cell"
    cell.mkdir()
    path = with_depth(cell)
    (cell / "wrist.json").rename(tmp_path / "wrist.json")
    (cell / "wrist.json").symlink_to(tmp_path / "wrist.json")
    with pytest.raises(WiringError, match="leads out"):
        load_wiring(path)


@pytest.mark.parametrize(("name", "arm"), [("mujoco_panda", "panda"), ("mujoco_ur5e", "ur5e")])
def test_the_presets_have_the_cameras_of_the_scene(name, arm):
    found, env = load_wiring(name), sim.make("reach", 1, arm=arm, points=("front", "side", "wrist"))
    profile = found.profile()
    assert len(found.depth_cameras) == 3
    for key in found.depth_cameras:
        file = found.calibration(key)
        view = env.depth(0, key.rpartition(".")[2])
        np.testing.assert_allclose(file.in_base(env.physics.qpos[0, : env.dof], profile), view.pose, atol=1e-9)
        assert (file.size, file.intrinsics) == (view.depth.shape, view.camera)


@pytest.mark.parametrize("tick_s", [1 / 150, 1 / 300, 1 / 60])
def test_ticks_are_whole_nanoseconds(tmp_path, tick_s):
    """Stamps count ticks since the epoch: a tenth of a nanosecond a tick is a minute off."""
    with pytest.raises(WiringError, match=r"tick_s: expected whole nanoseconds, found .*\. Give 0\.0\d{8}$"):
        load_wiring(wiring(tmp_path, tick_s=tick_s))
    assert load_wiring(wiring(tmp_path, tick_s=round(tick_s, 9))).dt_ns == round(tick_s * 1e9)


@pytest.mark.parametrize("patience", [{"slow": 0.1}, {"slow": 0.1, "hold": 60.0}])
@pytest.mark.parametrize("dog", ["images", "features"])
def test_an_arm_does_not_go_on_by_old_pictures_for_good(tmp_path, dog, patience):
    data = yaml.safe_load((FOLDER / "mujoco_panda.yaml").read_text())["watchdogs"]
    with pytest.raises(WiringError, match=rf"watchdogs\.{dog}: .*expected hold or fault after at most 10 s"):
        load_wiring(wiring(tmp_path, watchdogs=data | {dog: patience}))


def test_simulated_time_is_for_simulated_arms():
    check_lockstep(load_wiring("mujoco_ur5e"))
    with pytest.raises(WiringError, match=r"lockstep=true: expected the wiring of a simulated arm, .*joint_commands"):
        check_lockstep(load_wiring("ur5e"))


@pytest.mark.parametrize(
    "name", ["joint states", "/cell1//states", "states/", "/1st", "a-b", "~", "/états", "{node}/x", ""]
)
@pytest.mark.parametrize("role", ["joint_states", "trajectory", "gripper"])
def test_a_name_that_ros_does_not_take_is_refused_by_key(role, name):
    topics = deepcopy(PANDA["topics"])
    topics[role]["name"] = name
    with pytest.raises(WiringError, match=rf"topics\.{role}"):
        parse({**PANDA, "topics": topics})
    with pytest.raises(WiringError, match=r"cameras\.observation\.images\.front"):
        parse({**PANDA, "cameras": {"observation.images.front": {"name": name, "rate_hz": 30}}})


@pytest.mark.parametrize("name", ["states", "/states", "~/states", "/cell_1/_hidden/states2"])
def test_names_that_ros_takes_pass(name):
    topics = deepcopy(PANDA["topics"])
    topics["joint_states"]["name"] = name
    assert parse({**PANDA, "topics": topics}).topic("joint_states").name == name


@pytest.mark.parametrize("depth", [0, 10_001, 2**70, True, 1.0])
def test_a_queue_that_no_middleware_has_is_refused_by_key(depth):
    topics = deepcopy(PANDA["topics"])
    topics["joint_states"]["depth"] = depth
    with pytest.raises(WiringError, match=r"topics\.joint_states\.depth"):
        parse({**PANDA, "topics": topics})


@pytest.mark.parametrize("info", ["", "lens info", "/a/"])
def test_the_topic_of_a_lens_is_one_that_ros_takes(info):
    camera = {"name": "depth", "rate_hz": 30, "frame_id": "d", "calibration": "panda_front", "camera_info": info}
    with pytest.raises(WiringError, match="camera_info"):
        parse({**PANDA, "depth_cameras": {"observation.points.front": camera}})


@pytest.mark.parametrize("rate", [1e308, 1e-300, 0.0])
def test_a_rate_that_no_topic_has_is_refused(rate):
    topics = deepcopy(PANDA["topics"])
    topics["diagnostics"]["rate_hz"] = rate
    with pytest.raises(WiringError, match=r"topics\.diagnostics\.rate_hz"):
        parse({**PANDA, "topics": topics})


@pytest.mark.parametrize("factor", [0.0, 1000.0])
def test_a_gripper_joint_that_does_not_count_or_is_in_mm_is_refused(factor):
    first = next(iter(PANDA["gripper"]))
    with pytest.raises(WiringError, match=rf"gripper\.{first}.*expected m of opening"):
        parse({**PANDA, "gripper": PANDA["gripper"] | {first: factor}})


@pytest.mark.parametrize("slow", [0.1, 0.2])
def test_a_watchdog_slows_the_arm_before_it_stops_it(slow):
    dogs = PANDA["watchdogs"] | {"features": {"slow": slow, "hold": 0.1, "fault": 1.0}}
    with pytest.raises(WiringError, match=r"watchdogs\.features: .*slow: expected less than 0\.1 s"):
        parse({**PANDA, "watchdogs": dogs})
