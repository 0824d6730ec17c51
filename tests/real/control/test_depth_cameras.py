"""Where the arm stood when a picture was taken, and which pictures wait for it."""

from __future__ import annotations

import numpy as np
import pytest

from robopolicy.core.errors import DataError
from robopolicy.real.control.depth_cameras import GAP, CloudMaker, DepthPicture, JointLog
from robopolicy.real.safety import SafetyError
from robopolicy.utils.point_clouds import Intrinsics

LENS = Intrinsics(1.0, 1.0, 0.0, 0.0)


def log(*times: float, seconds: float = 1.0) -> JointLog:
    """States at these times, whose first joint is ten times the time."""
    found = JointLog(seconds)
    for time in times:
        found.take(time, np.array([10 * time, 1.0]))
    return found


def test_the_arm_between_two_states():
    it = log(1.0, 1.02, 1.04)
    assert it.newest == 1.04
    for time in (1.0, 1.005, 1.02, 1.039, 1.04):
        np.testing.assert_allclose(it.at(time), [10 * time, 1.0])


@pytest.mark.parametrize(
    ("times", "time", "what"),
    [
        ((), 1.0, "no states of the arm are as old"),
        ((1.0, 1.01), 0.99, "no states of the arm are as old"),
        ((1.0, 1.01), 1.02, "no states of the arm are as old"),
        ((1.0, 1.01 + GAP), 1.05, r"no state of the arm came for 0\.11 s"),
        ((1.0, 1.9, 2.05), 1.01, "no states of the arm are as old"),  # forgotten
        ((5.0, 5.01, 1.0, 1.01), 5.005, "no states of the arm are as old"),  # time went back
    ],
)
def test_of_another_moment_nothing_is_known(times, time, what):
    with pytest.raises(SafetyError, match=what):
        log(*times).at(time)


def test_a_picture_waits_for_its_state_and_a_newer_one_takes_its_place():
    seen = []

    def camera(picture, q):
        seen.append((float(picture.numbers[0, 0]), float(q[0])))
        if picture.numbers[0, 0] < 0:
            raise DataError("nothing")
        return np.zeros((1, 3), np.float32)

    it = log(1.0)
    maker = CloudMaker({"a": camera, "b": camera}, it, threaded=False)

    def put(key: str, value: float, taken: float) -> None:
        maker.put(key, DepthPicture(np.full((1, 1), value), 1.0, LENS, taken, taken + 7.0))

    put("a", 1.0, 1.005)
    put("a", 2.0, 1.006)
    put("b", -1.0, 1.01)
    put("b", 3.0, 1.02)
    assert maker.finished() == [] and seen == []
    it.take(1.01, np.array([10.1, 1.0]))
    ((key, came, cloud, error),) = maker.finished()
    assert (key, came, error) == ("a", 8.006, None) and cloud.shape == (1, 3)
    assert seen == [(2.0, pytest.approx(10.06))]
    put("b", -1.0, 1.01)
    ((key, came, cloud, error),) = maker.finished()
    assert key == "b" and cloud is None and str(error) == "b: nothing" and isinstance(error, DataError)
    put("a", 4.0, 0.5)
    assert "no states" in str(maker.finished()[0].error) and maker.finished() == []
