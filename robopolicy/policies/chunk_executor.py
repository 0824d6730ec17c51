"""ChunkExecutor: the one place where predicted chunks become primitive actions.

Evaluation, BaseActionEnv and the robot run the same class, so a policy behaves alike in all three.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor

from robopolicy.core.rng import keyed_normal
from robopolicy.core.types import BASE_ACTION, IMAGES, Obs
from robopolicy.policies.base import Policy


def depth(policy: Policy) -> int:
    """How many policies lie underneath `policy`."""
    return 0 if policy.base is None else 1 + depth(policy.base)


def device_of(policy: Policy) -> torch.device | None:
    """Where `policy` computes; None where it holds no tensors, and so computes wherever its input is."""
    held = next(chain(policy.parameters(), policy.buffers()), None)
    return None if held is None else held.device


class ChunkExecutor:
    """Queues of predicted actions for N envs: pops one a step, plans anew where the queue is empty.

    Noise is keyed by (episode seed, episode step at planning), so what an env does depends on its own episode only.
    Policies on top of one another draw from separate streams, numbered from the bottom: a base draws the same noise
    alone and under a residual.

    Observations, seeds and actions are on `device`, the env's; the policy may be on another one. Noise is drawn on the
    env's and then moved, so that it is the same wherever the policy computes.
    """

    def __init__(self, policy: Policy, num_envs: int, *, device: torch.device | str = "cpu") -> None:
        self.policy, self.num_envs = policy, num_envs
        self.stream = depth(policy)
        spec = policy.spec
        self.queue = torch.zeros(num_envs, spec.n_action_steps, spec.action.dim, device=device)
        self.left = torch.zeros(num_envs, dtype=torch.int64, device=device)  # actions still in the queue
        self.clock = torch.zeros(num_envs, dtype=torch.int64, device=device)  # steps since the episode began
        self.planned = self.left[:0]  # [R] envs that the latest `next_action` planned for
        self.reads_images = any(key.startswith(IMAGES) for key in spec.observation)

    def reset(self, mask: Tensor | None = None) -> None:
        """Empty the queues and restart the clocks of the envs in `mask` [N] bool (all when None)."""
        if mask is None:
            self.left.zero_()
            self.clock.zero_()
        else:
            self.left.masked_fill_(mask, 0)
            self.clock.masked_fill_(mask, 0)

    @property
    def needs_images(self) -> Tensor:
        """[N] bool: whose pictures it will read in the next observation, where no episode ends before."""
        return (self.left == 0) & self.reads_images

    def replan(self) -> None:
        """Drop what is left in the queues: every env plans at its next step. Clocks go on."""
        self.left.zero_()

    @torch.no_grad()
    def next_action(self, obs: Obs, seed: Tensor, *, mask: Tensor | None = None, deterministic: bool = False) -> Tensor:
        """The next primitive action of every env in `mask` [N] bool (all when None).

        Args:
            obs: [N To' ...] with To' ≥ the policy's To; the last To frames are read.
            seed: [N] int64 episode seeds.

        Returns:
            [N Da] physical units; rows outside `mask` are left over from before and not to be used.
        """
        empty = self.left == 0 if mask is None else (self.left == 0) & mask
        self.planned = empty.nonzero()[:, 0]
        if len(self.planned):
            self._plan(obs, seed, self.planned, deterministic)
        rows = torch.arange(self.num_envs, device=self.queue.device)
        action = self.queue[rows, (self.policy.spec.n_action_steps - self.left).clamp_(max=self.queue.shape[1] - 1)]
        taken = 1 if mask is None else mask.to(torch.int64)
        self.left -= taken
        self.clock += taken
        return action

    def _plan(self, obs: Obs, seed: Tensor, rows: Tensor, deterministic: bool) -> None:
        spec, there = self.policy.spec, device_of(self.policy) or self.queue.device
        part = {k: obs[k][rows] if k == BASE_ACTION else obs[k][rows, -spec.n_obs_steps :] for k in spec.observation}
        part, noise = {k: v.to(there) for k, v in part.items()}, None
        if self.policy.noise_shape:
            noise = keyed_normal(seed[rows], self.clock[rows], self.policy.noise_shape, stream=self.stream).to(there)
        chunk = self.policy.act(part, noise=noise, deterministic=deterministic)
        self.queue[rows] = chunk[:, : spec.n_action_steps].to(self.queue)
        self.left[rows] = spec.n_action_steps

    def state_dict(self) -> dict[str, Any]:
        return {"queue": self.queue.clone(), "left": self.left.clone(), "clock": self.clock.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("queue", "left", "clock"):
            getattr(self, name).copy_(state[name])
