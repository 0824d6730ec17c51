"""The state that a plan is made for, forecast from an older one: it must be the one in which the plan begins."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.core.types import STATE, Feature
from robopolicy.real.control.robots import State, Trouble
from robopolicy.real.control.state_forecast import ForecastState, Reference, StateForecaster, forecast
from robopolicy.real.deploy.simulated_arm import SimulatedArm
from robopolicy.real.planning.chunking import chunking_of
from robopolicy.real.safety.decision import Patience
from tests.real.control.test_robots import WIDE, Drive


class Wave(Drive):
    """Changes its speed with every plan, so that the way ahead is not that of the last step."""

    plans = 0

    def act(self, obs, *, noise=None, deterministic=False):
        self.plans += 1
        rate = torch.tensor([0.012, 0.01, 0.006, 0.03, 0.0]) * np.sin(0.9 * self.plans)
        return (rate + torch.tensor([0.0, 0.0, 0.0, 0.0, -1.0])).float().expand(1, self.spec.horizon, -1).clone()


def silent(it: SimulatedArm, ticks: int, every: int) -> None:
    """Let the first `ticks` of `every` ticks bring no state, from the second `every` on."""
    read, calls = it.arm.read, itertools.count()

    def often() -> State | None:
        tick, state = next(calls), read()
        return None if tick >= every and tick % every < ticks else state

    it.arm.read = often


def seen_and_met(
    *, steps: int, latency: float, early: float = 0.0, old: int = 0, predict: bool = True, gap: tuple[int, int] = (0, 1)
):
    """Tool position [K 3] m in the states that were planned from, and in those in which the plans began; so too the
    commanded pose that the policy observed, and met. `gap`: ticks without a state, of so many."""
    env = sim.make("reach", 1, joint_noise=0.0, horizon=60)
    policy = Wave(env, [0.0] * 5, steps=steps)
    it = SimulatedArm(env, policy, settings=WIDE, latency=latency, predict=predict, trouble=Trouble(delay=old))
    silent(it, *gap)
    loop, tcp, lag = it.loop, env.layout.slices["tcp"], env.layout.slices["lag"]
    loop.early = early
    if predict:
        assert loop.forecaster is not None
        loop.forecaster.behind = (1 + old) * it.dt
    shown, begins, met = [], [], {}
    request = loop.plans.runner.request

    def note(obs, step, now, ahead):
        shown.append(obs[STATE][0, -1].numpy().copy())
        begins.append(None)
        request(obs, step, now, ahead)

    loop.plans.runner.request = note
    add = loop.buffer.add

    def added(chunk, observed, now, first=None):
        begins[-1] = round((first + loop.buffer.shift) / it.dt)
        return add(chunk, observed, now, first)

    loop.buffer.add = added

    def ticked():
        held = it.held
        state = State(it.arm.data.qpos[:7].copy(), it.arm.data.qvel[:7].copy(), 0.0)
        met[round(it.time / it.dt)] = it._observe(state)[STATE][0].numpy().copy()
        it.held = held

    it.ticked = ticked
    it.run(1)
    pairs = [(s, met[b]) for s, b in zip(shown, begins, strict=True) if b is not None and b in met][3:]
    was, true = (np.array(x) for x in zip(*pairs, strict=True))
    assert len(pairs) > 5
    pose, lag = was[:, tcp], slice(lag.start, lag.start + 3)
    return pose, true[:, tcp], was[:, lag] + pose, true[:, lag] + true[:, tcp]


@pytest.mark.parametrize(
    ("steps", "latency", "early", "old"),
    [(1, 0.0, 0.02, 2), (1, 0.05, 0.0, 0), (1, 0.05, 0.02, 2), (4, 0.05, 0.02, 2), (4, 0.1, 0.02, 0)],
)
def test_the_policy_is_shown_the_state_in_which_its_plan_begins(steps, latency, early, old):
    shown, met, commanded, later_commanded = seen_and_met(steps=steps, latency=latency, early=early, old=old)
    plain, later, *_ = seen_and_met(steps=steps, latency=latency, early=early, old=old, predict=False)
    error = np.linalg.norm(shown - met, axis=1).max()
    assert error < 0.0035, "m"
    assert commanded == pytest.approx(later_commanded, abs=1e-5), "m; with the actions of a plan that has just come"
    assert np.linalg.norm(plain - later, axis=1).max() > 2.5 * error


@pytest.mark.parametrize("early", [0.0, 0.02])
def test_a_state_that_is_lost_is_forecast_from_the_one_before(early):
    shown, met, *_ = seen_and_met(steps=1, latency=0.0, early=early, gap=(20, 43))  # 80 ms, more than a control step
    assert np.linalg.norm(shown - met, axis=1).max() < 0.006, "m"


def test_a_policy_goes_on_while_states_are_lost_but_not_without_end():
    def run(gap: tuple[int, int], *, steps: int = 1, **options):
        env = sim.make("reach", 1, joint_noise=0.0, horizon=30)
        policy, patience = Drive(env, [0.004, 0.0, 0.0, 0.0, -1.0], steps=steps), Patience(hold=0.5, fault=1.0)
        it = SimulatedArm(env, policy, settings=WIDE, state=patience, **options)
        silent(it, *gap)
        return it.run(1), it.loop.counts

    episode, counts = run((20, 43))
    assert not episode.reasons["underrun"] and counts["bridged"] >= 5 and episode.steps >= 30
    episode, counts = run((20, 43), predict=False)
    assert episode.reasons["underrun"] and not counts["bridged"], "only measured states are shown"
    episode, counts = run((20, 43), predict=False, steps=8)
    assert counts["bridged"] >= 5 and counts["late"] <= 4, "planned actions need no state; a plan does"
    episode, counts = run((60, 100))  # 240 ms in 400
    assert counts["bridged"] <= 3 * 2, "none from a state that is older than two control steps"
    assert counts["refused"] >= 2, "the step that then comes is too late"


def test_nothing_is_forecast_where_nothing_is_late():
    state = State(np.zeros(2), np.ones(2), 0.04)
    points = np.arange(8.0).reshape(4, 2)
    assert forecast(state, points, [], begin=0.0, period=0.05, seen=0.046, until=0.046) is state
    later = forecast(state, points, [], begin=0.0, period=0.05, seen=0.02, until=0.045)
    assert isinstance(later, ForecastState) and later.measured is state and later.opening == 0.04
    assert later.q == pytest.approx([1.0, 1.0]) and later.qd == pytest.approx([1.0, 1.0]), "2 rad in 0.05 s, steadily"
    assert later.ahead == pytest.approx(0.025)


def test_the_reference_goes_through_all_points_under_way():
    points = np.cumsum(np.random.default_rng(0).normal(size=(7, 3)), axis=0)
    way = Reference(points, 1.0, 0.1)
    for k in range(4):  # a knot of the spline is a sixth of its neighbours and two thirds of the point itself
        expected = points[k : k + 3].T @ np.array([1, 4, 1]) / 6
        assert np.allclose(way.at(1.0 + 0.1 * k), expected)
    h = 1e-6
    for t in (1.03, 1.1, 1.29):
        assert np.allclose(way.velocity(t), (way.at(t + h) - way.at(t - h)) / (2 * h), atol=0.02)


def test_before_its_first_segment_the_reference_came_at_the_speed_that_it_begins_with():
    steady = Reference(0.1 * np.arange(5.0)[:, None], 1.0, 0.1)  # 1 rad/s
    for t in (0.8, 0.905, 0.95, 0.999, 1.0, 1.001, 1.05):
        assert steady.velocity(t) == pytest.approx([1.0]), t
    assert steady.at(1.0) - steady.at(0.93) == pytest.approx([0.07])
    assert steady.at(0.5) == pytest.approx(steady.at(0.9)), "a segment and no more"
    bent = Reference(np.array([[0.0], [0.1], [0.3], [0.4]]), 1.0, 0.1)
    assert bent.at(1.0 - 1e-6) == pytest.approx(bent.at(1.0), abs=1e-5)
    assert bent.velocity(1.0 - 1e-6) == pytest.approx(bent.velocity(1.0 + 1e-6), rel=1e-3)


def test_a_state_older_than_the_control_step_is_moved_on_by_all_the_way_since():
    state, steady = State(np.zeros(1), np.ones(1), 0.0), 0.02 * np.arange(4.0)[:, None]  # 0.4 rad/s
    later = forecast(state, steady, [], begin=1.0, period=0.05, seen=0.96, until=1.04)
    assert later.q == pytest.approx([0.4 * 0.08]), "without the time before `begin` it was 0.016"


@pytest.mark.parametrize("control", ["delta_pose", "joint_position"])
def test_to_look_ahead_leaves_the_commanded_pose_alone(control):
    env = sim.make("reach", 1, joint_noise=0.0, control=control)
    it = SimulatedArm(env, Drive(env, [0.0] * env.spec.action.dim), settings=WIDE)
    it.begin(1)
    decoder, q = it.loop.decoder, it.arm.read().q
    before, step = decoder.commanded, decoder.last_step.copy()
    by_joints = control == "joint_position"  # so far that its pace is slowed
    action = np.array([*(q + 0.3), -1.0]) if by_joints else np.array([0.002, 0.0, 0.0, 0.01, -1.0])
    with decoder.looking_ahead([action, action], q, it.chain.profile) as goals:
        assert len(goals) == 2 and not np.array_equal(decoder.commanded.pos, before.pos)
        if not by_joints:
            assert decoder.commanded.pos[0] == pytest.approx(before.pos[0] + 0.004, abs=1e-5)
    after = decoder.commanded
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert np.array_equal(decoder.last_step, step)
    assert np.array_equal(decoder.decode(action, q, it.chain.profile).q, goals[0]), "the same as when it is due"


def test_no_forecast_where_the_arm_stands_or_a_picture_shows_the_past():
    env = sim.make("reach", 1, joint_noise=0.0)
    policy = Drive(env, [0.0] * 5, steps=1)
    assert SimulatedArm(env, policy, settings=WIDE).loop.forecaster is not None
    assert SimulatedArm(env, policy, settings=WIDE, shadow=True).loop.forecaster is None
    assert SimulatedArm(env, policy, settings=WIDE, predict=False).loop.forecaster is None
    camera = {"observation.images.front": Feature((3, 8, 8), "uint8")}
    policy.spec = replace(policy.spec, observation={**policy.spec.observation, **camera})
    chunks = chunking_of("async", policy, 0.05, predict=True)
    assert not chunks.predict and chunks.buffer.shift == 0.05, "a step later, as without a forecast"
    policy.spec = replace(policy.spec, horizon=4, n_action_steps=4)
    assert chunking_of("async", policy, 0.05, predict=True).buffer.shift == 0.0, "its late action is dropped"


def test_where_a_human_drives_the_plans_under_way_are_not_the_motion():
    env = sim.make("reach", 1, joint_noise=0.0)
    it = SimulatedArm(env, Drive(env, [0.01, 0.0, 0.0, 0.0, 0.0]), settings=WIDE, latency=0.05)
    it.begin(1)
    assert isinstance(it.loop.forecaster, StateForecaster)
    it.loop.buffer.add(np.tile([0.002, 0.0, 0.0, 0.0, 0.0], (4, 1)), 0.0, 0.0, first=-0.05)
    state, x = it.arm.read(), it.loop.decoder.commanded.pos[0]
    for driver, way in (("policy", 0.002), ("human", 0.0)):
        it.loop.driver = driver
        with it.loop.forecaster.to_plan(it.loop, 0.0)(it.time, state) as later:
            assert it.loop.decoder.commanded.pos[0] == pytest.approx(x + way, abs=1e-5)
            assert (np.abs(later.q - state.q).max() > 1e-5) == (driver == "policy")
