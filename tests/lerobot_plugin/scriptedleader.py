"""A teleoperator of LeRobot that plays a script, found by LeRobot as those of other packages are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from lerobot.teleoperators import Teleoperator, TeleoperatorConfig


@TeleoperatorConfig.register_subclass("scripted_leader")
@dataclass
class ScriptedLeaderConfig(TeleoperatorConfig):
    pass


class ScriptedLeader(Teleoperator):
    """Returns the actions of `script`, by the number of the call."""

    config_class, name = ScriptedLeaderConfig, "scripted_leader"
    script: ClassVar[Callable[[int], dict[str, Any]]]
    action_features = feedback_features = {}  # noqa: RUF012
    is_connected = is_calibrated = False

    def __init__(self, config: ScriptedLeaderConfig) -> None:
        super().__init__(config)
        self.calls = 0

    def connect(self, calibrate: bool = True) -> None:
        self.is_connected = True

    def get_action(self) -> dict[str, Any]:
        self.calls += 1
        return type(self).script(self.calls)

    def disconnect(self) -> None:
        self.is_connected = False

    def calibrate(self) -> None: ...
    def configure(self) -> None: ...
    def send_feedback(self, feedback: dict[str, Any]) -> None: ...
