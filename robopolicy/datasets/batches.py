"""Training batches of a dataset, a pure function of seed and step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.rng import part_of_batch, step_seed
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Obs
from robopolicy.datasets.compatibility import misfits
from robopolicy.datasets.episodes import Episodes
from robopolicy.utils import ranks


class Batches:
    """Training batches of a policy as a pure function of (seed, step): resuming needs no state but the step.

    Every epoch is a fresh permutation of all frames, cut into ⌊F/B⌋ batches; what is left over is dropped.

    Args:
        precompute_features: of observations [F ...] and the seeds of their episodes [F], see Policy.
        shared: return this rank's part of every batch; the other ranks learn the rest.

    Raises:
        ConfigError: a batch has fewer windows than there are ranks that share it.
        SpecError: the episodes lack what the policy reads or speak of other actions; all differences are listed.
    """

    def __init__(
        self,
        episodes: Episodes,
        spec: PolicySpec,
        *,
        batch_size: int,
        seed: int,
        device: torch.device | str = "cpu",
        precompute_features: Callable[[Obs, Tensor], Obs] | None = None,
        shared: bool = False,
    ) -> None:
        if problems := misfits(spec, episodes, needs="the policy", offers="the dataset"):
            raise SpecError("policy and dataset do not fit:\n  - " + "\n  - ".join(problems))
        self.seed, self.batch_size, self.whole = seed, batch_size, min(batch_size, episodes.num_frames)
        if shared and self.whole < ranks.count():
            raise ConfigError(f"loop.batch_size: {ranks.count()} ranks cannot share {self.whole} windows. Raise it.")
        self.part = ranks.own_part(self.whole) if shared else slice(0, self.whole)
        # Windows as tables of frame numbers: the frames themselves stay where they are, once.
        frames = torch.arange(episodes.num_frames)
        numbered = replace(episodes, obs={"frame": frames}, action=frames[:, None])
        chunk, pad = numbered.chunk(frames, spec.horizon)
        self.history = numbered.history(frames, spec.n_obs_steps)["frame"].to(device)  # [F To]
        self.chunk, self.pad = chunk[..., 0].to(device), pad.to(device)  # [F H]
        self.obs = {k: episodes.obs[k].to(device) for k in spec.observation}
        if precompute_features is not None:
            self.obs = precompute_features(self.obs, episodes.seeds[episodes.episode_of].to(device))
        self.action = episodes.action.to(device)
        self.per_epoch = max(1, len(frames) // batch_size)
        self._epoch, self._order = -1, frames

    def drawing(self) -> AbstractContextManager[None]:
        """Return a block in which random numbers are drawn for whole batches, see core.rng.draw_rows."""
        return nullcontext() if ranks.count() == 1 else part_of_batch(self.part, self.whole)

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        """{key: [B To ...], "action": [B H Da], "action_is_pad": [B H]} of training step `step`."""
        epoch, position = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(step_seed(self.seed, epoch, stream=1))
            order = torch.randperm(len(self.action), generator=generator)
            self._epoch, self._order = epoch, order.to(self.action.device)
        rows = self._order[position * self.batch_size : (position + 1) * self.batch_size][self.part]
        batch = {k: v[self.history[rows]] for k, v in self.obs.items()}
        return {**batch, "action": self.action[self.chunk[rows]], "action_is_pad": self.pad[rows]}
