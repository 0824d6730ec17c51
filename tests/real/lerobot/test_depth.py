"""Depth frames of LeRobot's camera class: each once, with its own time."""

from __future__ import annotations

import time

import numpy as np
import pytest

from robopolicy.real.lerobot.depth import DepthFrames
from robopolicy.real.lerobot.wiring import parse
from robopolicy.real.ros2.channels import WiringError
from robopolicy.real.safety import SafetyError
from tests.real.lerobot.test_live import RealSense, Timeless
from tests.real.lerobot.test_wiring import KEY, with_depth

ARM = parse(with_depth(latency_s=0.05)).arm


def frames(camera: RealSense) -> DepthFrames:
    return DepthFrames(KEY, ARM.depth_cameras[KEY], ARM.calibrations[KEY], camera)


def test_each_frame_counts_once_and_is_as_old_as_lerobot_says():
    camera = RealSense(unit=0.0001)
    it, before = frames(camera), time.monotonic()
    first = camera.read_latest_depth()
    picture = it.read(first)
    assert picture is not None and picture.numbers.shape == (96, 96)
    np.testing.assert_allclose(picture.numbers * picture.unit, 0.05)
    assert before - 0.01 <= picture.came <= time.monotonic() and picture.taken == pytest.approx(picture.came - 0.05)
    assert it.read(first) is None, "it was there before"
    camera.latest_timestamp -= 1.0
    second = camera.read_latest_depth()
    camera.latest_timestamp -= 1.0
    camera.read_latest_depth()
    assert it.read(second) is None, "a newer one has come, and its time is not this one's"


def test_a_camera_that_cannot_be_used_is_refused():
    for camera, what in ((Timeless(), "no time of its frames"), (RealSense(unit=1.0), "unit of depth is 1.0 m")):
        with pytest.raises(WiringError, match=rf"depth_cameras\.{KEY}: .*{what}"):
            frames(camera)
    camera = RealSense((48, 64))
    with pytest.raises(SafetyError, match=rf"{KEY}: depth of uint16 \[48, 64, 1\], expected uint16 \[96, 96, 1\]"):
        frames(camera).read(camera.read_latest_depth())
