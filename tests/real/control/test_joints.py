"""What comes in from outside: names, descriptions, chunks, a policy that hangs, a life that is replayed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from robopolicy import sim
from robopolicy.core.errors import SpecError
from robopolicy.real.control.arm_kinematics import check_arm, kinematics_of
from robopolicy.real.control.chunk_buffer import ChunkBuffer
from robopolicy.real.control.control_loop import ControlLoop
from robopolicy.real.control.joint_order import JointOrder
from robopolicy.real.control.joints import ActionDecoder
from robopolicy.real.deploy.simulated_arm import SimulatedArm
from robopolicy.real.planning.planner import InlineRunner
from robopolicy.real.ros2.urdf import check_urdf
from robopolicy.real.safety import Mode, SafetyChain, SafetyError, load_profile, profile_names
from robopolicy.real.safety.body import Body
from robopolicy.real.safety.decision import Measured
from robopolicy.sim.arm import FINGER_STROKE
from robopolicy.sim.kinematics import PANDA, forward
from tests import toy
from tests.real.adversary import targets
from tests.real.arms.robots import frames, joint
from tests.real.arms.robots import robot as arm
from tests.real.control.test_robots import WIDE, Drive
from tests.real.safety.test_chain import DT, Rig

NAMES = tuple(load_profile("panda").joints)


# -- REAL.md, test 4 ------------------------------------------------------------------------------------------------
def test_a_policy_that_hangs_is_held_and_its_old_chunk_refused():
    """For 10 s: the limits tick on as ever, hold begins when the chunk ends, and what comes late is not executed."""
    env = sim.make("reach", 1, joint_noise=0.0, horizon=2000)
    it = SimulatedArm(env, Drive(env, [0.01, 0.0, 0.0, 0.0, 0.0]), settings=WIDE)
    it.begin(1)
    poll, hung = it.loop.plans.runner.poll, [False]
    it.loop.plans.runner.poll = lambda now: None if hung[0] else poll(now)
    seen, since = [], 0.0
    for tick in range(3000):
        if tick == 100:
            hung[0], since = True, it.time
        if it.time >= since + 10.0 and tick > 100:
            hung[0] = False
        decision = it.loop.tick()
        it.arm.advance()
        seen.append((it.time, decision.mode, hung[0], np.abs(it.arm.data.qvel[:7]).max()))
        it.time += it.dt
    assert it.arm.aborted == "" and not it.chain.error
    held = min(t for t, mode, hangs, _ in seen if hangs and mode is Mode.HOLD)
    chunk = it.loop.buffer.spec.n_action_steps * env.dt
    assert held - since <= chunk + env.dt + it.dt, "the chunk it has is played, then it holds"
    assert max(v for t, _, hangs, v in seen if hangs and t > held + 1.0) < 0.01
    assert seen[-1][1] is Mode.RUN and max(v for t, _, hangs, v in seen if not hangs and t > since + 10.0) > 0.02


# -- 7 --------------------------------------------------------------------------------------------------------------
def test_every_order_of_joints_means_the_same():
    """All 5040: the same numbers bit for bit, so the same command."""
    rng, order = np.random.default_rng(0), JointOrder(NAMES, extra=["finger"])
    q = np.array(load_profile("panda").data["home"]) + rng.normal(0, 0.1, 7)
    value = dict(zip(NAMES, q, strict=True))
    for names in itertools.permutations(NAMES):
        assert np.array_equal(order.arrange(names, [value[n] for n in names]), q)
    assert np.array_equal(order.arrange(["finger", *NAMES], [9.0, *q]), q)
    assert np.array_equal(order.arrange([*NAMES, "finger"], [*q, 9.0]), q)


def test_joints_that_are_missing_twice_or_foreign_are_refused():
    order = JointOrder(NAMES, extra=["finger"])
    for names, what in (
        (NAMES[:-1], "'panda_joint7' is missing"), ((*NAMES, NAMES[0]), "'panda_joint1' comes 2 times"),
        ((*NAMES, "panda_joint8"), "'panda_joint8' is not one of them"), ((), "'panda_joint1' is missing"),
    ):  # fmt: skip
        with pytest.raises(SafetyError, match=what):
            order.arrange(names, np.zeros(len(names)))
    with pytest.raises(SafetyError, match="7 names come with values of shape"):
        order.arrange(NAMES, np.zeros(6))


@pytest.mark.parametrize("extra", [(), None])
@pytest.mark.parametrize(
    "others", [[f"panda_joint_{k}" for k in range(2000)], [f"x{k}" for k in range(2000)] * 2, ["panda_joint" * 10**5]]
)
def test_a_message_of_any_size_is_refused_in_a_few_words(extra, others):
    """What each name resembles takes 0.1 ms to find: all ticks would wait for it, and for the text in diagnostics."""
    names = (*NAMES[1:], *others)
    with pytest.raises(SafetyError, match="'panda_joint1' is missing") as refusal:
        JointOrder(NAMES, extra=extra).arrange(names, np.zeros(len(names)))
    assert len(str(refusal.value)) < 5000


# -- 15, 17 ---------------------------------------------------------------------------------------------------------
def test_a_hundred_lives_of_a_chain():
    """Commands come only between activation and deactivation; a moving arm cannot be activated anew."""
    profile = load_profile("panda", tcp_speed=1.0, reference_clip=10.0)
    chain, home, now = SafetyChain(profile), np.array(profile.data["home"]), 0.0
    for life in range(100):
        with pytest.raises(SafetyError, match="activate"):
            chain.filter(home, Measured(home), now)
        chain.activate(Measured(home), now)
        for _ in range(12 if life % 10 == 0 else 2):
            now += DT
            q = chain.limiter.c[0, -1]
            chain.filter(home + 0.3, Measured(q), now)
        if life % 10 == 0:
            with pytest.raises(SafetyError, match="still braking"):
                chain.activate(Measured(chain.limiter.c[0, -1]), now)
            chain.fault("test")
            assert chain.filter(home, Measured(chain.limiter.c[0, -1]), now + DT).mode is Mode.FAULT
        chain.deactivate()
    with pytest.raises(SafetyError, match="stands where"):
        chain.activate(Measured(home + 5.0), now)
    with pytest.raises(SafetyError, match="degrees"):
        chain.activate(Measured(np.rad2deg(home)), now)


# -- 16 -------------------------------------------------------------------------------------------------------------
def urdf(profile, **changes) -> str:
    """The arm of a profile with the maker's limits; `changes`: joint number → (key, value)."""
    joints = []
    for i, (name, frame) in enumerate(zip(profile.joints, frames(profile), strict=True)):
        m = profile.maker
        limit = {"lower": m["low"][i], "upper": m["high"][i], "velocity": m["velocity"][i], "effort": 87.0}
        given = {"name": name, "type": "revolute", **frame}
        if f"j{i}" in changes:
            key, value = changes[f"j{i}"]
            (limit if key in limit else given)[key] = value
        words = " ".join(f"{k}={str(v)!r}" for k, v in limit.items())
        joints.append(joint(parent=f"l{i}", child=f"l{i + 1}", limit=words, **given))
    return arm(*joints)


@pytest.mark.parametrize("robot", profile_names())
def test_the_arms_own_description_is_believed(robot):
    check_urdf(load_profile(robot), urdf(load_profile(robot)))


@pytest.mark.parametrize(("change", "what"), [
    ({"j2": ("upper", 1.0)}, "panda_joint3: upper is 1 rad"),
    ({"j0": ("lower", -1.0)}, "panda_joint1: lower is -1 rad"),
    ({"j4": ("velocity", 0.5)}, "panda_joint5: velocity is 0.5 rad/s"),
    ({"j1": ("velocity", "x")}, "panda_joint2.*velocity: expected 1 finite"),
    ({"j6": ("name", "fr3_joint7")}, "panda_joint7: is not in it"), ({"j3": ("type", "fixed")}, "expected a revolute"),
])  # fmt: skip
def test_a_description_that_does_not_fit_is_refused_and_said_where(change, what):
    profile = load_profile("panda")
    with pytest.raises(SafetyError, match=what):
        check_urdf(profile, urdf(profile, **change))


def test_a_description_of_another_arm_is_refused():
    profile = load_profile("panda")
    with pytest.raises(SafetyError, match="panda_joint1: is not in it"):
        check_urdf(profile, urdf(load_profile("ur5e")))
    with pytest.raises(SafetyError, match="not readable"):
        check_urdf(profile, "<robot>")
    two, five = "panda_joint2", "panda_joint5"
    swapped = urdf(profile).replace(two, "x").replace(five, two).replace('"x"', f'"{five}"')
    with pytest.raises(SafetyError, match="does not come after"):
        check_urdf(profile, swapped)


def test_actions_of_another_arm_are_refused():
    """Numbers of a task whose arm is not the robot's would be decoded by the wrong kinematics."""
    for robot in ("panda", "fr3"):
        check_arm(PANDA, load_profile(robot))
    with pytest.raises(SpecError, match="its arm has 7 joints, the limits 'ur5e' have 6"):
        check_arm(PANDA, load_profile("ur5e"))
    longer = load_profile("panda")
    longer.data["kinematics"]["tcp"] = [0, 0, 0.3]
    with pytest.raises(SpecError, match=r"kinematics\.tcp differ"):
        check_arm(PANDA, longer)


@pytest.mark.parametrize("robot", profile_names())
def test_kinematics_of_a_profile_are_those_of_its_limits(robot):
    profile = load_profile(robot)
    arm, body = kinematics_of(profile), Body(profile)
    q = np.random.default_rng(0).uniform(profile.low, profile.high, (5, len(profile.joints)))
    frame, limits = forward(q, arm), body.at(q)
    np.testing.assert_allclose(frame.pos, limits.points[:, body.tcp], atol=1e-12)
    np.testing.assert_allclose(frame.jac, limits.jacobian, atol=1e-12)


# -- 18 -------------------------------------------------------------------------------------------------------------
def test_a_life_is_replayed_bit_for_bit():
    """What came in, fed to another chain: the same decisions, stops and reasons, to the last bit."""
    settings = {"energy": 3.0, "tcp_speed": 0.6, "tracking_error": 10.0}
    rng, tape = np.random.default_rng(4), []
    rig = Rig(settings=settings)
    with np.errstate(all="ignore"):
        for k, target in enumerate(targets(rig.profile, 1, 300, seed=3)):
            rig.now += DT
            lost, torque = 140 < k < 155, rng.normal(0, 2.0, 7)
            state = None if lost else Measured(rig.q + rng.normal(0, 1e-4, 7), torque)
            wanted = None if k % 97 == 0 else target[0]
            tape.append((wanted, state, rig.now, rig.chain.filter(wanted, state, rig.now)))
        other = Rig(settings=settings)
        for wanted, state, now, told in tape:
            again = other.chain.filter(wanted, state, now)
            assert np.array_equal(again.command, told.command) and np.array_equal(again.stop, told.stop)
            assert again[2:] == told[2:]
    assert len({told.mode for *_, told in tape}) >= 2 and rig.chain.counts == other.chain.counts


# -- bad chunks and robots ------------------------------------------------------------------------------------------
def test_a_chunk_of_another_shape_is_refused():
    buffer = ChunkBuffer(toy.spec(horizon=4))
    for shape in ((3, 2), (4, 3), (4,), (1, 4, 2)):
        with pytest.raises(SpecError, match="expected shape"):
            buffer.add(np.zeros(shape), observed=0.0, now=0.0)


def test_actions_are_clamped_to_their_range():
    env = sim.make("reach", 1, joint_noise=0.0)
    decoder, q = ActionDecoder(env.controller, stroke=FINGER_STROKE, dt=env.dt), np.array(env.task.start)
    profile = load_profile("panda", **WIDE)
    decoder.start(q, 0.04)
    far = decoder.decode(np.array([5.0, 0.0, 0.0, 0.0, 1.0]), q, profile)
    decoder.start(q, 0.04)
    most = decoder.decode(np.array([decoder.high[0], 0.0, 0.0, 0.0, 1.0]), q, profile)
    assert np.array_equal(far.q, most.q)


def test_the_arm_is_seen_as_old_as_the_pictures_and_plans_count_from_then():
    env, age = sim.make("reach", 1, joint_noise=0.0, horizon=30), 0.1
    it = SimulatedArm(env, Drive(env, [0.01, 0.0, 0.0, 0.0, 0.0], steps=8), settings=WIDE, latency=age, predict=False)
    was: list[np.ndarray] = []  # [n] rad, of every tick
    ago, asked, late = [], [], []

    def observe(state):
        ago.append(min(k for k, q in enumerate(reversed(was)) if np.array_equal(q, state.q)))
        return it._observe(state)

    runner = InlineRunner(it.loop.plans.runner.planner)
    request = runner.request
    runner.request = lambda obs, step, seen, ahead: asked.append(it.time - seen) or request(obs, step, seen, ahead)
    it.loop = ControlLoop(
        it.arm, it.chain, it.loop.decoder, runner, observe, it.loop.buffer, clock=lambda: it.time,
        lead=it.loop.plans.lead, age=age,
    )  # fmt: skip
    read = it.arm.read
    it.arm.read = lambda: was.append(read().q) or read()
    it.ticked = lambda: late.append(it.loop.buffer.late)
    assert it.run(1).aborted == ""
    moving = round(0.3 / it.dt)  # ticks, after which the arm is never twice in one place
    assert len(was) > 200 and ago[0] == 0 and set(ago[round(moving * it.dt / env.dt) :]) == {round(age / it.dt)}
    assert np.allclose(asked, age, atol=it.dt) and len(asked) > 3
    assert late[-1] == 2 * len(asked), "two control steps of every chunk are over when it comes"


def test_a_robot_with_other_joints_is_refused():
    env = sim.make("reach", 1, joint_noise=0.0)
    it = SimulatedArm(env, Drive(env, [0.0] * 5), settings=WIDE)
    it.arm.joints = tuple(reversed(it.arm.joints))
    with pytest.raises(SafetyError, match="robot: joints"):
        ControlLoop(
            it.arm,
            it.chain,
            it.loop.decoder,
            it.loop.plans.runner,
            it.loop.observation_history.observe,
            it.loop.buffer,
            clock=lambda: 0.0,
        )
