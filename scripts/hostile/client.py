"""A hostile client: the arm, its driver, the camera, the operator and bystanders of a policy node, in one process.

Plain rclpy and NumPy. What it tells the node is in `Lies`; what it did and heard is in its `log`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.srv import ChangeState
from numpy.typing import NDArray
from rclpy.context import Context
from rclpy.experimental import EventsExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool, Float64, String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from scripts.hostile.checker import FR3
from scripts.hostile.drivers import ControllerDriver, SplineDriver, read
from scripts.hostile.log import Call, Log
from scripts.hostile.world import Lies, Robot, description, picture, stamp

Array = NDArray[np.float64]

HOME = np.array([0.0, 0.0459777, 0.0, -2.3761762, 0.0, 2.4221521, 0.7853982])
DT, DT_NS, CAMERA_EVERY, ENABLE_EVERY = 0.004, 4_000_000, 10, 5  # s, ns; ticks
TRANSITIONS = {"configure": 1, "cleanup": 2, "activate": 3, "deactivate": 4}
ANSWER = 60.0  # s for a service: one may load a policy
LATCHED = DurabilityPolicy.TRANSIENT_LOCAL


class Client(Node):
    """Plays everything around the node `target` of process `pid`; a context manager."""

    def __init__(self, robot: Robot, target: str, pid: int, domain: int) -> None:
        self.own = Context()
        rclpy.init(args=[], context=self.own, domain_id=domain, signal_handler_options=SignalHandlerOptions.NO)
        super().__init__(robot.node, context=self.own)
        self.robot, self.target, self.pid, self.domain, self.log, self.lies = robot, target, pid, domain, Log(), Lies()
        self.tick = time.time_ns() // DT_NS
        self.began = time.monotonic() - self.tick * DT
        self.log.began = time.monotonic()
        kind = SplineDriver if robot.splines else ControllerDriver
        self.driver: SplineDriver | ControllerDriver = kind(HOME, self.tick, DT_NS)
        self.q, self.report, self.refused = HOME.copy(), dict[str, str](), dict[str, int]()
        self.late = 0.0  # s by which the latest tick was played too late
        self.lead, self.leads = 0.0, list[float]()  # s by which the newest plan begins after now, and all of them
        self.others: list[tuple[Any, Callable[[JointState], JointState]]] = []  # publishers of states that are no arm
        self._connect()
        self._executor, self._ended = EventsExecutor(context=self.own), threading.Event()
        self._executor.add_node(self)
        self._thread = threading.Thread(target=self._run, name="world", daemon=True)

    def _connect(self) -> None:
        robot, name = self.robot, self.target
        self.out: dict[str, Any] = {
            "states": self.create_publisher(JointState, robot.states, 10),
            "enable": self.create_publisher(Bool, "enable", 10),
        }
        if robot.commands:
            self.out["commands"] = self.create_publisher(JointState, robot.commands, 50)
        if robot.camera:
            best = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
            self.out["picture"] = self.create_publisher(Image, robot.camera, best)
        if robot.description:
            latched = QoSProfile(depth=1, durability=LATCHED)
            self.out["description"] = self.create_publisher(String, robot.description, latched)
            self.out["description"].publish(String(data=description(robot, FR3)))
        self.create_subscription(JointTrajectory, robot.trajectory, self._on_plan, 100, raw=True)
        self.create_subscription(Float64, "gripper", self._on_grip, 100)
        self.create_subscription(DiagnosticArray, "/diagnostics", self._on_report, 50)
        self._change: Any = self.create_client(ChangeState, f"{name}/change_state")
        self._reset: Any = self.create_client(Trigger, f"{name}/reset")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(5.0)
        self._executor.shutdown(timeout_sec=1.0)
        self.destroy_node()
        rclpy.shutdown(context=self.own)

    @property
    def lateness(self) -> float:
        """s by which this machine was late: a tick that was played too late, or a plan that came later than others."""
        plans = float(np.median(self.leads) - min(self.leads)) if self.leads else 0.0
        return max(self.late, plans)

    # -- what comes -------------------------------------------------------------------------------------------------
    def _on_plan(self, data: bytes) -> None:
        now = time.monotonic()
        self.log.messages.append((now, "trajectory"))
        try:
            plan = read(data, self.robot.joints)
        except ValueError as error:
            why = f"unreadable: {error}"
        else:
            self.log.plans.append((now, plan))
            if not len(plan.q) or self.lies.deaf:
                return
            shift = round(self.lies.shift * 1e9) if self.lies.driver_too else 0
            self.lead = 1e-9 * int(plan.due[0] - shift) - (now - self.began)
            self.leads.append(self.lead)
            why = self.driver.offer(plan, shift)
        if why:
            self.refused[why] = self.refused.get(why, 0) + 1

    def _on_grip(self, message: Float64) -> None:
        now = time.monotonic()
        self.log.messages.append((now, "gripper"))
        self.log.grips.append((now, float(message.data)))

    def _on_report(self, message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name == self.target:
                self.report = {"message": status.message, **{v.key: v.value for v in status.values}}
                self.log.reports.append((time.monotonic(), self.report))

    # -- time -------------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        with contextlib.suppress(OSError):  # as a driver would; without, a busy machine makes it late
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(41))
        self.began = time.monotonic() - self.tick * DT
        self.log.began = time.monotonic()
        while not self._ended.is_set():
            ahead = self.began + self.tick * DT - time.monotonic()
            if ahead > 0:
                self._executor.spin_once(timeout_sec=min(ahead, DT))
                continue
            for _ in range(50):
                before = len(self.log.messages)
                self._executor.spin_once(timeout_sec=0.0)
                if len(self.log.messages) == before:
                    break
            self.late = max(self.late, -ahead)
            self._play()

    def _play(self) -> None:
        lies, before = self.lies, self.q
        samples, point = self.driver.play()
        self.log.samples.append(samples)
        self.q = samples[-1]
        ns = self.tick * DT_NS + round(lies.shift * 1e9)
        again = dict(lies.again)
        if "commands" in self.out and lies.commands:
            said = JointState(name=list(self.robot.joints), position=[point[0] + lies.command_by, *point[1:]])
            said.header.stamp = stamp(ns + round(lies.command_shift * 1e9))
            self.out["commands"].publish(said)
        if self.tick % ENABLE_EVERY == 0 and lies.enable is not None:
            self.say(lies.enable, again.get("enable", 1))
        if "picture" in self.out and self.tick % CAMERA_EVERY == 0:
            for at, number in lies.picture(ns, self.tick):
                for _ in range(again.get("picture", 1)):
                    self.out["picture"].publish(picture(at, number))
        state = self.state(ns, self.q, (self.q - before) / DT)
        for message in lies.state(state) if lies.states else []:
            for _ in range(again.get("states", 1)):
                self.out["states"].publish(message)
        for publisher, change in list(self.others):
            publisher.publish(change(self.state(ns, self.q, (self.q - before) / DT)))
        self.tick += 1

    def state(self, ns: int, q: Array, v: Array) -> JointState:
        names = [*self.robot.joints, *self.robot.fingers]
        message = JointState(name=names, position=[*q.tolist(), *[self.log.opening / 2] * 2])
        message.velocity = [*v.tolist(), 0.0, 0.0]
        message.header.stamp = stamp(ns)
        return message

    def say(self, sign: bool, times: int = 1) -> None:
        """Enable, or stop."""
        self.log.enables.append((time.monotonic(), sign))
        for _ in range(times):
            self.out["enable"].publish(Bool(data=sign))

    # -- the operator -----------------------------------------------------------------------------------------------
    def call(self, name: str) -> Call:
        """A transition by name, or reset."""
        asked, client = time.monotonic(), self._reset if name == "reset" else self._change
        request: Any = Trigger.Request()
        if name != "reset":
            request = ChangeState.Request()
            request.transition.id = TRANSITIONS[name]
        done, text, ok = threading.Event(), "", False
        if client.wait_for_service(timeout_sec=ANSWER):
            future = client.call_async(request)
            future.add_done_callback(lambda _: done.set())
            if done.wait(ANSWER):
                answer = future.result()
                ok, text = bool(answer.success), str(getattr(answer, "message", ""))
        answered = time.monotonic()
        if name != "reset" and not ok:  # the answer has no text: diagnostics have
            self.until(lambda: bool(self.log.reports) and self.log.reports[-1][0] > answered + 0.05, 1.0)
            text = self.report.get("message", "")
        self.log.calls.append(Call(name, asked, answered, ok, text))
        return self.log.calls[-1]

    def until(self, condition: Callable[[], bool], patience: float) -> bool:
        """Wait; whether it came true."""
        end = time.monotonic() + patience
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    def moves(self, patience: float, *, least: float = 0.02) -> bool:
        """Whether a joint moves by `least` rad within `patience` s."""
        q = self.q.copy()
        return self.until(lambda: float(np.abs(self.q - q).max()) > least, patience)

    def start(self) -> None:
        """Into motion, before anything else: an attack on an arm that stands shows nothing."""
        if not self.begin(6):
            raise TimeoutError(f"the arm does not begin to move: {self.report}")

    def run_dry(self) -> None:
        """Into RUN of a dry run, in which nothing moves; a busy machine's signs may be too old at first."""
        for _ in range(6):
            if self.call("reset" if self.report.get("state") == "active" else "activate").ok and self.until(
                lambda: self.report.get("mode") == "RUN", 2.0
            ):
                return
            time.sleep(0.3)
        raise TimeoutError(f"the dry run does not begin: {self.report}")

    def begin(self, tries: int = 8) -> bool:
        """Into motion, from whatever state, configured again if need be; returns whether it worked."""
        for number in range(tries):
            if number in (2, 5):
                self.call("deactivate")
            if number == 4:
                self.call("cleanup")
                self.call("configure")
                time.sleep(0.5)
            if self.call("reset" if self.report.get("state") == "active" else "activate").ok and self.moves(2.0):
                return True
            time.sleep(0.3)
        return False

    @contextlib.contextmanager
    def forbidden(self, why: str, *, after: float = 0.1) -> Iterator[None]:
        """Nothing may move meanwhile, `after` s of noticing granted beside what the checker grants."""
        begin = time.monotonic() + after
        try:
            yield
        finally:
            self.log.forbidden.append((begin, max(begin, time.monotonic()), why))

    def meet(self, found: Callable[[], int]) -> None:
        """Wait until a stranger has found the node; a participant that was missed at first is announced every 3 s."""
        if not self.until(lambda: found() > 0, 6.0):
            raise TimeoutError("a stranger and the node have not found each other")

    @contextlib.contextmanager
    def stranger(self) -> Iterator[Node]:
        """A node of another participant on the same domain."""
        context = Context()
        rclpy.init(args=[], context=context, domain_id=self.domain, signal_handler_options=SignalHandlerOptions.NO)
        node = rclpy.create_node("stranger", context=context)
        try:
            yield node
        finally:
            node.destroy_node()
            rclpy.shutdown(context=context)
