"""An arm of each limit profile behind each way out, under targets that no good policy sends: what its driver plays."""

from __future__ import annotations

import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray
from rclpy.serialization import deserialize_message
from trajectory_msgs.msg import JointTrajectory

from robopolicy.real.control.robots import State
from robopolicy.real.control.trajectory_spline import follow, shape
from robopolicy.real.ros2.cdr import TrajectoryBytes
from robopolicy.real.ros2.outputs import ActionOutput, PositionOutput, TrajectoryOutput
from robopolicy.real.ros2.timeline import Timeline
from robopolicy.real.ros2.upsampling import broken_claims
from robopolicy.real.ros2.wiring import Wiring, parse
from robopolicy.real.safety import SafetyChain, load_profile
from robopolicy.real.safety.body import Body
from robopolicy.real.safety.decision import Measured
from robopolicy.real.safety.profile import Profile
from tests.real.adversary import targets
from tests.real.controllers import PositionController, TrajectoryController, ratios
from tests.real.streams import stream_of

Array = NDArray[np.float64]
S = 1_000_000_000
FULL = {"velocity": 1.0, "acceleration": 1.0, "jerk": 1.0, "tcp_speed": 3.0, "reference_clip": 10.0}
FREE = {"condition": 1e6, "self_distance": 0.0, "tracking_error": 10.0}  # so that limits of the joints are met at speed
SAG = 0.004  # rad between where a controller holds the arm and where it is measured
# Way out: the wiring's trajectory, lead, s a tick, settings.
WAYS = {
    "trajectory": ({"rate_hz": 250, "points": "spline"}, 3, 0.004, FULL),
    "action": ({"rate_hz": 50, "type": "action", "points": "spline"}, 8, 0.004, FULL),
    "control_points": ({"rate_hz": 250, "points": "control"}, 3, 0.004, FULL),
    "positions_bspline": ({"upsampling": "bspline", "driver_hz": 1000}, 1, 0.004, FULL),
    "positions_linear": ({"upsampling": "linear", "driver_hz": 1000}, 1, 0.004, {**FULL, "acceleration": 0.125}),
    "positions_at_driver_rate": ({"upsampling": "none", "driver_hz": 1000}, 1, 0.001, FULL),
}


def wiring_of(robot: str, way: str) -> Wiring:
    """A wiring of `robot` with that way out."""
    output, lead, tick_s, _ = WAYS[way]
    stream = {"type": "positions", "timeout_s": 0.1, "rate_hz": 1 / tick_s} if way.startswith("positions") else {}
    topic, profile = {"rate_hz": 250, "depth": 10}, load_profile(robot)
    commands = {"joint_commands": {"name": "joint_commands", **topic}} if way == "control_points" else {}
    none = dict.fromkeys(("joint_commands", "robot_description", "features", "keys", "gripper", "intervention"))
    return parse({
        "limits": robot, "tick_s": tick_s, "lead_ticks": lead, "joints": {j: j for j in profile.joints}, "gripper": {},
        "frames": {"base": "base", "tcp": "tcp"}, "cameras": {}, "plan_ahead_s": 0.02, "grace_s": 0.02,
        "topics": {**none, **commands, "trajectory": {"name": "go", **stream, **output}, **{
            role: {"name": role, **topic} for role in ("joint_states", "enable", "diagnostics")}},
        "watchdogs": {"state": {"hold": 0.05, "fault": 0.2}, "features": {"hold": 1.0}, "images": {"hold": 1.0},
                      "enable": {"fault": 0.1}},
    })  # fmt: skip


def wandering(profile: Profile, ticks: int, dt: float, seed: int):
    """[n] a tick: a random policy's joint targets, 20 a second, as the control loop makes them a reference."""
    rng, every, body = np.random.default_rng(seed), round(0.05 / dt), Body(profile)
    points = np.tile(np.array(profile.data["home"]), (4, 1))
    goal = points[-1]
    for k in range(ticks):
        if k % every == 0:
            if k % (8 * every) == 0:
                goal = rng.uniform(profile.low, profile.high)
            jac = body.at(points[-1:]).jacobian[0, :, :3]
            step = shape(goal - points[-1], points[-1] - points[-2], jac, profile, every * dt).step
            points = np.concatenate([points[1:], (points[-1] + step)[None]])
        yield follow(points, (k % every) / every)


class Told:
    """A loop that goes where it is told, however mad that is."""

    driver, halted = "policy", ""

    def __init__(self, robot, chain, clock, stream) -> None:
        self.robot, self.chain, self.clock, self.stream = robot, chain, clock, stream
        self.begin, self.step, self.counts = 0.0, 0, Counter()

    def start(self, *, seed=0) -> None:
        self.chain.deactivate()
        self.chain.activate(Measured(self.robot.read().q), self.clock())

    def delay_begin(self, seconds) -> None: ...

    def tick(self):
        state = self.robot.read()
        decision = self.chain.filter(next(self.stream), None if state is None else Measured(state.q), self.clock())
        self.robot.write(decision.command, 0.0, decision.stop)
        return decision


class Client:
    """An action client whose goals are all accepted."""

    def __init__(self, *_) -> None:
        self.goals = []

    def send_goal_async(self, goal):
        self.goals.append(goal.trajectory)
        handle = SimpleNamespace(
            accepted=True, get_result_async=lambda: SimpleNamespace(add_done_callback=lambda _: None)
        )
        return SimpleNamespace(add_done_callback=lambda call: call(SimpleNamespace(result=lambda: handle)))


class Line:
    """Session, way out, a line that delays and loses, and the driver, on one clock.

    Args:
        messages: changes what is sent; dropped: messages at the beginning that are lost; for tests.
    """

    def __init__(
        self, robot: str, way: str, stream, *, seed: int = 0, messages=lambda message: message, dropped: int = 0
    ) -> None:  # fmt: skip
        self.lose = dropped
        self.wiring, self.profile = wiring_of(robot, way), load_profile(robot, **FREE, **WAYS[way][3])
        assert broken_claims(self.wiring, self.profile) == []
        self.rng, self.messages, self.sent, self.dropped = np.random.default_rng(seed), messages, [], False
        self.chain = SafetyChain(self.profile, dt=self.wiring.tick_s, limits=None)
        node = SimpleNamespace(
            create_lifecycle_publisher=lambda *_, **__: SimpleNamespace(publish=self.sent.append),
            destroy_publisher=lambda _: None,
        )
        if way == "action":
            goal = type("Goal", (), {"trajectory": None})
            action = SimpleNamespace(FollowJointTrajectory=SimpleNamespace(Goal=goal))
            sys.modules.setdefault("control_msgs", SimpleNamespace(action=action))
            sys.modules.setdefault("control_msgs.action", action)
            self.output = ActionOutput(node, self.wiring, self.fault, client=Client)
            self.sent = self.output._client.goals
        elif way.startswith("positions"):
            self.output = PositionOutput(node, self.wiring, None, sleep=lambda _: None, clock=lambda: self.now)
        else:
            self.output = TrajectoryOutput(node, self.wiring, None)
        self.stream = stream_of(self.chain, lambda *parts: Told(*parts, stream), self.wiring, send=self.output.send)
        home = np.array(self.profile.data["home"])
        self.tick, self.way, self.per_tick = 1_000_000, way, round(self.wiring.tick_s * 1000)
        self.sag = np.zeros_like(home)
        if way in ("trajectory", "action"):
            self.driver = TrajectoryController(self.wiring.joints, home)
            self.sag = self.rng.uniform(-SAG, SAG, len(home))
        elif way == "control_points":
            self.driver, self.control = Timeline(home, self.tick), PositionController(home, "bspline", self.per_tick)
        else:
            self.driver = PositionController(home, WAYS[way][0]["upsampling"], self.per_tick)
        self.on_way: list[tuple[int, object]] = []  # ns of arrival, message
        self.played: list[Array] = [home] * 4

    def fault(self, why: str) -> None:
        raise AssertionError(why)

    @property
    def now(self) -> float:
        return self.tick * self.wiring.tick_s - 3000.0

    def step(self, *, node: bool = True, enable: bool = True) -> None:
        """A tick: the arm says where it is, the node answers, the driver plays."""
        dt = self.wiring.dt_ns
        begin = self.tick * dt
        q = self.played[-1]
        self.stream.arm.on_state(State(q + self.sag, np.zeros_like(q), 0.0), begin * 1e-9, self.now)
        if self.way == "control_points":
            self.stream.arm.on_commanded(self.driver.at(self.tick - 1), (begin - dt) * 1e-9, self.now)
        self.stream.arm.on_enable(enable, self.now)
        if node:
            self.stream.pump(self.now)
        new, self.sent[:] = list(self.sent), []
        if self.way.startswith("positions"):
            assert len(new) <= 1
            self.played += list(self.driver.tick(np.array(new[0].data) if new else None))
        else:
            self._carry(new, begin)
            if self.way == "control_points":
                self.played += list(self.control.tick(self._play()))
            else:
                for k in range(1, self.per_tick + 1):
                    self.played.append(self._cycle(begin + k * dt // self.per_tick))
        self.tick += 1

    def _carry(self, new: list, begin: int) -> None:
        """Messages leave, and are a little late, or lost; two in a row are not, and all of them come in time."""
        for message in new:
            self.dropped = not self.dropped and self.way != "action" and self.rng.random() < 0.2
            self.dropped, self.lose = self.dropped or self.lose > 0, self.lose - 1
            if not self.dropped:
                late = int(self.rng.integers(0, self.wiring.dt_ns))
                self.on_way.append((max([begin + late, *(at for at, _ in self.on_way)]), message))

    def _arrived(self, now: int) -> list:
        come = [m for at, m in self.on_way if at <= now]
        self.on_way = [w for w in self.on_way if w[0] > now]
        return come

    def _cycle(self, now: int) -> Array:
        for message in self._arrived(now):
            if isinstance(message, bytes):
                message = deserialize_message(message, JointTrajectory)
            self.driver.take(self.messages(message), now)
        return self.driver.cycle(now)

    def _play(self) -> Array:
        for message in self._arrived(self.tick * self.wiring.dt_ns):
            first, points = TrajectoryBytes(self.wiring.joints, self.wiring.dt_ns).read(message)
            if len(points):
                self.driver.offer(first, points)
        return self.driver.play()

    def run(self, ticks: int, **how) -> None:
        for _ in range(ticks):
            self.step(**how)

    def begin(self) -> None:
        home = np.array(self.profile.data["home"])
        self.sag = np.copysign(self.sag, home - self.played[-1])  # not beyond a limit, where no arm may begin
        self.run(5)
        self.stream.start(seed=0, now=self.now)

    def ratios(self) -> dict[str, float]:
        """Of all that was played, to the maker's limits, at 1 kHz."""
        data = self.profile.data.get("position_dependent_velocity")
        edge = None if data is None else {k: np.array(v) for k, v in data.items()}
        return ratios(np.array(self.played), self.profile.maker, 1000.0, edge)


def attacked(robot: str, way: str, *, ticks: int, seed: int, kind: str, **how) -> tuple[Line, Counter]:
    """A drive of about `ticks` ticks in lives that end in an emergency stop, a node that dies or a deactivation."""
    profile = load_profile(robot, **FREE, **WAYS[way][3])
    dt = WAYS[way][2]

    def hostile():
        yield from (t[0] for t in targets(profile, 1, 10**9, seed=seed))

    stream = hostile() if kind == "hostile" else wandering(profile, 10**9, dt, seed)
    line, seen = Line(robot, way, stream, seed=seed, **how), Counter()
    rng, stop, done = np.random.default_rng(seed + 1), round(2.0 / dt), 0
    with np.errstate(all="ignore"):
        while done < ticks:
            line.begin()
            life = min(int(rng.integers(300, 900) * 0.004 / dt), ticks)
            line.run(life)
            end = ("emergency_stop", "killed", "deactivated")[int(rng.integers(0, 3))]
            if end == "deactivated" or way.startswith("positions"):
                end = "emergency_stop" if way.startswith("positions") else end
            if end == "deactivated":
                line.stream.stop()
            if end == "killed":
                line.run(stop, node=False)
            elif end == "deactivated":
                line.run(stop)
            else:
                line.run(stop, enable=False)
            line.stream.stop()
            line.run(5)
            seen[end], done = seen[end] + 1, done + life
    return line, seen
