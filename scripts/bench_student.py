"""A policy against the student that RPD or distillation made of it: seconds for a chunk, side by side; JSON lines.

    python scripts/bench_student.py --teacher RUN --student RUN --task tabletop --id vla_rpd [--quick | --record]

Settings inference/N: `ratio` of the teacher's seconds for a chunk for each of N observations over the student's, median
over rounds in which the sides alternate, with its 95% bootstrap interval. one_step also holds the student's
`chunks_per_s`. Observations are the task's first ones. One thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from robopolicy import sim
from robopolicy.core.types import Obs, VecEnv
from robopolicy.envs.wrappers import HistoryEnv
from robopolicy.evaluation.statistics import bootstrap
from robopolicy.policies.base import Policy
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.runs.checkpointer import load_policy

SIZES = (1, 64)


def part(policy: Policy, obs: Obs) -> Obs:
    """What it reads of observations [N To ...]."""
    return {key: obs[key][:, -policy.spec.n_obs_steps :] for key in policy.spec.observation}


@torch.no_grad()
def bench(id: str, sides: list[Policy], env: VecEnv, *, rounds: int, calls: int) -> list[Evidence]:
    obs = HistoryEnv(env, max(policy.spec.n_obs_steps for policy in sides)).reset()
    pairs = []
    for i in range(rounds + 1):  # the first round warms up
        times = []
        for policy in sides:
            mine, noise = part(policy, obs), torch.randn(env.num_envs, *policy.noise_shape)
            began = perf_counter()
            for _ in range(calls):
                policy.act(mine, noise=noise)
            times.append((perf_counter() - began) / calls)
        pairs += [times] if i else []
    teacher, student = (1e3 * statistics.median(t) for t in zip(*pairs, strict=True))
    ratio = measured(
        id=id, setting=f"inference/{env.num_envs}", metric="ratio",
        interval=bootstrap([[a / b] for a, b in pairs], statistic=statistics.median),
        notes=f"teacher {teacher:.2f}, student {student:.3f} ms; one thread",
    )  # fmt: skip
    rate = replace(ratio, metric="chunks_per_s", value=round(1e3 * env.num_envs / student), low=None, high=None)
    return [ratio, rate] if id == "one_step" else [ratio]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", type=Path, required=True, help="run or policy directory")
    parser.add_argument("--student", type=Path, required=True, help="run or policy directory")
    parser.add_argument("--task", default="tabletop")
    parser.add_argument("--id", default="vla_rpd", choices=["vla_rpd", "one_step"], help="of the rows")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="few rounds: whether it runs, not how fast")
    how.add_argument("--record", action="store_true", help="write into docs/results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rounds, calls = (2, 1) if options.quick else (15, 10)
    found: list[Evidence] = []
    for size in SIZES:
        env = sim.make(options.task, size)
        sides = [load_policy(path, env=env.spec).eval() for path in (options.teacher, options.student)]
        found += bench(options.id, sides, env, rounds=rounds, calls=calls)
    print("\n".join(json.dumps(asdict(row), ensure_ascii=False) for row in found))
    if options.record:
        write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
