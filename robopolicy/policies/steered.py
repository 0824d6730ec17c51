"""Choose the initial noise of a frozen denoising chain (DSRL, Wagenmaker et al. 2025)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Count, Node, Positive
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Obs
from robopolicy.policies.base import Policy
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.diffusion import DiffusionPolicy
from robopolicy.policies.factory import build_policy
from robopolicy.policies.finetuning import chain_of, resampled
from robopolicy.policies.lerobot.flow import LeRobotFlow
from robopolicy.policies.normalizer import ACTION, Normalizer

_MAX_LOG_STD = 2.0


class SteeredPolicy(Policy):
    """chunk = chain(w), w = μ(cond) + σ(cond) · noise: a small network chooses the distribution of the chain's start.

    |μ| < bound and σ ∈ (e⁻², e²). The network's last layer starts at zero, so before training w is the noise itself and
    this policy is its base without the noise of later steps. The chain is frozen and deterministic (DDIM, Euler steps).
    `deterministic=true` starts the chain at μ.

    Args:
        policy: node of the frozen diffusion, flow or VLA policy.
        hidden: widths of the network's hidden layers.
        bound: of each element of μ; w has deviation 1 where nothing is steered.

    Raises:
        ConfigError: `policy` is of another kind, has a fine-tuned copy, or draws noise in later steps.
    """

    noise_shape: tuple[int, ...]  # (H, Da)

    def __init__(
        self,
        spec: PolicySpec,
        normalizer: Normalizer,
        *,
        policy: Node,
        hidden: tuple[Count, ...] = (256, 256),
        bound: Positive = 1.5,
    ) -> None:
        super().__init__()
        chain = build_policy(policy, "policy.policy", spec=spec, normalizer=normalizer)
        if not isinstance(chain, ChunkDenoiser) or chain.finetuned_steps or len(chain.noise_shape) != 2:
            raise ConfigError(
                "policy.policy: expected a frozen diffusion, flow or VLA policy whose chain draws no noise after "
                f"its start, found {policy}. Make it by policy=steered from such a base."
            )
        self.spec, self.chain = spec, chain.eval().requires_grad_(False)
        self.noise_shape, self.cond_dim, self.bound = chain.noise_shape, chain.cond_dim, bound
        sizes = [chain.cond_dim, *hidden]
        layers: list[nn.Module] = []
        for a, b in zip(sizes[:-1], sizes[1:], strict=True):
            layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.SiLU()]
        last = nn.Linear(sizes[-1], 2 * spec.horizon * spec.action.dim)
        for parameter in last.parameters():
            nn.init.zeros_(parameter)
        self.net = nn.Sequential(*layers, last)

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

    def distribution(self, cond: Tensor) -> tuple[Tensor, Tensor]:
        """Compute μ and log σ [B H Da] of the chain's start at cond [B C]."""
        found = self.net(cond[:, : self.cond_dim]).unflatten(1, (2, *self.noise_shape))
        return self.bound * torch.tanh(found[:, 0] / self.bound), _MAX_LOG_STD * torch.tanh(found[:, 1] / _MAX_LOG_STD)

    def steer(self, cond: Tensor, noise: Tensor) -> Tensor:
        """Return the chain's start w [B H Da] for cond [B C] and standard normal noise [B H Da]."""
        mean, log_std = self.distribution(cond)
        return mean + log_std.exp() * noise

    def sample(self, cond: Tensor, *, noise: Tensor | None = None) -> Tensor:
        """Return chunks [B H Da], normalised, from cond [B C] and noise [B H Da]; None: drawn."""
        return self.chain.sample(cond, noise=self.steer(cond, self.chain.draw(cond, noise)))

    def finetuned_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that reinforcement learning changes: of the steering network."""
        return list(self.net.parameters())

    @torch.no_grad()
    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        """[B H Da] physical units. A pure function of `obs` and `noise`; deterministic: noise zero, so w = μ."""
        cond = self.encode(obs)
        if deterministic:
            noise = cond.new_zeros(len(cond), *self.noise_shape)
        return self.normalizer.unnormalize(ACTION, self.sample(cond, noise=noise))


def make_steered(
    base: Policy,
    *,
    hidden: tuple[Count, ...] = (256, 256),
    bound: Positive = 1.5,
    sampling: dict[str, Any] | None = None,
) -> SteeredPolicy:
    """Return a policy that steers a frozen copy of `base`; before training it samples as `base` does without noise in
    later steps. A steered base is returned unchanged.

    Args:
        base: diffusion, flow or VLA policy. hidden, bound: see SteeredPolicy.
        sampling: changes of the base's sampler: `sampling_steps`. The chain is made deterministic in any case.

    Raises:
        SpecError: the base has no denoising chain, is a flow of LeRobot, or reads a retrieval memory.
        ConfigError: a fine-tuned base, a base that is steered with other options, or `sampling` asks for noise.
    """
    options = {"hidden": list(hidden), "bound": bound}
    if isinstance(base, SteeredPolicy):
        own = {k: base.config[k] for k in options}
        if own != options:
            raise ConfigError(
                f"base: is steered with {own}, and cannot go on with {options}. Set policy.* to the former, or give "
                "the base that it was made from."
            )
        return base
    chain = chain_of(base)
    if isinstance(chain, LeRobotFlow):
        raise SpecError("base: a flow of LeRobot cannot be steered yet. Give a diffusion, flow or VLA policy of ours.")
    if chain.memory is not None:
        raise SpecError("base: reads a retrieval memory, which policy=steered cannot keep. Give a base without one.")
    still: dict[str, Any] = (
        {"sampler": "ddim", "eta": 0.0} if isinstance(chain, DiffusionPolicy) else {"noise_level": 0.0}
    )
    frozen = resampled(chain, {**still, **(sampling or {})}, "policy.sampling")
    node = {"_target_": "steered", "policy": frozen.config, **options}
    policy = build_policy(node, spec=frozen.spec, normalizer=frozen.normalizer)
    assert isinstance(policy, SteeredPolicy)
    policy.chain.load_state_dict(frozen.state_dict())
    return policy.to(chain.times.device).eval()
