"""What the policy asks for reaches the arm smoothly: each of these was a reason why a trained policy failed on it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.real.control.chunk_buffer import ChunkBuffer
from robopolicy.real.control.robots import Trouble
from robopolicy.real.control.trajectory_spline import shape, spline, steps_behind
from robopolicy.real.deploy.simulated_arm import SimulatedArm
from robopolicy.real.safety import Mode, load_profile
from tests.real.control.test_robots import WIDE, Drive, simulated_arm

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
    episode = simulated_arm([0.006, 0.004, -0.003, 0.0, -1.0], dt=dt).run(3)
    assert episode.changed == 0.0 and not episode.reasons


def test_the_arm_is_where_it_is_told_to_be_and_the_decoder_knows():
    it = simulated_arm([0.02, 0.0, 0.0, 0.0, -1.0])
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


def trailing(monkeypatch, wait: float) -> tuple[list[float], float, int]:
    """Ticks that the command is behind what it is to follow, at full permitted speed, after 12 commands in a row were
    lost; s waited; ticks in which the limits changed the command since."""
    monkeypatch.setattr("robopolicy.real.control.control_loop.MAX_WAIT", wait)
    it = simulated_arm([0.02, 0.0, 0.0, 0.0, -1.0])
    targets, filtered = [], it.chain.filter
    it.chain.filter = lambda target, *args, **how: (targets.append(target), filtered(target, *args, **how))[1]
    it.begin(3)
    lags, start, changed = [], it.loop.begin, 0
    for tick in range(180):
        it.arm.trouble = Trouble(drop=float(60 <= tick < 72))
        decision = it.loop.tick()
        if tick > 72:
            lags.append(steps_behind(decision.command, targets[-1], targets[-1] - targets[-2]))
            changed += decision.changed
        it.arm.advance()
        it.time += it.dt
    return lags, it.loop.begin - start, changed


def test_what_is_asked_for_waits_for_a_command_that_trails(monkeypatch):
    """At the speed that is permitted nothing is left to catch up with."""
    lags, waited, changed = trailing(monkeypatch, 0.0)
    assert waited == 0.0 and max(lags) > 3.0 and changed > 100
    lags, waited, changed = trailing(monkeypatch, 0.2)
    assert 0.0 < waited <= 0.2 * T * 4 and max(lags) < 2.0 and max(lags[40:]) < 0.5 and changed < 90


def test_what_is_ahead_is_hurried():
    """A stall in which the arm went on with its stop: the reference stood for all of it, the arm did not."""
    it = simulated_arm([0.02, 0.0, 0.0, 0.0, -1.0])
    it.begin(3)
    for tick in range(130):
        if tick == 70:
            past = it.chain.limiter.past()
            for _ in range(6):
                it.arm.advance()
            it.chain.resume(past, 6)
            it.time += 6 * it.dt
        it.loop.tick()
        it.arm.advance()
        it.time += it.dt
    lost = it.loop.begin - it.loop.origin
    assert it.loop.counts["missed"] == 6 and 0.0 < lost < 3 * it.dt and it.arm.aborted == ""


def test_no_action_of_a_plan_is_lost_where_all_waits():
    """Small stalls that add up to more than half a control step: each action is still taken, in turn."""
    env = sim.make("reach", 1, joint_noise=0.0, horizon=60)
    policy = Drive(env, [0.0] * 5, steps=8)
    plan = torch.zeros(1, 8, 5)
    plan[0, :, 0] = 1e-4 * torch.arange(1, 9)
    policy.act = lambda obs, **how: plan.clone()
    it, taken = SimulatedArm(env, policy, settings=WIDE), []
    decode = it.loop.decoder.decode
    it.loop.decoder.decode = lambda action, *more: (taken.append(action[0]), decode(action, *more))[1]
    it.begin(1)
    for tick in range(200):
        it.loop.tick()
        it.arm.advance()
        it.time += it.dt * (1 + 2 * (tick % 10 == 5))
    assert np.allclose(np.diff(taken)[np.diff(taken) > 0], 1e-4) and len(taken) >= 16 and it.loop.buffer.late == 0


def test_a_plan_that_is_put_off_is_done_later_in_full():
    it = simulated_arm([0.0] * 5)
    buffer = ChunkBuffer(it.loop.buffer.spec)
    buffer.add(np.arange(20.0).reshape(4, 5), 0.0, 0.0)
    assert buffer.pop(0.0)[0] == 0.0
    buffer.postpone(0.03)  # more than half a control step: its action would be dropped as late
    assert [buffer.pop(t)[0] for t in (0.08, 0.13, 0.18)] == [5.0, 10.0, 15.0] and buffer.late == 0


@pytest.mark.parametrize("latency", [0.03, 0.05])
def test_a_policy_of_one_step_bridges_a_latency_of_one(latency):
    """Asked ahead of the control step, off the grid of ticks: one plan a control step all the same."""
    env = sim.make("reach", 1, joint_noise=0.0, horizon=60)
    it = SimulatedArm(env, Drive(env, [0.001, 0.0, 0.0, 0.0, 0.0], steps=1), settings=WIDE, latency=latency)
    it.loop.early, planned = 0.02, []
    request = it.loop.plans.runner.request
    it.loop.plans.runner.request = lambda *args: (planned.append(it.time), request(*args))[1]
    it.begin(1)
    held = 0
    for tick in range(500):
        decision = it.loop.tick()
        held += decision.mode is Mode.HOLD and tick > 40
        it.arm.advance()
        it.time += it.dt
    assert held == 0 and 38 <= len(planned) <= 42


def test_a_plan_is_dropped_after_a_stall_longer_than_it_may_be_late():
    env = sim.make("reach", 1, joint_noise=0.0, horizon=60)
    it = SimulatedArm(env, Drive(env, [0.001, 0.0, 0.0, 0.0, 0.0], steps=1), settings=WIDE, latency=0.05)
    it.begin(1)
    for _ in range(70):
        it.loop.tick()
        it.arm.advance()
        it.time += it.dt
    it.loop.plans.runner.poll = lambda now: None  # nothing new
    it.loop.buffer.clear()
    it.loop.buffer.add(np.zeros((1, 5)), it.time, it.time, it.time)  # due a control step later, and the stall too
    it.time += 14 * it.dt  # 56 ms; a policy of one step may be 50 late
    it.loop.tick()
    assert len(it.loop.buffer) == 0 and it.loop.counts["missed"] == 14
