"""LeRobot's VLAs with flow-matching heads taken apart: a frozen prefix, and an action expert that can be copied alone.

Nothing is computed here that LeRobot computes: both parts are shells of its own modules, which hold the same weights
under the same names and run its own methods. A prefix is encoded once per observation; its keys and values travel as
numbers, so that whoever stores, indexes or sends encoded observations need not know what is in them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from lerobot.policies.common.vla_utils import make_att_2d_masks, prepare_attention_masks_4d
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

from robopolicy.core.types import STATE
from robopolicy.policies.lerobot.layout import NetworkLayout, Sizes

_HEADS = ("state_proj", "action_in_proj", "action_out_proj", "action_time_mlp_in", "action_time_mlp_out")
_ACTS: dict[str, tuple[str, ...]] = {  # layers of the model beside the transformer that belong to the action expert
    "smolvla": _HEADS[1:],
    "pi0": _HEADS,
    "pi05": ("action_in_proj", "action_out_proj", "time_mlp_in", "time_mlp_out"),
}
_PRECISE = ("vision_tower", "multi_modal_projector", "input_layernorm", "post_attention_layernorm", "model.norm")
_ROWS = 32  # observations that the prefix is computed of at once
_TOKENS, _SEEN = "observation.language.tokens", "observation.language.attention_mask"


class PrefixCache(DynamicCache):
    """Keys and values of a prefix that nobody changes: what is added is seen by the caller alone.

    So a layer can be computed twice, as gradient checkpointing does, and a step leaves nothing behind.
    """

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        held: Any = self.layers[layer_idx]
        key, value = held.keys.to(key_states), held.values.to(value_states)
        return torch.cat([key, key_states], dim=-2), torch.cat([value, value_states], dim=-2)

    def crop(self, *_: Any, **__: Any) -> None:
        pass


@dataclass(frozen=True)
class FlowContext:
    """What all denoising steps of B chunks share. Adding a time [… 1] sets it; see networks.expert.Context."""

    cache: PrefixCache  # L layers of [B heads P d]
    seen: Tensor  # [B P] bool: a token, not padding
    state: Tensor  # [B Ds]
    time: Tensor | None = None  # [M 1] or [1], LeRobot's: 1 is noise

    def __add__(self, time: Tensor) -> FlowContext:
        return replace(self, time=time)


class FlowPrefix(nn.Module):
    """cond [B C] of a batch that LeRobot's preprocessor has made: pictures, instruction and state, frozen.

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
        count = len(batch[_TOKENS])
        tensors = {k: v for k, v in batch.items() if isinstance(v, Tensor)}
        for key in (_TOKENS, _SEEN):
            tensors[key] = F.pad(tensors[key], (0, self.length - tensors[key].shape[1]))
        pieces = range(0, count, _ROWS)
        return torch.cat([self._some({k: v[i : i + _ROWS] for k, v in tensors.items()}) for i in pieces])

    def _some(self, batch: dict[str, Tensor]) -> Tensor:
        state = F.pad(batch[STATE], (0, self.sizes.state - batch[STATE].shape[-1]))
        with _precision(state, compact=self.compact):
            seen, hidden, cache = _PREFIXES[self.policy.name](self.policy, {**batch, STATE: state})
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
        compact: compute in bfloat16, whatever the weights are kept in.
    """

    def __init__(
        self, model: nn.Module, kind: str, layout: NetworkLayout, sizes: Sizes, *, steps: int, compact: bool
    ) -> None:
        super().__init__()
        self.model, self.kind, self.layout, self.sizes = model, kind, layout, sizes
        self.steps, self.compact, self.twice = steps, compact, False

    def embed_cond(self, cond: Tensor) -> FlowContext:
        """The prefix that cond [B C] holds."""
        s, batch = self.sizes, len(cond)
        count = s.tokens(cond.shape[1], compact=self.compact)
        features, seen, kept = cond.split([s.features, count, cond.shape[1] - s.features - count], dim=1)
        numbers = kept.contiguous().view(torch.bfloat16) if self.compact else kept
        keys, values = numbers.view(batch, s.layers, 2, s.heads, count, s.head_dim).unbind(2)
        cache = PrefixCache(tuple((k, v, None) for k, v in zip(keys.unbind(1), values.unbind(1), strict=True)))
        return FlowContext(cache, seen > 0.5, features[:, s.width :])

    def embed_time(self, t: Tensor) -> Tensor:
        """[n 1] LeRobot's times of t [n], of the sampling grid."""
        return (1.0 - (t.double() * self.steps).round() / self.steps).float()[:, None]

    def denoise(self, x: Tensor, embedding: FlowContext) -> Tensor:
        """Velocity [M R Da] at x [M R Da] of M observations, their time set."""
        assert embedding.time is not None
        time = embedding.time.expand(len(x), 1)[:, 0]
        once = nullcontext() if self.twice else parametrize.cached()  # low-rank changes are added once a step
        with _precision(x, compact=self.compact), once:
            velocity = _STEPS[self.kind](self.model, embedding, self.layout.unpack(x), time)
        return -self.layout.pack(velocity.float())

    def checkpointed(self) -> None:
        """From now on keep no activations of a layer for its gradient: they are computed again (Chen et al. 2016)."""
        body: Any = self.model.get_submodule(_BODY[self.kind])
        self.twice = True
        smol = self.kind == "smolvla"  # whose layers are no modules that are called
        for layer in [each.mlp for each in body.lm_expert.layers] if smol else body.gemma_expert.model.layers:
            layer.forward = _twice(layer.forward)
        for name in ("forward_attn_layer", "forward_cross_attn_layer") if smol else ():
            setattr(body, name, _twice(getattr(body, name)))


def take_apart(policy: Any, layout: NetworkLayout, *, steps: int, compact: bool) -> tuple[FlowPrefix, FlowExpert]:
    """Prefix and expert of a policy of LeRobot, which keep its weights: together they hold each of them once.

    Args:
        compact: keep the weights of both in bfloat16, but for what LeRobot itself keeps in float32.
    """
    kind, config, model = policy.name, policy.config, policy.model
    body = model.get_submodule(_BODY[kind])
    if compact:
        for name, weight in body.named_parameters():
            if not any(precise in name for precise in _PRECISE):
                weight.data = weight.data.to(torch.bfloat16)
    seeing, acting = _BODIES[kind](body)
    mine = {name: getattr(model, name) for name in _ACTS[kind]}
    rest = {name: m for name, m in model._modules.items() if name not in mine and name != _BODY[kind]}
    prefix = _shell(policy, {"model": _shell(model, {**rest, _BODY[kind]: seeing})})
    text = seeing.vlm.config.text_config if kind == "smolvla" else seeing.paligemma.config.text_config
    layers = body.num_vlm_layers if kind == "smolvla" else text.num_hidden_layers
    sizes = Sizes(text.hidden_size, config.max_state_dim, layers, text.num_key_value_heads, text.head_dim)
    expert = _shell(model, {**mine, _BODY[kind]: acting})
    return (
        FlowPrefix(prefix, sizes, tokens=config.tokenizer_max_length, compact=compact),
        FlowExpert(expert, kind, layout, sizes, steps=steps, compact=compact),
    )


def _shell[Module: nn.Module](module: Module, children: Mapping[str, nn.Module | None]) -> Module:
    """The same object in another body: its attributes and methods, but these children alone."""
    made = copy.copy(module)
    made._modules = dict(children)
    return made


def _precision(like: Tensor, *, compact: bool) -> AbstractContextManager[Any]:
    return torch.autocast(like.device.type, torch.bfloat16) if compact else nullcontext()


def _twice(function: Callable[..., Any]) -> Callable[..., Any]:
    return partial(checkpoint, function, use_reentrant=False)


# --- SmolVLA: its prefix holds the state ------------------------------------------------------------------------------


def _smolvla_bodies(body: Any) -> tuple[Any, Any]:
    """The transformer with the language model alone, and with the expert alone. LeRobot walks through the layers of
    both, and skips those whose tokens are not there: blanks will do."""
    seeing, acting = _shell(body, {"vlm": body.vlm}), _shell(body, {"lm_expert": body.lm_expert})
    seeing.lm_expert = SimpleNamespace(layers=[None] * body.num_expert_layers, norm=None)
    text = SimpleNamespace(layers=[None] * body.num_vlm_layers, norm=None)
    acting.vlm = SimpleNamespace(config=body.vlm.config, model=SimpleNamespace(text_model=text), eval=lambda: None)
    acting.processor, acting.train_expert_only, acting.freeze_vision_encoder = None, False, False
    return seeing, acting


def _smolvla_prefix(policy: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Any]:
    pictures = policy.prepare_images(batch)
    embedded, seen, attends = policy.model.embed_prefix(*pictures, batch[_TOKENS], batch[_SEEN].bool(), batch[STATE])
    (hidden, _), cache = policy.model.vlm_with_expert.forward(
        attention_mask=make_att_2d_masks(seen, attends), position_ids=seen.long().cumsum(1) - 1, past_key_values=None,
        inputs_embeds=[embedded, None], use_cache=True,
    )  # fmt: skip
    return seen, hidden, cache


def _smolvla_step(model: Any, context: FlowContext, latent: Tensor, time: Tensor) -> Tensor:
    return model.denoise_step(prefix_pad_masks=context.seen, past_key_values=context.cache, x_t=latent, timestep=time)


# --- π0 and π0.5: the state is a token of the expert's, or words of the prompt ----------------------------------------


def _pi_bodies(body: Any) -> tuple[nn.Module, nn.Module]:
    """The expert's unused output layer stays with the language model."""
    head, expert = (
        _shell(body.gemma_expert, {name: getattr(body.gemma_expert, name)}) for name in ("lm_head", "model")
    )
    return _shell(body, {"paligemma": body.paligemma, "gemma_expert": head}), _shell(body, {"gemma_expert": expert})


def _pi_prefix(policy: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Any]:
    pictures = policy._preprocess_images(batch)
    embedded, seen, attends = policy.model.embed_prefix(*pictures, batch[_TOKENS], batch[_SEEN].bool())
    body = policy.model.paligemma_with_expert
    body.paligemma.model.language_model.config._attn_implementation = "eager"  # as LeRobot: the mask is made for it
    (hidden, _), cache = body.forward(
        attention_mask=prepare_attention_masks_4d(make_att_2d_masks(seen, attends)),
        position_ids=seen.long().cumsum(1) - 1, past_key_values=None, inputs_embeds=[embedded, None], use_cache=True,
    )  # fmt: skip
    return seen, hidden, cache


def _pi_step(model: Any, context: FlowContext, latent: Tensor, time: Tensor) -> Tensor:
    """LeRobot's `denoise_step`, which copies the cache at every step."""
    reads = (context.state, latent, time) if "state_proj" in model._modules else (latent, time)
    embedded, own, attends, modulation = model.embed_suffix(*reads)
    far = context.seen[:, None].expand(-1, embedded.shape[1], -1)
    mask = prepare_attention_masks_4d(torch.cat([far, make_att_2d_masks(own, attends)], dim=2))
    expert = model.paligemma_with_expert.gemma_expert.model
    expert.config._attn_implementation = "eager"
    found = expert(
        inputs_embeds=embedded, attention_mask=mask, past_key_values=context.cache, use_cache=False,
        position_ids=context.seen.sum(1, keepdim=True) + own.long().cumsum(1) - 1, adarms_cond=modulation,
    )  # fmt: skip
    return model.action_out_proj(found.last_hidden_state[:, -latent.shape[1] :].float())


_BODY = {"smolvla": "vlm_with_expert", "pi0": "paligemma_with_expert", "pi05": "paligemma_with_expert"}
_BODIES = {"smolvla": _smolvla_bodies, "pi0": _pi_bodies, "pi05": _pi_bodies}
_PREFIXES = {"smolvla": _smolvla_prefix, "pi0": _pi_prefix, "pi05": _pi_prefix}
_STEPS = {"smolvla": _smolvla_step, "pi0": _pi_step, "pi05": _pi_step}
