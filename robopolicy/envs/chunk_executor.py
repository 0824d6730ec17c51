"""Turn chunks into actions: queues of planned actions, which a policy fills.

Evaluation, BaseActionEnv, both collectors and the robot run the same queue, so a policy acts alike in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from robopolicy.core.errors import SpecError
from robopolicy.core.rng import keyed_normal
from robopolicy.core.types import Obs, newest
from robopolicy.policies.base import Policy

_FEWEST_ROWS = 16  # of a matrix product whose rows do not depend on their number, on CPUs with AVX-512

# Chunks [R H Da] for `rows` [R] of observations [N ...] and noise [R *noise_shape]; noise is None where none is drawn.
Plan = Callable[[Obs, Tensor, Tensor | None], Tensor]


class ChunkQueue:
    """Queues of planned actions for N envs: pops one per step and plans again where a queue is empty.

    Noise is keyed by (episode seed, episode step at planning), so an env's actions depend on its own episode only.

    Args:
        plan: see Plan. action_dim: Da.
        n_action_steps: Ta, actions of each chunk that are executed.
        noise_shape: shape of the noise of one chunk; () for none.
        stream: number of the noise stream. Policies on top of one another draw from separate streams.
        device: the env's. Observations, seeds, noise and actions are there.
    """

    def __init__(
        self,
        plan: Plan,
        num_envs: int,
        *,
        action_dim: int,
        n_action_steps: int,
        noise_shape: tuple[int, ...] = (),
        stream: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.plan, self.num_envs, self.n_action_steps = plan, num_envs, n_action_steps
        self.noise_shape, self.stream = noise_shape, stream
        self.queue = torch.zeros(num_envs, n_action_steps, action_dim, device=device)
        self.left = torch.zeros(num_envs, dtype=torch.int64, device=device)  # actions still in the queue
        self.clock = torch.zeros(num_envs, dtype=torch.int64, device=device)  # steps since the episode began
        self.planned = self.left[:0]  # [R] envs that the latest `next_action` planned for
        self.rows = torch.arange(num_envs, device=device)

    def reset(self, mask: Tensor | None = None) -> None:
        """Empty the queues and restart the clocks of the envs in `mask` [N] bool (all when None)."""
        for counter in (self.left, self.clock):
            counter.zero_() if mask is None else counter.masked_fill_(mask, 0)

    def replan(self) -> None:
        """Drop the queued actions: every env plans at its next step. Clocks go on."""
        self.left.zero_()

    @torch.no_grad()
    def next_action(self, obs: Obs, seed: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Return the next primitive action of every env in `mask` [N] bool (all when None).

        Args:
            obs: [N ...], as `plan` reads it.
            seed: [N] int64 episode seeds.

        Returns:
            [N Da] physical units; rows outside `mask` are stale and must not be used.
        """
        empty = self.left == 0 if mask is None else (self.left == 0) & mask
        self.planned = rows = empty.nonzero()[:, 0]
        if len(rows):
            noise = None
            if self.noise_shape:
                noise = keyed_normal(seed[rows], self.clock[rows], self.noise_shape, stream=self.stream)
            self.queue[rows] = self._executed(self.plan(obs, rows, noise)).to(self.queue)
            self.left[rows] = self.n_action_steps
        action = self.queue[self.rows, (self.n_action_steps - self.left).clamp_(max=self.n_action_steps - 1)]
        executed = 1 if mask is None else mask.to(torch.int64)
        self.left -= executed
        self.clock += executed
        return action

    def _executed(self, chunk: Tensor) -> Tensor:
        """Return the first Ta actions of a plan [R H Da]; torch would broadcast other shapes without a word."""
        executed = chunk[:, : self.n_action_steps] if chunk.ndim == 3 else chunk
        wanted = (len(self.planned), *self.queue.shape[1:])
        if tuple(executed.shape) != wanted:
            raise SpecError(
                f"act: expected chunks [{wanted[0]} H {wanted[2]}] with H ≥ n_action_steps={wanted[1]}, found "
                f"{list(chunk.shape)}"
            )
        return executed

    def state_dict(self) -> dict[str, Any]:
        return {"queue": self.queue.clone(), "left": self.left.clone(), "clock": self.clock.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("queue", "left", "clock"):
            getattr(self, name).copy_(state[name])


class ChunkExecutor(ChunkQueue):
    """Runs a policy: a ChunkQueue that `policy.act` fills.

    Small batches are filled up, but for policies that read images, so that a plan does not depend on their size. A CPU
    sums products of few rows in another order, and where things touch the last bits grow into another episode.

    A policy's noise stream is its depth, so a base draws the same noise alone and under a residual. The policy may
    be on another device than the env: noise is drawn on the env's device, so that it is the same everywhere.

    Args:
        deterministic: plan the policy's mode instead of a sample.
    """

    def __init__(
        self, policy: Policy, num_envs: int, *, device: torch.device | str = "cpu", deterministic: bool = False
    ) -> None:
        spec = policy.spec
        super().__init__(
            self._act, num_envs, action_dim=spec.action.dim, n_action_steps=spec.n_action_steps,
            noise_shape=policy.noise_shape, stream=policy.depth, device=device,
        )  # fmt: skip
        self.policy, self.deterministic = policy, deterministic
        self.reads_images = spec.reads_pictures

    @property
    def needs_images(self) -> Tensor:
        """[N] bool: envs whose next images the policy will read, if their episode goes on."""
        return (self.left == 0) & self.reads_images

    def _act(self, obs: Obs, rows: Tensor, noise: Tensor | None) -> Tensor:
        held = next(chain(self.policy.parameters(), self.policy.buffers()), self.queue)  # a policy may hold no tensor
        count, short = len(rows), 0 if self.reads_images else max(0, min(self.num_envs, _FEWEST_ROWS) - len(rows))
        rows = torch.cat([rows, rows[-1:].expand(short)])
        part = {k: v[rows].to(held.device) for k, v in newest(obs, self.policy.spec).items()}
        if noise is not None:
            noise = torch.cat([noise, noise[-1:].expand(short, *noise.shape[1:])]).to(held.device)
        return self.policy.act(part, noise=noise, deterministic=self.deterministic)[:count]
