"""Speed and memory of the batched engine, each side by side with its rival in one run; rows of evidence as JSON lines.

    python scripts/bench_engine.py [--quick | --record] [--skip-maniskill]

raw_rollout  `env.step` (control, physics, observation, reward, success, resets) against bare `mujoco.rollout` of the
             same model from the same states with the same controls, recorded a moment before, in the same number of
             threads. Both must give the same bits, or the script stops. The sides alternate step by step.
maniskill    `env.step` against ManiSkill's PickCube-v1 on the CPU with state observations, both on all cores. Its CPU
             backend steps one env a process, so one process per core, each running freely: no vector env to wait for,
             no renderer, sparse reward, its plainest control mode, actions drawn beforehand. Ours follows the scripted
             expert (the costlier motion: full of contacts), theirs moves at random. Resets are included on both sides.
             Both have a 7-DoF arm and 5 substeps of 10 ms at 20 Hz. The sides alternate.
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
import time
from concurrent import futures
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # numpy and torch beside the engine's own threads
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mujoco
import numpy as np
from mujoco import rollout

import sim
from robopolicy.errors import RobopolicyError
from robopolicy.evaluate.evidence import Evidence, measured, write
from robopolicy.evaluate.statistics import Interval, bootstrap
from robopolicy.tracking import Tracker
from sim.engine import available_cores

INSTALL = "./scripts/setup.sh bench, or: uv pip install mani-skill==3.0.1"
VULKAN = (
    "If it found no device: it needs Vulkan even for state observations, without a GPU Mesa's lavapipe, 24.3 or later; "
    "./scripts/setup.sh bench installs libvulkan1 and mesa-vulkan-drivers (on Debian 12 from bookworm-backports)."
)
WARM_UP = 80  # control steps, pick's time limit: afterwards the episodes are spread over all their phases


class Ours:
    """Our env under its imperfect expert; only `env.step` is on the clock."""

    def __init__(self, task: str, num_envs: int) -> None:
        self.env = sim.make(task, num_envs)
        self.expert = self.env.make_expert(imperfection=0.5)
        self.obs = self.env.reset()
        self.expert.reset(None, episode_seed=self.env.episode_seed)
        self.ended = 0

    def step(self) -> float:
        """Seconds of one step of all envs."""
        action = self.expert.act(self.obs)
        begin = time.perf_counter()
        step = self.env.step(action)
        spent = time.perf_counter() - begin
        self.obs, self.ended = step.obs, self.ended + int(step.ended.sum())
        self.expert.reset(step.ended, episode_seed=self.env.episode_seed)
        return spent


class Raw:
    """`mujoco.rollout` alone, with a pool and buffers of its own, replaying what `ours` did last."""

    def __init__(self, ours: Ours) -> None:
        self.physics = ours.env.physics
        threads = self.physics.threads
        self.pool = rollout.Rollout(nthread=threads if threads > 1 else 0)
        self.data = [mujoco.MjData(ours.env.model) for _ in range(threads)]
        self.out = np.empty_like(self.physics._out)
        self.chunk: int | None = None

    def step(self, state: np.ndarray) -> float:
        """Seconds to advance `state` [N 1+nq+nv] by one control step."""
        physics = self.physics
        begin = time.perf_counter()
        self.pool.rollout(
            physics.models, self.data, initial_state=state, control=physics._ctrl, skip_checks=True,
            nstep=physics.substeps, state=self.out, chunk_size=self.chunk,
        )  # fmt: skip
        spent = time.perf_counter() - begin
        if not np.array_equal(self.out, physics._out, equal_nan=True):
            raise RobopolicyError("raw rollout and engine differ: they did not simulate the same thing")
        return spent


def against_raw(task: str, num_envs: int, rounds: int, steps: int, tracker: Tracker) -> list[Evidence]:
    ours = Ours(task, num_envs)
    raw, physics = Raw(ours), ours.env.physics
    tried: dict[int | None, float] = {None: 0.0, physics._chunk: 0.0}  # MuJoCo's default chunk of envs, and our own
    for _ in range(WARM_UP):
        state = physics.state.copy()
        ours.step()
        for raw.chunk in tried:
            tried[raw.chunk] += raw.step(state)
    raw.chunk = min(tried, key=tried.__getitem__)  # the faster one stands for raw rollout
    ours.ended, times = 0, np.zeros((rounds, 2))
    with tracker.progress(rounds, "raw mujoco.rollout") as bar:
        for i in range(rounds):
            for _ in range(steps):
                state = physics.state.copy()
                times[i] += ours.step(), raw.step(state)
            bar.update(i + 1, ratio=times[i, 1] / times[i, 0])
    env, count = ours.env, num_envs * steps * rounds
    notes = (
        f"N={num_envs}, {physics.threads} threads, {physics.substeps} substeps of {env.task.timestep} s, {ours.ended} "
        f"episodes ended; raw rollout in chunks of {raw.chunk or 'its default size'}; {rounds} rounds of {steps} steps"
    )
    setting = "raw_rollout" if task == "pick" else f"raw_rollout/{task}"
    env.close()
    return compared(
        setting, times[:, 1] / times[:, 0], count / times.sum(axis=0), (env.dt, env.dt), "raw_rollout", notes
    )


@functools.cache
def maniskill_env() -> Any:
    """This process's env."""
    import gymnasium
    import mani_skill.envs  # noqa: F401
    import torch

    torch.set_num_threads(1)
    env = gymnasium.make(
        "PickCube-v1", num_envs=1, obs_mode="state", reward_mode="sparse", sim_backend="physx_cpu",
        render_backend="none", control_mode="pd_joint_delta_pos",
    )  # fmt: skip
    env.reset(seed=os.getpid())
    return env


def maniskill_steps(seconds: float) -> tuple[int, float, int, int]:
    """Process, env steps/s over `seconds`, control frequency, physics frequency."""
    env, steps = maniskill_env(), 0
    actions = [env.action_space.sample() for _ in range(64)]
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        _, _, terminated, truncated, _ = env.step(actions[steps % 64])
        steps += 1
        if terminated or truncated:  # its own time limit is 50 steps
            env.reset()
    return os.getpid(), steps / (time.perf_counter() - begin), env.unwrapped.control_freq, env.unwrapped.sim_freq


def against_maniskill(task: str, num_envs: int, rounds: int, seconds: float, tracker: Tracker) -> list[Evidence]:
    cores, rates, ours = available_cores(), np.zeros((rounds, 2)), Ours(task, num_envs)
    env = ours.env
    with futures.ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        try:
            while len({pid for pid, *_ in pool.map(maniskill_steps, [seconds] * cores)}) < cores:
                pass  # until every process has its env
        except (RuntimeError, ImportError, OSError) as error:
            raise RobopolicyError(f"ManiSkill failed: {error}. {VULKAN}") from error
        sum(ours.step() for _ in range(WARM_UP))
        with tracker.progress(rounds, "ManiSkill PickCube-v1") as bar:
            for i in range(rounds):
                spent, steps = 0.0, 0
                while spent < seconds:
                    spent, steps = spent + ours.step(), steps + 1
                found = list(pool.map(maniskill_steps, [seconds] * cores))
                if len({pid for pid, *_ in found}) < cores:
                    raise RobopolicyError("ManiSkill's processes did not run side by side; run the benchmark again")
                rates[i] = steps * num_envs / spent, sum(rate for _, rate, *_ in found)
                bar.update(i + 1, ratio=rates[i, 0] / rates[i, 1])
    env.close()
    _, _, control, physics = found[0]
    notes = (
        f"{cores} cores each: ours N={num_envs} {task} under its expert, ManiSkill PickCube-v1 in {cores} processes of one "
        f"env under random actions; {control} Hz control of {physics // control} substeps there, {1 / env.dt:.0f} Hz of "
        f"{env.task.substeps} here; {rounds} rounds of {seconds:g} s a side"
    )
    ratios = rates[:, 0] / rates[:, 1]
    return compared("maniskill", ratios, np.median(rates, axis=0), (env.dt, 1 / control), "maniskill", notes)


def compared(
    setting: str, ratios: np.ndarray, rates: np.ndarray, dt: tuple[float, float], rival: str, notes: str
) -> list[Evidence]:
    """Rows of one comparison: ratio, env steps/s and simulated seconds per wall second of both sides."""
    rows = [row(setting, "ratio", bootstrap([ratios.tolist()], statistic=statistics.median), notes)]
    for name, rate, seconds in zip(("ours", rival), rates.tolist(), dt, strict=True):
        rows.append(row(setting, f"env_steps_per_s_{name}", round(rate, 1), notes))
        rows.append(row(setting, f"simulated_s_per_wall_s_{name}", round(rate * seconds, 2), notes))
    return rows


def memory(task: str) -> list[Evidence]:
    code = (
        "import sys, psutil, sim, torch; n = int(sys.argv[1]); env = sim.make(sys.argv[2], n)\n"
        "a = torch.zeros(n, env.spec.action.dim)\n"
        "for _ in range(3): env.step(a)\n"
        "print(psutil.Process().memory_info().rss)"
    )
    one, many, more = (int(subprocess.check_output([sys.executable, "-c", code, str(n), task])) for n in (1, 256, 4096))
    notes = (
        f"resident memory of a process: {one / 2**20:.0f} MiB with 1 env, {many / 2**20:.0f} MiB with 256, "
        f"{more / 2**20:.0f} MiB with 4096, which is {(more - one) / 4095 / 1024:.1f} KiB per further env"
    )
    return [row("memory", "kib_per_env", round(max(0, many - one) / 255 / 1024, 2), notes)]


def row(setting: str, metric: str, value: Interval | float, notes: str) -> Evidence:
    if isinstance(value, Interval):
        value = Interval(*(round(v, 4) for v in value))
    evidence = measured(id="engine_speed", setting=setting, metric=metric, interval=value, notes=notes)
    print(json.dumps(asdict(evidence), ensure_ascii=False), flush=True)
    return evidence


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="pick")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=30, help="of each comparison; the sides alternate")
    parser.add_argument("--seconds", type=float, default=3.0, help="per side and round against ManiSkill")
    parser.add_argument("--skip-maniskill", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a few rounds, to see that it works")
    parser.add_argument("--record", action="store_true", help="write the rows to docs/results/engine_speed.json too")
    args = parser.parse_args()
    if args.record and (args.quick or args.task != "pick" or args.num_envs != 256):
        parser.error("--record is for the settings of the bar: no --quick, --task or --num-envs")
    if not args.skip_maniskill and importlib.util.find_spec("mani_skill") is None:
        parser.error(f"ManiSkill is not installed: {INSTALL}; or leave it out by --skip-maniskill")
    rounds, seconds, steps = (4, 1.0, 10) if args.quick else (args.rounds, args.seconds, 40)
    tracker = Tracker(None, wandb="disabled")
    try:
        rows = against_raw(args.task, args.num_envs, rounds, steps, tracker) + memory(args.task)
        if not args.skip_maniskill:
            rows += against_maniskill(args.task, args.num_envs, rounds, seconds, tracker)
    except RobopolicyError as error:
        print(error, file=sys.stderr)
        return 2
    if args.record:
        print(*write(rows), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
