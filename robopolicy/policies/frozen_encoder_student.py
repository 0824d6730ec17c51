"""A small student that sees through the frozen prefix of a trained VLA, and need not learn to see."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Node, NonNegative, Positive
from robopolicy.core.errors import ConfigError, SpecError
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
from robopolicy.policies.vla import VLAPolicy, check_observation, prefix_node

_AT_ONCE = 256  # frames of a dataset that are looked at


class PrefixEncoder(nn.Module):
    """cond [B (1 + T)·S] from *normalised* observations [B To ...]: the prefix's summary of S numbers, brought to one
    scale, and once more in places of its own for each of T sentences (see `by_task`); [B S] where there is one.

    The summary leaves out the tokens, which need attention to be read. The prefix never learns here.

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
        """cond [B C] of normalised observations, or of summaries, `seen` [B 1 S], with the task's number [B To].

        Nothing is augmented, since a frozen prefix would learn nothing from that.
        """
        summary = obs[SEEN][:, -1] if SEEN in obs else self.summary(obs)
        return by_task(summary, obs[TASK][:, -1], self.tasks) if self.tasks else summary


class FrozenEncoderStudent(GaussianPolicy):
    """A Gaussian over chunks of what a frozen Prefix makes of an observation; see GaussianPolicy and Sight.

    It tells the sentences of its training apart by number, each with weights of its own, and follows no others.

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

    def encode(self, obs: Obs) -> Tensor:
        """See VLAPolicy."""
        check_observation(obs, self.spec)
        return super().encode(obs)

    @torch.no_grad()
    def precompute_features(self, obs: Obs, episode: Tensor) -> Obs:
        """What the prefix makes of every frame, `seen` [F S]; of policies that read several frames nothing is kept.

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
        """See GaussianPolicy; `obs` may be of what `remember` made.

        Raises:
            SpecError: as `encode`.
        """
        return self.density(self.encoder(obs) if SEEN in obs else self.encode(obs))


def make_frozen_encoder_student(
    base: Policy,
    *,
    demos: Episodes | None = None,
    network: Node,
    min_std: NonNegative = 0.01,
    initial_std: Positive = 0.1,
    imitate_std: bool = False,
) -> FrozenEncoderStudent:
    """A student of `base`'s horizon with a copy of its prefix and its normaliser, both of which stay as they are.

    It stands by itself: its checkpoints hold the prefix, and not the base or the base's action expert.

    Args:
        base: a VLAPolicy; a FrozenEncoderStudent goes on as it is.
        demos: demonstrations that it will learn from, whose sentences become its own; None: the base's.
        network: node of what makes the mean's network. min_std, initial_std, imitate_std: see GaussianPolicy.

    Raises:
        SpecError: the base is another policy, or looks things up in a memory, which a student cannot; or it cannot
            follow the sentences of `demos`. ConfigError: a FrozenEncoderStudent that was made with other options.
    """
    options = {"network": network, "min_std": min_std, "initial_std": initial_std, "imitate_std": imitate_std}
    if isinstance(base, FrozenEncoderStudent):
        return _as_it_is(base, demos, options)
    if not isinstance(base, VLAPolicy) or base.memory is not None:
        found = type(base).__name__ + (" with a memory" if base.memory is not None else "")
        raise SpecError(
            "base: policy=frozen_encoder_student encodes observations by the prefix of a policy=vla, found "
            f"{found}. Give the VLA itself; to encode images that another policy reads, use algo=bc policy=gaussian."
        )
    if demos is not None:
        base.set_tasks(demos.tasks)
    prefix = {**prefix_node(base), "precision": base.encoder.precision}
    node = {"_target_": "frozen_encoder_student", "prefix": prefix, **options}
    policy = build_policy(node, spec=base.spec, normalizer=copy.deepcopy(base.normalizer))
    assert isinstance(policy, FrozenEncoderStudent)
    policy.encoder.prefix.load_state_dict(base.encoder.state_dict())
    return policy.to(base.times.device)


def _as_it_is(base: FrozenEncoderStudent, demos: Episodes | None, options: dict[str, Any]) -> FrozenEncoderStudent:
    """`base`, unless something else is asked for than it is."""
    config: dict[str, Any] = base.config
    if others := {k: v for k, v in options.items() if config.get(k) != v}:
        own = {k: config.get(k) for k in others}
        raise ConfigError(
            f"policy: the base is a student already, made with {own}, and goes on as it is; found {others}. Set "
            "policy.* to the former, or give the VLA that it was made from as base=."
        )
    if demos is not None:
        base.set_tasks(demos.tasks)
    return base
