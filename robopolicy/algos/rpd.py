"""Refined policy distillation (RPD, Jülg et al. 2025): PPO of a small student, anchored to a teacher's actions.

The teacher plans once for every chunk of the student, while the student explores. Its chunk is stored with the rollout
and used in all epochs. The published code runs the teacher again for every minibatch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from robopolicy.algos.ppo import PPO, ChunkSamples
from robopolicy.algos.returns import schedule
from robopolicy.algos.teacher_check import check_same_teacher, fingerprint
from robopolicy.buffers.collector import Record, Rollout
from robopolicy.config.schema import Fraction, Natural, NonNegative, Positive
from robopolicy.core.specs import check_teacher
from robopolicy.core.types import Metrics, Obs, newest
from robopolicy.policies.base import Policy
from robopolicy.policies.gaussian import GaussianPolicy
from robopolicy.policies.normalizer import ACTION
from robopolicy.utils import ranks


class RPD(PPO):
    """PPO's loss plus weight · distance(student's mean, teacher's chunk), over steps that the student executes.

    Args:
        teacher: acts without noise; it may read more, or other, observations than the student.
        distance: "mse": mean square in normalised units, as published; "kl": to a Gaussian around the teacher's chunk
            with the student's deviation, ½((mean − target)/σ)² per element.
        anchor: initial weight. anchor_schedule, anchor_final: its schedule over the training, and its final factor.
        clip: PPO's clip of the ratio. critic_warmup, **options: see PPO.

    Raises:
        SpecError: teacher and student command other actions, or at another rate.
    """

    options = PPO
    policy: GaussianPolicy

    def __init__(
        self,
        policy: GaussianPolicy,
        teacher: Policy,
        *,
        distance: Literal["mse", "kl"] = "mse",
        anchor: NonNegative = 1.0,
        anchor_schedule: Literal["constant", "linear", "cosine"] = "linear",
        anchor_final: Fraction = 0.1,
        clip: Positive = 0.05,
        critic_warmup: Natural = 0,
        **options: Any,
    ) -> None:
        check_teacher(policy.spec, teacher.spec)
        super().__init__(policy, clip=clip, critic_warmup=critic_warmup, **options)
        self.teacher = teacher.eval().requires_grad_(False)
        self.distance, self.anchor, self.weight = distance, anchor, anchor
        self.schedule = partial(schedule, anchor_schedule, final=anchor_final)
        self.count = min(policy.spec.n_action_steps, teacher.spec.horizon)  # Tt
        own, other = policy.spec, teacher.spec
        both, frames = {**other.observation, **own.observation}, max(own.n_obs_steps, other.n_obs_steps)
        self.reads = replace(own, observation=both, n_obs_steps=frames)  # see Explorer
        self.limits = torch.tensor([own.action.low, own.action.high], device=self.clip.device)

    @torch.no_grad()
    def explore(self, obs: Obs, noise: Tensor) -> tuple[Tensor, Record]:
        """See Explorer: sample the student; the teacher's chunk goes into the record."""
        chunk, record = super().explore(newest(obs, self.policy.spec), noise)
        there = {k: v.to(self.limits.device) for k, v in newest(obs, self.teacher.spec).items()}
        wanted = self.teacher.act(there, deterministic=True)[:, : self.count].clamp(*self.limits)
        return chunk, {**record, "teacher": self.policy.normalizer.normalize(ACTION, wanted)}

    def returns(self, rollout: Rollout) -> ChunkSamples:
        """Compute PPO's samples, and the teacher's chunks at the same rows."""
        chunks = super().returns(rollout)
        return chunks._replace(teacher=rollout.record["teacher"][chunks.advantages.keep])

    def update(self, batch: ChunkSamples, *, progress: float) -> Metrics:
        """Run all epochs over one rollout; see Learner.update."""
        self.weight = self.anchor * self.schedule(progress)
        with torch.no_grad():
            rows = torch.arange(len(batch.cond), device=batch.cond.device)
            apart = float(ranks.average_gradients([], self.apart(batch, rows), len(rows)))
        return {**super().update(batch, progress=progress), "anchor": self.weight, "teacher_distance": apart}

    def loss(self, batch: ChunkSamples, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the clipped objective of chunks `rows` [B] with the weighted teacher distance, and its STATS."""
        loss, stats = super().loss(batch, rows)
        return (loss + self.weight * self.apart(batch, rows) if self.weight else loss), stats

    def apart(self, batch: ChunkSamples, rows: Tensor) -> Tensor:
        """Compute the distance [] of the student's means to the teacher's chunks, mean over `rows` [B]."""
        assert batch.teacher is not None
        mean, std = self.policy.density(batch.cond[rows])
        gap = mean[:, : self.count] - batch.teacher[rows]
        if self.distance == "kl":
            gap = gap / (std[: self.count].detach() * 2**0.5)
        return gap.square().mean() if len(rows) else gap.sum()  # a rank may have none

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "teacher": fingerprint(self.teacher)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_same_teacher(state, self.teacher)
        super().load_state_dict(state)
