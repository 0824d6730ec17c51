"""Share encoding, the masked regression loss, sampling and scoring between diffusion and flow policies."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Count, Fraction, Natural
from robopolicy.core.errors import ConfigError, RobopolicyError
from robopolicy.core.observations import check_observation
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Metrics, Obs, newest
from robopolicy.networks.denoiser import Denoiser, sees_time
from robopolicy.networks.encoders import ObservationEncoder
from robopolicy.networks.lora import adapt, plain_state
from robopolicy.policies.base import SEEN, DenoisingPolicy, DenoisingStep
from robopolicy.policies.denoising_chain import ChainNoise, DenoisingChain, check_stochastic, gaussian_log_prob
from robopolicy.policies.factory import build_policy
from robopolicy.policies.normalizer import ACTION, Normalizer


class ChunkDenoiser(DenoisingPolicy):
    """A Denoiser over chunks behind an observation encoder. Subclasses define the corruption and the sampling steps.

    Args:
        count: S, steps of a chain. `times` [S], which subclasses register, holds the network's time at each.
        network: makes the Denoiser from `horizon`, `action_dim` and `cond_dim`.
        encoder: makes the whole observation encoder from the spec; ObservationEncoder when None.
        state_encoder, image_encoder, points_encoder, image_shift, point_dropout, task_weights: see
            ObservationEncoder.
        noise_samples: noised chunks per observation in a training batch. With images, encoding dominates the cost, so
            more of them are nearly free (Mini-Diffuser, Hu et al. 2025).
        finetuned_steps: K', denoising steps at the end of the chain that a fine-tuned copy of the network runs.
        lora_rank: rank of that copy's change of every weight (Hu et al. 2022); 0: the whole copy is fine-tuned.

    Raises:
        ConfigError: finetuned_steps outside 0…S, or a network that sees no time for several steps.
    """

    times: Tensor

    @staticmethod
    def forwards_to(given: object) -> tuple[type, ...]:
        return (ChunkDenoiser,)

    def __init__(
        self,
        spec: PolicySpec,
        normalizer: Normalizer,
        count: int,
        /,
        *,
        network: Callable[..., Denoiser],
        encoder: Callable[[PolicySpec], nn.Module] | None = None,
        state_encoder: Callable[[int], nn.Module] | None = None,
        image_encoder: Callable[[tuple[int, ...]], nn.Module] | None = None,
        points_encoder: Callable[[tuple[int, ...]], nn.Module] | None = None,
        image_shift: Natural = 4,
        point_dropout: Fraction = 0.5,
        task_weights: bool = True,
        noise_samples: Count = 1,
        finetuned_steps: Natural = 0,
        lora_rank: Natural = 0,
    ) -> None:
        super().__init__()
        self.spec, self.normalizer = spec, normalizer
        self.noise_samples, self.finetuned_steps = noise_samples, finetuned_steps
        if not 0 <= finetuned_steps <= count:
            raise ConfigError(
                f"finetuned_steps (K') must lie between 0 and the {count} steps of sampling, found {finetuned_steps}"
            )
        made: Any = encoder(spec) if encoder else ObservationEncoder(
            spec, state_encoder=state_encoder, image_encoder=image_encoder, points_encoder=points_encoder,
            image_shift=image_shift, point_dropout=point_dropout, task_weights=task_weights,
        )  # fmt: skip
        self.encoder, self.cond_dim = made, made.out_dim
        self.network = network(horizon=spec.horizon, action_dim=spec.action.dim, cond_dim=self.cond_dim)
        if count > 1 and not sees_time(self.network):
            raise ConfigError(
                f"sampling_steps: expected 1, as the network sees no time (network.time_dim=0), found {count}. Train a "
                "policy of more steps with network.time_dim=32 or more"
            )
        self.chain_noise_shape = (count + 1, spec.horizon, spec.action.dim)
        self.finetuned: Denoiser | None = None
        if finetuned_steps:
            self.requires_grad_(False)
            self.finetuned = adapt(copy.deepcopy(self.network), lora_rank)

    def changed(self, **options: Any) -> ChunkDenoiser:
        """Build a policy of the same config with other `options`; its weights are not loaded yet."""
        node: dict[str, Any] = {**self.config, **options}
        policy = build_policy(node, spec=self.spec, normalizer=copy.deepcopy(self.normalizer)).to(self.times.device)
        assert isinstance(policy, ChunkDenoiser)
        return policy

    def begin_finetuning(self) -> None:
        """Make the fine-tuned network equal the frozen one."""
        assert self.finetuned is not None
        state, own = self.network.state_dict(), self.finetuned.state_dict()
        self.finetuned.load_state_dict({k: state.get(plain_state(k), v) for k, v in own.items()})

    def finetuned_parameters(self) -> list[nn.Parameter]:
        return [] if self.finetuned is None else [p for p in self.finetuned.parameters() if p.requires_grad]

    def encode(self, obs: Obs) -> Tensor:
        """Encode obs [B To ...] in physical units as cond [B C]; raises SpecError as `check_observation`."""
        check_observation(obs, self.spec)
        return self.encoder(self.normalizer.observation(obs))

    @torch.no_grad()
    def replay_features(self, obs: Obs) -> Obs:
        """See Policy: `seen` [N C], the encoded observation; for frozen encoders."""
        part = {k: v.to(self.times.device) for k, v in newest(obs, self.spec).items()}
        return {SEEN: self.encode(part).to(next(iter(obs.values())).device)}

    @torch.no_grad()
    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        """[B H Da] physical units. A pure function of `obs` and `noise`; deterministic: all noise zero."""
        cond = self.encode(obs)
        if deterministic:
            noise = cond.new_zeros(cond.shape[0], *self.noise_shape)
        return self.normalizer.unnormalize(ACTION, self.sample(cond, noise=noise))

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Mean squared error of the network's prediction, over all elements of actions that are not padding."""
        if self.finetuned_steps:
            raise RobopolicyError("a policy with a fine-tuned copy is not trained by imitation; train its base")
        if not sees_time(self.network):
            raise ConfigError("network.time_dim: is 0, and imitation learns at all times of a chain. Say 32 or more")
        action = self.normalizer.normalize(ACTION, batch[ACTION])  # [B H Da]
        keep = ~batch["action_is_pad"]  # [B H]
        cond = self.encode_batch(batch)
        if self.noise_samples > 1:
            action, keep = (x.repeat_interleave(self.noise_samples, dim=0) for x in (action, keep))
        x, t, target = self.corrupt(action)
        error = (self.network(x, t, cond) - target).square().mean(-1)  # [B H]
        return (error * keep).sum() / keep.sum(), {}

    def encode_batch(self, batch: dict[str, Any]) -> Tensor:
        """Encode a training batch as cond [B C], images augmented."""
        return self.encoder(self.normalizer.observation(batch), augment=True)

    @abstractmethod
    def corrupt(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Noise clean chunks: return them [B H Da], their times [B] in [0, 1] and regression targets [B H Da]."""

    @abstractmethod
    def noised(self, action: Tensor, noise: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Compute latents [B H Da] before sampling steps `index` [B], and their regression targets [B H Da]."""

    def finetuned_loss(
        self, cond: Tensor, action: Tensor, keep: Tensor, *, k: Tensor, noise: Tensor, of_chunk: bool = False
    ) -> Tensor:
        """Compute `loss` [] of the fine-tuned copy at its steps: the same error, at times of the sampling grid.

        Args:
            cond: [B C]. action: [B H Da] normalised. keep: [B H] weight of each step, or bool.
            k: [B] int64, 0 the noisiest … K'−1. noise: [B H Da] standard normal.
            of_chunk: take the error of the chunk that the network expects, where that is smaller than its output's. (A
                chunk that is told from its noise is almost arbitrary where there is little but noise.)
        """
        index = k + len(self.times) - self.finetuned_steps
        x, target = self.noised(action, noise, index)
        found = self.prediction(cond, x, k)
        error = found - target
        if of_chunk:
            slope = self.clean(x.new_zeros(len(x), 1, 1), x.new_ones(len(x), 1, 1), index).abs()
            error = (self.clean(x, found, index) - action) / slope.clamp_min(1.0)
        return (error[:, : keep.shape[1]].square().mean(-1) * keep).sum() / keep.sum()

    @abstractmethod
    def mean_std(self, x: Tensor, prediction: Tensor, index: int | Tensor) -> tuple[Tensor, Tensor]:
        """Mean [B H Da] and standard deviation (broadcasts) of the latent after sampling step `index`, one or [B]."""

    @abstractmethod
    def level(self, index: int) -> tuple[float, float]:
        """Signal and spread of the latents x = signal · chunk + spread · noise before sampling step `index`."""

    @abstractmethod
    def clean(self, x: Tensor, prediction: Tensor, index: int | Tensor) -> Tensor:
        """The chunk [B H Da] that `prediction` [B H Da] at x [B H Da] expects; not clamped."""

    @abstractmethod
    def toward(self, x: Tensor, clean: Tensor, index: int | Tensor) -> tuple[Tensor, Tensor]:
        """`mean_std` of the prediction that expects the chunk `clean` [B H Da]."""

    def stages(self, cond: Tensor) -> Iterator[tuple[int, Callable[[Tensor], Tensor]]]:
        """Yield every step of the chain: its index, and the prediction [B H Da] as a function of x [B H Da].

        Each network embeds the observation once and all its times in one small batch; see sees_time.
        """
        split = len(self.times) - self.finetuned_steps
        for network, steps in ((self.network, range(split)), (self.finetuned, range(split, len(self.times)))):
            if network is not None and len(steps):
                from_cond = network.embed_cond(cond)
                if not sees_time(network):
                    yield steps.start, partial(network.denoise, embedding=from_cond)
                    continue
                from_time = network.embed_time(self.times[steps.start : steps.stop])
                for i, time in zip(steps, from_time, strict=True):
                    yield i, partial(network.denoise, embedding=from_cond + time)

    def unroll(self, cond: Tensor) -> Iterator[DenoisingStep]:
        """See DenoisingPolicy."""
        for i, predict in self.stages(cond):
            expect = partial(lambda predict, i, x: self.clean(x, predict(x), i), predict, i)
            yield DenoisingStep(*self.level(i), expect, partial(self.toward, index=i))

    def sample(self, cond: Tensor, *, noise: Tensor | None = None) -> Tensor:
        """[B H Da] normalised, from cond [B C] and noise [B *noise_shape]."""
        noise = self.draw(cond, noise)
        stochastic = noise.ndim == 4
        x = noise[:, 0] if stochastic else noise
        for i, predict in self.stages(cond):
            x, std = self.mean_std(x, predict(x), i)
            if stochastic:
                x = torch.addcmul(x, std, noise[:, i + 1])
        return x

    def begin_chain(self, cond: Tensor, *, noise: Tensor) -> Tensor:
        """See DenoisingPolicy."""
        x = noise[:, 0]
        for i, predict in self.stages(cond):
            if i == len(self.times) - self.finetuned_steps:
                break
            mean, std = self.mean_std(x, predict(x), i)
            x = torch.addcmul(mean, std, noise[:, i + 1])
        return x

    def sample_chain(
        self, cond: Tensor, *, noise: Tensor, spread: ChainNoise, start: Tensor | None = None
    ) -> DenoisingChain:
        """See DenoisingPolicy. Log-probs are computed while sampling, without further network calls."""
        count, split = self.spec.n_action_steps, len(self.times) - self.finetuned_steps
        x, latents, log_probs = noise[:, 0] if start is None else start, [], []
        for i, predict in self.stages(cond):
            if i < split and start is not None:
                continue
            mean, std = self.mean_std(x, predict(x), i)
            if i >= split:
                latents.append(x)
                own, std = std, spread.sampling(std, i - split, cond)
                x = torch.addcmul(mean, std, noise[:, i + 1])
                score = spread.likelihood(own, i - split, cond)
                log_probs.append(gaussian_log_prob(x[:, :count], mean[:, :count], score))
            else:
                x = torch.addcmul(mean, std, noise[:, i + 1])
        return DenoisingChain(torch.stack([*latents, x], dim=1), torch.stack(log_probs, dim=1))

    def transition(self, cond: Tensor, x: Tensor, k: Tensor, *, frozen: bool = False) -> tuple[Tensor, Tensor]:
        """See DenoisingPolicy."""
        prediction = self.prediction(cond, x, k, frozen=frozen)
        return self.mean_std(x, prediction, k + len(self.times) - self.finetuned_steps)

    def prediction(self, cond: Tensor, x: Tensor, k: Tensor, *, frozen: bool = False) -> Tensor:
        """Compute the network's output [M H Da] at latents x [M H Da] of fine-tuned steps k [M]; see `transition`."""
        network = self.network if frozen else self.finetuned
        assert network is not None
        # A product with one-hot rows has a product as its gradient; indexing would have a slow scatter.
        chosen = nn.functional.one_hot(k, self.finetuned_steps).to(x.dtype)
        times = self.times[-self.finetuned_steps :]
        return network.denoise(x, torch.addmm(network.embed_cond(cond), chosen, network.embed_time(times)))

    def check_noise(self, spread: ChainNoise) -> None:
        """See DenoisingPolicy."""
        k = torch.arange(self.finetuned_steps, device=self.times.device)
        shape = (self.finetuned_steps, self.spec.horizon, self.spec.action.dim)
        zero = self.times.new_zeros(shape)
        _, std = self.mean_std(zero, zero, k + len(self.times) - self.finetuned_steps)
        cond = self.times.new_zeros(self.finetuned_steps, self.cond_dim)
        spread.check(std)
        for deviation in (spread.sampling(std, k, cond), spread.likelihood(std, k, cond)):
            check_stochastic(deviation.expand(shape))

    def draw(self, cond: Tensor, noise: Tensor | None) -> Tensor:
        """Check `noise` [B *noise_shape], or draw it from torch's global generator."""
        shape = (cond.shape[0], *self.noise_shape)
        if noise is None:
            return torch.randn(shape, device=cond.device, dtype=cond.dtype)
        if tuple(noise.shape) != shape:
            raise ValueError(f"noise must have shape [B *noise_shape] = {shape}, found {tuple(noise.shape)}")
        return noise
