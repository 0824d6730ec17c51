"""Kills workers of `task.processes` at random moments, compares their rows with one process, and measures their speed.

    python scripts/farm.py                       # prints everything, some ten minutes on two free cores
    python scripts/farm.py --only speed          # ManiSkill's PickCube: needs ./scripts/setup.sh bench
    python scripts/farm.py --farm ray --trials 3 # workers are actors of Ray: pip install 'robopolicy[ray]'
    python scripts/farm.py --record              # writes docs/results/farm.json and farm_speed.json

Rows are of a diffusion policy on Meta-World's reach-v3. Speed is of random actions: all episodes then last to the time
limit, and resets are counted.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.cli.main import invoke
from robopolicy.config.instantiate import build
from robopolicy.core.errors import RobopolicyError
from robopolicy.core.rng import episode_seeds, keyed_uniform
from robopolicy.evaluation.rollout import evaluate
from robopolicy.reporting.result_rows import measured, write
from robopolicy.runs.checkpointer import load_policy
from robopolicy.sim.gymnasium import farm

ROOT = Path(__file__).resolve().parents[1]
WORKERS, ENVS, EPISODES = 2, 8, 24
TASK = {"_target_": "metaworld", "name": "reach-v3", "horizon": 100}
PICK = {"_target_": "maniskill", "name": "PickCube-v1"}
SPEED_ENVS, SPEED_STEPS, ROUNDS = 16, 100, 5
Found = dict[tuple[str, str, str], float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write docs/results/farm.json and farm_speed.json")
    parser.add_argument("--only", choices=("farm", "speed"), help="one of the two")
    parser.add_argument("--farm", choices=("process", "ray"), default="process", help="kind of the workers")
    parser.add_argument("--trials", type=int, default=20, help="evaluations, and trainings, with a kill")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each timing, default {ROUNDS}")
    options = parser.parse_args()
    found: Found = {}
    if options.only != "speed":
        with tempfile.TemporaryDirectory() as folder:
            found |= killed(Path(folder), options.farm, options.trials)
    if options.only != "farm":
        found |= speed(options.farm, options.rounds)
    for (id, setting, metric), value in found.items():
        print(f"{id:12} {setting:24} {metric:28} {value:.4g}", flush=True)
    if options.record:
        rows = [measured(id=id, setting=s, metric=m, interval=value) for (id, s, m), value in found.items()]
        write(rows, root=ROOT / "docs" / "results", keep=False)
    return 0


def killed(place: Path, backend: str, trials: int) -> Found:
    """Evaluate and train with two workers, one of which is killed, and evaluate in one process."""
    task = ("task=metaworld", "task.name=reach-v3", f"task.horizon={TASK['horizon']}")
    robopolicy("demos", *task, f"out={place / 'data'}", "episodes=10", "num_envs=4")
    robopolicy("train", "algo=bc", *task, f"dataset={place / 'data'}", f"run_dir={place / 'base'}", "loop.steps=200",
               "validation_episodes=0", "threads=1")  # fmt: skip
    return evaluations(place, backend, trials) | trainings(place, backend, trials, task)


def evaluations(place: Path, backend: str, trials: int) -> Found:
    """Compare the rows of two workers with those of one process, without and with a killed worker."""
    seeds = episode_seeds("test", 0, EPISODES)

    def rows(env: Any) -> Any:
        return evaluate(load_policy(place / "base", env=env.spec), env, seeds).frame.drop(columns="wall_s")

    one = rows(build(TASK, "task", num_envs=ENVS, seed=0))
    many = build({**TASK, "processes": WORKERS, "farm": backend}, "task", num_envs=ENVS, seed=0)
    began = time.perf_counter()
    found: Found = {("farm", "evaluation", "rows_that_differ"): differing(rows(many), one)}
    seconds, lost, rows_apart, draw = time.perf_counter() - began, list[int](), 0, random.Random(0)
    while len(lost) < trials:
        before = many.lost_episodes
        again, fell = with_a_kill(lambda: rows(many), seconds, draw)
        rows_apart += differing(again, one)
        if fell:
            lost.append(many.lost_episodes - before)
            print(f"evaluation {len(lost)}: {lost[-1]} episodes lost, {rows_apart} rows differ so far", flush=True)
    many.close()
    return found | {
        ("farm", "evaluation_killed", "evaluations"): len(lost),
        ("farm", "evaluation_killed", "rows_that_differ"): rows_apart,
        ("farm", "evaluation_killed", "most_lost_episodes"): max(lost),
        ("farm", "evaluation_killed", "lost_episodes"): sum(lost),
    }


def trainings(place: Path, backend: str, trials: int, task: tuple[str, ...]) -> Found:
    """Train a residual with two workers, one of which is killed."""
    total, ended, lost, draw = 4000, 0, list[int](), random.Random(1)

    def train(name: str) -> bool:
        try:
            result = invoke("train", "algo=residual", *task, f"base={place / 'base'}", f"run_dir={place / name}",
                            f"num_envs={ENVS}", f"task.processes={WORKERS}", f"task.farm={backend}",
                            "validation_episodes=0", f"loop.total_steps={total}", "loop.warmup_steps=1000",
                            "loop.updates_per_step=0.05", "tracker=quiet", "threads=1")  # fmt: skip
        except RobopolicyError as error:
            print(f"{name} ended: {error}", flush=True)
            return False
        return result["steps"] > total - ENVS  # a lost step is not counted

    began = time.perf_counter()
    train("whole")
    seconds, runs = time.perf_counter() - began, 0
    while len(lost) < trials:
        runs += 1
        with _Counted() as counted:
            fine, fell = with_a_kill(functools.partial(train, f"killed{runs}"), seconds, draw)
        if fell:
            ended += fine
            lost.append(counted.lost)
            print(f"training {len(lost)}: {lost[-1]} episodes lost, {ended} trainings came to their end", flush=True)
    return {
        ("farm", "training_killed", "trainings"): trials,
        ("farm", "training_killed", "runs_lost"): trials - ended,
        ("farm", "training_killed", "most_lost_episodes"): max(lost),
        ("farm", "training_killed", "lost_episodes"): sum(lost),
    }


class _Counted:
    """Counts the lost episodes of all farms that are made inside the block."""

    def __enter__(self) -> _Counted:
        self.farms: list[farm.Farm] = []
        self.made, farms = farm.Farm.__init__, self.farms

        def made(env: farm.Farm, *given: Any, **how: Any) -> None:
            farms.append(env)
            self.made(env, *given, **how)

        farm.Farm.__init__ = made  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        farm.Farm.__init__ = self.made  # type: ignore[method-assign]

    @property
    def lost(self) -> int:
        return sum(env.lost_episodes for env in self.farms)


def with_a_kill(work: Callable[[], Any], seconds: float, draw: random.Random) -> tuple[Any, bool]:
    """Return what `work` returns, and whether it still ran when a worker was killed, at a moment of its `seconds`."""
    killed = threading.Event()

    def kill() -> None:
        if workers := sorted(pids()):
            os.kill(draw.choice(workers), signal.SIGKILL)
            killed.set()

    timer = threading.Timer(draw.uniform(0.0, seconds), kill)
    timer.start()
    try:
        return work(), killed.is_set()
    finally:
        timer.cancel()


def pids() -> list[int]:
    """Return the workers' process ids: children of this process, or actors of Ray."""
    import psutil

    found = psutil.Process().children(recursive=True)
    return [p.pid for p in found if "spawn_main" in " ".join(p.cmdline()) or p.name().startswith("ray::RayHost")]


def differing(rows: Any, others: Any) -> int:
    """Return how many rows differ in a column."""
    return int((rows.to_numpy() != others.to_numpy()).any(axis=1).sum())


def speed(backend: str, rounds: int) -> Found:
    """Measure ManiSkill's env steps/s of one process and of two workers, in turn."""
    import torch

    torch.set_num_threads(1)
    ways = {"1_process": PICK, "2_workers": {**PICK, "processes": WORKERS, "farm": backend}}
    envs: dict[str, Any] = {name: build(task, "task", num_envs=SPEED_ENVS, seed=0) for name, task in ways.items()}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):  # the first one warms up
        for name, env in envs.items():
            env.reset(episode_seeds("test", 0, 4 * SPEED_ENVS))
            began = time.perf_counter()
            for t in range(SPEED_STEPS):
                env.step(random_action(env, t))
            rates[name].append(SPEED_ENVS * SPEED_STEPS / (time.perf_counter() - began))
            print(f"{name}: {rates[name][-1]:.1f} env steps/s", flush=True)
    for env in envs.values():
        env.close()
    median = {name: statistics.median(values[1:]) for name, values in rates.items()}
    found: Found = {("farm_speed", "maniskill", f"env_steps_per_s_{name}"): value for name, value in median.items()}
    return found | {("farm_speed", "maniskill", "ratio"): median["2_workers"] / median["1_process"]}


def random_action(env: Any, t: int) -> Any:
    import torch

    low, high = torch.tensor(env.spec.action.low), torch.tensor(env.spec.action.high)
    seeds = env.episode_seed
    return low + (high - low) * keyed_uniform(seeds, torch.full_like(seeds, t), (env.spec.action.dim,), stream=1)


def robopolicy(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "robopolicy", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":  # workers import this file
    sys.exit(main())
