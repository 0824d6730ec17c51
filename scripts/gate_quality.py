"""Decisions of `robopolicy gate` beside true success: how often it accepts a policy that is not better than its base.

    python scripts/gate_quality.py [--tasks pick stack] [--seeds 0 1] [--record]

A base plays 300 episodes, which are recorded. Candidates are the checkpoints along the trainings of METHODS. Most learn
from three quarters of the episodes and improve the policy. Those of the base's demonstrations, imitated once more by
another seed, are as good as the base at best. The gate reads the other quarter of the episodes. Truth is the paired
difference of success on the validation episodes. Bases are made as in scripts/experiments.py. Trainings that
are complete, and decisions that are kept as lines of JSON beside them, are not made again.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.config.instantiate import build
from robopolicy.core.rng import episode_seeds
from robopolicy.datasets.episodes import held_out, take
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.evaluation.gate_checks import check_policies
from robopolicy.evaluation.off_policy_evaluation import (
    HEADS,
    UPDATES,
    decided,
    fitted_values,
    updates_needed,
)
from robopolicy.evaluation.rollout import evaluate
from robopolicy.evaluation.statistics import wilson
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.runs.checkpointer import load_policy
from robopolicy.utils.provenance import commit
from robopolicy.utils.threads import set_threads
from scripts.experiment_plan import BASES as PLANNED
from scripts.experiment_plan import Base
from scripts.experiments import record_rollouts, robopolicy, train_base
from scripts.kept_lines import keep_line, kept_lines

ROOT, ID = Path(__file__).resolve().parents[1], "gate_quality"
BASES = {task: PLANNED[task] for task in ("pick", "stack", "push", "drawer", "reach")}
METHODS = {  # overrides of `robopolicy train`
    "preset": ("algo=offline",),
    "even": ("algo=offline", "algo.beta=100"),  # all executed chunks count alike, failures too: near the base
    "fast": ("algo=offline", "algo.actor_lr=3e-3"),
    "again": ("algo=bc", "loop.steps=3000", "loop.save_every=600"),  # the base's demonstrations imitated once more
}
HELD_OUT, ROLLOUTS, EPISODES = 0.25, 300, 300
OTHER_SEEDS = 100  # of the imitation that is not the base
CRITIC_ONLY = 2_000  # updates before the policy changes
LARGE = 0.10  # a true gain that the gate should see


class Judged(NamedTuple):
    """A candidate: its name, the decision, and the true gain of success."""

    name: str
    accepted: bool
    gain: float
    low: float
    true: float


def candidates(out: Path, base: Base, seed: int) -> list[Path]:
    """Record rollouts, train, and return the checkpoints along every method."""
    start, here = out / "bases" / f"{base.name}-{seed}", out / ID / f"{base.name}-{seed}"
    train_base(out, base, seed, 1)
    rollouts = record_rollouts(base, start, seed, ROLLOUTS, 1)
    found = list[Path]()
    offline = (
        f"base={start / 'bc'}", f"loop.rollouts.own={rollouts}", f"loop.held_out={HELD_OUT}", f"seed={seed}",
        "loop.save_every=250", f"loop.critic_only_updates={CRITIC_ONLY}",
    )  # fmt: skip
    for name, (algo, *overrides) in METHODS.items():
        more = offline if algo == "algo=offline" else (f"seed={OTHER_SEEDS + seed}",)
        robopolicy(
            "train", algo, f"task={base.task}", f"dataset={start / 'data'}", f"run_dir={here / name}",
            "tracker=local", "keep_checkpoints=100", "threads=1", *more, *overrides,
            threads=1, log=here / "log.txt",
        )  # fmt: skip
        saved = sorted((here / name / "checkpoints").glob("step_*"))
        first = CRITIC_ONLY if more is offline else 0  # checkpoints before it are the base
        found += [path for path in saved if int(path.name.removeprefix("step_")) > first]
    return found


def judge(out: Path, base: Base, seed: int, level: float) -> list[Judged]:
    """Return the decision about every candidate of one base, beside its true gain."""
    start, here = out / "bases" / f"{base.name}-{seed}", out / ID / f"{base.name}-{seed}"
    paths = candidates(out, base, seed)
    file = here / "judged.jsonl"
    found = [Judged(**line) for line in kept_lines(file, {"level": level, "commit": commit()})]
    if len(found) == len(paths):
        return found
    env = build({"_target_": "native", "task": base.task}, "task", num_envs=100, seed=0)
    seeds = episode_seeds("validation", 0, EPISODES)
    reference = load_policy(start / "bc")
    rollouts = load_episodes(start / f"rollouts-{ROLLOUTS}", needed=dict(reference.spec.observation))
    unseen = take(rollouts, held_out(rollouts, HELD_OUT))
    reader = check_policies(reference, reference, unseen)
    updates = max(UPDATES, updates_needed(unseen, reader.spec.n_action_steps))
    fit = partial(fitted_values, base=reader, episodes=unseen, seed=seed, heads=HEADS, updates=updates)
    value = fit(reference)  # of the base: `gate` fits it for every candidate again
    before = evaluate(reference, env, seeds, policy_id="base").success_rate().value
    for path in paths[len(found) :]:
        policy = load_policy(path)
        result = decided(fit(policy), value, level=level, episodes=unseen.num_episodes)
        true = evaluate(policy, env, seeds, policy_id=path.name).success_rate().value - before
        name = f"{base.name}-{seed}/{path.parents[1].name}/{path.name}"
        found.append(Judged(name, result.accepted, result.gain, result.low, true))
        keep_line(file, found[-1]._asdict())
        print(json.dumps(found[-1]._asdict()), flush=True)
    return found


def rows_of(setting: str, judged: list[Judged], level: float) -> list[Evidence]:
    """Return the rates of false and of true acceptance, and the share of accepted candidates that are not better."""
    wrong = [j.accepted for j in judged if j.true <= 0.0]
    large = [j.accepted for j in judged if j.true >= LARGE]
    not_better = [j.true <= 0.0 for j in judged if j.accepted]
    about = f"{len(judged)} candidates, level {level:g}, {sum(j.accepted for j in judged)} accepted"
    return [
        measured(id=ID, setting=setting, metric=metric, interval=wilson(sum(found), len(found)), notes=(
            f"{about}; over {len(found)} {which}"), episodes=EPISODES)
        for metric, found, which in (
            ("false_acceptance", wrong, "candidates that are not better than their base"),
            ("true_acceptance", large, f"candidates that gain at least {100 * LARGE:g} points"),
            ("accepted_not_better", not_better, "accepted candidates"),
        ) if found
    ]  # fmt: skip


def gain_of(task: str, seed: int, judged: list[Judged]) -> Evidence:
    """Return the true gain of algo=offline, the last candidate of the preset."""
    last = [j for j in judged if "/preset/" in j.name][-1]
    return measured(
        id=ID, setting=task, metric="gain_points", interval=round(100 * last.true, 3), seeds=seed, episodes=EPISODES,
        notes=f"algo=offline from {ROLLOUTS} rollouts, {last.name}; gate: {'accepted' if last.accepted else 'refused'}",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/experiments"), help="run directories go here")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="training seeds")
    parser.add_argument("--tasks", choices=BASES, nargs="+", default=list(BASES))
    parser.add_argument("--level", type=float, default=0.9)
    parser.add_argument("--record", action="store_true", help=f"add to docs/results/{ID}.json")
    options = parser.parse_args()
    set_threads(1)
    found = list[Judged]()
    for task in options.tasks:
        by_seed = {s: judge(options.out.resolve(), BASES[task], s, options.level) for s in options.seeds}
        judged = [j for each in by_seed.values() for j in each]
        rows = rows_of(task, judged, options.level) + [gain_of(task, seed, each) for seed, each in by_seed.items()]
        found += judged
        if options.record:
            write(rows, root=ROOT / "docs" / "results")
    for row in (rows := rows_of("all", found, options.level)):
        print(f"{row.metric} {row.value:.3f} ({row.low:.3f} to {row.high:.3f}); {row.notes}")
    if options.record:
        print(*write(rows, root=ROOT / "docs" / "results"), file=sys.stderr)


if __name__ == "__main__":
    main()
