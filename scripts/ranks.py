"""Compares trainings of 1, 2 and 4 processes of torchrun on one machine: episodes, weights, resuming, seconds.

    python scripts/ranks.py                        # prints everything, about ten minutes on two free cores
    python scripts/ranks.py --against ../before    # and the CPU time of one process against another checkout's
    python scripts/ranks.py --record               # writes docs/results/ranks_same.json and ranks_speed.json

Exchanges are by gloo. Every training is of the task reach; the weights of algo=bc and algo=dppo are compared after ten
updates of the policy.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, os.environ.get("RANKS_ROOT", str(ROOT)))

COUNTS, REPEATS = (1, 2, 4), 3
COMMON = ("task=reach", "tracker=quiet", "validation_episodes=0")
SMALL = ("policy=diffusion", "horizon=4", "n_action_steps=2")
BC = ("algo=bc", *SMALL, "loop.steps=10", "loop.batch_size=64")
DPPO = ("algo=dppo", "policy.finetuned_steps=4", "num_envs=16", "loop.rollout_steps=40", "algo.critic_warmup=0",
        "algo.epochs=2", "algo.minibatches=5", "algo.lr_schedule=constant")  # fmt: skip
ROLLOUT = 16 * 40
SPEED = {
    "bc": ("algo=bc", "policy=diffusion", "loop.steps=150", "loop.batch_size=128"),
    "dppo": ("algo=dppo", "num_envs=64", "loop.total_steps=10240", "loop.rollout_steps=40"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write docs/results/ranks_same.json and ranks_speed.json")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout: overhead of one rank")
    parser.add_argument("--only", choices=("same", "speed"), help="one of the two rows")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"of each timing, default {REPEATS}")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options, overrides = parser.parse_known_args()
    if options.worker:
        return work(options.worker, overrides)
    if overrides:
        parser.error(f"unknown: {' '.join(overrides)}")
    from robopolicy.reporting.result_rows import measured, write

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        robopolicy("demos", "task=reach", f"out={place / 'data'}", "episodes=40", "threads=2")
        oldest = ROOT if options.against is None else options.against.resolve()  # newer ones read what it writes
        train(place / "base", 1, *BC, f"dataset={place / 'data'}", root=oldest)
        found: dict[tuple[str, str, str], float] = {}
        if options.only != "speed":
            found |= same(place)
        if options.only != "same":
            found |= speed(place, options.against, options.repeats)
    for (id, setting, metric), value in found.items():
        print(f"{id:12} {setting:24} {metric:24} {value:.4g}", flush=True)
    if options.record:
        rows = [measured(id=id, setting=s, metric=m, interval=value) for (id, s, m), value in found.items()]
        write(rows, root=ROOT / "docs" / "results", keep=False)
    return 0


def same(place: Path) -> dict[tuple[str, str, str], float]:
    """Train by 1, 2 and 4 ranks, and compare them with one; then resume with other numbers of ranks."""
    base, found, episodes = f"base={place / 'base'}", {}, {}
    for count in COUNTS:
        train(place / f"bc{count}", count, *BC, f"dataset={place / 'data'}")
        parts = train(place / f"dppo{count}", count, *DPPO, base, f"loop.total_steps={ROLLOUT}")
        episodes[count] = sorted(seed for part in parts for seed in part["seeds"])
    for count in COUNTS[1:]:
        for algo in ("bc", "dppo"):
            apart = difference(place / f"{algo}1", place / f"{algo}{count}")
            found["ranks_same", f"{algo}_{count}_ranks", "relative_difference"] = apart
        lost = len(set(episodes[1]) ^ set(episodes[count])) + len(episodes[count]) - len(set(episodes[count]))
        found["ranks_same", f"dppo_{count}_ranks", "episodes_that_differ"] = lost
    done = 0
    for number, count in enumerate((2, 1, 4), start=1):
        result = train(place / "resumed", count, *DPPO, base, f"loop.total_steps={number * ROLLOUT}")
        done += result[0]["steps"] == number * ROLLOUT
    return found | {("ranks_same", "resume_2_1_4", "parts_that_ran_on"): done}


def speed(place: Path, against: Path | None, repeats: int) -> dict[tuple[str, str, str], float]:
    """Time 2 ranks with 1 thread each against 1 rank with 2 threads, and one rank against another checkout."""
    found = {}
    for algo, overrides in SPEED.items():
        given = f"dataset={place / 'data'}" if algo == "bc" else f"base={place / 'base'}"
        ways = {"1_rank_2_threads": (1, 2, ROOT, "seconds"), "2_ranks_1_thread": (2, 1, ROOT, "seconds")}
        if against is not None:
            ways |= {"1_rank_1_thread": (1, 1, ROOT, "cpu_s"), "before_1_thread": (1, 1, against.resolve(), "cpu_s")}
        took: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(repeats):
            for way, (count, threads, root, unit) in ways.items():
                run_dir = place / f"{algo}_{way}_{number}"
                took[way].append(train(run_dir, count, *overrides, given, threads=threads, root=root)[0][unit])
        median = {way: statistics.median(values) for way, values in took.items()}
        found |= {("ranks_speed", f"{algo}_{way}", ways[way][3]): value for way, value in median.items()}
        ratio = median["1_rank_2_threads"] / median["2_ranks_1_thread"]
        found["ranks_speed", f"{algo}_2_ranks", "times_as_fast"] = ratio
        if against is not None:
            overhead = min(took["1_rank_1_thread"]) / min(took["before_1_thread"]) - 1.0
            found["ranks_speed", f"{algo}_1_rank", "overhead"] = overhead
    return found


def train(run_dir: Path, count: int, *overrides: str, threads: int = 1, root: Path = ROOT) -> list[dict[str, Any]]:
    """Train by `count` processes; return what each of them reports."""
    out = run_dir.with_suffix(".json")
    call = [str(Path(__file__).resolve()), "--worker", str(out), *COMMON, *overrides]
    call += [f"run_dir={run_dir}", f"threads={threads}"]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"] if count > 1 else []
    env = os.environ | {"RANKS_ROOT": str(root), "PYTHONPATH": str(root), "OMP_NUM_THREADS": str(threads)}
    print(f"{count} × {threads}: {' '.join(overrides[:1])} {run_dir.name}", flush=True)
    done = subprocess.run([sys.executable, *launcher, *call], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return [json.loads(out.with_suffix(f".{rank}").read_text()) for rank in range(count)]


def work(out: Path, overrides: list[str]) -> int:
    """Train in one process, and write the seeds of its episodes, its seconds and its CPU time."""
    from robopolicy.buffers.collector import RolloutCollector
    from robopolicy.cli.main import invoke

    seeds: set[int] = set()
    collect = RolloutCollector.collect

    def watched(self: RolloutCollector, length: int) -> Any:
        env, step = self.env, self.env.step

        def stepping(action: Any) -> Any:
            seeds.update(env.episode_seed.tolist())
            return step(action)

        env.step = stepping  # type: ignore[method-assign]
        try:
            return collect(self, length)
        finally:
            env.step = step  # type: ignore[method-assign]

    RolloutCollector.collect = watched  # type: ignore[method-assign]
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    result = invoke("train", *overrides)
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = result.get("train_s", result.get("wall_s", time.perf_counter() - began))
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    report = {"seeds": sorted(seeds), "steps": result["steps"], "seconds": seconds, "cpu_s": cpu}
    out.with_suffix(f".{os.environ.get('RANK', '0')}").write_text(json.dumps(report))
    return 0


def difference(one: Path, other: Path) -> float:
    """Return ‖a − b‖ / ‖a‖ of the trained weights of two runs."""
    import torch

    from robopolicy.utils.storage import read_state

    def weights(run_dir: Path) -> torch.Tensor:
        newest = run_dir / "checkpoints" / (run_dir / "checkpoints" / "latest").read_text().strip()
        algo = read_state(newest)["training"]["algo"]
        parts = algo["parameters"] if "parameters" in algo else algo["model"].values()
        return torch.cat([p.double().flatten() for p in parts if p.is_floating_point()])

    a, b = weights(one), weights(other)
    return float((a - b).norm() / a.norm())


def robopolicy(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "robopolicy", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
