"""Start groups of envs in the same state, for algorithms that compare episodes of the same start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import Obs, Step, VecEnv
from robopolicy.envs.wrappers import Wrapper, request_images
from robopolicy.utils import ranks

_PLACE = 48  # bit of an episode seed at which the place in a group begins; seeds themselves lie below


class GroupedEnv(Wrapper):
    """Starts each `size` neighbouring envs in the same state, all together, every `horizon` steps.

    An env whose episode ends early waits: until all envs restart, its steps have no length and are not valid. Its last
    step is truncated. Within a group the reported `episode_seed` differs in its highest bits, so that envs draw
    different noise. The lower bits choose the start state.

    Args:
        size: envs of a group. seed: names the stream of training episodes.

    Raises:
        ConfigError: num_envs is no multiple of `size`, `size` is below 2, or the env's episodes have no outcome.
        SpecError: the env emits stacked frames, or an episode exceeds its horizon.
    """

    def __init__(self, env: VecEnv, size: int, *, seed: int = 0) -> None:
        if env.spec.history or env.spec.chunk:
            raise SpecError(f"{env.spec.id}: GroupedEnv goes directly on an env that emits single frames")
        if env.spec.branches:
            raise ConfigError(
                f"group_size={size}: compares the outcomes of episodes, and those of {env.spec.id} are cut before they "
                "have one. Leave world.branch away."
            )
        if size < 2 or env.num_envs % size:
            raise ConfigError(
                f"group_size={size}: num_envs={env.num_envs} envs do not make up whole groups of two or more. Set "
                "num_envs to a multiple of it."
            )
        super().__init__(env)
        self.size, self.seed = size, seed
        self.place = (torch.arange(env.num_envs, device=env.device) % size) << _PLACE
        self.start = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)  # seed of the common start
        self.waits = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        self.shared = False
        # Start seeds used so far, in all ranks that share them, and steps since the latest start.
        self.handed, self.clock = 0, 0

    @property
    def episode_seed(self) -> Tensor:
        return self.start + self.place

    def request_images(self, rows: Tensor) -> None:
        """See Selective."""
        request_images(self.env, rows)

    def share_episodes(self) -> None:
        """See Shareable; the envs underneath need not share theirs: all their starts are given."""
        self.shared = True

    def reset(self, seeds: Tensor | None = None) -> Obs:
        """Start new episodes in all envs.

        Args:
            seeds: [≥ N/size] int64, one for each group; None: the training stream.
        """
        groups = self.num_envs // self.size
        if seeds is None:
            whole = groups * ranks.count() if self.shared else groups
            seeds = episode_seeds("train", self.seed, whole, start=self.handed)
            seeds = seeds[ranks.own_part(whole)] if self.shared else seeds
            self.handed += whole
        self.start = seeds[:groups].to(self.start).repeat_interleave(self.size)
        self.waits, self.clock = torch.zeros_like(self.waits), 0
        return self.env.reset(self.start)

    def step(self, action: Tensor) -> Step:
        step, waited = self.env.step(action), self.waits
        self.waits, self.clock = waited | step.ended, self.clock + 1
        restart = self.clock == self.spec.horizon
        if restart and not bool(self.waits.all()):
            raise SpecError(
                f"{self.spec.id}: {int((~self.waits).sum())} episodes go on after {self.clock} steps, its horizon is "
                f"{self.spec.horizon}. The env must truncate there."
            )
        step = step._replace(
            steps=step.steps.masked_fill(waited, 0),
            reward=step.reward.masked_fill(waited, 0.0),
            terminated=step.terminated & ~waited,
            truncated=torch.where(waited, restart, step.truncated),
            success=step.success & ~waited,
            valid=step.valid & ~waited,
            info={k: v.masked_fill(waited, 0) for k, v in step.info.items()},
        )
        return step._replace(obs=self.reset()) if restart else step

    def state_dict(self) -> dict[str, Any]:
        own = {"start": self.start.clone(), "waits": self.waits.clone(), "handed": self.handed, "clock": self.clock}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.start, self.waits = state["start"].clone(), state["waits"].clone()
        self.handed, self.clock = int(state["handed"]), int(state["clock"])
