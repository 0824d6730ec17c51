"""The devices by which a human drives, by name: where keys and deflections come from, and what is shown of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robopolicy.real.teleoperation.gamepad import PAD_MAP, PAD_POLICY, PAD_RECORD, Gamepad
from robopolicy.real.teleoperation.keys import Terminal
from robopolicy.real.teleoperation.spacemouse import MOUSE_MAP, MOUSE_POLICY, SpaceMouse
from robopolicy.real.teleoperation.teleoperator import KEY_MAP, POLICY_KEYS, RECORD_KEYS, Drive

OperatorDevice = Literal["keyboard", "gamepad", "spacemouse"]
_MAPS = {  # what moves the arm; what ends a recorded episode; what takes over from a policy
    "keyboard": (KEY_MAP, RECORD_KEYS, POLICY_KEYS),
    "gamepad": (PAD_MAP, PAD_RECORD, PAD_POLICY),
    "spacemouse": (MOUSE_MAP, RECORD_KEYS, MOUSE_POLICY),
}


def source_of(operator: OperatorDevice, drive: Drive) -> Terminal | Gamepad | SpaceMouse:
    """Return the source of a human's keys, a context manager.

    Raises:
        ConfigError: the device is not there.
    """
    if operator == "gamepad":
        return Gamepad(drive.gamepad)
    return SpaceMouse(drive.spacemouse) if operator == "spacemouse" else Terminal()


def stick_of(keys: object) -> Callable[[], NDArray[np.float64]] | None:
    """Return the function that reads the deflections, where the device has any."""
    return keys.stick if isinstance(keys, Gamepad | SpaceMouse) else None


def device_of(keys: object) -> OperatorDevice:
    """Return the name of a source of keys; any but a device with sticks is called a keyboard."""
    if isinstance(keys, Gamepad):
        return "gamepad"
    return "spacemouse" if isinstance(keys, SpaceMouse) else "keyboard"


def map_of(device: OperatorDevice, *, recording: bool = False) -> str:
    """Return the lines that say what the device does, beside a policy or while `recording`."""
    moves, records, policy = _MAPS[device]
    return f"{moves}\n{records if recording else policy}"
