"""Act by a frozen denoising chain, of which reinforcement learning changes only what is around it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from robopolicy.config.instantiate import value_of
from robopolicy.config.schema import Node
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Obs
from robopolicy.policies.base import Policy
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.factory import build_policy
from robopolicy.policies.finetuning import chain_of, resampled
from robopolicy.policies.lerobot.flow import LeRobotFlow
from robopolicy.policies.normalizer import Normalizer


class FrozenChainPolicy(Policy):
    """Holds a frozen `chain`; subclasses hold a network `net` that learns.

    Args:
        policy: node of the frozen diffusion, flow or VLA policy.

    Raises:
        ConfigError: `policy` is of another kind, or has a fine-tuned copy.
    """

    net: nn.Module

    def __init__(self, spec: PolicySpec, normalizer: Normalizer, policy: Node) -> None:
        super().__init__()
        chain = build_policy(policy, "policy.policy", spec=spec, normalizer=normalizer)
        if not isinstance(chain, ChunkDenoiser) or chain.finetuned_steps:
            raise ConfigError(f"policy.policy: expected a frozen diffusion, flow or VLA policy, found {policy}")
        self.spec, self.chain, self.cond_dim = spec, chain.eval().requires_grad_(False), chain.cond_dim

    @property
    def normalizer(self) -> Normalizer:
        return self.chain.normalizer

    @property
    def times(self) -> Tensor:
        """[S] the network's time at each step of the chain."""
        return self.chain.times

    def set_tasks(self, tasks: tuple[str, ...]) -> None:
        """See Policy: as the frozen policy does."""
        self.chain.set_tasks(tasks)
        self.spec = self.chain.spec

    def encode(self, obs: Obs) -> Tensor:
        """Encode obs [B To ...] in physical units as cond [B C]."""
        return self.chain.encode(obs)

    def replay_features(self, obs: Obs) -> Obs:
        """See Policy: `seen` [N C], the encoded observation."""
        return self.chain.replay_features(obs)

    def finetuned_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that reinforcement learning changes: those of `net`."""
        return list(self.net.parameters())


def zero_ended(sizes: Sequence[int], out: int) -> nn.Sequential:
    """Make an MLP of these sizes, whose last layer starts at zero."""
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.SiLU()]
    last = nn.Linear(sizes[-1], out)
    for parameter in last.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(*layers, last)


def around(
    base: Policy, kind: type[FrozenChainPolicy], name: str, options: dict[str, Any], sampling: dict[str, Any]
) -> FrozenChainPolicy:
    """Return a policy of `kind` around a frozen copy of `base`. A base of this kind is returned unchanged.

    Args:
        base: diffusion, flow or VLA policy. name: of `kind` in configs. options: of `kind`, as plain values.
        sampling: changes of the base's sampler.

    Raises:
        SpecError: the base has no denoising chain, is a flow of LeRobot, or reads a retrieval memory.
        ConfigError: a fine-tuned base, or one of this kind with other options or another sampler.
    """
    if isinstance(base, kind):
        node: dict[str, Any] = base.config["policy"]
        own = {k: base.config[k] for k in options}
        own |= {"sampling": {k: value_of(node, "policy", k) for k in sampling}} if sampling else {}
        wanted = {**options, **({"sampling": sampling} if sampling else {})}
        if own != wanted:
            raise ConfigError(
                f"base: is {name} with {own}, and cannot go on with {wanted}. Set policy.* to the former, or give "
                "the base that it was made from."
            )
        return base
    chain = chain_of(base)
    if isinstance(chain, LeRobotFlow):
        raise SpecError(f"base: a flow of LeRobot cannot be {name} yet. Give a diffusion, flow or VLA policy of ours.")
    if chain.memory is not None:
        raise SpecError(f"base: reads a retrieval memory, which policy={name} cannot keep. Give a base without one.")
    if chain.finetuned_steps:
        raise ConfigError(
            f"base: {chain.finetuned_steps} of its {len(chain.times)} denoising steps are fine-tuned, and "
            f"policy={name} takes a policy as it was imitated. Give the one before fine-tuning, e.g. that of algo=bc."
        )
    frozen = resampled(chain, sampling, "policy.sampling")
    made = {"_target_": name, "policy": frozen.config, **options}
    policy = build_policy(made, spec=frozen.spec, normalizer=frozen.normalizer)
    assert isinstance(policy, kind)
    policy.chain.load_state_dict(frozen.state_dict())
    return policy.to(chain.times.device).eval()
