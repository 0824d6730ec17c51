"""Interfaces of policies. State (queues, histories, clocks, RNG) lives in executors, never here."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from robopolicy.core.errors import SpecError
from robopolicy.core.observations import check_observation
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import BASE_ACTION, TASK, Metrics, Obs
from robopolicy.datasets.episodes import Episodes
from robopolicy.datasets.retrieval import Memory
from robopolicy.networks.encoders import ObservationEncoder
from robopolicy.policies.denoising_chain import ChainNoise, DenoisingChain
from robopolicy.policies.normalizer import ACTION, Normalizer

SEEN = "seen"  # key of the encoded observation [N C] among replay features, where the encoder is frozen


class Policy(nn.Module):
    """Maps observations to a chunk of actions in physical units.

    `spec`: observations that are read, and actions. `base`: the frozen policy underneath, or None; its next action is
    part of the observation (`base_action`, see wrappers.BaseActionEnv). `memory`: demonstrations to retrieve, or None.
    `noise_shape`: shape without batch axis of the standard normal noise that `act` consumes; () for none.
    """

    spec: PolicySpec
    config: dict[str, Any]  # the node that `build_policy` built it from
    base: Policy | None
    memory: Memory | None
    noise_shape: tuple[int, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.base = None  # not a class attribute: that would hide a module registered under this name
        self.memory = None

    @property
    def depth(self) -> int:
        """Number of policies underneath."""
        return 0 if self.base is None else 1 + self.base.depth

    @property
    def follows_noise(self) -> bool:
        """Whether a chunk follows one initial noise [H Da]; not so where a policy corrects another or chooses."""
        return self.base is None

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

    def set_tasks(self, tasks: tuple[str, ...]) -> None:
        """Let `task_index` count in `tasks`, the instructions of the env, from now on.

        Raises:
            SpecError: `tasks` differ from those of training, and the policy reads no instructions.
        """
        if TASK in self.spec.observation and tuple(tasks) != self.spec.tasks:
            raise SpecError(
                f"tasks: the policy tells the {len(self.spec.tasks)} tasks of its training apart by number, and the "
                f"env's are others: {', '.join(sorted(set(tasks) ^ set(self.spec.tasks))) or 'in another order'}. "
                "Only policies that read instructions (policy=vla) can follow new ones."
            )

    def replay_features(self, obs: Obs) -> Obs:
        """Compute a replay buffer's single frames [N ...] from stacked observations [N To ...].

        These are the newest frames, or features from frozen parts of the policy. `base_action` has no history axis.
        """
        return {k: obs[k] if k == BASE_ACTION else obs[k][:, -1] for k in self.spec.observation}

    def precompute_features(self, obs: Obs, episode: Tensor) -> Obs:
        """Compute once what `loss` reads in place of a dataset's observations [F ...].

        These are features from frozen parts of the policy, or the observations themselves.

        Args:
            episode: [F] int64, seed of each frame's episode.
        """
        return obs

    def set_retrieval_memory(self, episodes: Episodes | None) -> None:
        """Replace the demonstrations in memory; None: clear it.

        Raises:
            SpecError: the policy has no memory, or cannot read these episodes.
        """
        raise SpecError(
            f"memory: {type(self).__name__} acts from its weights alone and looks nothing up. Train one that does with "
            "policy=ricl, or leave memory away."
        )

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Compute the imitation loss of a batch {key: [B To ...], "action": [B H Da], "action_is_pad": [B H] bool}."""
        raise NotImplementedError(f"{type(self).__name__} is not trained by imitation")

    def loss_items(self, batch: dict[str, Any]) -> int:
        """Count the items whose mean `loss` is: actions that are not padding."""
        return int((~batch["action_is_pad"]).sum())


def with_bases(policy: Policy) -> list[Policy]:
    """List `policy` and the policies underneath it, from the top."""
    return [policy] if policy.base is None else [policy, *with_bases(policy.base)]


class LikelihoodPolicy(Policy):
    """A policy over chunks whose density is known. `cond_dim`: C of the encoded observation.

    The config is checked against ObservationEncoder's keywords too, which constructors take as `**options`.
    """

    normalizer: Normalizer
    encoder: nn.Module
    cond_dim: int

    @staticmethod
    def forwards_to(given: object) -> tuple[type, ...]:
        return (ObservationEncoder,)

    def encode(self, obs: Obs) -> Tensor:
        """cond [B C] from obs [B To ...] in physical units; raises SpecError as `check_observation`."""
        check_observation(obs, self.spec)
        return self.encoder(self.normalizer.observation(obs))

    @abstractmethod
    def draw(self, cond: Tensor, noise: Tensor | None) -> Tensor:
        """[B H Da] normalised, from cond [B C] and noise [B *noise_shape]; None: the mode."""

    @abstractmethod
    def log_prob(self, cond: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Compute the log-density [B] per element of the steps of x [B H Da] with weight [B ≤H] above 0.

        Args:
            weight: one over the number of such steps, or 0.
        """

    @torch.no_grad()
    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        """[B H Da] physical units: a sample, or the mode."""
        cond = self.encode(obs)
        if noise is None and not deterministic:
            noise = torch.randn(len(cond), *self.noise_shape, device=cond.device, dtype=cond.dtype)
        return self.normalizer.unnormalize(ACTION, self.draw(cond, None if deterministic else noise))

    def density_parameters(self) -> list[nn.Parameter]:
        """Return all parameters except the encoder's, which is frozen here."""
        self.encoder.requires_grad_(False)
        return [p for p in self.parameters() if p.requires_grad]


class DenoisingStep(NamedTuple):
    """One step of a denoising chain, normalised units; it begins at latents x = signal · chunk + spread · noise."""

    signal: float
    spread: float
    clean: Callable[[Tensor], Tensor]  # x [B H Da] → the chunk [B H Da] that the network expects; never clamped
    onward: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # x, chunk → mean and deviation of the next latent


class DenoisingPolicy(Policy):
    """A policy that turns noise into a chunk step by step: DDPM, DDIM, flow matching.

    An observation is encoded once, not once per denoising step. A copy of the network runs the last `finetuned_steps`
    (K', possibly 0) of the S steps of a chain, and reinforcement learning changes only this copy. The frozen original
    runs the earlier steps. `sample`, `act` and the saved policy contain both.
    `cond_dim`: critics and noise read this many numbers of cond [B C], the first ones. The rest is for the denoiser.
    `chain_noise_shape`: shape without batch axis of the standard normal noise of `sample_chain`.
    """

    normalizer: Normalizer
    finetuned_steps: int
    cond_dim: int
    chain_noise_shape: tuple[int, ...]

    @abstractmethod
    def encode(self, obs: Obs) -> Tensor:
        """cond [B C] from observations [B To ...] in physical units."""

    @abstractmethod
    def sample(self, cond: Tensor, *, noise: Tensor | None = None) -> Tensor:
        """Run the whole chain: [B H Da] in normalised units; latents are never clamped or truncated."""

    @abstractmethod
    def unroll(self, cond: Tensor) -> Iterator[DenoisingStep]:
        """Yield the steps of `sample` at cond [B C], the noisiest first; samplers steer the chain in between."""

    @abstractmethod
    def finetuned_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that reinforcement learning changes."""

    @abstractmethod
    def begin_chain(self, cond: Tensor, *, noise: Tensor) -> Tensor:
        """Run the frozen steps: latents [B H Da] before the fine-tuned ones; arguments as in `sample_chain`."""

    @abstractmethod
    def sample_chain(
        self, cond: Tensor, *, noise: Tensor, spread: ChainNoise, start: Tensor | None = None
    ) -> DenoisingChain:
        """Run the whole chain and keep its fine-tuned steps, whose deviations are those of `spread`.

        Args:
            cond: [B C]. noise: [B *chain_noise_shape] standard normal.
            start: [B H Da] latents before the fine-tuned steps, from `begin_chain`; None: the frozen steps run here.
        """

    @abstractmethod
    def transition(self, cond: Tensor, x: Tensor, k: Tensor, *, frozen: bool = False) -> tuple[Tensor, Tensor]:
        """Compute the mean [M H Da] and the sampler's deviation (broadcasts) of fine-tuned steps.

        Args:
            cond: [M C]. x: [M H Da] latents before the steps. k: [M] int64, 0 the noisiest … K'−1.
            frozen: use the frozen network instead of the fine-tuned one.
        """

    @abstractmethod
    def check_noise(self, spread: ChainNoise) -> None:
        """Raise ConfigError where a fine-tuned step is deterministic under `spread`, or `spread` does not fit."""


@contextmanager
def use_tasks(policy: Policy, tasks: tuple[str, ...]) -> Iterator[None]:
    """Let `task_index` count in `tasks` within the context; see Policy.set_tasks."""
    before = policy.spec.tasks
    if tasks == before:
        yield
        return
    policy.set_tasks(tasks)
    try:
        yield
    finally:
        policy.set_tasks(before)
