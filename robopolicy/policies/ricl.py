"""Act from demonstrations in the context of a VLA, without training on new tasks (RICL, Sridhar et al. 2025).

The nearest frames of the demonstrations in memory, with their action chunks, are tokens of the prefix. Training puts
frames of *other* episodes of the same instruction into the context. For a new task, 10 to 20 demonstrations are put
into the memory, and no weight changes. The closer the nearest frame, the larger the share of its chunk in the action
(REGENT, Sridhar et al. 2024).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Count, Fraction, NonNegative
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.observations import check_observation
from robopolicy.core.rng import draw_rows
from robopolicy.core.specs import PolicySpec, state_columns
from robopolicy.core.types import STATE, TASK, Obs
from robopolicy.datasets.compatibility import misfits
from robopolicy.datasets.episodes import Episodes
from robopolicy.datasets.retrieval import Memory, Retrieved
from robopolicy.policies.normalizer import ACTION, Normalizer
from robopolicy.policies.retrieval_key import other_episodes, retrieval_key
from robopolicy.policies.vla import VLAPolicy

_KEY, _FRAME, _DISTANCE = "retrieval.key", "retrieval.frame", "retrieval.distance"  # added by `precompute_features`
_POOL = 64  # other episodes that a training frame's context is drawn from

_log = logging.getLogger(__name__)


class RICLPolicy(VLAPolicy):
    """A VLAPolicy with retrieval.

    The retrieval key of an observation holds its newest frame: normalised numbers, and of every image the frozen
    tower's tokens, or a thumbnail where the tower learns. `encode` returns tokens, the nearest chunk and its weight:
    C = (P + pairs)·(width + 1) + H·Da + 1.

    Args:
        episodes: initial demonstrations in memory; None: none.
        pairs: k, frames in the context, of k episodes. shown: episodes to choose these from in training.
        decay: λ; a share exp(−λ·d) of the action is the nearest chunk at distance d (REGENT, eq. 2); None: no share.
        alone: share of a training batch without context.
        forget: share of a training batch whose words are hidden, so that the context is read. In use, words are hidden
            where they are untrained and demonstrated.
        compare: elements of `observation.state` in the key, see `state_columns`; None: those that the prefix reads.
        thumbnail: its side; tokens of a frozen tower are averaged into as many groups.
        tasks: instructions of its training, where `spec` has others; None: those of `spec`.
        **options: see VLAPolicy.

    Raises:
        ConfigError: `alone` and `forget` add up to more than 1.
        SpecError: as VLAPolicy; unknown or no elements to compare; `episodes` that do not fit.
    """

    memory: Memory
    compared: Tensor  # columns of `observation.state`

    @staticmethod
    def forwards_to(given: object) -> tuple[type, ...]:
        return (VLAPolicy,)

    def __init__(
        self,
        spec: PolicySpec,
        normalizer: Normalizer,
        *,
        episodes: Episodes | None = None,
        pairs: Count = 8,
        shown: Count = 15,
        decay: NonNegative | None = 10.0,
        alone: Fraction = 0.2,
        forget: Fraction = 0.5,
        compare: tuple[str, ...] | None = None,
        thumbnail: Count = 8,
        tasks: tuple[str, ...] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(spec, normalizer, **options)
        if alone + forget > 1.0:
            raise ConfigError(f"policy.alone + policy.forget must be at most 1, found {alone} + {forget}")
        self.pairs, self.shown, self.decay, self.alone, self.forget = pairs, shown, decay, alone, forget
        self.thumbnail, self.known = thumbnail, tuple(spec.tasks if tasks is None else tasks)
        columns = self.encoder.columns.tolist()
        if compare is not None:
            columns = state_columns(spec.observation[STATE], compare, where="policy.compare")
        self.register_buffer("compared", torch.tensor(columns, dtype=torch.int64), persistent=False)
        blank = {k: torch.zeros(1, *f.shape, dtype=f.torch_dtype) for k, f in spec.observation.items()}
        key_dim = self._key({k: v.float() for k, v in blank.items()}).shape[1]
        if not key_dim:
            raise SpecError("policy.compare: leaves nothing to tell observations apart by; name elements of the state")
        horizon, action_dim, width = spec.horizon, spec.action.dim, self.encoder.width
        self.pair = nn.Sequential(
            nn.Linear(2 * key_dim + horizon * action_dim + 1, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)
        ).requires_grad_(not self.finetuned_steps)
        self.memory = Memory(key_dim, horizon, action_dim)
        if episodes is not None:
            self.set_retrieval_memory(episodes)

    # -- the memory --------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def set_retrieval_memory(self, episodes: Episodes | None) -> None:
        """See Policy. Instructions are matched by their text; a warning lists those of `spec` without demonstrations.

        Raises:
            SpecError: other features, actions or rate, no episode, or none of the instructions of `spec`.
        """
        if episodes is None:
            self.memory.clear()
            return
        problems = misfits(self.spec, episodes, needs="the policy", offers="the dataset", skip=[TASK])
        if not episodes.num_frames:
            problems.append("it holds no episode: record some, or say memory=none")
        task = episodes.obs.get(TASK, torch.zeros(episodes.num_frames, dtype=torch.int64))
        shown = {episodes.tasks[i] for i in task.unique().tolist()}
        if episodes.num_frames and not shown & set(self.spec.tasks):
            problems.append(
                f"it demonstrates {'; '.join(sorted(shown)[:5])}, and what is asked for is "
                f"{'; '.join(self.spec.tasks[:5])}: the instructions must be the same to the letter"
            )
        if problems:
            raise SpecError("policy and memory do not fit:\n  - " + "\n  - ".join(problems))
        if unseen := [t for t in self.spec.tasks if t not in shown]:
            _log.warning("memory: no demonstration of %s; the policy acts there without.", "; ".join(unseen))
        chunk, _ = episodes.chunk(torch.arange(episodes.num_frames), self.spec.horizon)
        device = self.memory.key.device
        chunk = self.normalizer.normalize(ACTION, chunk.to(device))
        self.memory.fill(self._keys({k: v.to(device) for k, v in episodes.obs.items()}), chunk, task,
                         starts=episodes.starts, seed=episodes.seeds, tasks=episodes.tasks)  # fmt: skip

    def set_tasks(self, tasks: tuple[str, ...]) -> None:
        """See VLAPolicy."""
        super().set_tasks(tasks)
        if node := getattr(self, "config", None):  # the saved config needs the instructions of training
            self.config = {**node, "tasks": list(self.known)}

    def _keys(self, obs: Obs) -> Tensor:
        """Compute keys [F E] of single frames [F ...] in physical units."""
        count = len(next(iter(obs.values())))
        parts = (self._normal({k: v[i : i + 256] for k, v in obs.items()}) for i in range(0, count, 256))
        return torch.cat([self._key(part) for part in parts])

    def _normal(self, obs: Obs) -> Obs:
        return {k: self.normalizer.normalize(k, obs[k]) for k in self.spec.observation if k != TASK}

    def _key(self, frame: Obs) -> Tensor:
        """Compute keys [F E] of normalised single frames [F ...]."""
        return retrieval_key(self.encoder, frame, columns=self.compared, thumbnail=self.thumbnail)

    def _number(self, obs: Obs) -> Tensor:
        """Return the instructions [B] of obs [B …] as indices into the memory's; −1 without demonstrations."""
        known = self.memory.numbers(self.spec.tasks)
        if TASK not in self.spec.observation:
            return known[:1].expand(len(next(iter(obs.values()))))
        return known[obs[TASK].reshape(len(obs[TASK]), -1)[:, -1]]

    # -- the context -------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def precompute_features(self, obs: Obs, episode: Tensor) -> Obs:
        """See Policy: the key of every frame, and the nearest frames of 64 other episodes of its instruction.

        Frames of its own episode, or of one of the same seed, are excluded.
        """
        memory, key, task = self.memory, self._keys(obs), self._number(obs)
        allowed = other_episodes(memory, task, episode, count=_POOL)
        found = memory.nearest(key, task, min(_POOL, max(1, len(memory))), allowed=allowed)
        return {**super().precompute_features(obs, episode), _KEY: key, _FRAME: found.frame, _DISTANCE: found.distance}

    def encode_batch(self, batch: dict[str, Any]) -> Tensor:
        """Encode a training batch as [B (P + pairs)·(width + 1)], without the nearest chunk.

        Raises:
            SpecError: the batch has no features of `precompute_features`, which excludes a frame's own episode.
        """
        if _KEY not in batch:
            raise SpecError(f"{_KEY!r} is missing. Make batches with Batches(…, precompute_features=…).")
        key, frame, distance = (batch[k][:, -1] for k in (_KEY, _FRAME, _DISTANCE))
        drawn = draw_rows(lambda rows: torch.rand(rows, *distance.shape[1:], device=key.device), len(key))
        order = drawn.masked_fill(distance.isinf(), 2.0).argsort(1).argsort(1)
        chance = draw_rows(lambda rows: torch.rand(rows, 1, device=key.device), len(key))
        left_out = (order >= self.shown) | (chance < self.alone)
        found = Retrieved(frame, distance.masked_fill(left_out, torch.inf)).closest(self.pairs)
        silent = (chance[:, 0] >= 1.0 - self.forget) & found.distance[:, 0].isfinite()
        return self.encoder(self.seen(batch), augment=True, more=self._tokens(key, found), silent=silent)

    def encode(self, obs: Obs) -> Tensor:
        """Encode obs [B To ...] in physical units as cond [B C]; see VLAPolicy."""
        check_observation(obs, self.spec)
        key = self._key(self._normal({k: v[:, -1] for k, v in obs.items()}))
        found = self.memory.nearest(key, self._number(obs), self.pairs)
        close = found.distance[:, :1]  # [B 1]
        new = torch.tensor([t not in self.known for t in self.spec.tasks], device=key.device)
        asked = obs[TASK][:, -1] if TASK in self.spec.observation else torch.zeros_like(found.frame[:, 0])
        context = self.encoder(
            self.normalizer.observation(obs), more=self._tokens(key, found), silent=new[asked] & close[:, 0].isfinite()
        )
        # Without a neighbour (distance inf) the share is 0, even for λ = 0.
        weight = torch.zeros_like(close) if self.decay is None else torch.exp(-max(self.decay, 1e-30) * close)
        return torch.cat([context, self._chunks(found.frame[:, :1]).flatten(1), weight], dim=1)

    def _tokens(self, key: Tensor, found: Retrieved) -> tuple[Tensor, Tensor]:
        """Return tokens [B k width] of the neighbours of key [B E], and their mask [B k] bool."""
        there = found.distance.isfinite()
        theirs = self.memory.key[found.frame] if len(self.memory) else key[:, None].expand(*found.frame.shape, -1)
        far = found.distance.masked_fill(~there, 0.0)[..., None]
        both = [theirs, key[:, None] - theirs, self._chunks(found.frame).flatten(2), far]
        return self.pair(torch.cat(both, dim=-1)), there

    def _chunks(self, frame: Tensor) -> Tensor:
        """Return normalised chunks [B k H Da] at frame [B k]; zeros without a memory."""
        if len(self.memory):
            return self.memory.chunk[frame]
        return torch.zeros(*frame.shape, *self.memory.chunk.shape[1:], device=frame.device)

    # -- the action --------------------------------------------------------------------------------------------------
    def stages(self, cond: Tensor) -> Iterator[tuple[int, Callable[[Tensor], Tensor]]]:
        """See ChunkDenoiser: predictions are interpolated towards the nearest chunk by its weight."""
        context, chunk, weight = self._split(cond)
        for i, predict in super().stages(context):
            yield i, partial(self._mixed, predict, chunk, weight, i)

    def prediction(self, cond: Tensor, x: Tensor, k: Tensor, *, frozen: bool = False) -> Tensor:
        """See ChunkDenoiser."""
        context, chunk, weight = self._split(cond)
        predict = partial(super().prediction, context, k=k, frozen=frozen)
        return self._mixed(predict, chunk, weight, k + len(self.times) - self.finetuned_steps, x)

    def _split(self, cond: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split cond [B C] into the context, the nearest chunk [B H Da] and its weight [B 1 1]."""
        shape = (self.spec.horizon, self.spec.action.dim)
        context, chunk, weight = cond.split([cond.shape[1] - shape[0] * shape[1] - 1, shape[0] * shape[1], 1], dim=1)
        return context, chunk.unflatten(1, shape), weight[..., None]

    def _mixed(
        self, predict: Callable[[Tensor], Tensor], chunk: Tensor, weight: Tensor, index: int | Tensor, x: Tensor
    ) -> Tensor:
        """Interpolate the prediction at x [B H Da]: its chunk is moved by `weight` towards `chunk`."""
        return torch.lerp(predict(x), self.expecting(chunk, x, index), weight)
