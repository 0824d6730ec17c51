"""Processors that change nothing: our policies normalise by themselves."""

from __future__ import annotations

from typing import Any

from lerobot.processor import (
    DeviceProcessorStep,
    PolicyProcessorPipeline,
    RenameObservationsProcessorStep,
)
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action

from robopolicy.lerobot_plugin.configuration_robopolicy import RobopolicyConfig


def make_robopolicy_pre_post_processors(
    config: RobopolicyConfig, dataset_stats: dict[str, dict[str, Any]] | None = None
) -> tuple[Any, Any]:
    """The two steps that LeRobot's commands set by name, and the action back on the CPU."""
    steps = [RenameObservationsProcessorStep(rename_map={}), DeviceProcessorStep(device=str(config.device))]
    pre: Any = PolicyProcessorPipeline(steps=steps, name="policy_preprocessor")
    post: Any = PolicyProcessorPipeline(
        steps=[DeviceProcessorStep(device="cpu")], name="policy_postprocessor",
        to_transition=policy_action_to_transition, to_output=transition_to_policy_action,
    )  # fmt: skip
    return pre, post
