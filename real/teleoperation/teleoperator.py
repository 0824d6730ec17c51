"""A human at keys, a gamepad or a SpaceMouse: actions from keys, hand-overs between human and policy, and stops.

A key moves for a bounded time after it was pressed, so that an arm without input stands still. This module
commands no arm: it returns actions of the task, which take the same way as a policy's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robopolicy.config.schema import Positive
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import ActionSpec
from robopolicy.real.control.joints import Commanded
from robopolicy.real.teleoperation.gamepad import DEVICE
from robopolicy.real.teleoperation.keys import InputLostError, Keys

Array = NDArray[np.float64]
Driver = Literal["policy", "human", "rewind"]

AXES = ("dx", "dy", "dz", "dyaw")
DRIVERS: dict[str, Driver] = {"p": "policy", "t": "human", "b": "rewind"}  # by key that hands over to them
MOVES = {  # key: (axis, direction)
    "w": (0, 1.0), "s": (0, -1.0), "a": (1, 1.0), "d": (1, -1.0),
    "r": (2, 1.0), "f": (2, -1.0), "q": (3, 1.0), "e": (3, -1.0),
}  # fmt: skip
KEY_MAP = """\
  w s   away from the base, back          space      close or open the gripper
  a d   left, right                       any other  stand still
  r f   up, down                          x, Ctrl-C  stop the arm and end
  q e   turn left, right                  hold a key to keep moving; the arm stops when it is let go"""
RECORD_KEYS = """\
  enter keep this episode, end it         backspace  discard it, begin the same scene again"""
POLICY_KEYS = """\
  t     take over from the policy         p          hand back to the policy
  b     take over, and go back the way the arm came"""
_MOST_KEYS = 256  # at a time; a jammed key must not keep the loop from its work
_NEAR = 1e-3  # rad, a point of the path counts as reached


@dataclass(frozen=True)
class Drive:
    """Set how keys move the arm.

    Attributes:
        speed: m/s per direction.
        turn: rad/s. The task's action limits bound speed and turn, and the safety limits bound the motion.
        key_s: s that a press moves the arm; longer than the gap between a held key's repeats, 0.5 at most.
        rewind_s: s of its path that the arm goes back at a press.
        episode_s: s after which an episode ends.
        gamepad: device of the gamepad, see robopolicy.real.teleoperation.gamepad.
        spacemouse: device of the SpaceMouse; None: the first one that is found.
    """

    speed: Positive = 0.15
    turn: Positive = 0.8
    key_s: Positive = 0.15
    rewind_s: Positive = 2.0
    episode_s: Positive = 120.0
    gamepad: str = DEVICE
    spacemouse: str | None = None

    def __post_init__(self) -> None:
        if not self.key_s <= 0.5:
            raise ConfigError(
                f"drive.key_s: expected at most 0.5 s, found {self.key_s}; the arm goes on for so long after the key "
                "was let go"
            )


class TeleopCommand(NamedTuple):
    """A human's command for one control step."""

    driver: Driver
    action: Array | None = None  # [Da] of the task's action space
    back: Commanded | None = None  # instead: an earlier commanded pose
    halt: str = ""  # instead: stop, for this reason


class CommandSource(Protocol):
    """Give a control loop commands in place of its policy's, one a control step."""

    def start(self) -> None:
        """Begin an episode."""
        ...

    def command(self, now: float, commanded: Commanded) -> TeleopCommand | None:
        """Return the command for the control step at `now` s from the pose `commanded`; None: the policy drives."""
        ...


class Teleoperator:
    """Turn keys into commands, one a control step.

    Args:
        keys: where they come from.
        spec: increments of the commanded pose, which is all that keys can drive.
        dt: s per control step.
        policy: there is a policy to take over from; it drives first unless `first` says otherwise.
        recording: there are episodes to be kept or discarded.
        stick: hands over deflections [4] −1 … 1 along AXES, beside the keys.

    Raises:
        ConfigError: actions of another kind.
    """

    def __init__(
        self, keys: Keys, spec: ActionSpec, dt: float, drive: Drive | None = None, *, policy: bool = False,
        first: Driver = "policy", recording: bool = False, stick: Callable[[], Array] | None = None,
    ) -> None:  # fmt: skip
        if spec.reference != "commanded" or not set(AXES) <= set(spec.names):
            raise ConfigError(
                f"operator: drives increments of the commanded pose ({', '.join(AXES)}), this task's actions are "
                f"{', '.join(spec.names)} with reference {spec.reference!r}. Use task.control=delta_pose."
            )
        self.keys, self.spec, self.dt, self.drive = keys, spec, dt, drive or Drive()
        self.policy, self.recording, self.stick = policy, recording, stick
        self.first: Driver = first if policy else "human"
        self.axes = [spec.names.index(name) for name in AXES]
        most = np.minimum(spec.high, np.negative(spec.low))[self.axes]
        d = self.drive
        self.step: Array = np.minimum(np.array([d.speed, d.speed, d.speed, d.turn]) * dt, most)  # of a control step
        self.lost = self.quit = False  # for good: no more episodes
        self.trail: deque[Commanded] = deque(maxlen=math.ceil(600 / dt))
        self.start()

    def start(self) -> None:
        """Begin an episode. Earlier keys are dropped, except for the stop."""
        self.driver: Driver = self.first
        self.verdict: Literal["", "keep", "discard"] = ""
        self.trail.clear()
        self._stand()
        self.left, self.until = 0, 0.0
        self.grip: float | None = None  # −1 closed … 1 open; None: as it is
        for _ in range(_MOST_KEYS):
            if (key := self.next_key()) is None:
                break
            self.quit |= key == "x"

    @property
    def over(self) -> bool:
        return self.lost or self.quit

    def next_key(self) -> str | None:
        """Return the next key, None where there is none or the keyboard is gone (`lost`)."""
        try:
            return self.keys()
        except InputLostError:
            self.lost = True
            return None

    def command(self, now: float, commanded: Commanded) -> TeleopCommand | None:
        """Return the command for the control step at `now` s from the pose `commanded`; None: the policy drives."""
        for _ in range(_MOST_KEYS):
            if (key := self.next_key()) is None:
                break
            self._press(key, now, commanded)
        if halt := "input_lost" if self.lost else "operator_ends" if self.quit or self.verdict else "":
            return TeleopCommand("human", halt=halt)
        moved = np.inf if not self.trail else float(np.abs(commanded.q - self.trail[-1].q).max())
        if self.driver == "rewind":
            back = self._back(now, commanded)
            if back is not None:
                return TeleopCommand("rewind", back=back)
            self.driver = "human"
        elif moved > 0.0 or commanded.grip != self.trail[-1].grip:  # to stand is no part of a path
            self.trail.append(commanded)
        if self.driver == "policy":
            return None
        return TeleopCommand("human", action=self._action(now, commanded))

    # -- inside -----------------------------------------------------------------------------------------------------
    def _press(self, key: str, now: float, commanded: Commanded) -> None:
        if key == "x":
            self.quit = True
        elif self.recording and key in ("enter", "backspace"):
            self.verdict = "keep" if key == "enter" else "discard"
        elif self.policy and key in DRIVERS:
            self._become(DRIVERS[key], commanded)
            self.left = max(1, round(self.drive.rewind_s / self.dt))
            self.until = now + 3.0 * self.drive.rewind_s + 1.0  # whatever happens
            self.last: Array = commanded.q
        elif self.driver == "rewind":
            self._become("human", commanded)  # any key stops it
        elif self.driver == "human" and key == "space" and self.spec.gripper is not None:
            grip = commanded.grip if self.grip is None else self.grip
            self.grip = -1.0 if grip > 0.0 else 1.0
        elif self.driver == "human" and key in MOVES:
            axis, direction = MOVES[key]
            self.pressed[axis], self.way[axis] = now, direction
        else:
            self._stand()

    def _become(self, driver: Driver, commanded: Commanded) -> None:
        self.driver, self.grip = driver, commanded.grip
        self._stand()

    def _stand(self) -> None:
        self.pressed, self.way = np.full(4, -np.inf), np.zeros(4)  # s; direction, by axis

    def _action(self, now: float, commanded: Commanded) -> Array:
        """Return the action [Da] of the keys of the last `key_s` s."""
        age = now - self.pressed
        live = (age >= 0.0) & (age < self.drive.key_s - 1e-9)  # a clock that runs backwards does not move the arm
        action = np.zeros(self.spec.dim)
        way = np.where(live, self.way, 0.0)
        if self.stick is not None and not self.lost:
            way = np.clip(way + self.stick(), -1.0, 1.0)
        action[self.axes] = way * self.step
        if self.spec.gripper is not None:
            self.grip = commanded.grip if self.grip is None else self.grip
            action[self.spec.gripper] = self.grip
        return action

    def _back(self, now: float, commanded: Commanded) -> Commanded | None:
        """Return the point of the arm's path to retrace next, None at the end of the rewind."""
        moved, self.last = float(np.abs(commanded.q - self.last).max()), commanded.q
        while self.trail and self.left:
            here = self._gap(-1, commanded)
            passed = len(self.trail) > 1 and self._gap(-2, commanded) <= here
            if not (here <= _NEAR or passed or (self.left == 1 or len(self.trail) == 1) and here <= moved):
                break  # the last point: the arm stops within a step of it, and does not turn around
            self.grip = self.trail.pop().grip
            self.left -= 1
        return self.trail[-1] if self.trail and self.left and now < self.until else None

    def _gap(self, index: int, commanded: Commanded) -> float:
        return float(np.abs(self.trail[index].q - commanded.q).max())
