"""A policy against the student that RPD or distillation made of it: seconds for a chunk, side by side; JSON lines.

    python scripts/bench_student.py --teacher RUN --student RUN --task tabletop --id vla_rpd [--quick | --record]

Settings inference/N: `ratio` of the teacher's seconds for a chunk for each of N observations over the student's, median
over rounds in which the sides alternate, with its 95% bootstrap interval. one_step also holds the student's
`chunks_per_s`. A residual's time is that of its base's chunk and of one correction; its settings are refined/N.
Observations are the task's first ones. One thread.
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
from robopolicy.core.types import BASE_ACTION, Obs, VecEnv, newest
from robopolicy.envs.wrappers import HistoryEnv
from robopolicy.evaluation.statistics import bootstrap
from robopolicy.policies.base import Policy, with_bases
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.runs.checkpointer import load_policy

SIZES = (1, 64)


def chunk(policy: Policy, obs: Obs, noise: list[torch.Tensor]) -> torch.Tensor:
    """A chunk for observations [N To ...], from the noise of each policy in it, the lowest first."""
    for member, own in zip(reversed(with_bases(policy)), noise, strict=True):
        actions = member.act(newest(obs, member.spec), noise=own)
        obs = {**obs, BASE_ACTION: actions[:, 0]}
    return actions


@torch.no_grad()
def bench(id: str, sides: list[Policy], env: VecEnv, *, rounds: int, calls: int) -> list[Evidence]:
    members = [list(reversed(with_bases(policy))) for policy in sides]
    obs = HistoryEnv(env, max(member.spec.n_obs_steps for side in members for member in side)).reset()
    kind = "refined" if sides[0].base is not None else "inference"
    pairs = []
    for i in range(rounds + 1):  # the first round warms up
        times = []
        for policy, side in zip(sides, members, strict=True):
            noise = [torch.randn(env.num_envs, *member.noise_shape) for member in side]
            began = perf_counter()
            for _ in range(calls):
                chunk(policy, obs, noise)
            times.append((perf_counter() - began) / calls)
        pairs += [times] if i else []
    teacher, student = (1e3 * statistics.median(t) for t in zip(*pairs, strict=True))
    ratio = measured(
        id=id, setting=f"{kind}/{env.num_envs}", metric="ratio",
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
