"""PPO through the denoising chain without a critic: advantages compare episodes of the same start.

GRPO (Shao et al. 2024) on a flow or diffusion policy, as in Flow-GRPO (Liu et al. 2025) and RLinf. Groups of envs begin
in the same state (GroupedEnv), and each chunk has its episode's advantage. Sampling, scoring, clips and the anchor are
DPPO's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from robopolicy.algos.advantage_estimator import AdvantageEstimator, Advantages
from robopolicy.algos.dppo import ChainPPO, DenoisingConfig
from robopolicy.algos.ppo_core import Learner
from robopolicy.algos.returns import chunk_weight, executed_steps, group_advantage
from robopolicy.buffers.collector import Rollout
from robopolicy.config.schema import Count
from robopolicy.core.errors import ConfigError, RobopolicyError
from robopolicy.core.types import Metrics, Obs
from robopolicy.policies.base import DenoisingPolicy
from robopolicy.utils import ranks


class GRPO(ChainPPO):
    """PPO through the chain with advantages (return − group mean) / group deviation.

    Groups of equal returns teach nothing. Returns are not discounted.

    Args:
        group_size: envs that begin in the same state; the env is a GroupedEnv of this size underneath.
        epochs, **options: see DenoisingConfig. `anchor` is GRPO's β, the weight of the KL to the frozen policy.

    Raises:
        ConfigError: groups of one.
    """

    options: ClassVar[type] = DenoisingConfig

    def __init__(self, policy: DenoisingPolicy, *, group_size: Count, epochs: Count = 4, **options: Any) -> None:
        groups, config = Groups(group_size), DenoisingConfig(epochs=epochs, **options)
        super().__init__(policy, config)
        self.learner = Learner(self.parameters, config, groups)


class Groups(AdvantageEstimator):
    """Compares the episodes of `size` neighbouring envs, without a critic.

    Raises:
        ConfigError: a group of one.
    """

    def __init__(self, size: int) -> None:
        if size < 2:
            raise ConfigError(
                f"group_size: episodes are compared with others of their start; expected ≥ 2, found {size}"
            )
        self.size = size

    def estimate(self, rollout: Rollout, cond: Tensor, encode: Callable[[Obs], Tensor], chunk_steps: int) -> Advantages:
        """Give every chunk its episode's advantage; episodes in which physics failed are left out.

        Raises:
            ConfigError: the rollout cuts episodes, or its envs are not in groups of this size.
            RobopolicyError: physics failed in every episode of every rank.
        """
        reward, ended = rollout.reward, rollout.terminated | rollout.truncated
        self._check(ended)
        advantage, keep, begin = torch.zeros_like(reward), torch.zeros_like(rollout.planned), 0
        for end in (ended.all(1).nonzero()[:, 0] + 1).tolist():
            over = ended[begin:end].long().cumsum(0) - ended[begin:end].long() > 0  # the env waits for its group
            total = reward[begin:end].masked_fill(over, 0.0).sum(0)
            counts = (rollout.valid[begin:end] | over).all(0)
            advantage[begin:end] = group_advantage(total, counts, self.size)
            keep[begin:end] = ~over & counts
            begin = end
        keep, advantage = keep[rollout.planned], advantage[rollout.planned]
        if not ranks.any_of(bool(keep.any())):
            raise RobopolicyError(
                "GRPO: physics failed in every episode of a rollout; nothing is left to learn from. Look at what the "
                "policy commands (algo.noise, the base's normaliser) and at the task's contacts."
            )
        weight = chunk_weight(executed_steps(rollout.planned, ended)[keep], chunk_steps)
        advantage = advantage[keep]
        none = torch.zeros_like(advantage)  # there is no critic
        keep, advantage, none, weight = (part.to(cond.device) for part in (keep, advantage, none, weight))
        return Advantages(keep, advantage, none, none, weight)

    def _check(self, ended: Tensor) -> None:
        if ended.shape[1] % self.size:
            raise ConfigError(f"group_size={self.size} does not divide num_envs={ended.shape[1]}")
        if not bool(ended[-1].all()):
            raise ConfigError(
                f"loop.rollout_steps={len(ended)}: the rollout cuts {int((~ended[-1]).sum())} of "
                f"{ended.shape[1]} episodes, and GRPO compares whole ones. Set it to the task's horizon or a multiple "
                "of it (null: the horizon), on envs in groups (group_size)."
            )

    def numbers(self, advantages: Advantages, losses: list[float]) -> Metrics:
        """Return `informative`, the share of chunks whose group had different returns."""
        return {"informative": float(ranks.mean_of((advantages.advantage != 0.0).float()))}
