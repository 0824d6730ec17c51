"""Ranking of policies by imagination against their ranking in truth; evidence `imagination_ranking` as JSON lines.

    python scripts/rank_policies.py --model runs/world --task pick runs/a runs/b … [--episodes 200] [--record]

Policies are chosen beforehand, and none of them is in the model's data. Each runs on the same test episodes of the
task, and in every member of the model from the same starts that the model was not trained on, as the gate judges: what
ends in uncertainty is a failure. One row a policy and side; then `spearman`, with its bootstrap interval over policies.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.config.compose import task_node
from robopolicy.config.instantiate import build
from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import episode_seeds
from robopolicy.evaluation.rollout import evaluate
from robopolicy.policies.find import policy_digest
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.runs.checkpointer import find_policy, load_policy
from robopolicy.world_models.envs.make_imagined import make
from robopolicy.world_models.evaluation import ranking
from robopolicy.world_models.evaluation.imagined_evaluation import ImaginedEvaluation, evaluate_in_imagination

ID, LEVEL = "imagination_ranking", 0.95


def rank(
    policies: list[Path], model: Path, task: str, *, episodes: int, starts: int, even_if_bad: bool = False
) -> list[Evidence]:
    """All rows.

    Raises:
        ConfigError: too few policies, or one twice; a model that is not fit to learn in, unless `even_if_bad`.
    """
    if len(policies) < ranking.FEWEST:
        raise ConfigError(f"policies: the order of {len(policies)} says nothing, give at least {ranking.FEWEST}")
    digests = [policy_digest(find_policy(path)) for path in policies]
    if len(set(digests)) < len(digests):
        raise ConfigError("policies: some of them are the same; each counts once")
    env = build(task_node(task), "task", num_envs=min(100, episodes), seed=0)
    evaluation = ImaginedEvaluation.crossed(make(model, num_envs=1, even_if_bad=even_if_bad), starts)
    seeds, rows = episode_seeds("test", 0, episodes), []
    rates: dict[str, list[float]] = {"imagined": [], "true": []}
    for number, path in enumerate(policies):
        policy = load_policy(path, env=env.spec)
        imagined = evaluate_in_imagination(policy, evaluation).interval(level=LEVEL, resamples=2_000)
        true = evaluate(policy, env, seeds).success_rate(level=LEVEL)
        for side, rate, count in (("imagined", imagined, len(evaluation.seeds)), ("true", true, episodes)):
            rates[side].append(rate.value)
            rows.append(measured(id=ID, setting=f"{task}/policy_{number:02d}/{side}", metric="success_rate",
                                 interval=rate, episodes=count, notes=path.name))  # fmt: skip
        print(f"{path.name}: imagined {100 * imagined.value:.1f}%, true {100 * true.value:.1f}%", file=sys.stderr)
    found = ranking.rank_correlation(rates["imagined"], rates["true"])
    return [*rows, measured(id=ID, setting=task, metric="spearman", interval=found, episodes=episodes * len(policies),
                            notes=f"{len(policies)} policies, bootstrap over them")]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="+", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--starts", type=int, default=100)
    parser.add_argument("--even-if-bad", action="store_true", help="also by a model that is not fit to learn in")
    parser.add_argument("--record", action="store_true", help="write docs/results/")
    given = parser.parse_args()
    rows = rank(
        given.policies, given.model, given.task, episodes=given.episodes, starts=given.starts,
        even_if_bad=given.even_if_bad,
    )  # fmt: skip
    for row in rows:
        print(json.dumps(asdict(row), ensure_ascii=False))
    if given.record:
        write(rows)


if __name__ == "__main__":
    main()
