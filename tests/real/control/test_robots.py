"""The strict simulated arm, chunk timing, the loop on a fake clock, and the limits inside the training env."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.core.errors import CheckpointError, SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.policies.base import Policy
from robopolicy.real.control.chunk_buffer import ChunkBuffer
from robopolicy.real.control.joint_filter import SafetyFilter, without
from robopolicy.real.control.joints import ActionDecoder
from robopolicy.real.control.robots import MujocoArm, Trouble
from robopolicy.real.deploy import deploy, deployment
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.deploy.simulated_arm import Episode, SimulatedArm
from robopolicy.real.deploy.summary import report
from robopolicy.real.safety import Mode, SafetyError, load_profile
from robopolicy.real.safety.audit import joint_violations
from robopolicy.real.safety.settings import Box
from robopolicy.sim.tasks import make_task
from tests import toy

WIDE = {"tcp_speed": 1.5, "condition": 60.0, "self_distance": 0.0, "joint_margin": 0.05, "reference_clip": 0.3}


class Drive(Policy):
    """Goes one way, or shows what it is told to."""

    def __init__(self, env: sim.SimEnv, action: list[float], *, steps: int = 4) -> None:
        super().__init__()
        self.spec = PolicySpec(env.spec.observation, env.spec.action, env.dt, 1, steps, steps, env.spec.tasks)
        self.action = torch.tensor(action)

    def act(self, obs, *, noise=None, deterministic=False):
        return self.action.expand(1, self.spec.horizon, -1).clone()


def simulated_arm(action: list[float], **options) -> SimulatedArm:
    env = sim.make("reach", 1, joint_noise=0.0, horizon=20)
    return SimulatedArm(env, Drive(env, action), settings=WIDE, **options)


@pytest.mark.parametrize(
    ("name", "step"), [("jerk", 2e-5), ("position", 5.0), ("not finite", np.nan)]
)  # a step in one tick breaks jerk before anything else
def test_the_arm_aborts_as_the_makers_would(name, step):
    arm = MujocoArm(make_task("reach"), load_profile("panda"))
    q = arm.read().q
    stay = q[None]
    arm.write(q, 0.08, stay)
    arm.advance()
    assert arm.aborted == ""
    if name == "position":
        arm.points[:] = arm.played[:] = q + step * np.eye(7)[0]  # as if it had been there all along
        arm.write(q + step * np.eye(7)[0], 0.08, stay)
    else:
        arm.write(q + 40 * step * np.eye(7)[0], 0.08, stay)
    arm.advance()
    assert arm.aborted == name


@pytest.mark.parametrize(("order", "name"), [(1, "velocity"), (2, "acceleration"), (3, "jerk")])
def test_each_derivative_of_what_is_played_is_judged(order, name):
    """Polynomials whose highest derivative is 2% below, and 2% above, the maker's limit of one joint."""
    profile = load_profile("panda")
    arm, e, t = MujocoArm(make_task("reach"), profile), np.eye(7)[2], np.arange(-3.0, 1.0)[:, None] * 1e-3
    q = arm.read().q
    for share, found in ((0.98, ""), (1.02, name)):
        size = share * profile.maker[name][2]
        arm.played = q + e * size * (t, t**2 / 2, (t**3 + 3e-3 * t**2 + 2e-6 * t) / 6)[order - 1]
        assert arm._judge() == found


def test_near_the_ends_of_its_joints_an_fr3_may_go_only_slowly():
    profile = load_profile("fr3")
    arm, e, t = MujocoArm(make_task("reach"), profile), np.eye(7)[0], np.arange(-3.0, 1.0)[:, None] * 1e-3
    q = arm.read().q.copy()
    high = profile.maker["high"][0]
    for speed, room, found in ((2.5, 2.0, ""), (2.5, 0.01, "velocity"), (-2.5, 0.01, "")):
        q[0] = high - room
        arm.played = q + e * speed * t
        assert arm._judge() == found, (speed, room)


def test_lost_packets_are_extrapolated_and_twenty_in_a_row_are_too_many():
    """libfranka's rule; a motion at constant acceleration is what was lost, to the bit of its arithmetic."""
    arm = MujocoArm(make_task("reach"), load_profile("panda"))
    q, e = arm.read().q, np.eye(7)[0]
    t = np.arange(-3.0, 1.0)[:, None] * 1e-3  # s
    arm.played = q + e * (0.01 * t + 0.5 * t**2)
    arm.trouble = Trouble(packet_loss=1.0)
    for k in range(1, 20):
        now = arm._received(q)
        want = q + e * (0.01 * 1e-3 * k + 0.5 * (1e-3 * k) ** 2)
        assert np.abs(now - want).max() < 1e-13 and arm._judge() == ""
        arm.played = np.concatenate([arm.played[1:], now[None]])
    arm._received(q)
    assert arm._judge() == "communication"
    arm.trouble = Trouble()
    assert np.array_equal(arm._received(q), q) and arm._lost == 0


def test_a_resting_arm_bears_nineteen_lost_packets_and_no_more():
    arm = MujocoArm(make_task("reach"), load_profile("panda"), dt=0.001)
    q = arm.read().q
    for k in range(40):
        arm.trouble = Trouble(packet_loss=float(k < 19 or k >= 20))
        arm.write(q, 0.08, q[None])
        arm.advance()
        assert arm.aborted == ("communication" if k >= 39 else ""), k


def test_an_arm_that_hears_nothing_plays_the_certified_stop():
    it = simulated_arm([0.02, 0.0, 0.0, 0.0, 0.0])
    it.begin(1)
    for _ in range(60):
        it.loop.tick()
        it.arm.advance()
        it.time += it.dt
    assert np.abs(it.arm.data.qvel[:7]).max() > 0.05
    played = []
    for _ in range(150):  # the node is dead
        it.arm.advance()
        played.append(it.arm.points[-1])
    assert it.arm.aborted == "" and np.array_equal(played[-1], played[-2])
    assert np.abs(it.arm.data.qvel[:7]).max() < 0.01


@pytest.mark.parametrize("latency", [0.0, 0.1])
@pytest.mark.parametrize("lost", [0.0, 0.05])
def test_a_policy_drives_the_arm_and_the_arm_never_aborts(latency, lost):
    it = simulated_arm([0.01, 0.01, -0.005, 0.0, -1.0], latency=latency, trouble=Trouble(drop=lost))
    start = it.env.controller.pos[0].copy()
    episode = it.run(3)
    assert episode.aborted == "" and episode.mode in ("RUN", "HOLD")
    assert np.linalg.norm(it.env.controller.pos[0] - start) > 0.02, "it got somewhere"
    assert (it.loop.counts["lost"] > 0) == (lost > 0)
    assert "underrun" not in episode.reasons, "a chunk is asked for in time to follow the one before"
    assert "1 episodes" in report([episode])


@pytest.mark.parametrize("trouble", [Trouble(frozen=True), Trouble(nan=True)])
def test_a_sick_state_stops_the_arm(trouble):
    it = simulated_arm([0.02, 0.0, 0.0, 0.0, 0.0])
    it.begin(1)
    modes = []
    for tick in range(260):
        if tick == 60:
            it.arm.trouble = trouble
        modes.append(it.loop.tick().mode.name)
        it.arm.advance()
        it.time += it.dt
    assert modes[50] == "RUN" and modes[-1] == "FAULT" and "HOLD" in modes[60:87]
    assert it.arm.aborted == "" and np.abs(it.arm.data.qvel[:7]).max() < 0.01


def test_a_policy_that_says_nan_is_held_and_named():
    it = simulated_arm([np.nan, 0.0, 0.0, 0.0, 0.0])
    episode = it.run(1)
    assert episode.mode in ("RUN", "HOLD") and not episode.success  # it holds, tries again, and holds
    assert np.abs(it.arm.data.qvel[:7]).max() < 0.01
    assert any("chunk_refused" in reason and "'dx'" in reason for reason in episode.reasons)


def test_a_dry_run_moves_nothing():
    it = simulated_arm([0.02, 0.0, 0.0, 0.0, 0.0], shadow=True)
    it.env.reset(torch.tensor([1]))
    start = it.env.physics.qpos[0, :7].copy()
    it.run(1)
    np.testing.assert_allclose(it.arm.data.qpos[:7], start, atol=2e-3)


def test_a_dry_run_has_no_way_to_the_arm(monkeypatch):
    """Whatever the loop does: there is nothing in it that writes."""
    it = simulated_arm([0.02, 0.0, 0.0, 0.0, 0.0], shadow=True)
    monkeypatch.setattr(type(it.arm), "write", lambda *_: pytest.fail("it wrote"))
    it.begin(1)
    for _ in range(20):
        it.loop.tick()
    it.loop.write(np.zeros(7), 0.0, np.zeros((1, 7)))


def test_deploy_refuses_and_says_what_an_arm_s_limits_lack(monkeypatch, capsys):
    """A tracking error that empties the claim; a summary that says that there is no scene."""
    env = sim.make("reach", 1, joint_noise=0.0)
    monkeypatch.setattr(deployment, "PolicyRef", SimpleNamespace(of=lambda *_: SimpleNamespace(ident="toy", run=None)))
    monkeypatch.setattr(deployment, "task_of", lambda *_: {})
    monkeypatch.setattr(deployment, "build", lambda *_, **__: env)
    monkeypatch.setattr(deployment, "load_policy", lambda *_, **__: None)
    monkeypatch.setattr(deployment, "check_chunking", lambda *_, **__: "")
    table = {"planes": [{"normal": [0, 0, 1], "offset": -0.1}]}

    def tracking_error(**options):
        made = deployment.prepare(DeployConfig(checkpoint=Path("x"), **options), seeds=(0,))
        return made.config.settings()["tracking_error"]

    assert tracking_error(safety=table) is None
    with pytest.raises(SafetyError, match="tracking_error"):
        tracking_error(safety={**table, "tracking_error": 0.2})
    assert tracking_error(safety=table, dry_run=True) == 0.2
    done = [Episode(0, True, 1, "", "RUN", 0.0, 0.0, Counter())]
    monkeypatch.setitem(deploy.ROBOTS, "mujoco", lambda _: done)
    deploy.deploy(checkpoint=Path("x"))
    assert "workspace" in capsys.readouterr().out
    deploy.deploy(checkpoint=Path("x"), safety=table)
    assert "workspace" not in capsys.readouterr().out


def buffer(**options) -> ChunkBuffer:
    return ChunkBuffer(toy.spec(horizon=4), **options)


def test_late_actions_are_dropped_never_executed():
    b = buffer(max_delay=1.0)
    assert b.add(np.arange(8.0).reshape(4, 2), observed=0.0, now=0.10) == 2
    assert b.pop(0.10).tolist() == [4.0, 5.0]
    assert b.pop(0.25) is None and b.late == 3


@pytest.mark.parametrize("latency", [0.03, 0.05])  # less than a control step, and all of one: 12.5 ticks
def test_a_policy_of_one_step_bridges_a_latency_by_acting_a_step_later(latency):
    env = sim.make("reach", 1, joint_noise=0.0, horizon=20)
    it = SimulatedArm(env, Drive(env, [0.01, 0.01, -0.005, 0.0, -1.0], steps=1), settings=WIDE, latency=latency)
    start = it.env.controller.pos[0].copy()
    episode = it.run(3)
    assert np.linalg.norm(it.env.controller.pos[0] - start) > 0.2 and not episode.reasons
    assert it.loop.counts["late"] == it.loop.counts["refused"] == 0


def test_delays_count_in_whole_control_steps():
    one = ChunkBuffer(toy.spec(horizon=1), shift=1)
    assert one.add(np.ones((1, 2)), observed=0.0, now=0.052) == 0, "a tick late is not a step late"
    assert one.pop(0.05).tolist() == [1.0, 1.0]
    with pytest.raises(SpecError, match=r"can use up to 0\.050"):
        one.add(np.ones((1, 2)), observed=0.0, now=0.076)


def test_delays_the_policy_was_not_trained_for_are_refused():
    b = buffer()
    with pytest.raises(SpecError, match="can use up to"):
        b.add(np.zeros((4, 2)), observed=0.0, now=0.8)
    with pytest.raises(SpecError, match="can use up to"):
        b.add(np.zeros((4, 2)), observed=1.0, now=0.8)
    with pytest.raises(SpecError, match="'y' of step 2"):
        b.add(np.array([[0, 0], [0, 0], [0, np.inf], [0, 0.0]]), observed=0.0, now=0.0)
    assert b.refused == 2 and len(b) == 0


@pytest.mark.parametrize(("wait", "most"), [(0.024, 0.0), (0.036, 0.2)])
def test_a_plan_that_is_a_little_late_is_hardly_felt(wait, most):
    """Asked for 20 ms before its step, there up to 16 ms after: the arm goes on, on a grid of ticks of its own
    (a control step is 12.5), no action is dropped, and commands keep to the reference: within `most` of what it moves
    in a tick."""
    env = sim.make("reach", 1, joint_noise=0.0, horizon=60)
    policy = Drive(env, [0.004, 0.003, 0.0, 0.0, 0.0])
    policy.act = lambda *_, **__: (policy.action * torch.tensor([1.6, 1.2, 0.8, 0.4])[:, None])[None]
    it, gaps = SimulatedArm(env, policy, settings=WIDE), []
    it.loop.early = it.loop.grace = 0.02
    request, poll, asked = it.loop.plans.runner.request, it.loop.plans.runner.poll, [0.0]
    it.loop.plans.runner.request = lambda *args: (asked.append(it.time), request(*args))
    it.loop.plans.runner.poll = lambda now: poll(now) if now >= asked[-1] + wait - 1e-9 else None
    filtered, wanted = it.chain.filter, []
    it.chain.filter = lambda target, *args, **how: (wanted.append(target), filtered(target, *args, **how))[1]
    it.begin(1)
    for _ in range(600):
        decision = it.loop.tick()
        assert decision.mode is Mode.RUN and set(decision.reasons) <= {"rate"}, decision
        gaps.append(np.abs(wanted[-1] - decision.command).max())
        it.arm.advance()
        it.time += it.dt
    counts, tick = it.loop.counts, np.abs(np.diff(np.array(wanted), axis=0)).max()
    assert counts["put_off"] > 10 and counts["policy"] == 48 and counts["late"] <= 1, counts
    assert max(gaps) <= most * tick, max(gaps) / tick
    assert it.arm.aborted == "" and np.abs(it.arm.data.qvel[:7]).max() > 0.02


@pytest.mark.parametrize("stall", [1, 5, 8, 15, 23])
def test_a_stall_is_not_made_up_for(stall):
    """Nothing ran for so many ticks, neither loop nor arm: it goes on from where it was, not from where it would be."""
    env = sim.make("reach", 1, joint_noise=0.0, horizon=60)
    it, targets = SimulatedArm(env, Drive(env, [0.004, 0.003, 0.0, 0.0, 0.0]), settings=WIDE), []
    it.loop.early = it.loop.grace = 0.02
    filtered = it.chain.filter
    it.chain.filter = lambda target, *args, **how: (targets.append(target), filtered(target, *args, **how))[1]
    it.begin(1)
    for tick in range(300):
        decision = it.loop.tick()
        it.arm.advance()
        it.time += it.dt * (1 + stall * (tick == 160))
    steps = np.abs(np.diff(np.array(targets[100:]), axis=0)).max(axis=1)
    assert steps.max() < 1.5 * steps[:50].max() and it.loop.counts["missed"] == stall
    assert decision.mode is Mode.RUN and not decision.changed and it.arm.aborted == ""


def test_seams_are_blended():
    b = buffer(blend=1)
    b.add(np.zeros((4, 2)), observed=0.0, now=0.0)
    b.add(np.ones((4, 2)), observed=0.05, now=0.05)
    assert b.pop(0.05).tolist() == [0.5, 0.5] and b.pop(0.10).tolist() == [1.0, 1.0]


def test_training_under_the_limits():
    """The batched filter inside the env: random actions, no violation at the control rate, interventions counted."""
    start = sim.make("reach", 1, joint_noise=0.0).controller.pos[0]
    profile = load_profile("panda", **WIDE, workspace=Box(tuple(start - 0.04), tuple(start + 0.04)))
    limits = SafetyFilter(profile, dt=0.05)
    env = sim.make("reach", 4, joint_filter=limits, joint_noise=0.0)
    env.reset()
    torch.manual_seed(0)
    commands, intervened = [env.controller.q.copy()] * 4, 0
    for _ in range(30):
        step = env.step(torch.randn(4, 5) * 0.05)
        assert not step.ended.any()
        commands.append(env.controller.q.copy())
        intervened += int(step.info["intervened"].sum())
    assert sum(joint_violations(np.array(commands), profile, 0.05, rate=20).values()) == 0
    assert 0 < intervened < 120, "what is only paced is no intervention"
    assert np.ptp(np.array(commands), axis=0).max() > 0.02


def test_training_paces_as_the_loop_does():
    """Full deflection, which is faster than the limits permit: same joints, and the same pose that the policy sees."""
    profile = load_profile("panda", **{**WIDE, "tcp_speed": 0.8})
    env = sim.make("reach", 1, joint_filter=SafetyFilter(profile, dt=0.05), joint_noise=0.0, horizon=30)
    env.reset()
    with pytest.raises(SpecError, match="joint_filter: expected an env without one"):
        ActionDecoder(env.controller, stroke=0.04, dt=0.05)
    assert without({"task": "reach", "joint_filter": {"_target_": "x"}}) == {"task": "reach"}
    other = sim.make("reach", 1, joint_noise=0.0)
    decoder = ActionDecoder(other.controller, stroke=0.04, dt=0.05)
    decoder.start(env.controller.q[0], 0.08)
    rng, limited = np.random.default_rng(0), 0
    for _ in range(25):
        action = rng.choice([-1.0, 1.0], 5) * np.array(env.spec.action.high)
        measured = env.physics.qpos[0, :7].copy()
        target = decoder.decode(action, measured, profile)
        env.step(torch.tensor(action, dtype=torch.float32)[None])
        limited += target.limited
        np.testing.assert_allclose(env.controller.q[0], target.q, atol=1e-6)
        np.testing.assert_allclose(env.controller.pos[0], decoder.commanded.pos, atol=1e-6)
    assert limited > 15


def test_training_under_the_limits_resumes_bit_for_bit():
    """The filter's memory, stored stops included, is part of the env's state; episodes end on the way."""

    def env_of(joint_filter):
        return sim.make("reach", 3, joint_filter=joint_filter, horizon=9)

    def run(env, actions):
        return torch.stack([env.step(a).obs["observation.state"] for a in actions])

    first = env_of(SafetyFilter(load_profile("panda", **WIDE), dt=0.05))
    first.reset()
    actions = 0.05 * torch.randn(26, 3, 5, generator=torch.Generator().manual_seed(0))
    run(first, actions[:13])
    state = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in first.state_dict().items()}
    second = env_of(SafetyFilter(load_profile("panda", **WIDE), dt=0.05))
    second.load_state_dict(state)
    assert torch.equal(run(first, actions[13:]), run(second, actions[13:]))
    resumed = second.state_dict()
    for key, value in first.state_dict().items():
        same = torch.equal(value, resumed[key]) if isinstance(value, torch.Tensor) else value == resumed[key]
        assert same, key
    with pytest.raises(CheckpointError, match="joint_filter"):
        env_of(None).load_state_dict(state)
    bare = env_of(None)
    with pytest.raises(CheckpointError, match="joint_filter"):
        second.load_state_dict(bare.state_dict())
