"""The simulated arm under a human: real time, an end that brakes first, Ctrl-C, and a window."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from robopolicy.core.types import STATE
from robopolicy.real.deploy.deployment import Deployment
from robopolicy.real.deploy.simulated_arm import Episode, SimulatedArm
from robopolicy.real.safety import Mode
from robopolicy.real.teleoperation.devices import map_of, source_of, stick_of
from robopolicy.real.teleoperation.teleoperator import Teleoperator

Show = Callable[[str], None]
_BEHIND = 0.1  # s; a machine that is further behind plays in slow motion, and never catches up in a rush


class RealTime:
    """Wait until the wall clock reaches the loop's clock. `clock`, `sleep`: for tests."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.clock, self.sleep = clock, sleep
        self.start: float | None = None  # of the wall clock, at the loop's 0

    def __call__(self, now: float) -> None:
        wall = self.clock()
        if self.start is None or wall - (self.start + now) > _BEHIND:
            self.start = wall - now
        if (ahead := self.start + now - wall) > 0.0:
            self.sleep(ahead)


def nothing(*_: object) -> None:
    """Do nothing."""


class TeleoperatedSim(SimulatedArm):
    """Run a simulated arm under a human.

    Episodes end by success, after `drive.episode_s` s, or by a key. A key lets the arm stand first.

    Args:
        pace: called with the loop's time after every tick, e.g. a RealTime.
        show: called with a line about the episode, every control step. redraw: called every control step.
        options: of SimulatedArm.
    """

    def __init__(
        self, *args: Any, teleoperator: Teleoperator, pace: Callable[[float], None] = nothing, show: Show = nothing,
        redraw: Callable[[], None] = nothing, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, operator=teleoperator, **options)
        self.teleoperator, self.pace, self.show, self.redraw = teleoperator, pace, show, redraw
        self.shown_step = -1

    def goes_on(self) -> bool:
        if self.loop.halted:
            return not bool(self.chain.limiter.at_rest[0])
        return self.loop.step * self.env.dt <= self.teleoperator.drive.episode_s and self.held < self.env.task.hold

    def ticked(self) -> None:
        self.pace(self.time)
        if self.loop.step != self.shown_step:
            self.shown_step = self.loop.step
            self.redraw()
            self.show(self._line())

    def interrupt(self) -> None:
        """End all episodes, the arm standing first."""
        self.teleoperator.quit = True
        self.loop.halted = self.loop.halted or "interrupted"

    def _line(self) -> str:
        """Describe driver, time, tool position, and positions of the task's objects relative to the tool."""
        env, c, history = self.env, self.loop.decoder.commanded, self.loop.observation_history
        seen = env.layout.unpack(history.newest[STATE].numpy()) if history.frames else {}
        near = [
            f"{name} {' '.join(f'{100 * x:+.1f}' for x in value[0])}"
            for name, value in seen.items()
            if name.endswith("_rel") and value.ndim == 2
        ]
        mode = "" if self.chain.mode is Mode.RUN else f"  {self.chain.mode.name}"
        grip = "" if env.spec.action.gripper is None else f"  gripper {'open' if c.grip > 0 else 'closed'}"
        tool = " ".join(f"{100 * x:.1f}" for x in c.pos)
        return f"{self.loop.driver:6} {self.loop.step * env.dt:5.1f} s  tool {tool} cm{grip}  {', '.join(near)}{mode}"


def run_with_operator(deployment: Deployment, options: dict[str, Any]) -> Iterator[Episode]:
    """Run episodes of a policy with a human at an operator's device, until the human ends or all are done.

    Args:
        options: of SimulatedArm.
    """
    config, env = deployment.config, deployment.env
    with source_of(config.operator or "keyboard", config.drive) as keys:
        teleoperator = Teleoperator(
            keys, env.spec.action, env.dt, config.drive, policy=True, stick=stick_of(keys),
            first="human" if config.human_first else "policy",
        )  # fmt: skip
        arm = TeleoperatedSim(
            env, deployment.policy, teleoperator=teleoperator, pace=RealTime(), show=status, **options
        )
        with viewer(arm) as arm.redraw, first_interrupt(arm.interrupt):
            print(map_of(config.operator or "keyboard"))
            for seed in deployment.seeds:
                episode = arm.run(seed)
                status("")
                yield episode
                if teleoperator.over:
                    gone = f"the {config.operator} is gone: stopped"
                    print(gone if teleoperator.lost else "stopped by the operator")
                    return


def status(line: str) -> None:
    """Show a line in place of the one before."""
    with suppress(OSError):  # a terminal that is gone must not keep the arm from stopping
        sys.stdout.write(f"\r\x1b[K{line[:118]}")
        sys.stdout.flush()


@contextmanager
def viewer(simulated_arm: SimulatedArm, *, wanted: bool = True) -> Iterator[Callable[[], None]]:
    """Open MuJoCo's window onto the arm where there is a display; yields a function that redraws it."""
    if not wanted or not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        if wanted:
            print("no window: there is no display. The line below says where the tool is.")
        yield nothing
        return
    import mujoco
    import mujoco.viewer

    task = simulated_arm.env.task
    model = task.compile()  # its own: drawing must not change the physics
    data, at = mujoco.MjData(model), task.bind(model)
    try:
        window = mujoco.viewer.launch_passive(model, data, show_left_ui=False, show_right_ui=False)
    except Exception as error:  # displays refuse with many types
        print(f"no window: {type(error).__name__}: {error}. The line below says where the tool is.")
        yield nothing
        return

    def redraw() -> None:
        if not window.is_running():
            return
        with window.lock():
            data.qpos[:] = simulated_arm.arm.data.qpos
            task.decorate(at, model, data, simulated_arm.arm.extra[0])
            mujoco.mj_forward(model, data)
        window.sync()

    with window:
        yield redraw


@contextmanager
def first_interrupt(call: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C call `call`, so that no file is left half written; another one interrupts as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def first(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        call()

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
