"""Predict a chunk with each type of LeRobot policy, from stacked observations and explicit noise.

LeRobot's policies keep queues of observations and actions. Here the executor has the queues. So every call starts from
an empty policy and is a pure function of its observations and noise, row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robopolicy.core.errors import CheckpointError

Batch = dict[str, Any]
SEED_SHAPE = (2,)  # normal numbers that determine a generator's seed
_STATE, _IMAGES = "observation.state", "observation.images"


@dataclass(frozen=True)
class Kind:
    """A type of LeRobot policy, described by functions of its config.

    `steps`: To, H, Ta. `noise`: shape of the noise of one row. `stacked`: observations keep their To axis where To
    is 1. `predict`: the chunk [B H Da], normalised, of a policy, its batch and noise [B *noise].
    """

    steps: Callable[[Any], tuple[int, int, int]]
    noise: Callable[[Any], tuple[int, ...]]
    predict: Callable[[Any, Batch, Tensor | None], Tensor]
    stacked: bool = False


def kind_of(config: Any) -> Kind:
    """Return how policies of `config.type` predict. Unlisted types predict one row at a time.

    Raises:
        CheckpointError: the policy blends chunks over time, its type is unsupported, or its chunk length is unknown.
    """
    if getattr(config, "temporal_ensemble_coeff", None) is not None:
        raise CheckpointError(
            f"config.json: temporal_ensemble_coeff={config.temporal_ensemble_coeff} blends the chunks of many steps, "
            "which the chunk executor does not do. Set it to null and n_action_steps to the steps to execute; the "
            "weights stay the same."
        )
    if config.type not in KINDS and type(config).__module__.startswith("lerobot."):
        raise CheckpointError(
            f"config.json: LeRobot's policy type {config.type!r} is unsupported: its code was never audited for "
            f"remote code. Known: {', '.join(sorted(KINDS))}; and types of packages that you install "
            "yourself."
        )
    kind = KINDS.get(config.type, OTHER)
    if kind is OTHER and (config.n_obs_steps != 1 or _length(config) is None):
        raise CheckpointError(
            f"config.json: a policy of type {config.type!r} with n_obs_steps={config.n_obs_steps} is not known here. "
            f"Known: {', '.join(sorted(KINDS))}; others as long as they read one frame and their config has "
            "chunk_size or n_action_steps."
        )
    return kind


def seeds_of(noise: Tensor) -> list[int]:
    """Derive a seed for each row of noise [B n], n ≥ 1, from the bits of its first two numbers."""
    bits = noise[:, :2].detach().to("cpu", torch.float32).contiguous().view(torch.int32).tolist()
    return [sum((b & 0xFFFFFFFF) << 31 * i for i, b in enumerate(row)) & 0x7FFFFFFFFFFFFFFF for row in bits]


# --- Diffusion: the initial latent, and for DDPM what is drawn at every step ------------------------------------------


def _diffusion_noise(config: Any) -> tuple[int, ...]:
    drawn_later = config.noise_scheduler_type == "DDPM"
    return (config.horizon + drawn_later, config.action_feature.shape[0])


def _diffusion(policy: Any, batch: Batch, noise: Tensor | None) -> Tensor:
    """As `predict_action_chunk`, but with all predicted steps, and a generator for each row."""
    config, model = policy.config, policy.diffusion
    if config.image_features:
        batch = {**batch, _IMAGES: torch.stack([batch[key] for key in config.image_features], dim=-4)}
    cond = model._prepare_global_conditioning(batch)
    generators = None
    if noise is None:
        latent = None
    else:
        latent = noise[:, : config.horizon]
        if noise.shape[1] > config.horizon:  # DDPM
            generators = [torch.Generator().manual_seed(s) for s in seeds_of(noise[:, config.horizon])]
    chunk = model.conditional_sample(len(cond), global_cond=cond, generator=generators, noise=latent)
    return chunk[:, config.n_obs_steps - 1 :]  # earlier steps are in the past


# --- VQ-BeT: codes are drawn from torch's global generator ------------------------------------------------------------


def _vqbet(policy: Any, batch: Batch, noise: Tensor | None) -> Tensor:
    images = torch.stack([batch[key] for key in policy.config.image_features], dim=-4)
    inputs = {_STATE: batch[_STATE], _IMAGES: images}
    return _by_row(lambda one: policy.vqbet(one, rollout=True), inputs, noise)[:, : policy.config.action_chunk_size]


# --- SmolVLA, π0, π0.5: flow matching from explicit noise -------------------------------------------------------------


def _flow(policy: Any, batch: Batch, noise: Tensor | None) -> Tensor:
    policy.reset()
    return policy.predict_action_chunk(batch, noise=noise)


# --- anything else ----------------------------------------------------------------------------------------------------


def _length(config: Any) -> int | None:
    return getattr(config, "chunk_size", None) or getattr(config, "n_action_steps", None)


def _other(policy: Any, batch: Batch, noise: Tensor | None) -> Tensor:
    def predict(one: Batch) -> Tensor:
        policy.reset()
        return policy.predict_action_chunk(one)

    return _by_row(predict, batch, noise)


def _by_row(predict: Callable[[Batch], Tensor], batch: Batch, noise: Tensor | None) -> Tensor:
    """Predict row by row, with torch's global generator seeded for each, so that rows are independent."""
    if noise is None:
        noise = torch.randn(len(next(v for v in batch.values() if isinstance(v, Tensor))), *SEED_SHAPE)
    chunks = []
    for i, seed in enumerate(seeds_of(noise)):
        one = {k: v[i : i + 1] for k, v in batch.items() if isinstance(v, Tensor | list)}
        with _seeded(seed, next(v for v in one.values() if isinstance(v, Tensor)).device):
            chunks.append(predict(one))
    return torch.cat(chunks)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _chunked(config: Any) -> tuple[int, int, int]:
    return config.n_obs_steps, config.chunk_size, config.n_action_steps


_FLOW = Kind(_chunked, lambda c: (c.chunk_size, c.max_action_dim), _flow)
KINDS = {
    "act": Kind(_chunked, lambda c: (), lambda policy, batch, noise: policy.predict_action_chunk(batch)),
    "diffusion": Kind(
        lambda c: (c.n_obs_steps, c.horizon - c.n_obs_steps + 1, c.n_action_steps),
        _diffusion_noise,
        _diffusion,
        stacked=True,
    ),
    "vqbet": Kind(
        lambda c: (c.n_obs_steps, c.action_chunk_size, c.action_chunk_size),
        lambda config: SEED_SHAPE,
        _vqbet,
        stacked=True,
    ),
    "smolvla": _FLOW,
    "pi0": _FLOW,
    "pi05": _FLOW,
}
OTHER = Kind(
    lambda c: (1, _length(c) or 1, getattr(c, "n_action_steps", None) or _length(c) or 1),
    lambda config: SEED_SHAPE,
    _other,
)
