"""Options of `--robot.type=robopolicy`: one of LeRobot's arms behind the limits of a wiring."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lerobot.robots import RobotConfig


@RobotConfig.register_subclass("robopolicy")
@dataclass(kw_only=True)
class LimitedRobotConfig(RobotConfig):
    """`lerobot-record --robot.type=robopolicy --robot.wiring=my_so101.yaml`.

    Args:
        wiring: path of the arm's wiring, or the name of a preset.
        fps: targets a second that LeRobot's command sends, its `--dataset.fps` or `--fps`.
        speed: fraction of the wiring's speeds; begin with 0.1.
        safety: limits that are tighter than the wiring's, e.g. '{tcp_speed: 0.1}'.
        port: instead of the wiring's `robot.port`.
        id, calibration_dir: instead of the wiring's, see LeRobot's RobotConfig.
    """

    wiring: str
    fps: int = 30
    speed: float = 1.0
    safety: dict[str, Any] = field(default_factory=dict)
    port: str | None = None
