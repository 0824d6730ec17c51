"""Evaluation of a whole suite with several processes against one, as rows for docs/results/suite_eval_speed.json.

    python scripts/bench_suite.py [--suite metaworld_mt10] [--episodes 10] [--rounds 3] [--jobs N] [--record]

The policy is an untrained one of the suite's first task's shapes (a hundred steps of imitation would change no cost
here: every episode runs to its horizon). Both sides evaluate the same tasks and episodes, from nothing, in turns; the
time is that of the whole command, start of Python and of the processes included.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose
from robopolicy.config.instantiate import build
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import TASK
from robopolicy.evaluation.statistics import Interval, bootstrap
from robopolicy.policies.factory import build_policy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.reporting.suite import Suite
from robopolicy.runs.checkpointer import Checkpointer

ROOT = Path(__file__).resolve().parents[1]
ID = "suite_eval_speed"


def policy_for(suite: Suite, run: Path) -> None:
    """An untrained Gaussian policy as the checkpoint of a run."""
    node = next(iter(suite.nodes().values()))
    env = build(node, "task", "suite.task", num_envs=1, seed=0)
    seen = {k: f for k, f in env.spec.observation.items() if k != TASK}
    spec = PolicySpec(seen, env.spec.action, env.spec.dt, 1, 4, 4, env.spec.tasks)
    kind = {"_target_": "gaussian"}
    normalizer = Normalizer(spec.observation, spec.action)
    for affine in normalizer.affine.values():
        affine.set(torch.zeros_like(affine.shift), torch.ones_like(affine.scale))
    policy = build_policy(kind, spec=spec, normalizer=normalizer)
    Checkpointer(run).save(1, policy=policy, state={})
    (run / "config.yaml").write_text("task: {_target_: none}\n")
    env.close()


def seconds(suite: str, run: Path, episodes: int, jobs: int) -> float:
    """One evaluation of the whole suite from nothing."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "robopolicy", "eval", f"suite={suite}", f"checkpoint={run}", f"out={out}",
                   f"episodes={episodes}", f"jobs={jobs}", "threads=1"]  # fmt: skip
        began = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
        if done.returncode:
            sys.exit(done.stderr.decode()[-2000:])
        return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="metaworld_mt10")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--record", action="store_true", help="write docs/results")
    options = parser.parse_args()
    config = compose(find_verb("eval"), [f"suite={options.suite}", "checkpoint=x"], checked=False)["suite"]
    suite = Suite(**config)
    with tempfile.TemporaryDirectory() as folder:
        policy_for(suite, run := Path(folder) / "untrained")
        pairs = []
        for i in range(options.rounds):
            order = (1, options.jobs) if i % 2 == 0 else (options.jobs, 1)
            took = {jobs: seconds(options.suite, run, options.episodes, jobs) for jobs in order}
            pairs.append((took[1], took[options.jobs]))
            print(f"round {i}: {took[1]:.1f} s with one process, {took[options.jobs]:.1f} s with {options.jobs}",
                  file=sys.stderr)  # fmt: skip
    total = len(suite.tasks) * options.episodes
    notes = f"{options.suite}: {len(suite.tasks)} tasks, {options.episodes} episodes each; {options.jobs} processes"
    sides = {
        "ratio": bootstrap([[one / many for one, many in pairs]]),
        "episodes_per_s_one": bootstrap([[total / one for one, _ in pairs]]),
        "episodes_per_s_many": bootstrap([[total / many for _, many in pairs]]),
    }
    rows = [_row(metric, interval, notes) for metric, interval in sides.items()]
    for row in rows:
        print(json.dumps(dataclasses.asdict(row)))
    if options.record:
        write(rows, keep=False)
    return 0


def _row(metric: str, interval: Interval, notes: str) -> Evidence:
    return measured(id=ID, setting="suite", metric=metric, interval=interval, notes=notes)


if __name__ == "__main__":
    sys.exit(main())
