"""Running a node: waits are always bounded, and a signal ends it."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from typing import Protocol, cast

import rclpy
from rclpy.experimental import EventsExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from robopolicy.real.safety import SafetyError

MOST = 200  # messages in a row
ENDS = "ROBOPOLICY_END_WITH_PARENT"  # variable of a node that ends with its parent process
PR_SET_PDEATHSIG = 1
PRIORITY = 40  # of SCHED_FIFO: below the 50 of ros2_control's own loop


class Pumped(Protocol):
    """A node that has something to do between messages."""

    @property
    def handled(self) -> int:
        """Messages so far."""
        ...

    def pump(self) -> float:
        """Do all due work; returns s until the next call."""
        ...

    def destroy_node(self) -> None: ...


def start(arguments: list[str] | None) -> None:
    """rclpy.init, which leaves signals to `run`.

    Raises:
        SafetyError: security is enforced (SROS 2) and cannot be set up.
    """
    try:
        rclpy.init(args=arguments, signal_handler_options=SignalHandlerOptions.NO)
    except Exception as error:
        if os.environ.get("ROS_SECURITY_ENABLE") != "true":
            raise
        raise SafetyError(
            f"ROS_SECURITY_ENABLE=true, ROS_SECURITY_STRATEGY={os.environ.get('ROS_SECURITY_STRATEGY', '')}: security "
            f"cannot be set up ({error}). Is there a keystore (ROS_SECURITY_KEYSTORE), and was this ROS 2 built with "
            "security? The wheels of scripts/setup.sh are not. Nothing is started without it."
        ) from error


def take_priority() -> str:
    """Run before everything that has no such priority (SCHED_FIFO); "" or why that is not permitted.

    Threads and processes that are started later inherit it: call it first.
    """
    if sys.platform != "linux":
        return f"no real-time scheduling on {sys.platform}"
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except OSError as error:
        return f"SCHED_FIFO is not permitted ({error}): give this user an rtprio of {PRIORITY} in limits.conf"
    return ""


def run(node: Pumped) -> None:
    """Until SIGINT, SIGTERM or the end of ROS.

    EventsExecutor costs the least, but its wait without a time-out burns a core and runs no callback in the versions
    we know: every wait here is finite. Threads switch every 0.2 ms, so that a tick does not wait for a policy's
    bytecode; objects from before the start are never garbage-collected.
    """
    ended = []
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: ended.append(True))
    if ENDS in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    sys.setswitchinterval(2e-4)
    gc.freeze()
    executor = EventsExecutor()
    executor.add_node(cast(Node, node))
    try:
        wait = 0.0
        while rclpy.ok() and not ended:
            executor.spin_once(timeout_sec=min(max(wait, 0.0), 0.05))
            for _ in range(MOST):  # waiting messages come before the work that follows from them
                before = node.handled
                executor.spin_once(timeout_sec=0.0)
                if node.handled == before:
                    break
            wait = node.pump()
    finally:
        executor.shutdown(timeout_sec=1.0)
        node.destroy_node()
        if rclpy.ok():
            rclpy.shutdown()
