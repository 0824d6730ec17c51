"""Hand–eye calibration of pictures that the simulator renders: the truth is known."""

from __future__ import annotations

import csv
import datetime
import json

import numpy as np
import pytest

from robopolicy.core.errors import ConfigError, DataError
from robopolicy.real.arms.camera import JOINTS, arm_camera, read_joints, read_picture
from robopolicy.real.arms.camera_board import Board
from robopolicy.real.arms.camera_file import read_camera
from robopolicy.real.safety import load_profile
from tests.real.arms.camera_rig import SIZE, record, tool_pose

CHESS, CHARUCO = Board(9, 6, 0.02), Board(7, 5, 0.03, 0.022)
SO101 = load_profile("so101")


@pytest.mark.parametrize(
    ("robot", "mount", "board"),
    [("so101", "tool", CHARUCO), ("so101", "base", Board(9, 6, 0.015)), ("fr3", "base", CHESS)],
)
def test_lens_and_pose_of_a_rendered_camera(robot, mount, board, tmp_path, capsys):
    profile = load_profile(robot)
    truth = record(tmp_path / "pictures", profile, board, mount, spread=0.25)
    out = arm_camera(
        pictures=tmp_path / "pictures", limits=robot, board=board, mount=mount, out=tmp_path / "camera.json",
        camera="817612070311",
    )  # fmt: skip
    found, q = read_camera(out), np.array(profile.data["home"]) + 0.1
    off = np.linalg.inv(truth) @ found.pose
    assert np.linalg.norm(off[:3, 3]) < 0.003, "m"
    assert np.rad2deg(np.arccos((np.trace(off[:3, :3]) - 1) / 2)) < 0.3
    assert found.intrinsics.fx == pytest.approx(SIZE[0] / 2 / np.tan(np.deg2rad(45) / 2), rel=0.01)
    assert list(found.problems("817612070311", profile, datetime.date.today())) == []
    assert [p.split(":")[0] for p in found.problems("wrist", load_profile("panda"), datetime.date.max)] == [
        "camera", "robot", *["tcp"] * (mount == "tool"), "made",
    ]  # fmt: skip
    assert found.size == SIZE and found.quality["error_px"] < 0.5
    expected = truth if mount == "base" else tool_pose(profile, q) @ truth
    np.testing.assert_allclose(found.in_base(q, profile), expected, atol=0.01)
    said = capsys.readouterr().out
    assert "px rms" in said and "standard deviation" in said
    with pytest.raises(DataError, match=r"out: .*camera\.json exists"):
        arm_camera(pictures=tmp_path / "pictures", limits=robot, board=board, mount=mount, out=out)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Pictures of a camera on the tool."""
    folder = tmp_path_factory.mktemp("good") / "pictures"
    record(folder, SO101, CHARUCO, "tool", count=9, spread=0.3)
    return folder


def rows_of(folder):
    with (folder / JOINTS).open(newline="") as file:
        return list(csv.reader(file))


def with_rows(folder, rows, to):
    """Return a folder of the same pictures with other joints."""
    to.mkdir()
    for picture in folder.glob("*.png"):
        (to / picture.name).write_bytes(picture.read_bytes())
    with (to / JOINTS).open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return to


def calibrate(folder, **changes):
    given = {"pictures": folder, "limits": "so101", "board": CHARUCO, "mount": "tool", "out": folder / "camera.json"}
    return arm_camera(**{**given, **changes})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda rows: rows[:8], "7 show the board, expected 8 or more"),
        (lambda rows: [*rows[:5], [rows[5][0], *rows[7][1:]], *rows[6:]], r"0\d\.png is off by .* px"),
        (lambda rows: [rows[0], *([r[0], *(str(57.3 * float(v)) for v in r[1:])] for r in rows[1:])], "degrees"),
        (lambda rows: [[*rows[0][:-1], "wrist_rol"], *rows[1:]], r"expected the columns .*wrist_roll"),
        (lambda rows: [rows[0], *([*r[:-1], "nan"] for r in rows[1:])], r"line 2: wrist_roll=nan"),
        (lambda rows: [rows[0], *(r[:-1] for r in rows[1:])], "line 2: expected an angle"),
        (lambda rows: [rows[0], *([rows[1][0], *r[1:]] for r in rows[1:])], "stands there twice"),
        (lambda rows: [rows[0], ["../secret.png", *rows[1][1:]]], r"picture: expected the name of a file"),
        (lambda rows: [rows[0], ["gone.png", *rows[1][1:]]], r"gone\.png is missing"),
        (lambda rows: [rows[0], ["joints.csv", *rows[1][1:]]], r"joints\.csv: is no PNG or JPEG"),
        (lambda rows: [], "is no table"),
    ],
)  # fmt: skip
def test_pictures_that_cannot_be_used_are_named(change, expected, good, tmp_path):
    folder = with_rows(good, change(rows_of(good)), tmp_path / "pictures")
    with pytest.raises(DataError, match=expected):
        calibrate(folder)
    assert not (folder / "camera.json").exists()


def test_another_mount_than_that_of_the_pictures_is_refused(good, tmp_path):
    with pytest.raises(DataError, match=r"0\d\.png is off by .*Does the camera stand still \(mount=base\)"):
        calibrate(good, mount="base", out=tmp_path / "camera.json")


def test_poses_about_one_axis_are_refused(tmp_path):
    record(tmp_path / "pictures", SO101, CHARUCO, "tool", count=9, axes=(0,))
    with pytest.raises(DataError, match=r"about a second axis the tool turns by 0\.0°"):
        calibrate(tmp_path / "pictures")


def test_links_and_bombs_are_refused(good, tmp_path):
    folder = with_rows(good, rows_of(good), tmp_path / "pictures")
    (tmp_path / "secret.png").write_bytes((folder / "00.png").read_bytes())
    (folder / "00.png").unlink()
    (folder / "00.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DataError, match="leads out"):
        calibrate(folder)
    from PIL import Image

    Image.new("1", (30_000, 30_000)).save(tmp_path / "bomb.png")
    with pytest.raises(DataError, match=r"bomb\.png"):
        read_picture(tmp_path / "bomb.png")
    (tmp_path / JOINTS).write_text("picture," + ",".join(SO101.joints) + '\n"' + "a" * 200_000 + "\n")
    with pytest.raises(DataError, match="is no table"):
        read_joints(tmp_path / JOINTS, SO101)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("pose", [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, -1, 0], [0, 0, 0, 1]], "pose: expected a rotation"),
        ("pose", [[1, 0, 0, 0]], "pose"),
        ("mount", "head", "mount"),
        ("format", 2, "format"),
        ("intrinsics", {"fx": -1.0, "fy": 1.0, "cx": 0.0, "cy": 0.0}, "intrinsics"),
        ("code", "x", "code"),
    ],
)
def test_files_that_were_changed_are_refused(key, value, expected, good, tmp_path):
    path = calibrate(good, out=tmp_path / "camera.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises((DataError, ConfigError), match=expected):
        read_camera(path)


def test_a_camera_of_another_arm_is_refused(good, tmp_path):
    found = read_camera(calibrate(good, out=tmp_path / "camera.json"))
    with pytest.raises(DataError, match="calibrated on 'so101', the limits are of 'fr3'"):
        found.in_base(np.zeros(7), load_profile("fr3"))
