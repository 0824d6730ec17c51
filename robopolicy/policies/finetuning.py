"""Prepare a base policy for fine-tuning by reinforcement learning, or for another sampler."""

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import Any

from robopolicy.config.instantiate import value_of
from robopolicy.config.schema import Count, Natural, signature
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.policies.base import LikelihoodPolicy, Policy
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.factory import copy_weights
from robopolicy.policies.lerobot.flow import ExpertOptions, LeRobotFlow, opened
from robopolicy.policies.lerobot.policy import LeRobotPolicy

SAMPLER = {"sampler", "eta", "sampling_steps", "noise_level"}


def finetuned(
    base: Policy,
    *,
    finetuned_steps: Count = 5,
    lora_rank: Natural = 0,
    sampling: dict[str, Any] | None = None,
    expert: ExpertOptions | None = None,
) -> ChunkDenoiser | LikelihoodPolicy:
    """Return `base` with a copy of its denoiser for the last K' steps; before training it *is* the base.

    The result is of the base's class: its config has `finetuned_steps`, its weights hold both networks. A base that is
    fine-tuned already is returned unchanged. A Gaussian or mixture base has no chain and is copied whole.

    Args:
        base: diffusion or flow policy; SmolVLA, π0 and π0.5 of LeRobot are flows.
        finetuned_steps: K'. lora_rank: see ChunkDenoiser.
        sampling: changes of the base's sampler: `sampler`, `eta`, `sampling_steps`, `noise_level`. The result keeps
            them, since it is deployed with the same chain.
        expert: how the weights of a LeRobot policy are stored and learned.

    Raises:
        SpecError: the base has no denoising chain. ConfigError: K' > K, another K' than that of a fine-tuned base, a
            lora_rank for a policy without a chain, or `expert` for a policy that is not LeRobot's.
        CheckpointError: the base's weights are not those of its config.
    """
    if expert is not None and not isinstance(base, LeRobotFlow | LeRobotPolicy):
        raise ConfigError(
            f"policy.expert: says how a VLA of LeRobot keeps its weights; the base is a {type(base).__name__}. "
            "Set it to null."
        )
    if isinstance(base, LikelihoodPolicy) and not sampling:
        if lora_rank:
            raise ConfigError(f"policy.lora_rank={lora_rank}: a {type(base).__name__} is fine-tuned whole. Set it to 0")
        return copy.deepcopy(base)
    base = chain_of(base)
    check_sampling(sampling or {}, "policy.sampling", type(base))
    check_eta(base, sampling or {}, "policy.sampling")
    node: dict[str, Any] = base.config
    wanted = {
        **(sampling or {}),
        **(asdict(expert) if expert else {}),
        "finetuned_steps": finetuned_steps,
        "lora_rank": lora_rank,
    }
    if base.finetuned_steps:
        own = {k: node.get(k) for k in wanted}
        if own != wanted:
            raise ConfigError(
                f"base: is fine-tuned with {own}, and cannot go on with {wanted}. Set policy.* to the former, or give "
                "the base that it was made from."
            )
        return base
    if finetuned_steps < 1:
        raise ConfigError(f"policy.finetuned_steps (K') must be at least 1, found {finetuned_steps}")
    policy = _changed(base, wanted)
    policy.begin_finetuning()
    return policy.eval()


def resampled(base: Policy, sampling: dict[str, Any], key: str = "sampling") -> ChunkDenoiser:
    """Return `base` with another sampler and the same weights.

    Args:
        base: as in `finetuned`, but not fine-tuned. sampling: as in `finetuned`. key: the config key in errors.

    Raises:
        SpecError: the base has no denoising chain. ConfigError: `sampling` changes more than the sampler, or the base
            is fine-tuned.
    """
    try:
        base = chain_of(base)
    except SpecError as error:
        raise SpecError(
            f"{key}: only a diffusion or flow policy of which we can run the chain is sampled from in another way "
            f"({error}). Leave {key} away, or give the diffusion or flow policy itself."
        ) from error
    check_sampling(sampling, key, type(base))
    check_eta(base, sampling, key)
    if base.finetuned_steps:
        raise ConfigError(
            f"{key}: the chain of this policy is fine-tuned as it is, in {base.finetuned_steps} of {len(base.times)} "
            f"steps, and another would not run what was learned. Set {key}=null, or give the policy before fine-tuning."
        )
    return _changed(base, sampling).eval()


def check_sampling(sampling: dict[str, Any], key: str, kind: type[ChunkDenoiser] | None = None) -> None:
    """Raise ConfigError, naming `key`, unless `sampling` holds options of samplers, or of the sampler of `kind`."""
    known = SAMPLER if kind is None else SAMPLER & signature(kind).known.keys()
    if strange := sorted(set(sampling) - known):
        whose = "the sampler" if kind is None else f"the sampler of a {kind.__name__}"
        raise ConfigError(f"{key}: {strange} change more than {whose}; known: {sorted(known)}. Leave the others away.")


def check_eta(base: ChunkDenoiser, sampling: dict[str, Any], key: str) -> None:
    """Raise ConfigError, naming `key`, where `sampling` sets an `eta` that the base's sampler would not read."""
    if sampling.get("eta", 1.0) != 1.0 and value_of({**base.config, **sampling}, "policy", "sampler") == "ddpm":
        raise ConfigError(f"{key}: eta is an option of the sampler ddim, this one is ddpm. Add sampler: ddim")


def chain_of(policy: Policy) -> ChunkDenoiser:
    policy = opened(policy) if isinstance(policy, LeRobotPolicy) else policy
    if not isinstance(policy, ChunkDenoiser):
        raise SpecError(f"base: a diffusion or flow policy has a chain to fine-tune, {type(policy).__name__} has not")
    return policy


def _changed(base: ChunkDenoiser, options: dict[str, Any]) -> ChunkDenoiser:
    """Build a policy with other options, and the base's weights and memory."""
    policy = base.changed(**options)
    copy_weights(base, policy, new="finetuned.")
    policy.memory = copy.deepcopy(base.memory)
    return policy
