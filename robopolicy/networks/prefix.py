"""Encode an observation of a vision-language-action policy as image, word and state tokens.

Attention follows π0 (Black et al. 2024): images and words attend to one another, the state to these and itself. Action
tokens (action_expert.py) attend to everything, and no other token attends to them. So the prefix is computed once per
observation, for all denoising steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Count, Natural
from robopolicy.core.errors import SpecError
from robopolicy.core.specs import PolicySpec, state_columns
from robopolicy.core.types import IMAGES, POINTS, STATE, TASK, Obs
from robopolicy.networks.entities import EntityTokens
from robopolicy.networks.language import WordTower
from robopolicy.networks.precision import Precision, computing
from robopolicy.networks.sizes import check_multiple
from robopolicy.networks.transformer import Attention, feed_forward
from robopolicy.networks.vision import ConvTokens, random_shift


class Prefix(nn.Module):
    """Encodes *normalised* observations [B To ...] as cond [B C]: a summary of S numbers, P tokens and their mask.

    C = S + P·(width + 1). Critics and residuals read the summary: the state and its token, the mean word token, and
    each camera's outline. The action expert reads the tokens.

    Args:
        vision: makes the tower of a camera from its shape and `width`: [B 3 h w] → [B n width], `count` being n; its
            `outline` makes [B `outline_dim`] of these.
        proprioception: elements of `observation.state` that are read, see `state_columns`; None: all. With cameras,
            leave out elements that only a simulator knows.
        entities: {kind: name prefixes}, objects in the state with a token each (see EntityTokens): {cube: [red_,
            blue_], button: [button_]}. The state's own token then encodes only the remaining elements.
        width: size of a token. depth: blocks. heads: of attention.
        max_words, buckets: see WordTower.
        image_shift: pixels of random shift in training (0: none).
        freeze_vision: freeze the vision towers. Their tokens may then replace images, and images are not shifted.
        precision: of the computation; the result is float32.

    Raises:
        SpecError: observation keys of other types, names that the state lacks, entities that EntityTokens refuses,
            instructions that cannot be read.
    """

    columns: Tensor  # of `observation.state` that are read

    def __init__(
        self,
        spec: PolicySpec,
        *,
        vision: Callable[..., nn.Module] = ConvTokens,
        proprioception: tuple[str, ...] | None = None,
        entities: dict[str, tuple[str, ...]] | None = None,
        width: Count = 128,
        depth: Natural = 2,
        heads: Count = 4,
        max_words: Count = 12,
        buckets: Count = 4096,
        image_shift: Natural = 4,
        freeze_vision: bool = False,
        precision: Precision = "float32",
    ) -> None:
        super().__init__()
        check_multiple("width", width, heads, "heads")
        keys, history = spec.observation, spec.n_obs_steps
        self.cameras = tuple(k for k in keys if k.startswith(IMAGES))
        self.floats = tuple(k for k, f in keys.items() if f.dtype == "float32" and k not in self.cameras)
        if clouds := [k for k in keys if k.startswith(POINTS)]:
            raise SpecError(
                f"policy=vla reads no point clouds, found {clouds}. Leave them out with points=[], or train "
                "policy=diffusion."
            )
        if strange := sorted(set(keys) - {*self.cameras, *self.floats, TASK}):
            raise SpecError(f"observation keys must be float32, {IMAGES}<camera> or {TASK}; found {strange}")
        self.width, self.chosen, self.frozen, self.precision = width, TASK in keys, freeze_vision, precision
        self.history = history
        self.image_shift = 0 if freeze_vision else image_shift
        self.text = WordTower(spec.tasks, width=width, max_words=max_words, buckets=buckets)
        towers: list[Any] = [vision(tuple(keys[k].shape), width=width) for k in self.cameras]
        self.vision = nn.ModuleList(towers).requires_grad_(not freeze_vision)
        self.frame = nn.Parameter(0.02 * torch.randn(len(self.cameras), history, 1, width))
        columns = []
        if STATE in keys:
            columns = state_columns(keys[STATE], proprioception, where="policy.prefix.proprioception")
        self.register_buffer("columns", torch.tensor(columns, dtype=torch.int64), persistent=False)
        sizes = {k: len(columns) if k == STATE else torch.Size(keys[k].shape).numel() for k in self.floats}
        size = sum(sizes.values())
        self.entities = entity_tokens(spec, columns, sizes, entities, width) if entities else None
        rest = self.entities.rest.numel() if self.entities else size
        self.state = nn.Sequential(nn.Linear(history * rest, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(MaskedBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        pictures = history * sum(tower.count for tower in towers)
        self.has_state = bool(size)
        self.states = self.has_state + (self.entities.count if self.entities else 0)  # tokens of the state
        self.tokens = pictures + max_words + self.states  # P; the state's are the last
        outlines = history * sum(tower.outline_dim for tower in towers)
        self.summary_dim = history * size + (width if size else 0) + width + outlines  # S
        self.out_dim = self.summary_dim + self.tokens * (width + 1)

    def forward(
        self,
        obs: Obs,
        *,
        augment: bool = False,
        more: tuple[Tensor, Tensor] | None = None,
        silent: Tensor | None = None,
    ) -> Tensor:
        """Encode normalised obs [B To ...] as cond [B C].

        Args:
            augment: shift images at random (training only).
            more: further tokens [B n width], which join images and words, and their mask [B n] bool; C grows by
                n·(width + 1), the summary does not.
            silent: [B] bool, rows whose words are hidden.
        """
        batch, device = len(next(iter(obs.values()))), self.norm.weight.device
        index = obs[TASK][:, -1] if self.chosen else torch.zeros(batch, dtype=torch.int64, device=device)
        read = self._read(obs)
        state = self._state(read)  # in float32: bfloat16 rounds a place to 1 mm
        with computing(self.precision, device):
            text, keep = self.text(index)
            if silent is not None:
                keep = keep & ~silent[:, None]
            views = [self._view(k, obs[key], augment) for k, key in enumerate(self.cameras)]
            parts = [tokens for tokens, _ in views] + [text]
            if more is not None:
                parts, keep = [*parts, more[0]], torch.cat([keep, more[1]], dim=1)
            tokens = torch.cat([*parts, *state], dim=1)
            count = tokens.shape[1]
            mask = keep.new_ones(batch, count)  # [B P]: not padding
            start = count - self.states - keep.shape[1]
            mask[:, start : start + keep.shape[1]] = keep
            seen = mask[:, None, :].repeat(1, count, 1)  # [B P P]: row sees column
            if self.has_state:
                seen[:, : -self.states, -self.states :] = False
            for block in self.blocks:
                tokens = block(tokens, seen[:, None])
        tokens = self.norm(tokens.float()) * mask[..., None]
        words, said = tokens[:, start : start + text.shape[1]], mask[:, start : start + text.shape[1]]
        summary = [read, words.sum(1) / said.sum(1, keepdim=True).clamp_min(1), *(outline for _, outline in views)]
        if self.has_state:
            summary.append(tokens[:, -1])
        return torch.cat([*summary, tokens.flatten(1), mask.to(tokens.dtype)], dim=1)

    def _read(self, obs: Obs) -> Tensor:
        """Select the elements of the state that are read [B To·D]."""
        if not self.has_state:
            return self.norm.weight.new_zeros(len(next(iter(obs.values()))), 0)
        read = [obs[k][..., self.columns] if k == STATE else obs[k].flatten(2) for k in self.floats]
        return torch.cat(read, dim=-1).flatten(1)

    def _state(self, read: Tensor) -> list[Tensor]:
        """Encode the state [B To·D] as tokens [B · width]: those of entities, then one of the rest."""
        if not self.has_state:
            return []
        if self.entities is None:
            return [self.state(read)[:, None]]
        read = read.unflatten(1, (self.history, -1))
        return [self.entities(read), self.state(read[..., self.entities.rest].flatten(1))[:, None]]

    def _view(self, k: int, image: Tensor, augment: bool) -> tuple[Tensor, Tensor]:
        """Return tokens [B To·n width] and outline [B To·O] of camera k.

        Args:
            image: [B To 3 h w], or its tower's tokens [B To n width].
        """
        if augment and self.image_shift:
            image = random_shift(image, self.image_shift)
        tower: Any = self.vision[k]
        tokens = tower(image.flatten(0, 1)).unflatten(0, image.shape[:2]) if image.ndim == 5 else image
        outline = tower.outline(tokens.flatten(0, 1)).float().view(len(tokens), -1)
        return (tokens + self.frame[k]).flatten(1, 2), outline


class MaskedBlock(nn.Module):
    """Pre-norm transformer block [B P width] → [B P width] under a mask [B 1 P P], True where a row sees a column."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.feed = nn.Sequential(nn.LayerNorm(width), feed_forward(width, 4))

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = x + self.attention(self.before(x), seen)
        return x + self.feed(x)


def entity_tokens(
    spec: PolicySpec, columns: list[int], sizes: dict[str, int], entities: dict[str, tuple[str, ...]], width: int
) -> EntityTokens:
    """Build EntityTokens for `columns` of `observation.state` and the other float keys, of sizes `sizes`.

    Raises:
        SpecError: the state has no names to choose by; see EntityTokens.
    """
    known = spec.observation[STATE].names if STATE in spec.observation else None
    if known is None:
        raise SpecError(f"policy.prefix.entities: there is no {STATE!r} whose elements have names to choose by")
    names = [n for k in sizes for n in ([known[i] for i in columns] if k == STATE else [""] * sizes[k])]
    return EntityTokens(names, entities, history=spec.n_obs_steps, width=width)
