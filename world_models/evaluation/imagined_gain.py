"""Decide in a world model whether a policy is better than its base, without an env step."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from robopolicy.evaluation.gate_checks import DIVERGED, check_level
from robopolicy.evaluation.off_policy_evaluation import GateResult
from robopolicy.policies.base import Policy
from robopolicy.world_models.envs.imagined import ImaginedEnv
from robopolicy.world_models.evaluation.imagined_evaluation import (
    ImaginedEvaluation,
    ImaginedScores,
    crossed_bootstrap,
    evaluate_in_imagination,
)

BELIEVED = 0.95  # share of the base's imagined episodes
LOOSER, TRIES = 1.25, 7  # the bound on uncertainty is raised by this factor, so often at most: to 4.8 times


class PlayedBase(NamedTuple):
    """A base's outcomes in the episodes of an evaluation, that candidates are compared on."""

    evaluation: ImaginedEvaluation
    scores: ImaginedScores


def decide_in_imagination(
    candidate: Policy, base: Policy, env: ImaginedEnv, *, level: float = 0.9, starts: int = 100, seed: int = 0
) -> GateResult:
    """Accept `candidate` where it succeeds more often than `base` in `env`'s model, with confidence `level`.

    Args:
        level: of each one-sided bound. starts: at most so many, spread over those that the model was not trained on.
        seed: of the resamples.

    Raises:
        ConfigError: the level is not between 0.5 and 1, or there are fewer than FEWEST held-out starts.
    """
    check_level(level)
    return decided_beside(played(base, env, starts), candidate, level=level, seed=seed)


def played(base: Policy, env: ImaginedEnv, starts: int = 100) -> PlayedBase:
    """Let `base` play the episodes that candidates are compared on: every start in every member of the model.

    The bound on uncertainty is of recorded episodes, and imagined ones wander further. So it is raised, in
    TRIES steps at most, until the model believes BELIEVED of the base's, which it should know.
    """
    evaluation = ImaginedEvaluation.crossed(env, starts)
    scores = evaluate_in_imagination(base, evaluation)
    for _ in range(TRIES):
        if _share(scores.uncertain) <= 1.0 - BELIEVED:
            break
        evaluation.trust *= LOOSER
        scores = evaluate_in_imagination(base, evaluation)
    return PlayedBase(evaluation, scores)


def decided_beside(base: PlayedBase, candidate: Policy, *, level: float = 0.9, seed: int = 0) -> GateResult:
    """Accept `candidate` where it succeeds more often than the base in the same episodes.

    The bounds are of a bootstrap over starts and members. An episode of which the model is too uncertain does not help
    the candidate: its own is a failure, and the base's counts for neither policy.
    """
    before, now = base.scores, evaluate_in_imagination(candidate, base.evaluation)
    difference = (now.success.double() - before.success.double()).masked_fill(before.uncertain, 0.0)
    gain = crossed_bootstrap(difference, level=2.0 * level - 1.0, seed=seed)
    lost = max(_share(scores.diverged) for scores in (now, before))
    return GateResult(
        gain.low > 0.0 and lost <= DIVERGED, *gain, level, now.success.shape[1], uncertain=_share(now.uncertain),
        base_uncertain=_share(before.uncertain), trust=base.evaluation.trust, diverged=lost,
        estimator="world_model",
    )  # fmt: skip


def _share(outcomes: Tensor) -> float:
    return float(outcomes.double().mean())
