"""RL-100's whole path on native tasks: `robopolicy pipeline` on each task and training seed, every stage's success.

    python scripts/pipelines.py --tasks pick --seeds 0           # one run, nothing is written into docs/results
    python scripts/pipelines.py --record                         # four tasks, three training seeds

Bases are those of scripts/experiments.py; where they are there, they are used. Runs go to <out>/rl100_native, and the
same command goes on where it stopped. Setting <task>/<stage>: success on 500 test episodes, env steps and seconds of
the stage, and the difference to the policy that the stage began with. A refused candidate is recorded too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.cli.main import invoke
from robopolicy.evaluation.compare import format_p
from robopolicy.reporting.pipeline_page import StageResult, comparisons
from robopolicy.reporting.result_rows import Evidence, measured, of_rows, pooled, write
from scripts.experiment_plan import BASES as PLANNED
from scripts.experiments import train_base

ID, SEEDS = "rl100_native", (0, 1, 2)
BASES = {task: PLANNED[task] for task in ("pick", "stack", "pusht", "peg")}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=BASES, default=list(BASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help="training seeds")
    parser.add_argument("--out", type=Path, default=Path("runs/experiments"), help="run directories go here")
    parser.add_argument("--set", nargs="+", default=[], help="further keys of the pipeline: env_steps=60000")
    parser.add_argument("--record", action="store_true", help="write into docs/results")
    options = parser.parse_args(arguments)
    if options.record and (options.set or set(options.seeds) != set(SEEDS)):
        parser.error(f"--record: is for training seeds {list(SEEDS)} and no further keys")
    found: list[Evidence] = []
    for task in options.tasks:
        for seed in options.seeds:
            found += rows(task, seed, run(options.out, task, seed, options.set))
    if set(options.seeds) == set(SEEDS):
        rates = [row for row in found if row.metric == "success_rate"]
        settings = dict.fromkeys(row.setting for row in rates)
        found += [pooled([row for row in rates if row.setting == setting]) for setting in settings]
    for row in found:
        print(json.dumps({k: v for k, v in asdict(row).items() if k in ("setting", "metric", "value", "seeds")}))
    if options.record:
        write(found)
    return 0


def run(out: Path, task: str, seed: int, more: list[str]) -> list[StageResult]:
    """Run the pipeline on a base of the experiments, which is trained first where it is not there."""
    base = BASES[task]
    train_base(out, base, seed, 1)
    folder = out.resolve() / "bases" / f"{base.name}-{seed}"
    results: list[StageResult] = invoke(
        "pipeline", f"task={task}", "tracker=local", *more, base=folder / "bc", dataset=folder / "data",
        out=out.resolve() / ID / f"{task}-{seed}", seed=seed, threads=1,
    )  # fmt: skip
    return results


def rows(task: str, seed: int, stages: list[StageResult]) -> Iterator[Evidence]:
    """Return the success of every policy, and its difference to the one that its stage began with."""
    command, compared = "python scripts/pipelines.py --record", comparisons(stages)
    for stage in stages:
        about = stage.note if stage.accepted else f"not accepted; {stage.note}"
        if stage.rows is None:
            continue
        setting = f"{task}/{stage.name}"
        yield of_rows(
            stage.rows, id=ID, setting=setting, seed=seed, command=command, env_steps=stage.env_steps or None,
            wall_s=stage.seconds or None, notes=about,
        )  # fmt: skip
        if (c := compared.get(stage.name)) is not None:
            yield measured(
                id=ID, setting=setting, metric="difference", interval=c.difference, episodes=c.pairs.total, seeds=seed,
                command=command, notes=f"to {c.a}; McNemar p = {format_p(c.p_value)}",
            )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
