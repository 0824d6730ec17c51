"""Evaluate a policy in a world model with intervals: the same starts in every member, uncertainty as failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import kept_generators
from robopolicy.evaluation.rollout import evaluate
from robopolicy.evaluation.statistics import Interval, wilson
from robopolicy.policies.base import Policy
from robopolicy.world_models.envs.imagined import ImaginedEnv
from robopolicy.world_models.models.dynamics import History
from robopolicy.world_models.models.world import World

FEWEST = 10  # starts of a meaningful evaluation
_VALIDATION = 1 << 40  # the first seed of the validation split: these episodes are never learned from
_ENVS = 500


class ImaginedEvaluation(ImaginedEnv):
    """Episodes whose start and member are fixed beforehand: seed `seeds[i]` begins at `start[i]`, dreamed by `unit[i]`.

    seeds: [E] int64. start: [E] int64 into `starts`. unit: [E] uniform numbers that choose a member.
    """

    def __init__(
        self,
        world: World,
        starts: History,
        num_envs: int,
        *,
        seeds: Tensor,
        start: Tensor,
        unit: Tensor,
        **options: Any,
    ) -> None:
        order = seeds.argsort()
        self.seeds, self.start, self.unit = seeds, start, unit
        self._sorted, self._order = seeds[order], order
        super().__init__(world, starts, num_envs, **options)

    @classmethod
    def crossed(cls, env: ImaginedEnv, count: int) -> ImaginedEvaluation:
        """Return the evaluation of every member of `env`'s world from the same `count` held-out starts.

        Raises:
            ConfigError: too few held-out starts, or unknown ones.
        """
        if env.held_out is None:
            raise ConfigError("world.gate: this env does not say which starts its model was not trained on")
        starts = env.held_out()
        if len(starts) < FEWEST:
            raise ConfigError(
                "world.gate: a policy is evaluated from held-out starts, at least "
                f"{FEWEST}; there are {len(starts)}. Record more, or raise loop.holdout of the model's training."
            )
        chosen = torch.linspace(0, len(starts) - 1, min(count, len(starts))).round().long()
        members = int(getattr(env.world.dynamics, "elites", env.world.dynamics.heads))
        number = torch.arange(members * len(chosen))
        member = number // len(chosen)
        return cls(
            env.world, starts.take(chosen), min(_ENVS, len(number)),
            seeds=_VALIDATION + number, start=number % len(chosen), unit=(member + 0.5) / members,
            horizon=env.spec.task_horizon or env.spec.horizon, trust=env.trust, pessimism=env.pessimism,
            sampled=env.sampled, cameras=env.cameras, digest=env.spec.digest,
        )  # fmt: skip

    def _choose(self, seeds: Tensor) -> tuple[Tensor, Tensor]:
        """Return start and unit of `seeds` [M]; other seeds use those of the nearest known seed."""
        row = self._order[torch.searchsorted(self._sorted, seeds).clamp_(max=len(self.seeds) - 1)]
        return self.start[row], self.unit[row]


@dataclass(frozen=True)
class ImaginedScores:
    """Outcomes of M members × S starts, each [M S] bool."""

    success: Tensor
    uncertain: Tensor  # ended by high uncertainty: counted as a failure
    diverged: Tensor  # the model's numbers were not finite: counted as a failure

    def interval(self, *, level: float, resamples: int, seed: int = 0) -> Interval:
        """Return success; uncertain episodes are failures in the lower limit, successes in the upper one.

        Each limit is the wider of a bootstrap's, which is a point where all outcomes are alike, and of Wilson's over
        the starts.
        """
        low, high = self.success.double(), (self.success | self.uncertain).double()
        drawn = [crossed_bootstrap(v, level=level, resamples=resamples, seed=seed) for v in (low, high)]
        counted = [wilson(float(v.mean()) * v.shape[1], v.shape[1], level=level) for v in (low, high)]
        highest = min(1.0, max(interval.high for interval in (*drawn, *counted)))  # rounding goes above
        return Interval(drawn[0].value, min(drawn[0].low, counted[0].low), highest)


def evaluate_in_imagination(policy: Policy, evaluation: ImaginedEvaluation) -> ImaginedScores:
    """Run `policy` through all episodes of `evaluation`; the global generator is left as it was."""
    with kept_generators(policy, evaluation.world):
        rows = evaluate(policy, evaluation, evaluation.seeds)
    ended, members = rows.frame["ended_by"], len(evaluation.unit.unique())  # rows in the order (member, start)
    columns = (rows.frame["success_once"], ended == "terminated", ended == "diverged")
    return ImaginedScores(*(torch.tensor(c.to_numpy(dtype=bool)).view(members, -1) for c in columns))


def crossed_bootstrap(values: Tensor, *, level: float, resamples: int = 2000, seed: int = 0) -> Interval:
    """Percentile interval of the mean of `values` [M S], members and starts both resampled with replacement.

    Disagreement of members and dependence on the start widen it. A single member is not resampled.
    """
    generator = torch.Generator().manual_seed(seed)
    members, starts = values.shape

    def shares(count: int) -> Tensor:
        drawn = torch.randint(count, (resamples, count), generator=generator)
        return torch.zeros(resamples, count, dtype=torch.float64).scatter_add_(
            1, drawn, torch.full(drawn.shape, 1.0 / count, dtype=torch.float64)
        )

    means = ((shares(members) @ values.double()) * shares(starts)).sum(1)
    tail = (1.0 - level) / 2.0
    low, high = torch.quantile(means, torch.tensor([tail, 1.0 - tail], dtype=torch.float64)).tolist()
    value = float(values.double().mean())
    return Interval(value, min(low, value), max(high, value))
