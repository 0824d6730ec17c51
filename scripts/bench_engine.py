"""Speed and memory of the batched engine, each side by side with its rival in one run; rows of evidence as JSON lines.

    python scripts/bench_engine.py [--quick | --record] [--skip-maniskill]

raw_rollout  `env.step` (control, physics, observation, reward, success, resets) against bare `mujoco.rollout` of the
             same model from the same states with the same controls, recorded a moment before, in the same number of
             threads. Both must give the same bits, or the script stops. The sides alternate step by step.
maniskill    `env.step` against ManiSkill's PickCube-v1 on the CPU. On both sides: state observations, sparse reward,
             delta poses of the hand, resets, 7 DoF, 5 × 10 ms at 20 Hz. Its CPU backend steps one env a process: one
             process per core, each running freely (no vector env to wait for, no renderer). Ours follows its expert,
             full of contacts, theirs moves at random. `joint_control`: joint deltas spare theirs inverse kinematics.
memory       resident memory of a process with 256 envs less one with a single env, per further env.

ratio: median over rounds of our rate over theirs, with its 95% bootstrap interval.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # numpy and torch beside the engine's own threads
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mujoco
import numpy as np
from mujoco import rollout

from robopolicy import sim
from robopolicy.evaluation.statistics import Interval, bootstrap
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.runs.logger import Tracker
from robopolicy.sim.engine import available_cores

INSTALL = "./scripts/setup.sh bench, or: uv pip install mani-skill==3.0.1"
VULKAN = (
    "without a GPU it needs Mesa's lavapipe >= 24.3, even if nothing is drawn: ./scripts/setup.sh bench installs it"
)
N = 256
WARM_UP = 80  # control steps, pick's time limit: afterwards the episodes are spread over all their phases


class OurEngine:
    """Our env under its imperfect expert; only `env.step` is on the clock."""

    def __init__(self) -> None:
        self.env = sim.make("pick", N)
        self.expert = self.env.make_expert(expert_noise=0.5)
        self.obs = self.env.reset()
        self.expert.reset(None, episode_seed=self.env.episode_seed)
        self.ended = 0

    def step(self) -> float:
        """Seconds of one step of all envs."""
        action = self.expert.act(self.obs)
        begin = perf_counter()
        step = self.env.step(action)
        spent = perf_counter() - begin
        self.obs, self.ended = step.obs, self.ended + int(step.ended.sum())
        self.expert.reset(step.ended, episode_seed=self.env.episode_seed)
        return spent


def against_raw(rounds: int, steps: int) -> list[Evidence]:
    ours = OurEngine()
    env, physics = ours.env, ours.env.physics
    pool = rollout.Rollout(nthread=physics.threads if physics.threads > 1 else 0)  # its own, as are data and out
    data, out = [mujoco.MjData(env.model) for _ in range(physics.threads)], np.empty_like(physics._out)

    def raw(state: np.ndarray, chunk: int | None) -> float:
        """Seconds to do with `state` [N 1+nq+nv] what our env did last, `chunk` envs at a time in a thread."""
        begin = perf_counter()
        pool.rollout(
            physics.models, data, initial_state=state, control=physics._ctrl, skip_checks=True,
            nstep=physics.substeps, state=out, chunk_size=chunk,
        )  # fmt: skip
        spent = perf_counter() - begin
        if not np.array_equal(out, physics._out, equal_nan=True):
            sys.exit("raw rollout and engine differ: they did not simulate the same thing")
        return spent

    tried: dict[int | None, float] = {None: 0.0, physics._chunk: 0.0}  # MuJoCo's default chunk of envs, and our own
    for _ in range(WARM_UP):
        state = physics.state.copy()
        ours.step()
        for chunk in tried:
            tried[chunk] += raw(state, chunk)
    best = min(tried, key=tried.__getitem__)  # the faster one stands for raw rollout
    ours.ended, times = 0, np.zeros((rounds, 2))
    with Tracker().progress(rounds, "raw mujoco.rollout") as bar:
        for i in range(rounds):
            for _ in range(steps):
                state = physics.state.copy()
                times[i] += ours.step(), raw(state, best)
            bar.update(i + 1, ratio=times[i, 1] / times[i, 0])
    env.close()
    notes = (
        f"N={N}, {physics.threads} threads, {physics.substeps} substeps of {env.task.timestep} s, {ours.ended} ends of "
        f"episodes; raw rollout in chunks of {best or 'its default size'}; {rounds} rounds of {steps} steps"
    )
    return compared("raw_rollout", N * steps / times, {"ours": env.dt, "raw_rollout": env.dt}, notes)


@functools.cache
def maniskill_env(control: str) -> Any:
    """This process's env."""
    import gymnasium
    import mani_skill.envs  # noqa: F401 (registers PickCube-v1 with gymnasium)
    import torch

    torch.set_num_threads(1)
    env = gymnasium.make(
        "PickCube-v1", num_envs=1, obs_mode="state", reward_mode="sparse", sim_backend="physx_cpu",
        render_backend="none", control_mode=control,
    )  # fmt: skip
    env.reset(seed=os.getpid())
    return env


def maniskill_steps(control: str, seconds: float) -> tuple[int, float, int, int]:
    """Process, env steps/s over `seconds`, control frequency, physics frequency."""
    env, steps = maniskill_env(control), 0
    actions = [env.action_space.sample() for _ in range(64)]
    begin = perf_counter()
    while perf_counter() - begin < seconds:
        _, _, terminated, truncated, _ = env.step(actions[steps % 64])
        steps += 1
        if terminated or truncated:  # its own time limit is 50 steps
            env.reset()
    return os.getpid(), steps / (perf_counter() - begin), env.unwrapped.control_freq, env.unwrapped.sim_freq


def against_maniskill(setting: str, control: str, rounds: int, seconds: float) -> list[Evidence]:
    cores, rates, ours = available_cores(), np.zeros((rounds, 2)), OurEngine()
    jobs = [control] * cores, [seconds] * cores
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        try:
            while len({pid for pid, *_ in pool.map(maniskill_steps, *jobs)}) < cores:
                pass  # until every process has its env
        except (RuntimeError, ImportError, OSError) as error:
            sys.exit(f"ManiSkill failed: {error} ({VULKAN})")
        for _ in range(WARM_UP):
            ours.step()
        with Tracker().progress(rounds, f"ManiSkill {control}") as bar:
            for i in range(rounds):
                spent, steps = 0.0, 0
                while spent < seconds:
                    spent, steps = spent + ours.step(), steps + 1
                processes, theirs, control_hz, physics_hz = zip(*pool.map(maniskill_steps, *jobs), strict=True)
                if len(set(processes)) < cores:
                    sys.exit("ManiSkill's processes did not run side by side: run the benchmark again")
                rates[i] = steps * N / spent, sum(theirs)
                bar.update(i + 1, ratio=rates[i, 0] / rates[i, 1])
    notes = (
        f"{cores} cores each: ours N={N} pick under its expert; ManiSkill PickCube-v1 in {cores} processes of one env, "
        f"{control}, random, {control_hz[0]} Hz over {physics_hz[0]} Hz; {rounds} rounds of {seconds:g} s a side"
    )
    return compared(setting, rates, {"ours": ours.env.dt, "maniskill": 1 / control_hz[0]}, notes)


def compared(setting: str, rates: np.ndarray, dt: dict[str, float], notes: str) -> list[Evidence]:
    """Rows from `rates` [rounds 2], env steps/s of the sides named in `dt`, whose env step lasts so many seconds."""
    ratio = bootstrap([(rates[:, 0] / rates[:, 1]).tolist()], statistic=statistics.median)
    values: dict[str, Interval | float] = {"ratio": ratio}
    for (name, seconds), rate in zip(dt.items(), np.median(rates, axis=0).tolist(), strict=True):
        values[f"env_steps_per_s_{name}"] = round(rate, 1)
        values[f"simulated_s_per_wall_s_{name}"] = round(rate * seconds, 2)
    return rows(setting, values, notes)


def memory() -> list[Evidence]:
    code = (
        "import sys, psutil, sim, torch; n = int(sys.argv[1]); env = sim.make('pick', n)\n"
        "for _ in range(3): env.step(torch.zeros(n, env.spec.action.dim))\n"
        "print(psutil.Process().memory_info().rss / 1024)"
    )
    rss = {n: float(subprocess.check_output([sys.executable, "-c", code, str(n)])) for n in (1, N, 16 * N)}
    notes = f"KiB resident by number of envs: {rss}; at {16 * N} it is {(rss[16 * N] - rss[1]) / (16 * N - 1):.2f} KiB"
    return rows("memory", {"kib_per_env": round((rss[N] - rss[1]) / (N - 1), 2)}, notes)


def rows(setting: str, values: dict[str, Interval | float], notes: str) -> list[Evidence]:
    made = [measured(id="engine_speed", setting=setting, metric=m, interval=v, notes=notes) for m, v in values.items()]
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in made), sep="\n", flush=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="of each comparison; the sides alternate")
    parser.add_argument("--skip-maniskill", action="store_true")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--quick", action="store_true", help="a few short rounds, to see that it works")
    group.add_argument("--record", action="store_true", help="write the rows to docs/results/engine_speed.json too")
    args = parser.parse_args()
    if not args.skip_maniskill and importlib.util.find_spec("mani_skill") is None:
        parser.error(f"ManiSkill is missing: {INSTALL}, or --skip-maniskill")
    rounds, steps, seconds = (4, 10, 1.0) if args.quick else (args.rounds, 40, 3.0)
    found = against_raw(rounds, steps) + memory()
    if not args.skip_maniskill:
        found += against_maniskill("maniskill", "pd_ee_delta_pose", rounds, seconds)
        found += against_maniskill("maniskill/joint_control", "pd_joint_delta_pos", rounds, seconds)
    if args.record:
        print(*write(found), file=sys.stderr)


if __name__ == "__main__":
    main()
