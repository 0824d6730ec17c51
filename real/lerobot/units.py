"""From LeRobot's units of a motor (degrees, or −100 … 100 of its calibrated range) to rad and m, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from robopolicy.core.errors import closest
from robopolicy.real.lerobot.wiring import LeRobotWiring
from robopolicy.real.ros2.channels import WiringError
from robopolicy.real.safety.array_ops import Array

DEGREES, NORMALISED, PERCENT = "degrees", "range_m100_100", "range_0_100"  # LeRobot's MotorNormMode
WHOLE = 2 * math.pi - 0.01  # rad: LeRobot's range of a motor that it does not ask to be moved between stops


@dataclass(frozen=True, eq=False)
class MotorUnits:
    """Units of an arm's motors.

    Args:
        motors: names, in the order of the limits.
        scale: [n] rad a unit, negative where the motor turns the other way.
        low, high: [n] rad, ends of the calibrated ranges, in the direction of the limits.
        gripper: its motor; None: there is none. opening: m at 100.
    """

    motors: tuple[str, ...]
    scale: Array
    low: Array
    high: Array
    gripper: str | None
    opening: float

    @property
    def not_measured(self) -> list[str]:
        """Say of which joints LeRobot's calibration holds a whole turn: their zero is no middle between two stops."""
        pairs = zip(self.motors, self.high - self.low, strict=True)
        if not (turning := [name for name, wide in pairs if wide >= WHOLE]):
            return []
        return [
            f"zero of {', '.join(turning)}: not measured. LeRobot gives such a joint a whole turn, its zero is where "
            "it stood when you pressed ENTER to calibrate. Compare the arm at 0 with the drawing"
        ]

    def state(self, values: Mapping[str, Any]) -> tuple[Array, float]:
        """Return joint angles [n] rad and the opening [m] of an observation by LeRobot.

        Raises:
            KeyError: a motor is missing. ValueError: its value is no finite number.
        """
        try:
            q = self.scale * np.array([float(values[f"{m}.pos"]) for m in self.motors])
            opening = 0.0 if self.gripper is None else float(values[f"{self.gripper}.pos"]) / 100 * self.opening
        except TypeError as error:
            raise ValueError(f"a position is no number ({error})") from error
        if not np.isfinite(q).all() or not math.isfinite(opening):
            raise ValueError("a position is not finite")
        return q, opening

    def action(self, q: Array, opening: float) -> dict[str, float]:
        """Return LeRobot's action for joint angles `q` [n] rad and an opening [m]."""
        found = {f"{m}.pos": float(v) for m, v in zip(self.motors, q / self.scale, strict=True)}
        if self.gripper is not None and math.isfinite(opening):
            found[f"{self.gripper}.pos"] = 100 * min(max(opening / self.opening, 0.0), 1.0)
        return found


def units_of(bus: Any, wiring: LeRobotWiring) -> MotorUnits:
    """Return the units of LeRobot's motor bus, by its calibration.

    Raises:
        WiringError: a motor is missing, has no calibration, or a unit of another kind.
    """
    scale, half = np.empty(len(wiring.arm.joints)), np.empty(len(wiring.arm.joints))
    for i, name in enumerate(wiring.motors):
        if name not in bus.motors:
            raise WiringError(f"joints: LeRobot's arm has no motor {name!r}. {closest(name, bus.motors)}")
        if name not in bus.calibration:
            raise WiringError(f"calibration: the motor {name!r} is missing in it. Run lerobot-calibrate")
        unit = str(getattr(bus.motors[name].norm_mode, "value", bus.motors[name].norm_mode))
        expected = (PERCENT,) if name == wiring.gripper else (DEGREES, NORMALISED)
        if unit not in expected:
            raise WiringError(f"joints.{name}: expected a motor in {' or '.join(expected)}, found one in {unit}")
        if name == wiring.gripper:
            continue
        given = bus.calibration[name]
        turn = 2 * math.pi / (bus.model_resolution_table[bus.motors[name].model] - 1)  # rad a count
        half[i] = 0.5 * (given.range_max - given.range_min) * turn
        if not half[i] > 0.0:
            raise WiringError(
                f"calibration: {name}: range_min {given.range_min} is not below range_max {given.range_max}. Run "
                "lerobot-calibrate"
            )
        scale[i] = math.radians(1.0) if unit == DEGREES else half[i] / 100
        scale[i] *= -1.0 if name in wiring.reversed else 1.0
    return MotorUnits(wiring.arm.joints, scale, -half, half, wiring.gripper, wiring.arm.opening)
