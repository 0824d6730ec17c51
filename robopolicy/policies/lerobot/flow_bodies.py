"""Run the transformers of SmolVLA, π0 and π0.5: the prefix alone, and one step of the expert alone."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from lerobot.policies.common.vla_utils import make_att_2d_masks, prepare_attention_masks_4d
from torch import Tensor, nn
from transformers import DynamicCache

from robopolicy.core.types import STATE

TOKENS, SEEN = "observation.language.tokens", "observation.language.attention_mask"


class PrefixCache(DynamicCache):
    """Keys and values of a prefix. `update` returns extended copies and leaves the cache unchanged.

    So gradient checkpointing can compute a layer twice, and a denoising step has no side effect.
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
    """Values that all denoising steps of B chunks share. Adding a time [… 1] sets it; see action_expert.Context."""

    cache: PrefixCache  # L layers of [B heads P d]
    seen: Tensor  # [B P] bool: a token, not padding
    state: Tensor  # [B Ds]
    time: Tensor | None = None  # [M 1] or [1], LeRobot's: 1 is noise

    def __add__(self, time: Tensor) -> FlowContext:
        return replace(self, time=time)


def shell[Module: nn.Module](module: Module, children: Mapping[str, nn.Module | None]) -> Module:
    """Copy a module with its attributes and methods, but with other children."""
    made = copy.copy(module)
    made._modules = dict(children)
    return made


# --- SmolVLA: its prefix holds the state ------------------------------------------------------------------------------


def _smolvla_bodies(body: Any) -> tuple[Any, Any]:
    """Return the transformer with the language model alone, and with the expert alone.

    LeRobot iterates over the layers of both and skips those without tokens, so placeholders suffice.
    """
    seeing, acting = shell(body, {"vlm": body.vlm}), shell(body, {"lm_expert": body.lm_expert})
    seeing.lm_expert = SimpleNamespace(layers=[None] * body.num_expert_layers, norm=None)
    text = SimpleNamespace(layers=[None] * body.num_vlm_layers, norm=None)
    acting.vlm = SimpleNamespace(config=body.vlm.config, model=SimpleNamespace(text_model=text), eval=lambda: None)
    acting.processor, acting.train_expert_only, acting.freeze_vision_encoder = None, False, False
    return seeing, acting


def _smolvla_prefix(policy: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Any]:
    pictures = policy.prepare_images(batch)
    embedded, seen, attends = policy.model.embed_prefix(*pictures, batch[TOKENS], batch[SEEN].bool(), batch[STATE])
    (hidden, _), cache = policy.model.vlm_with_expert.forward(
        attention_mask=make_att_2d_masks(seen, attends), position_ids=seen.long().cumsum(1) - 1, past_key_values=None,
        inputs_embeds=[embedded, None], use_cache=True,
    )  # fmt: skip
    return seen, hidden, cache


def _smolvla_step(model: Any, context: FlowContext, latent: Tensor, time: Tensor) -> Tensor:
    return model.denoise_step(prefix_pad_masks=context.seen, past_key_values=context.cache, x_t=latent, timestep=time)


# --- π0 and π0.5: the state is a token of the expert, or words of the prompt ----------------------------------------


def _pi_bodies(body: Any) -> tuple[nn.Module, nn.Module]:
    """The expert's unused output layer stays with the language model."""
    head, expert = (shell(body.gemma_expert, {name: getattr(body.gemma_expert, name)}) for name in ("lm_head", "model"))
    return shell(body, {"paligemma": body.paligemma, "gemma_expert": head}), shell(body, {"gemma_expert": expert})


def _pi_prefix(policy: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Any]:
    pictures = policy._preprocess_images(batch)
    embedded, seen, attends = policy.model.embed_prefix(*pictures, batch[TOKENS], batch[SEEN].bool())
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


BODY = {"smolvla": "vlm_with_expert", "pi0": "paligemma_with_expert", "pi05": "paligemma_with_expert"}
BODIES = {"smolvla": _smolvla_bodies, "pi0": _pi_bodies, "pi05": _pi_bodies}
PREFIXES = {"smolvla": _smolvla_prefix, "pi0": _pi_prefix, "pi05": _pi_prefix}
STEPS = {"smolvla": _smolvla_step, "pi0": _pi_step, "pi05": _pi_step}
