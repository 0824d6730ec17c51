"""Split LeRobot's flow-matching VLAs into a frozen prefix and an action expert that can be copied alone.

Both parts are copies of LeRobot's module objects: they share its weights under the same names and run its methods. A
prefix is encoded once per observation. Its keys and values are part of cond [B C], so replay buffers store, index and
send them like other features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from robopolicy.core.types import STATE
from robopolicy.policies.lerobot.flow_bodies import (
    BODIES,
    BODY,
    PREFIXES,
    SEEN,
    STEPS,
    TOKENS,
    FlowContext,
    PrefixCache,
    shell,
)
from robopolicy.policies.lerobot.layout import NetworkLayout, Sizes

_HEADS = ("state_proj", "action_in_proj", "action_out_proj", "action_time_mlp_in", "action_time_mlp_out")
_ACTS: dict[str, tuple[str, ...]] = {  # layers of the model beside the transformer that belong to the action expert
    "smolvla": _HEADS[1:],
    "pi0": _HEADS,
    "pi05": ("action_in_proj", "action_out_proj", "time_mlp_in", "time_mlp_out"),
}
_PRECISE = ("vision_tower", "multi_modal_projector", "input_layernorm", "post_attention_layernorm", "model.norm")
_ROWS = 32  # observations that the prefix is computed of at once


class FlowPrefix(nn.Module):
    """Encodes a batch of LeRobot's preprocessor (images, instruction, state) as cond [B C]; frozen.

    The first F numbers, which critics read, are the mean of the last layer's tokens, normalised, and the state. With
    `compact` two of the other numbers, keys and values, lie in one.

    Args:
        policy: LeRobot's, without its expert. tokens: of an instruction, which is filled up to so many: LeRobot does
            so as far as the longest of a batch only, and rows would depend on their neighbours.
    """

    def __init__(self, policy: Any, sizes: Sizes, *, tokens: int, compact: bool) -> None:
        super().__init__()
        self.policy: Any = policy
        self.sizes, self.length, self.compact = sizes, tokens, compact
        self.out_dim = sizes.features

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        count = len(batch[TOKENS])
        tensors = {k: v for k, v in batch.items() if isinstance(v, Tensor)}
        for key in (TOKENS, SEEN):
            tensors[key] = F.pad(tensors[key], (0, self.length - tensors[key].shape[1]))
        pieces = range(0, count, _ROWS)
        return torch.cat([self._some({k: v[i : i + _ROWS] for k, v in tensors.items()}) for i in pieces])

    def _some(self, batch: dict[str, Tensor]) -> Tensor:
        state = F.pad(batch[STATE], (0, self.sizes.state - batch[STATE].shape[-1]))
        with _precision(state, compact=self.compact):
            seen, hidden, cache = PREFIXES[self.policy.name](self.policy, {**batch, STATE: state})
        mean = (hidden.float() * seen[..., None]).sum(1) / seen.sum(1, keepdim=True)
        pairs = [torch.stack([layer.keys, layer.values], dim=1) for layer in cache.layers]
        numbers = torch.stack(pairs, dim=1).to(torch.bfloat16 if self.compact else torch.float32).flatten(1)
        kept = numbers.view(torch.float32) if self.compact else numbers
        return torch.cat([F.layer_norm(mean, mean.shape[1:]), state.float(), seen.float(), kept], dim=1)


class FlowExpert(nn.Module):
    """The action expert behind the methods of a Denoiser (denoiser.py); `model` is LeRobot's, without its prefix.

    LeRobot's time runs from 1, noise, to 0, its velocity is noise − action: ours the other way round (flow.py).

    Args:
        steps: S. Times come from the grid of S steps, and are rounded as LeRobot rounds its own: a sinusoid of period
            0.004 tells the difference.
        compact: compute in bfloat16, independently of the weights' precision.
    """

    def __init__(
        self, model: nn.Module, kind: str, layout: NetworkLayout, sizes: Sizes, *, steps: int, compact: bool
    ) -> None:
        super().__init__()
        self.model, self.kind, self.layout, self.sizes = model, kind, layout, sizes
        self.steps, self.compact, self.twice = steps, compact, False

    def embed_cond(self, cond: Tensor) -> FlowContext:
        """Unpack the prefix from cond [B C]."""
        s, batch = self.sizes, len(cond)
        count = s.tokens(cond.shape[1], compact=self.compact)
        features, seen, kept = cond.split([s.features, count, cond.shape[1] - s.features - count], dim=1)
        numbers = kept.contiguous().view(torch.bfloat16) if self.compact else kept
        keys, values = numbers.view(batch, s.layers, 2, s.heads, count, s.head_dim).unbind(2)
        cache = PrefixCache(tuple((k, v, None) for k, v in zip(keys.unbind(1), values.unbind(1), strict=True)))
        return FlowContext(cache, seen > 0.5, features[:, s.width :])

    def embed_time(self, t: Tensor) -> Tensor:
        """Convert t [n] of the sampling grid to LeRobot's times [n 1]."""
        return (1.0 - (t.double() * self.steps).round() / self.steps).float()[:, None]

    def denoise(self, x: Tensor, embedding: FlowContext) -> Tensor:
        """Velocity [M R Da] at x [M R Da] of M observations, their time set."""
        assert embedding.time is not None
        time = embedding.time.expand(len(x), 1)[:, 0]
        once = nullcontext() if self.twice else parametrize.cached()  # low-rank changes are added once a step
        with _precision(x, compact=self.compact), once:
            velocity = STEPS[self.kind](self.model, embedding, self.layout.unpack(x), time)
        return -self.layout.pack(velocity.float())

    def checkpointed(self) -> None:
        """Recompute activations of layers for the gradient from now on (gradient checkpointing, Chen et al. 2016)."""
        body: Any = self.model.get_submodule(BODY[self.kind])
        self.twice = True
        smol = self.kind == "smolvla"  # whose layers are no modules that are called
        for layer in [each.mlp for each in body.lm_expert.layers] if smol else body.gemma_expert.model.layers:
            layer.forward = _twice(layer.forward)
        for name in ("forward_attn_layer", "forward_cross_attn_layer") if smol else ():
            setattr(body, name, _twice(getattr(body, name)))


def split_network(policy: Any, layout: NetworkLayout, *, steps: int, compact: bool) -> tuple[FlowPrefix, FlowExpert]:
    """Split a policy of LeRobot into prefix and expert, which share its weights.

    Args:
        compact: store the weights of both in bfloat16, except those that LeRobot itself keeps in float32.
    """
    kind, config, model = policy.name, policy.config, policy.model
    body = model.get_submodule(BODY[kind])
    if compact:
        for name, weight in body.named_parameters():
            if not any(precise in name for precise in _PRECISE):
                weight.data = weight.data.to(torch.bfloat16)
    seeing, acting = BODIES[kind](body)
    mine = {name: getattr(model, name) for name in _ACTS[kind]}
    rest = {name: m for name, m in model._modules.items() if name not in mine and name != BODY[kind]}
    prefix = shell(policy, {"model": shell(model, {**rest, BODY[kind]: seeing})})
    text = seeing.vlm.config.text_config if kind == "smolvla" else seeing.paligemma.config.text_config
    layers = body.num_vlm_layers if kind == "smolvla" else text.num_hidden_layers
    sizes = Sizes(text.hidden_size, config.max_state_dim, layers, text.num_key_value_heads, text.head_dim)
    expert = shell(model, {**mine, BODY[kind]: acting})
    return (
        FlowPrefix(prefix, sizes, tokens=config.tokenizer_max_length, compact=compact),
        FlowExpert(expert, kind, layout, sizes, steps=steps, compact=compact),
    )


def _precision(like: Tensor, *, compact: bool) -> AbstractContextManager[Any]:
    return torch.autocast(like.device.type, torch.bfloat16) if compact else nullcontext()


def _twice(function: Callable[..., Any]) -> Callable[..., Any]:
    return partial(checkpoint, function, use_reentrant=False)
