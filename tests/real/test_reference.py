"""What the policy asks for reaches the arm smoothly: each of these was a reason why a trained policy failed on it."""

from __future__ import annotations

import numpy as np
import pytest

from real.joints import ChunkBuffer
from real.reference import behind, follow, shape, spline
from real.robots import Trouble
from real.safety import load_profile
from tests.real.test_arm import cell

PROFILE, T = load_profile("panda", tcp_speed=1.0), 0.05


def test_steps_are_slowed_and_change_gently():
    rng, last = np.random.default_rng(0), np.zeros(7)
    jac = np.zeros((7, 3))
    goals = [np.zeros(7)] * 3
    for _ in range(200):
        wanted = rng.choice([-0.2, 0.0, 0.2], 7)
        step, limited = shape(wanted, last, jac, PROFILE, T)
        change = step - last
        assert limited or np.array_equal(step, wanted)
        assert (np.abs(step) <= PROFILE.velocity * T).all() and (np.abs(change) <= PROFILE.acceleration * T**2).all()
        goals.append(goals[-1] + step)
        last = step
    g = np.array(goals)
    fine = np.array([spline(g[k : k + 4], u) for k in range(len(g) - 3) for u in np.arange(10) / 10])
    for order, limit in ((1, PROFILE.velocity), (2, PROFILE.acceleration), (3, PROFILE.jerk)):
        assert (np.abs(np.diff(fine, order, axis=0)) / (T / 10) ** order <= limit * (1 + 1e-6)).all()


def test_a_tool_is_slowed_too_and_what_is_slow_passes_bit_for_bit():
    jac = np.tile([0.5, 0.0, 0.0], (7, 1))
    slow = np.full(7, 1e-3)
    assert np.array_equal(shape(slow, slow, jac, PROFILE, T).step, slow)
    fast = np.full(7, 0.03)  # 2.1 m/s
    assert np.linalg.norm(shape(fast, 0.3 * fast, jac, PROFILE, T).step @ jac) / T < 1.0


@pytest.mark.parametrize("dt", [0.004, 0.005])  # 12.5 and 10 ticks a control step
def test_calm_motion_passes_the_limits_untouched(dt):
    episode = cell([0.006, 0.004, -0.003, 0.0, -1.0], dt=dt).run(3)
    assert episode.changed == 0.0 and not episode.reasons


def test_the_arm_is_where_it_is_told_to_be_and_the_decoder_knows():
    it = cell([0.02, 0.0, 0.0, 0.0, -1.0])
    it.begin(3)
    gaps = []
    for _ in range(100):
        it.loop.tick()
        it.arm.advance()
        it.time += it.dt
        gaps.append(np.abs(it.arm.data.qpos[:7] - it.arm.played[-1]).max())
    assert np.abs(it.arm.data.qvel[:7]).max() > 0.3 and max(gaps) < 0.01  # a servo's lag alone would be 0.05 s of it
    assert it.loop.counts["paced"] > 0
    c = it.env.controller
    np.testing.assert_allclose(c.pos, c.frame.pos, atol=5e-3)


def trailing(monkeypatch, wait: float) -> tuple[list[float], float]:
    """Ticks that the command is behind at full permitted speed, after 12 commands in a row were lost; s waited."""
    monkeypatch.setattr("real.loop.WAIT", wait)
    it = cell([0.02, 0.0, 0.0, 0.0, -1.0])
    it.begin(3)
    lags, start = [], it.loop.begin
    for tick in range(110):
        it.arm.trouble = Trouble(drop=float(60 <= tick < 72))
        command = it.loop.tick().command
        u = (it.loop.at - it.loop.goal_from) / it.loop.period
        target = follow(it.loop.points, u)
        lags.append(behind(command, target, target - follow(it.loop.points, u - it.dt / it.loop.period)))
        it.arm.advance()
        it.time += it.dt
    return lags[72:], it.loop.begin - start


def test_what_is_asked_for_waits_for_a_command_that_trails(monkeypatch):
    """At the speed that is permitted nothing is left to catch up with."""
    lags, waited = trailing(monkeypatch, 0.0)
    assert waited == 0.0 and max(lags) > 3.0 and min(lags[:30]) > 1.0
    lags, waited = trailing(monkeypatch, 0.2)
    assert 0.0 < waited <= 0.2 * 0.05 * 4 and max(lags) < 2.0 and max(lags[20:]) < 0.5


def test_a_plan_that_is_put_off_is_done_later_in_full():
    it = cell([0.0] * 5)
    buffer = ChunkBuffer(it.loop.buffer.spec)
    buffer.add(np.arange(20.0).reshape(4, 5), 0.0, 0.0)
    assert buffer.pop(0.0)[0] == 0.0
    buffer.postpone(0.03)  # more than half a control step: its action would be dropped as late
    assert [buffer.pop(t)[0] for t in (0.08, 0.13, 0.18)] == [5.0, 10.0, 15.0] and buffer.late == 0
