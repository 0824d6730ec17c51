"""The operator's side of the two nodes: enable them, drive the life cycle, play episodes; also for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Self

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.srv import SetParameters
from rclpy.experimental import EventsExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from std_msgs.msg import Bool, String
from std_srvs.srv import Trigger

from robopolicy.real.ros2 import messages, policy_node, sim_arm_node
from robopolicy.real.ros2.qos import profile_of
from robopolicy.real.ros2.spin import start, take_priority
from robopolicy.real.ros2.teleop_keys import Forwarder
from robopolicy.real.ros2.wiring import Wiring
from robopolicy.real.safety import SafetyError
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.teleoperation.keys import Keys

TIMEOUT = 120.0  # s for a service that loads a policy or compiles


class EpisodeClient(Node):
    """Enables the policy node, drives its life cycle and reads the diagnostics of both nodes.

    A context manager; it spins in a thread of its own.

    Args:
        wiring: topics.
        node_name: of the policy node.
        silent: send no enable before `enable`.
    """

    def __init__(self, wiring: Wiring, *, node_name: str = policy_node.NAME, silent: bool = False) -> None:
        if not rclpy.ok():
            start([])
        super().__init__("operator")
        self.wiring, self.node_name, self._ended = wiring, node_name, threading.Event()
        self._sign: bool | None = None if silent else True  # sent periodically: True enables, None is silence
        self._signing = threading.Lock()  # so that no enable, begun earlier, follows an emergency stop
        self.status: dict[str, dict[str, str]] = {}
        self.heard: dict[str, int] = {node_name: 0, sim_arm_node.NAME: 0}
        enable, diagnostics = wiring.topic("enable"), wiring.topic("diagnostics")
        self._enable = self.create_publisher(Bool, enable.name, profile_of(enable))
        self.forwarder: Forwarder | None = None  # of a human's keys, where there is a device
        keys = wiring.topics["keys"]
        self._keys = None if keys is None else self.create_publisher(String, keys.name, profile_of(keys))
        self.create_subscription(DiagnosticArray, diagnostics.name, self._on_diagnostics, profile_of(diagnostics))
        self.create_timer(1 / enable.rate_hz, self._on_timer)
        self._change: Any = self.create_client(ChangeState, f"{node_name}/change_state")
        self._reset_fault: Any = self.create_client(Trigger, f"{node_name}/reset")
        self._begin_episode: Any = self.create_client(Trigger, f"{sim_arm_node.NAME}/reset")
        self._set: Any = {
            n: self.create_client(SetParameters, f"{n}/set_parameters") for n in (node_name, sim_arm_node.NAME)
        }
        self.watch: Callable[[], None] = lambda: None  # called while waiting; raises where there is no use in it
        self._executor = EventsExecutor()
        self._executor.add_node(self)
        self._thread = threading.Thread(target=self._spin, name="operator", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(5.0)
        self._executor.shutdown(timeout_sec=1.0)
        self.destroy_node()
        if rclpy.ok():
            rclpy.shutdown()

    def transition(self, name: str) -> None:
        """configure, activate, deactivate or cleanup.

        Raises:
            SafetyError: refused; with the node's reason.
        """
        before, wanted = self.heard[self.node_name], Transition(id=getattr(Transition, f"TRANSITION_{name.upper()}"))
        answer = self._call(self._change, ChangeState.Request(transition=wanted))
        self.wait(lambda: self.heard[self.node_name] > before + 1, 20.0, "diagnostics of the policy node")
        if not answer.success:
            why = self.status[self.node_name]["message"]
            raise SafetyError(why if why != "ok" else f"{name}: not possible in the state in which the node is")

    def begin_episode(self, seed: int) -> None:
        """Begin the simulated episode of test seed `seed`, for both nodes."""
        for name in self._set:
            self.set(name, seed=seed)
        if not (answer := self._call(self._begin_episode, Trigger.Request())).success:
            raise SafetyError(f"arm: {answer.message}")
        self.wait(lambda: self._of(sim_arm_node.NAME, "seed") == str(seed), 20.0, "the arm to begin an episode")

    def emergency_stop(self) -> None:
        """Brake now, said again and again; `enable` and `reset_fault` end it."""
        self._say(False)

    def enable(self) -> None:
        """Permit motion from now on, as it is from the beginning."""
        self._say(True)

    def fall_silent(self) -> None:
        """Send no enable any more, as where the operator is gone."""
        self._say(None)

    def _say(self, sign: bool | None) -> None:
        with self._signing:
            self._sign = sign
            if sign is not None:
                self._enable.publish(Bool(data=sign))

    def reset_fault(self) -> str:
        """After a fault: "" where the arm runs again, else why not."""
        answer = self._call(self._reset_fault, Trigger.Request())
        return "" if answer.success else str(answer.message)

    def listen(self, keys: Keys, stick: Callable[[], Array] | None = None) -> None:
        """Forward a human's keys from now on; `self.forwarder.over` says when they ended.

        Raises:
            SafetyError: the robot's wiring has no topic for it.
        """
        if self._keys is None:
            self.wiring.topic("keys")
        self.forwarder = Forwarder(keys, stick, self.press)

    def press(self, text: str) -> None:
        """Send a key, see robopolicy.real.ros2.teleop_keys."""
        assert self._keys is not None
        self._keys.publish(String(data=text))

    def set(self, name: str, **parameters: Any) -> None:
        """Set parameters of a node; double underscores stand for dots.

        Raises:
            SafetyError: refused; with the node's reason.
        """
        wanted = [Parameter(k.replace("__", "."), value=v).to_parameter_msg() for k, v in parameters.items()]
        for result in self._call(self._set[name], SetParameters.Request(parameters=wanted)).results:
            if not result.successful:
                raise SafetyError(result.reason)

    def wait(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        """Until `condition`; raises SafetyError where it takes longer than `timeout` s."""
        until = time.monotonic() + timeout
        while not condition():
            self.watch()
            if time.monotonic() > until:
                raise SafetyError(f"waited {timeout:.0f} s in vain for {what}")
            time.sleep(0.005)

    def next_report(self, timeout: float) -> None:
        """Until the policy node has reported once more; raises SafetyError after `timeout` s."""
        heard = self.heard[self.node_name]
        self.wait(lambda: self.heard[self.node_name] > heard, timeout, "the policy node's diagnostics")

    def _of(self, name: str, key: str) -> str:
        return self.status.get(name, {}).get(key, "")

    def _call(self, client: Any, request: Any) -> Any:
        until = time.monotonic() + TIMEOUT
        while not client.wait_for_service(timeout_sec=1.0):
            self.watch()
            if time.monotonic() > until:
                raise SafetyError(f"{client.srv_name}: no such service; has the node started?")
        done = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: done.set())
        until = time.monotonic() + TIMEOUT
        while not done.wait(1.0):
            self.watch()
            if time.monotonic() > until:
                raise SafetyError(f"{client.srv_name}: no answer in {TIMEOUT:.0f} s")
        return future.result()

    def _on_timer(self) -> None:
        with self._signing:
            if self._sign is not None:
                self._enable.publish(Bool(data=self._sign))
        if self.forwarder is not None:
            self.forwarder.pump()

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for name in self.heard:
            if (values := messages.values_of(message, name)) is not None:
                self.status[name] = values
                self.heard[name] += 1

    def _spin(self) -> None:
        take_priority()  # an emergency stop must not wait for a policy that plans
        while not self._ended.is_set() and rclpy.ok():
            self._executor.spin_once(timeout_sec=0.05)
