"""The two policy interfaces. State (queues, histories, clocks, RNG) lives in executors, never here."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

from robopolicy.normalize import Normalizer
from robopolicy.policies.chain import Chain, ChainNoise
from robopolicy.spec import PolicySpec
from robopolicy.types import Metrics, Obs


class Policy(nn.Module):
    """Maps observations to a chunk of actions in physical units.

    `spec` says what is read and commanded. `base` is the frozen policy underneath, where there is one: its next
    action is then part of the observation (`base_action`, see wrappers.BaseActionEnv).
    `noise_shape`: shape without batch axis of the standard normal noise that `act` consumes; () for none.
    """

    spec: PolicySpec
    base: Policy | None
    noise_shape: tuple[int, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.base = None  # not a class attribute: that would hide a module registered under this name

    @abstractmethod
    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        """Predict a chunk.

        Args:
            obs: each key of `spec.observation` as [B To ...]; images uint8, unscaled; other keys are ignored.
            noise: [B *noise_shape] standard normal; drawn from torch's global generator when None.
            deterministic: the mode (or mean) instead of a sample, where the policy has one.

        Returns:
            [B H Da] in physical units, not clamped: the environment clamps.
        """

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Imitation loss of a batch {key: [B To ...], "action": [B H Da], "action_is_pad": [B H] bool}."""
        raise NotImplementedError(f"{type(self).__name__} is not trained by imitation")


class DenoisingPolicy(Policy):
    """A policy that turns noise into a chunk step by step: DDPM, DDIM, flow matching.

    The observation is encoded once per observation, not once per denoising step. Of the S steps of a chain the last
    `tuned_steps` (K', 0 where nothing is fine-tuned) are run by a copy of the network, which reinforcement learning
    changes; the frozen original runs those before. `sample`, `act` and the saved policy always have both halves.
    `cond_dim`: C. `chain_noise_shape`: shape without batch axis of the standard normal noise of `sample_chain`.
    """

    normalizer: Normalizer
    tuned_steps: int
    cond_dim: int
    chain_noise_shape: tuple[int, ...]

    @abstractmethod
    def encode(self, obs: Obs) -> Tensor:
        """cond [B C] from normalised observations [B To ...]."""

    @abstractmethod
    def sample(self, cond: Tensor, *, noise: Tensor | None = None) -> Tensor:
        """Run the whole chain: [B H Da] in normalised units; latents are never clamped or truncated."""

    @abstractmethod
    def tuned_parameters(self) -> list[nn.Parameter]:
        """What reinforcement learning changes."""

    @abstractmethod
    def sample_chain(self, cond: Tensor, *, noise: Tensor, spread: ChainNoise) -> Chain:
        """Run the whole chain, its fine-tuned steps with the deviations of `spread`, and keep these.

        Args:
            cond: [B C]. noise: [B *chain_noise_shape] standard normal.
        """

    @abstractmethod
    def transition(self, cond: Tensor, x: Tensor, k: Tensor, *, frozen: bool = False) -> tuple[Tensor, Tensor]:
        """Mean [M H Da] and the sampler's own deviation (broadcasts) of fine-tuned steps.

        Args:
            cond: [M C]. x: [M H Da] latents that the steps begin at. k: [M] int64, 0 the noisiest … K'−1.
            frozen: as the frozen network would have it, not the fine-tuned one.
        """

    @abstractmethod
    def check_noise(self, spread: ChainNoise) -> None:
        """Raise ConfigError where a fine-tuned step would draw nothing under `spread`."""
