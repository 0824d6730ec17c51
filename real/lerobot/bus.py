"""The port of one of LeRobot's arms: one thread exchanges, and the arm is disconnected after that thread has ended."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np

from robopolicy.real.control.robots import State
from robopolicy.real.lerobot.arm import LeRobotArm
from robopolicy.real.safety import SafetyError

FIRST = 5.0  # s in which the first state and pictures must come, and in which the bus's thread must end
MEASURED = 8  # states until the arm's speed is known: the first one has none to differ from
STILL = 0.1  # rad/s: a joint that is faster is not at rest; an encoder's step within WINDOW is 0.04


class ArmBus:
    """Own the bus of LeRobot's arm, as a context that disconnects at its end.

    A bus that is dead by then hides no other error. Where the exchanging thread has not ended, the bus is left alone:
    two threads on one port would send broken packets to motors that hold.

    Args:
        robot: LeRobot's. patience: s in which the exchanging thread must end.
    """

    def __init__(self, robot: Any, *, patience: float = FIRST) -> None:
        self.robot, self.patience = robot, patience
        self.thread: threading.Thread | None = None

    def __enter__(self) -> ArmBus:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.thread is not None:
            self.thread.join(self.patience)
            if self.thread.is_alive():
                self._say(f"its bus has not answered for {self.patience:g} s, so the arm was not disconnected")
                return
        if not self.robot.bus.is_connected:
            return
        try:
            self.robot.disconnect()
        except Exception as failed:
            said = " ".join(str(failed).split())
            self._say(f"could not be disconnected ({type(failed).__name__}: {said})")
            self.robot.bus.disconnect(disable_torque=False)  # closes the port

    @contextmanager
    def exchanging(self, arm: LeRobotArm) -> Iterator[None]:
        """Exchange with the bus in a thread meanwhile, and until the stop of the newest command is over."""
        over = threading.Event()

        def work() -> None:
            due = time.monotonic()
            while not over.is_set():
                arm.exchange()
                due = max(due + arm.dt, time.monotonic())
                over.wait(due - time.monotonic())

        self.thread = threading.Thread(target=work, name="bus", daemon=True)
        self.thread.start()
        try:
            yield
        finally:
            try:
                time.sleep(arm.stops_in)  # after an error or a second Ctrl-C the arm still moves
            finally:
                over.set()
                arm.forget()  # a thread that the bus blocks sends nothing more
                self.thread.join(self.patience)
                print(bus_summary(arm.counts), arm.error)

    @staticmethod
    def _say(what: str) -> None:
        print(f"robot: {what}. Its motors may still hold: support the arm, and switch its supply off", flush=True)


def bus_summary(counts: Counter[str]) -> str:
    """Say in a line how the bus fared."""
    failed = {k: n for k, n in counts.items() if n and k != "reads"}
    return f"bus: {counts['reads']} states read; {failed or 'no exchange failed or was late'}"


def wait_until_still(
    arm: LeRobotArm, lacking: Callable[[], Collection[str]] = list, error: Callable[[], str] = str
) -> State:
    """Wait for states, and for what else is `lacking`; return the newest state.

    Args:
        error: says why something is lacking; "": the bus's error tells.

    Raises:
        SafetyError: something does not come within FIRST s, or the arm moves.
    """
    until, speeds = time.monotonic() + FIRST, 0
    state: State | None = None
    while speeds < MEASURED or lacking():
        if time.monotonic() > until:
            raise SafetyError(f"robot: nothing has come of {lacking() or 'joints'}. {error() or arm.error}")
        time.sleep(arm.dt)
        if (newest := arm.read()) is not None:
            state, speeds = newest, speeds + 1
    assert state is not None
    if (fastest := float(np.abs(state.qd).max())) > STILL:
        raise SafetyError(f"state: the arm moves at {fastest:.2f} rad/s. Hold it still, or support it")
    return state


def wait_until_fresh(arm: LeRobotArm) -> None:
    """Wait for a state that was not read yet, which a control loop starts from.

    Raises:
        SafetyError: none comes within FIRST s.
    """
    until = time.monotonic() + FIRST
    while not arm.fresh:
        if time.monotonic() > until:
            raise SafetyError(f"robot: no state comes any more. {arm.error}")
        time.sleep(0.1 * arm.dt)
