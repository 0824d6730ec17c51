"""Real-time chunking in the control loop, on a fake clock: delays, seams, refusals, a planner that hangs."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.policies.flow import FlowPolicy
from robopolicy.policies.residual import ResidualPolicy
from robopolicy.real.control.chunk_buffer import ChunkBuffer, Delays
from robopolicy.real.deploy.simulated_arm import SimulatedArm
from robopolicy.real.planning.chunking import RealtimePlanner, check_chunking
from robopolicy.real.planning.planner import Planner, ThreadRunner
from robopolicy.real.planning.remote_planner import RemotePlanner
from robopolicy.real.safety import Mode
from robopolicy.real.safety.audit import joint_violations
from tests import toy
from tests.real.control.test_robots import WIDE, Drive

H, TA, STEP = 8, 4, 0.05
REACH = 0.5  # of the limits, of what the policy demonstrates


def flow(env: sim.SimEnv, *, horizon: int = H) -> FlowPolicy:
    spec = PolicySpec(env.spec.observation, env.spec.action, env.dt, 1, horizon, TA, env.spec.tasks)
    return toy.two_sides(FlowPolicy, spec, reach=REACH)


def reach(horizon: int = 40) -> sim.SimEnv:
    return sim.make("reach", 1, joint_noise=0.0, horizon=horizon)


class Numbered(Drive):
    """Moves along x. Its k-th plan is a little faster than the one before, so that each action says whose it is."""

    def __init__(self, env: sim.SimEnv, *, steps: int) -> None:
        super().__init__(env, [0.0] * 5, steps=steps)
        self.plans = 0

    def act(self, obs, *, noise=None, deterministic=False):
        self.plans += 1
        action = torch.tensor([2e-3 + 1e-4 * self.plans, 0.0, 0.0, 0.0, 0.0])
        return action.expand(1, self.spec.horizon, -1).clone()

    @staticmethod
    def number(action: np.ndarray) -> int:
        return round((action[0] - 2e-3) / 1e-4)


class Notes:
    """A journal that keeps actions and chunks."""

    def __init__(self) -> None:
        self.actions, self.chunks = [], []

    def step(self, now, step, obs, before, action, limited, driver="policy", proposed=None) -> None:
        self.actions.append(None if action is None else action.copy())

    def chunk(self, now, chunk, observed, refused) -> None:
        self.chunks.append((chunk.copy(), refused))


def simulated_arm(chunking: str, *, latency: float = STEP) -> tuple[SimulatedArm, Notes, list]:
    """With what its planner was told lies ahead."""
    env = reach()
    it = SimulatedArm(env, flow(env), settings=WIDE, latency=latency, chunking=chunking)
    notes, told = Notes(), []
    it.loop.plans.journal = notes
    plan = it.loop.plans.runner.planner.plan
    it.loop.plans.runner.planner.plan = lambda obs, step, ahead=None: told.append(ahead) or plan(obs, step, ahead)
    return it, notes, told


def seams(chunking: str) -> tuple[float, list]:
    """How often the action changes its side, as a fraction of new chunks, over three episodes; what was told."""
    it, notes, told = simulated_arm(chunking, latency=2 * STEP)
    changes = chunks = 0
    for seed in (3, 4, 5):
        notes.actions.clear()
        episode = it.run(seed)
        assert episode.aborted == "" and "underrun" not in episode.reasons
        y = np.array([a[1] for a in notes.actions if a is not None]) / it.env.controller.spec.high[1]
        assert np.abs(y).mean() > 0.5 * REACH, "the policy is on either side, never between"
        changes += int((np.diff(np.sign(y)) != 0).sum())
        chunks += len(notes.chunks) - 1
        assert all(refused == "" for _, refused in notes.chunks)
        notes.chunks.clear()
    return changes / chunks, told


# -- in the loop ----------------------------------------------------------------------------------------------------
def test_rtc_keeps_to_a_side_where_async_changes_it():
    """Without its guidance rtc would change it as often as async: in half of the chunks."""
    naive, told = seams("async")
    assert naive > 0.4 and set(told) == {None}
    rtc, told = seams("rtc")
    assert rtc < 0.2
    assert told[0] is None, "nothing is ahead of the first plan"
    assert sum(a is None for a in told) == 3, "of each episode"
    assert all(a.delay == 2 and a.actions.shape == (H - TA, 5) for a in told if a is not None)


def test_a_frozen_prefix_is_what_was_executed():
    """Inpainted: bit for bit the actions that the loop took from the old chunk while the new one was planned."""
    it, notes, told = simulated_arm("inpaint", latency=2 * STEP)
    it.run(3)
    assert len(told) > 4
    for ahead, (chunk, _) in list(zip(told, notes.chunks, strict=False))[1:]:
        assert ahead.delay == 2 and np.array_equal(chunk[:2], ahead.actions[:2])
        assert any(np.array_equal(np.stack(notes.actions[i : i + 2]), chunk[:2]) for i in range(len(notes.actions) - 1)
                   if notes.actions[i] is not None and notes.actions[i + 1] is not None)  # fmt: skip


def test_the_forecast_follows_what_is_measured():
    it, _, told = simulated_arm("rtc")
    it.loop.plans.runner.latency = 0.12  # more than it was started with
    it.run(3)
    assert [a.delay for a in told if a is not None][:3] == [3, 3, 3], "the first chunk came three steps later"
    delays = Delays(STEP, first=0, most=4, window=3)
    delays.measured(0.004)
    assert delays.steps == 0, "a tick late is not a step late, as in the buffer"
    for seconds, steps in ((0.05, 1), (0.16, 3), (0.0, 3), (0.0, 3), (0.0, 0), (9.0, 4)):
        delays.measured(seconds)
        assert delays.steps == steps
    delays.start()
    assert delays.steps == 0


def test_without_an_old_chunk_it_plans_what_a_planner_does():
    env = reach()
    policy = flow(env)
    obs = {k: v[:, None] for k, v in env.reset(torch.tensor([1])).items()}
    plain = Planner(policy, seed=7).plan(obs, 3)
    for mode in ("rtc", "inpaint"):
        chunk = RealtimePlanner(policy, mode, seed=7).plan(obs, 3)
        assert chunk.shape == (H, 5) and np.array_equal(chunk[:TA], plain)


def test_a_chunk_later_than_the_horizon_bridges_is_refused_and_the_arm_holds():
    it, notes, _ = simulated_arm("rtc")
    it.loop.plans.runner.latency = 6 * STEP
    episode = it.run(3)
    assert not episode.success and episode.aborted == ""
    assert any("chunk_refused" in r and "0.300 s after its observation" in r for r in episode.reasons)
    assert all(a is None for a in notes.actions) and np.abs(it.arm.data.qvel[:7]).max() < 0.01


def test_a_planner_that_hangs_never_blocks_a_tick():
    """In its own thread: the old chunk is played to its end, then the arm holds, and goes on when there is a plan."""
    it, notes, _ = simulated_arm("rtc")
    go, chunks = threading.Event(), it.loop.plans.runner.planner
    go.set()
    plan = chunks.plan
    chunks.plan = lambda obs, step, ahead=None: plan(obs, step, ahead) if go.wait(60.0) else None
    it.loop.plans.runner = runner = ThreadRunner(chunks, latency=STEP, wait=60.0)
    it.begin(1)
    modes = []
    for tick in range(700):
        if tick == 100:
            go.clear()
            runner.wait = 0.0  # as on an arm
        if tick == 400:
            go.set()
            runner.wait = 60.0
        modes.append(it.loop.tick().mode)
        it.arm.advance()
        it.time += it.dt
    runner.close()
    period = round(STEP / it.dt)
    held = modes[100:400].index(Mode.HOLD)
    assert held <= (H + 1) * period, "what is left is played, no more"
    assert it.arm.aborted == "" and not it.chain.error
    assert modes[-1] is Mode.RUN and notes.actions[-1] is not None


class Jumps(Drive):
    """Every chunk is 0.3 rad away from the one before, in all joints."""

    def act(self, obs, *, noise=None, deterministic=False):
        self.action[:7] = -self.action[:7]
        return (self.action + self.middle).expand(1, self.spec.horizon, -1).clone()


@pytest.mark.parametrize("latency", [0.0, 0.1, 0.15])
def test_chunks_that_jump_do_not_make_the_arm_jump(latency):
    env = sim.make("reach", 1, control="joint_position", joint_noise=0.0, horizon=40)
    policy = Jumps(env, [0.15] * 7 + [-1.0])
    policy.middle = torch.tensor([*env.task.start[:7], 0.0], dtype=torch.float32)
    it, commands = SimulatedArm(env, policy, settings=WIDE, latency=latency), []
    filtered = it.chain.filter

    def watched(*args, **how):
        decision = filtered(*args, **how)
        commands.append(decision.command.copy())
        return decision

    it.chain.filter = watched
    episode = it.run(1)
    assert episode.aborted == "" and episode.mode != "FAULT" and len(commands) > 400
    assert sum(joint_violations(np.array(commands), it.chain.profile, it.dt).values()) == 0
    assert np.ptp(np.array(commands), axis=0).min() > 0.01
    for late in (0.3, 0.8):
        with pytest.raises(SpecError, match="can bridge up to 200 ms"):
            SimulatedArm(env, policy, settings=WIDE, latency=late)


# -- refusals -------------------------------------------------------------------------------------------------------
def test_delays_that_the_policy_was_not_made_for_are_refused():
    env = reach()
    policy = flow(env)
    assert "up to 4 steps (200 ms)" in check_chunking("rtc", policy, 0.2)
    assert "up to 4 steps (200 ms)" in check_chunking("async", policy, 0.2)
    with pytest.raises(SpecError, match=r"up to 4 control steps \(200 ms\); found 5 \(201 ms\)"):
        check_chunking("rtc", policy, 0.201)
    short = flow(env, horizon=TA + 1)
    with pytest.raises(SpecError, match=r"chunking=rtc: .*up to 1 control steps"):
        SimulatedArm(env, short, settings=WIDE, latency=0.1, chunking="rtc")
    with pytest.raises(SpecError, match="up to 0 control steps"):
        check_chunking("inpaint", flow(env, horizon=TA), 0.0)
    with pytest.raises(SpecError, match=r"expected shape \(8, 5\)"):
        ChunkBuffer(policy.spec, length=H).add(np.zeros((TA, 5)), 0.0, 0.0)


def test_policies_without_a_chunk_of_their_own_are_refused():
    env = reach()
    base = flow(env)
    residual = ResidualPolicy(base.spec, base.normalizer, base=base)
    with pytest.raises(ConfigError, match=r"ResidualPolicy corrects its base's next action.*chunking=async"):
        check_chunking("rtc", residual, 0.0)
    with pytest.raises(ConfigError, match=r"expected a policy that denoises.*found Drive"):
        check_chunking("inpaint", Drive(env, [0.0] * 5), 0.0)
    remote = object.__new__(RemotePlanner)
    remote.spec = base.spec
    with pytest.raises(ConfigError, match=r"chunking=rtc: server="):
        check_chunking("rtc", remote, 0.0)


@pytest.mark.parametrize("latency", [0.3, 0.4])
def test_a_plan_from_before_a_hold_is_not_executed_after_it(latency):
    """States freeze in motion, just after a plan was asked for, and come again before it is there."""
    env = sim.make("reach", 1, joint_noise=0.0, horizon=80)
    policy, notes = Numbered(env, steps=8), Notes()
    it = SimulatedArm(env, policy, settings=WIDE, latency=latency)
    it.loop.plans.journal, it.loop.buffer.blend = notes, 0
    it.begin(1)
    asked, frozen, held, before = 0, None, False, 0
    for _ in range(500):
        if frozen is None and policy.plans > max(2, asked):
            frozen, before = it.time, policy.plans
        asked = policy.plans
        it.arm.trouble.frozen = frozen is not None and 0.01 < it.time - frozen < 0.09
        mode = it.loop.tick().mode
        it.arm.advance()
        it.time += it.dt
        if mode is Mode.HOLD and not held:
            held = True
            notes.actions.clear()
    found = {Numbered.number(a) for a in notes.actions if a is not None}
    assert held and len(found) > 1 and min(found) > before
