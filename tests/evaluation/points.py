"""Variants of the point env and policy that break, diverge, drift or can be filmed."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from robopolicy.config.registry import register
from robopolicy.core.errors import ConfigError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import BASE_ACTION, STATE, Feature, Obs, Step
from robopolicy.evaluation.episode_table import COLUMNS, EpisodeTable
from robopolicy.policies.base import Policy
from robopolicy.policies.normalizer import Normalizer
from tests.fakes import PointEnv, PointPolicy


class FilmedPoint(PointEnv):
    """Draws the goal and the point."""

    def render(self, index: int, *, camera: str | None = None, width: int = 320, height: int = 240) -> Tensor:
        picture = torch.full((3, height, width), 230, dtype=torch.uint8)
        x, y = self.position[index].tolist()
        column, row = int(width * (0.5 + 0.7 * x)), int(height * (0.5 + 0.7 * y))
        picture[:, max(0, row - 3) : row + 3, max(0, column - 3) : column + 3] = 30
        return picture


class DivergingPoint(PointEnv):
    """Physics goes non-finite in the third step of every episode whose seed is a multiple of three."""

    def step(self, action: Tensor) -> Step:
        bad = (self.time == 2) & (self.episode_seed % 3 == 0)
        step = super().step(action)
        over = bad & ~step.ended
        if bool(over.any()):
            self._start(over)
            step = step._replace(obs=self._obs(), truncated=step.truncated | over)
        return step._replace(valid=~bad, success=step.success | bad, reward=torch.where(bad, torch.nan, step.reward))


class LosingPoint(PointEnv):
    """Loses the episodes whose seed is a multiple of three in their third step, `times` times each, as a farm does."""

    def __init__(self, num_envs: int, times: int) -> None:
        super().__init__(num_envs)
        self.times, self.lost_episodes, self.losses = times, 0, Counter[int]()

    def step(self, action: Tensor) -> Step:
        seeds = self.episode_seed.tolist()
        often = torch.tensor([seed % 3 == 0 and self.losses[seed] < self.times for seed in seeds])
        lost = often & (self.time == 2)
        self.losses.update(seed for seed, gone in zip(seeds, lost.tolist(), strict=True) if gone)
        self.lost_episodes += int(lost.sum())
        step = super().step(action)
        if bool((over := lost & ~step.ended).any()):
            self._start(over)
            step = step._replace(obs=self._obs())
        steps = step.steps.masked_fill(lost, 0)
        ends = {"terminated": step.terminated & ~lost, "truncated": step.truncated | lost}
        return step._replace(steps=steps, **ends, success=step.success & ~lost, valid=~lost)


class PassingPoint(PointEnv):
    """Success does not end the episode: the point may drift out of the goal again."""

    def step(self, action: Tensor) -> Step:
        executed = action.clamp(-0.1, 0.1)
        self.position += executed
        self.time += 1
        next_obs = self._obs()
        success, truncated = self.position.norm(dim=1) < 0.05, self.time >= self.spec.horizon
        if bool(truncated.any()):
            self._start(truncated)
        ones = torch.ones(self.num_envs, dtype=torch.int64)
        no = torch.zeros_like(truncated)
        return Step(self._obs(), next_obs, executed, ones, success.float(), no, truncated, success, ones.bool(), {})


class GradedPoint(PointEnv):
    """Reward is minus the distance, so that a return shows every bit of the way that an episode took."""

    def step(self, action: Tensor) -> Step:
        step = super().step(action)
        return step._replace(reward=-step.next_obs[STATE][:, :2].norm(dim=1))


class DeafPoint(PointEnv):
    """Ignores the seeds it is given."""

    def reset(self, seeds: Tensor | None = None) -> Obs:
        return super().reset(None)


class EndlessPoint(PointEnv):
    """Never truncates."""

    def step(self, action: Tensor) -> Step:
        self.time.clamp_(max=self.spec.horizon - 2)
        return super().step(action)


class NothingAdded(Policy):
    """A residual before training: returns the base action as it is."""

    def __init__(self, base: PointPolicy) -> None:
        super().__init__()
        from dataclasses import replace

        self.base = base
        observation = {STATE: base.spec.observation[STATE], BASE_ACTION: Feature((2,), names=base.spec.action.names)}
        self.spec = replace(base.spec, observation=observation, n_obs_steps=1, horizon=1, n_action_steps=1)

    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        return obs[BASE_ACTION][:, None]


@register("policy", "elementwise_point")
class ElementwisePoint(PointPolicy):
    """A noisy PointPolicy for checkpoints. It has no matrix products, whose last bits depend on how many rows they
    are given at once, so that its actions are the same bits in every batch."""

    def __init__(self, spec: PolicySpec, normalizer: Normalizer) -> None:
        super().__init__(noise=0.075)
        self.normalizer = normalizer


def outcomes(rows: EpisodeTable) -> list[tuple]:
    """Everything in the rows that must not depend on N."""
    columns = [c for c in COLUMNS if c != "wall_s"]
    return list(rows.frame[columns].itertuples(index=False, name=None))


def make_rows(
    successes: list[bool], *, start: int = 0, digest: str = "d", policy: str = "p", split: int = 2
) -> EpisodeTable:
    import pandas as pd

    return EpisodeTable(
        pd.DataFrame(
            {
                "seed": [(split << 40) + start + i for i in range(len(successes))],
                "env": "point",
                "digest": digest,
                "task": "go",
                "success_once": successes,
                "success_at_end": successes,
                "return": [float(s) for s in successes],
                "length": [7 if s else 12 for s in successes],
                "ended_by": ["success" if s else "truncated" for s in successes],
                "policy": policy,
                "deterministic": False,
                "version": "0",
                "wall_s": 0.1,
            },
            columns=list(COLUMNS),
        )
    )


@register("task", "named_point")
def named_point(name: str, num_envs: int, seed: int = 0, *, horizon: int = 12) -> PointEnv:
    """A task of a suite by name; "broken" is one that cannot be built, "graded" has returns of many bits."""
    if name == "broken":
        raise ConfigError("task.name='broken': cannot be built")
    return (GradedPoint if name == "graded" else PointEnv)(num_envs, horizon=horizon, seed=seed)
