"""Train a small student on the frozen encoder of a VLA."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Node, NonNegative, Positive
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.observations import check_observation
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import TASK, Obs
from robopolicy.datasets.episodes import Episodes
from robopolicy.networks.mlp import MLP_3
from robopolicy.networks.prefix import Prefix
from robopolicy.networks.task_conditioned import by_task
from robopolicy.policies.base import SEEN, Policy
from robopolicy.policies.factory import build_policy
from robopolicy.policies.gaussian import GaussianPolicy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.policies.vla import VLAPolicy, prefix_node

_AT_ONCE = 256  # frames of a dataset that are encoded at a time


class PrefixEncoder(nn.Module):
    """Encodes *normalised* observations [B To ...] as cond [B (1 + T)·S], or [B S] where there is one task.

    cond is the prefix's normalised summary of S numbers, followed by one block of S for each of T tasks (see
    `by_task`). The summary contains no tokens, since these need attention. The prefix is frozen.

    Args:
        prefix: makes the Prefix from the spec.

    Raises:
        SpecError: as Prefix.
    """

    def __init__(self, spec: PolicySpec, *, prefix: Callable[..., Prefix]) -> None:
        super().__init__()
        self.prefix = prefix(spec).requires_grad_(False)
        self.tasks = len(spec.tasks) if TASK in spec.observation and len(spec.tasks) > 1 else 0
        self.out_dim = self.prefix.summary_dim * (1 + self.tasks)

    @torch.no_grad()
    def summary(self, obs: Obs) -> Tensor:
        """[B S] of normalised observations [B To ...]."""
        size = self.prefix.summary_dim
        return nn.functional.layer_norm(self.prefix(obs)[:, :size], (size,))

    def forward(self, obs: Obs, *, augment: bool = False) -> Tensor:
        """Encode normalised observations, or precomputed summaries `seen` [B 1 S] with the task's number [B To].

        `augment` has no effect, since the prefix is frozen.
        """
        summary = obs[SEEN][:, -1] if SEEN in obs else self.summary(obs)
        return by_task(summary, obs[TASK][:, -1], self.tasks) if self.tasks else summary


class FrozenEncoderStudent(GaussianPolicy):
    """A Gaussian over chunks on top of a frozen Prefix; see GaussianPolicy and PrefixEncoder.

    It identifies the instructions of its training by number, with weights for each, and follows no others.

    Args:
        prefix: makes the Prefix from the spec.
        network, min_std, initial_std, imitate_std: see GaussianPolicy.

    Raises:
        SpecError: as Prefix.
    """

    encoder: PrefixEncoder

    def __init__(
        self,
        spec: PolicySpec,
        normalizer: Normalizer,
        *,
        prefix: Callable[..., Prefix],
        network: Callable[[int, int], nn.Module] = MLP_3,
        min_std: NonNegative = 0.01,
        initial_std: Positive = 0.1,
        imitate_std: bool = False,
    ) -> None:
        super().__init__(
            spec, normalizer, network=network, min_std=min_std, initial_std=initial_std, imitate_std=imitate_std,
            encoder=lambda spec: PrefixEncoder(spec, prefix=prefix),
        )  # fmt: skip

    @torch.no_grad()
    def precompute_features(self, obs: Obs, episode: Tensor) -> Obs:
        """Encode every frame as `seen` [F S]; policies that read several frames precompute nothing.

        Raises:
            SpecError: as `encode`.
        """
        if self.spec.n_obs_steps > 1:
            return obs
        seen = []
        for first in range(0, len(episode), _AT_ONCE):
            part = {k: obs[k][first : first + _AT_ONCE, None] for k in self.spec.observation}
            check_observation(part, self.spec)
            seen.append(self.encoder.summary(self.normalizer.observation(part)))
        return {SEEN: torch.cat(seen), **{k: v for k, v in obs.items() if k == TASK}}

    def mean_std(self, obs: Obs, *, augment: bool = False) -> tuple[Tensor, Tensor]:
        """See GaussianPolicy; `obs` may hold the features of `precompute_features`.

        Raises:
            SpecError: as `encode`.
        """
        return self.density(self.encoder(obs) if SEEN in obs else self.encode(obs))


def make_frozen_encoder_student(
    base: Policy,
    *,
    episodes: Episodes | None = None,
    network: Node,
    min_std: NonNegative = 0.01,
    initial_std: Positive = 0.1,
    imitate_std: bool = False,
) -> FrozenEncoderStudent:
    """Make a student of `base`'s horizon with a frozen copy of its prefix and its normaliser.

    Its checkpoints hold the prefix, but neither the base nor the base's action expert.

    Args:
        base: a VLAPolicy; a FrozenEncoderStudent is returned unchanged.
        episodes: demonstrations to learn from, whose instructions become the student's; None: the base's.
        network: node of what makes the mean's network. min_std, initial_std, imitate_std: see GaussianPolicy.

    Raises:
        SpecError: the base is another policy, has a retrieval memory, or cannot follow the dataset's instructions.
        ConfigError: a FrozenEncoderStudent that was made with other options.
    """
    options = {"network": network, "min_std": min_std, "initial_std": initial_std, "imitate_std": imitate_std}
    if isinstance(base, FrozenEncoderStudent):
        return _as_it_is(base, episodes, options)
    if not isinstance(base, VLAPolicy) or base.memory is not None:
        found = type(base).__name__ + (" with a memory" if base.memory is not None else "")
        raise SpecError(
            "base: policy=frozen_encoder_student encodes observations by the prefix of a policy=vla, found "
            f"{found}. Give the VLA itself; to encode images that another policy reads, use algo=bc policy=gaussian."
        )
    _add_tasks(base, episodes)
    prefix = {**prefix_node(base), "precision": base.encoder.precision}
    node = {"_target_": "frozen_encoder_student", "prefix": prefix, **options}
    policy = build_policy(node, spec=base.spec, normalizer=copy.deepcopy(base.normalizer))
    assert isinstance(policy, FrozenEncoderStudent)
    policy.encoder.prefix.load_state_dict(base.encoder.state_dict())
    return policy.to(base.times.device)


def _as_it_is(base: FrozenEncoderStudent, episodes: Episodes | None, options: dict[str, Any]) -> FrozenEncoderStudent:
    """Return `base` after checking that it was made with the same options."""
    config: dict[str, Any] = base.config
    if others := {k: v for k, v in options.items() if config.get(k) != v}:
        own = {k: config.get(k) for k in others}
        raise ConfigError(
            f"policy: the base is a student already, made with {own}, and goes on as it is; found {others}. Set "
            "policy.* to the former, or give the VLA that it was made from as base=."
        )
    _add_tasks(base, episodes)
    return base


def _add_tasks(base: VLAPolicy | FrozenEncoderStudent, episodes: Episodes | None) -> None:
    """Give `base` the dataset's instructions where it lacks one; else it counts on as its env does."""
    if episodes is not None and not set(episodes.tasks) <= set(base.spec.tasks):
        base.set_tasks(episodes.tasks)
