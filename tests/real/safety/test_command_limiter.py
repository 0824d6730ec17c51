"""The check just before a command is published, alone: each of its comparisons by itself."""

from __future__ import annotations

import numpy as np
import pytest

from robopolicy.real.safety import CommandLimiter, load_profile

DT = 0.004
PROFILE = load_profile("panda")
JOINT = 2


def checked(history: list[float], command: float) -> bool:
    """Whether the post-check lets a command pass after the last commands of one joint, oldest first [rad]; the other
    joints rest."""
    limiter = CommandLimiter(PROFILE, dt=DT)
    home = np.array(PROFILE.data["home"])
    limiter.c = np.tile(home, limiter.c.shape[1])[None].reshape(limiter.c.shape)
    limiter.c[0, :, JOINT] = history[0]
    limiter.c[0, -len(history) :, JOINT] = history
    wanted = home.copy()
    wanted[JOINT] = command
    return bool(limiter._post_check(wanted[None])[0])


@pytest.mark.parametrize("side", [-1, 1])
def test_the_post_check_keeps_a_position_inside(side):
    """Beyond its end by less than any speed, acceleration or jerk could tell."""
    end = float((PROFILE.high if side > 0 else PROFILE.low)[JOINT])
    beyond = 0.5 * float(PROFILE.jerk[JOINT]) * DT**3
    assert checked([end - side * beyond], end)
    assert not checked([end], end + side * beyond)
    assert not checked([end + side * beyond], end + side * beyond), "nor does it stay there"


@pytest.mark.parametrize("side", [-1, 1])
def test_the_post_check_keeps_speed_acceleration_and_jerk(side):
    """Each a little beyond its limit, and a little inside."""
    v, a, j = (float(getattr(PROFILE, k)[JOINT]) * side for k in ("velocity", "acceleration", "jerk"))
    start = float(np.array(PROFILE.data["home"])[JOINT])
    for part, fine in ((1 - 1e-4, True), (1 + 1e-4, False)):
        cruise = [start + k * v * DT * part for k in range(4)]
        assert checked(cruise[:3], cruise[3]) == fine, "speed"
        speed_up = [start + 0.5 * k * (k + 1) * a * DT**2 * part for k in range(4)]
        assert checked(speed_up[:3], speed_up[3]) == fine, "acceleration"
        assert checked([start], start + j * DT**3 * part) == fine, "jerk"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_post_check_refuses_what_is_no_number(value):
    assert not checked([0.0], value)
