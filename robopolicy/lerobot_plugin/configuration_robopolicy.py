"""The config.json of an exported policy, as LeRobot reads it. What the policy is stands in policy/."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot.configs.policies import PreTrainedConfig
from lerobot.optim.optimizers import OptimizerConfig
from lerobot.optim.schedulers import LRSchedulerConfig


@PreTrainedConfig.register_subclass("robopolicy")
@dataclass
class RobopolicyConfig(PreTrainedConfig):
    """Features alone; chunk lengths, histories and normalisation are the policy's own."""

    observation_delta_indices = action_delta_indices = reward_delta_indices = None

    def get_optimizer_preset(self) -> OptimizerConfig:
        raise NotImplementedError("policies of type 'robopolicy' are trained by `robopolicy train`")

    def get_scheduler_preset(self) -> LRSchedulerConfig | None:
        raise NotImplementedError("policies of type 'robopolicy' are trained by `robopolicy train`")

    def validate_features(self) -> None:
        """Checked against the spec of the policy when it is loaded."""
