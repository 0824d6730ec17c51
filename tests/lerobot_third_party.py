"""A policy type of LeRobot as another package would register it: it draws what it does from the global generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.pretrained import PreTrainedPolicy
from lerobot.processor.factory import make_default_pre_post_processors
from torch import Tensor, nn


@PreTrainedConfig.register_subclass("toy_of_others")
@dataclass
class ToyConfig(PreTrainedConfig):
    chunk_size: int = 5
    normalization_mapping: Any = None

    observation_delta_indices = action_delta_indices = reward_delta_indices = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.normalization_mapping = {}

    def get_optimizer_preset(self) -> Any:
        return None

    def get_scheduler_preset(self) -> Any:
        return None

    def validate_features(self) -> None:
        pass


class ToyPolicy(PreTrainedPolicy):
    config_class = ToyConfig
    name = "toy_of_others"

    def __init__(self, config: ToyConfig, **_: Any) -> None:
        super().__init__(config)
        self.net = nn.Linear(config.robot_state_feature.shape[0], config.action_feature.shape[0])

    def predict_action_chunk(self, batch: dict[str, Tensor], **_: Any) -> Tensor:
        mean = self.net(batch["observation.state"])[:, None].expand(-1, self.config.chunk_size, -1)
        return mean + torch.randn_like(mean)

    def select_action(self, batch: dict[str, Tensor], **_: Any) -> Tensor:
        return self.predict_action_chunk(batch)[:, 0]

    def forward(self, batch: dict[str, Tensor]) -> Any:
        raise NotImplementedError

    def get_optim_params(self) -> Any:
        return self.parameters()

    def reset(self) -> None:
        pass


def make_toy_of_others_pre_post_processors(config: ToyConfig, dataset_stats: Any = None) -> Any:
    return make_default_pre_post_processors(config, dataset_stats)
