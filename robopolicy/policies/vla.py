"""Predict chunks from images, instructions and the state by flow matching: a VLA small enough for a CPU.

Prefix and action expert follow π0 (Black et al. 2024) and SmolVLA (Shukor et al. 2025). The interface is FlowPolicy's:
`encode` is the prefix, the denoiser the expert. A batch may hold several noised chunks per observation
(`noise_samples`), whose prefix is computed once (Mini-Diffuser, Hu et al. 2025).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Count, Natural, NonNegative
from robopolicy.core.errors import SpecError
from robopolicy.core.observations import check_observation
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import TASK, Obs
from robopolicy.datasets.episodes import Episodes
from robopolicy.networks.action_expert import ActionExpert
from robopolicy.networks.precision import Precision
from robopolicy.networks.prefix import Prefix
from robopolicy.policies.base import Policy
from robopolicy.policies.factory import build_policy
from robopolicy.policies.flow import FlowPolicy
from robopolicy.policies.normalizer import Normalizer

_SEEN = "seen."  # prefix of the keys of image tokens


class VLAPolicy(FlowPolicy):
    """See FlowPolicy for the flow and its sampling.

    Args:
        prefix: makes the Prefix from the spec. network: makes the ActionExpert.
        sampling_steps, prediction, noise_level, time_distribution: see FlowPolicy.
        noise_samples, finetuned_steps, lora_rank: see ChunkDenoiser.
        precision: of the computation in prefix and expert; weights and actions are float32. bfloat16 makes an update
            1.5 to 2 times as fast on a CPU with AVX-512 BF16 (docs/vla.md).

    Raises:
        SpecError: an instruction without words or with too many, or observation keys that the prefix cannot read.
    """

    encoder: Prefix

    def __init__(
        self,
        spec: PolicySpec,
        normalizer: Normalizer,
        *,
        prefix: Callable[..., Prefix] = Prefix,
        network: Callable[..., ActionExpert] = ActionExpert,
        sampling_steps: Count = 10,
        prediction: Literal["velocity", "sample"] = "velocity",
        noise_level: NonNegative = 0.0,
        time_distribution: Literal["uniform", "beta"] = "beta",
        noise_samples: Count = 8,
        finetuned_steps: Natural = 0,
        lora_rank: Natural = 0,
        precision: Precision = "float32",
    ) -> None:
        made = prefix(spec, precision=precision)
        super().__init__(
            spec, normalizer, sampling_steps=sampling_steps, prediction=prediction, noise_level=noise_level,
            time_distribution=time_distribution, noise_samples=noise_samples, finetuned_steps=finetuned_steps,
            lora_rank=lora_rank, encoder=lambda _: made,
            network=partial(network, token_dim=made.width, summary_dim=made.summary_dim, precision=precision),
        )  # fmt: skip
        self.cond_dim = made.summary_dim

    def set_tasks(self, tasks: tuple[str, ...]) -> None:
        """See Policy: any instructions are accepted, since the policy reads them.

        Raises:
            SpecError: an instruction has no words or too many, or there are several and the policy was trained on one.
        """
        if len(tasks) > 1 and TASK not in self.spec.observation:
            raise SpecError(
                f"the policy was trained on one instruction, {self.spec.tasks[0]!r}, and reads no {TASK!r}; the env "
                f"has {len(tasks)}. Evaluate it on one, or train it on a dataset of several."
            )
        self.encoder.text.set_tasks(tasks)
        self.spec = replace(self.spec, tasks=tuple(tasks))

    @torch.no_grad()
    def precompute_features(self, obs: Obs, episode: Tensor) -> Obs:
        """Compute the image tokens [F n width] of frozen vision towers once, in half precision."""
        if not self.encoder.frozen:
            return obs
        found = {k: v for k, v in obs.items() if k not in self.encoder.cameras}
        for key, tower in zip(self.encoder.cameras, self.encoder.vision, strict=True):
            parts = (tower(self.normalizer.normalize(key, part)).half() for part in obs[key].split(256))
            found[_SEEN + key] = torch.cat(list(parts))
        return found

    def encode_batch(self, batch: dict[str, Any]) -> Tensor:
        """See ChunkDenoiser; the batch may hold the features of `precompute_features`."""
        return self.encoder(self.seen(batch), augment=True)

    def seen(self, batch: dict[str, Any]) -> Obs:
        """Return the prefix's inputs of a training batch [B To ...]: normalised, or precomputed."""
        seen = {k: batch[_SEEN + k].float() for k in self.encoder.cameras if _SEEN + k in batch}
        rest = {k: f for k, f in self.spec.observation.items() if k not in seen}
        check_observation(batch, replace(self.spec, observation=rest))
        found = {k: batch[k] if k == TASK else self.normalizer.normalize(k, batch[k]) for k in rest}
        return {**found, **seen}

    def prediction(self, cond: Tensor, x: Tensor, k: Tensor, *, frozen: bool = False) -> Tensor:
        """See ChunkDenoiser."""
        network = self.network if frozen else self.finetuned
        assert network is not None
        chosen = nn.functional.one_hot(k, self.finetuned_steps).to(x.dtype)
        time = chosen @ network.embed_time(self.times[-self.finetuned_steps :])
        return network.denoise(x, network.embed_cond(cond) + time)


def adapted(base: Policy, episodes: Episodes, *, freeze_vision: bool = True) -> VLAPolicy:
    """Return a copy of `base` that can continue imitation learning on other demonstrations and their instructions.

    Args:
        base: a VLAPolicy without a fine-tuned copy; its normaliser is kept.
        freeze_vision: freeze its vision towers, which makes training faster.

    Raises:
        SpecError: the base is another policy, or cannot read the dataset's instructions.
    """
    if not isinstance(base, VLAPolicy) or base.finetuned_steps:
        found = type(base).__name__ + (" with a fine-tuned copy" if isinstance(base, VLAPolicy) else "")
        raise SpecError(f"base: policy=vla_adapted goes on from a policy=vla as imitation left it, found {found}")
    if base.memory is not None:
        raise SpecError(
            "base: is given other demonstrations by eval memory=<dataset>, without training; to train it on them, "
            "policy=ricl_adapted"
        )
    node: dict[str, Any] = base.config
    node = {**node, "prefix": {**prefix_node(base), "freeze_vision": freeze_vision}}
    policy = build_policy(node, spec=base.spec, normalizer=copy.deepcopy(base.normalizer))
    assert isinstance(policy, VLAPolicy)
    policy.load_state_dict(base.state_dict())
    policy.set_tasks(episodes.tasks)
    return policy


def prefix_node(base: VLAPolicy) -> dict[str, Any]:
    """Return the config node of `base`'s prefix, with its target written out."""
    config: dict[str, Any] = base.config
    return {"_target_": "prefix", "_partial_": True, **config.get("prefix", {})}
