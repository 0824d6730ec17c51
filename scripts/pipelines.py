"""RL-100's whole path: `robopolicy pipeline` on each task and training seed, every stage's success.

    python scripts/pipelines.py --tasks pick --seeds 0           # one run, nothing is written into docs/results
    python scripts/pipelines.py --record                         # four native tasks, three training seeds
    python scripts/pipelines.py --id rl100_suite --record        # five tasks of suites

Bases are those of scripts/experiments.py; where they are there, they are used. Runs go to <out>/<id>, and the same
command goes on where it stopped. Setting <task>/<stage>: success on the base's number of test episodes, env steps and
seconds of the stage, and the difference to the policy that the stage began with. A refused candidate is recorded too.
Row final of rl100_suite: mean success of the newest accepted policies. Suites: ./scripts/setup.sh bench.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.cli.main import invoke
from robopolicy.evaluation.compare import format_p
from robopolicy.reporting.pipeline_page import StageResult, comparisons
from robopolicy.reporting.result_rows import Evidence, measured, of_rows, pooled, write
from scripts.experiment_plan import BASES
from scripts.experiments import envs_of, task_of, train_base

SEEDS = (0, 1, 2)
TASKS = {  # id -> bases
    "rl100_native": ("pick", "stack", "pusht", "peg"),
    "rl100_suite": (
        "push-relative", "hammer-relative", "peg-insert-side-relative", "robosuite_can", "maniskill_stackcube",
    ),
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", choices=TASKS, default="rl100_native", help="of the rows")
    parser.add_argument("--tasks", nargs="+", default=[], help="bases of this id (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help="training seeds")
    parser.add_argument("--out", type=Path, default=Path("runs/experiments"), help="run directories go here")
    parser.add_argument("--set", nargs="+", default=[], help="further keys of the pipeline: env_steps=60000")
    parser.add_argument("--record", action="store_true", help="write into docs/results")
    options = parser.parse_args(arguments)
    if options.record and (options.set or set(options.seeds) != set(SEEDS)):
        parser.error(f"--record: is for training seeds {list(SEEDS)} and no further keys")
    known, tasks = TASKS[options.id], tuple(options.tasks or TASKS[options.id])
    if other := sorted(set(tasks) - set(known)):
        parser.error(f"--tasks {' '.join(other)}: {options.id} has {', '.join(known)}")
    found, final = list[Evidence](), list[float]()
    for task in tasks:
        for seed in options.seeds:
            stages = run(options.out, options.id, task, seed, options.set)
            found += rows(options.id, task, seed, stages)
            final.append([s.rows.success_rate().value for s in stages if s.rows is not None and s.accepted][-1])
    if set(options.seeds) == set(SEEDS):
        rates = [row for row in found if row.metric == "success_rate"]
        settings = dict.fromkeys(row.setting for row in rates)
        found += [pooled([row for row in rates if row.setting == setting]) for setting in settings]
        if options.id == "rl100_suite" and set(tasks) == set(known):
            whole = measured(id=options.id, setting="final", metric="mean_success_rate", interval=fmean(final),
                             command=command(options.id), notes=f"{len(known)} tasks, {len(SEEDS)} seeds")  # fmt: skip
            found.append(whole)
    for row in found:
        print(json.dumps({k: v for k, v in asdict(row).items() if k in ("setting", "metric", "value", "seeds")}))
    if options.record:
        write(found)
    return 0


def command(id: str) -> str:
    return f"python scripts/pipelines.py{'' if id == 'rl100_native' else f' --id {id}'} --record"


def run(out: Path, id: str, task: str, seed: int, more: list[str]) -> list[StageResult]:
    """Run the pipeline on a base of the experiments, which is trained first where it is not there."""
    base = BASES[task]
    train_base(out, base, seed, 1)
    folder = out.resolve() / "bases" / f"{base.name}-{seed}"
    results: list[StageResult] = invoke(
        "pipeline", *task_of(base), *envs_of(base), f"episodes={base.episodes}", "tracker=local", *more,
        base=folder / "bc", dataset=folder / "data", out=out.resolve() / id / f"{task}-{seed}", seed=seed, threads=1,
    )  # fmt: skip
    return results


def rows(id: str, task: str, seed: int, stages: list[StageResult]) -> Iterator[Evidence]:
    """Return the success of every policy, and its difference to the one that its stage began with."""
    compared = comparisons(stages)
    for stage in stages:
        about = stage.note if stage.accepted else f"not accepted; {stage.note}"
        if stage.rows is None:
            continue
        setting = f"{task}/{stage.name}"
        yield of_rows(
            stage.rows, id=id, setting=setting, seed=seed, command=command(id), env_steps=stage.env_steps or None,
            wall_s=stage.seconds or None, notes=about,
        )  # fmt: skip
        if (c := compared.get(stage.name)) is not None:
            yield measured(
                id=id, setting=setting, metric="difference", interval=c.difference, episodes=c.pairs.total, seeds=seed,
                command=command(id), notes=f"to {c.a}; McNemar p = {format_p(c.p_value)}",
            )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
