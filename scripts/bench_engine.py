"""Speed and memory of the batched engine: JSON rows, one a line.

    python scripts/bench_engine.py [--num-envs 256] [--rounds 20] [--task pick] [--skip-maniskill]

engine_speed / raw_rollout   env steps/s with observation, reward, success and resets, as a ratio of raw
                             `mujoco.rollout` replaying the same states and controls on the same model and substeps.
                             The sides alternate step by step in one run.
engine_speed / maniskill     ratio to ManiSkill's PickCube-v1 on the CPU with state observations, one process per core
                             (its CPU backend steps one env a process), resets included on both sides.
engine_speed / memory        bytes of resident memory per further env.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from mujoco import rollout

import sim
from sim.engine import available_cores

STEPS = 20  # control steps per round and side


def row(setting: str, metric: str, value: float, **more: object) -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent)
    base = {
        "id": "engine_speed",
        "setting": setting,
        "metric": metric,
        "value": value,
        "low": None,
        "high": None,
        "episodes": None,
        "seeds": None,
        "env_steps": None,
        "wall_s": None,
        "command": "python scripts/bench_engine.py " + " ".join(sys.argv[1:]),
        "commit": commit.stdout.strip() or None,
        "hardware": f"{available_cores()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}",
        "notes": "",
    }
    print(json.dumps(base | more), flush=True)


def against_raw(task: str, num_envs: int, rounds: int) -> None:
    env = sim.make(task, num_envs)
    physics = env.physics
    expert = env.make_expert(imperfection=0.5)
    obs = env.reset()
    expert.reset(None, episode_seed=env.episode_seed)
    pool = rollout.Rollout(nthread=physics.threads if physics.threads > 1 else 0)
    state_out = np.empty_like(physics._out)
    ours, raw = [], []
    states, controls = [], []
    step_physics = physics.step

    def recording(ctrl: np.ndarray, start: np.ndarray) -> np.ndarray:
        states.append(physics.state.copy())
        bad = step_physics(ctrl, start)
        controls.append(physics._ctrl.copy())
        return bad

    physics.step = recording  # type: ignore[method-assign]
    for _ in range(80):  # spread the episodes over their phases; recording costs are left in: they are ours
        step = env.step(expert.act(obs))
        obs = step.obs
        expert.reset(step.ended, episode_seed=env.episode_seed)
    for _ in range(rounds):
        spent = replayed = 0.0
        for _ in range(STEPS):  # the sides alternate step by step, so that other load falls on both
            states.clear(), controls.clear()
            action = expert.act(obs)
            begin = time.perf_counter()
            step = env.step(action)
            spent += time.perf_counter() - begin
            begin = time.perf_counter()
            pool.rollout(
                physics.models,
                physics._data,
                initial_state=states[0],
                control=controls[0],
                skip_checks=True,
                nstep=physics.substeps,
                state=state_out,
            )
            replayed += time.perf_counter() - begin
            obs = step.obs
            expert.reset(step.ended, episode_seed=env.episode_seed)
        ours.append(spent)
        raw.append(replayed)
    ratios = np.array(raw) / np.array(ours)
    total = num_envs * STEPS * rounds
    row(
        f"raw_rollout {task}",
        "ratio",
        round(sum(raw) / sum(ours), 4),
        low=round(float(np.quantile(ratios, 0.025)), 4),
        high=round(float(np.quantile(ratios, 0.975)), 4),
        env_steps=total,
        wall_s=round(sum(ours), 2),
        notes=f"N={num_envs}, {physics.threads} threads, {physics.substeps} substeps of {env.task.timestep} s: ours "
        f"{total / sum(ours):.0f} env steps/s, raw rollout {total / sum(raw):.0f}; low and high over {rounds} rounds",
    )
    env.close()


def our_rate(task: str, num_envs: int, seconds: float) -> tuple[float, float]:
    """Env steps/s of random actions, and simulated seconds per wall second."""
    env = sim.make(task, num_envs)
    high = np.array(env.spec.action.high, np.float32)
    rng = np.random.default_rng(0)
    import torch

    actions = [torch.from_numpy(rng.uniform(-high, high, (num_envs, len(high))).astype(np.float32)) for _ in range(16)]
    for action in actions:
        env.step(action)
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        env.step(actions[steps % 16])
        steps += 1
    rate = steps * num_envs / (time.perf_counter() - begin)
    env.close()
    return rate, rate * env.dt


def maniskill_worker(barrier, results, seconds: float) -> None:
    import gymnasium
    import mani_skill.envs  # noqa: F401

    env = gymnasium.make(
        "PickCube-v1", num_envs=1, obs_mode="state", sim_backend="cpu", control_mode="pd_ee_delta_pose"
    )
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(16)]
    for action in actions:
        env.step(action)
    barrier.wait()
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        _, _, terminated, truncated, _ = env.step(actions[steps % 16])
        steps += 1
        if steps % 50 == 0 or terminated or truncated:  # PickCube's own time limit is 50 steps
            env.reset()
    results.put((steps / (time.perf_counter() - begin), 1 / env.unwrapped.control_freq))


def against_maniskill(task: str, num_envs: int, seconds: float) -> None:
    cores = available_cores()
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(cores), context.Queue()
    before = our_rate(task, num_envs, seconds / 2)[0]
    workers = [context.Process(target=maniskill_worker, args=(barrier, results, seconds)) for _ in range(cores)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=seconds + 120) for _ in workers]
    for worker in workers:
        worker.join()
    after = our_rate(task, num_envs, seconds / 2)[0]
    ours, theirs = (before + after) / 2, sum(rate for rate, _ in found)
    row(
        f"maniskill PickCube-v1 vs {task}",
        "ratio",
        round(ours / theirs, 2),
        low=round(min(before, after) / theirs, 2),
        high=round(max(before, after) / theirs, 2),
        wall_s=2 * seconds,
        notes=f"{cores} cores each, random actions: ours N={num_envs} {ours:.0f} env steps/s = "
        f"{ours * 0.05:.0f} simulated s per wall s; ManiSkill CPU, {cores} processes, {theirs:.0f} env steps/s = "
        f"{theirs * found[0][1]:.1f} simulated s per wall s; both 20 Hz control over 100 Hz physics; low and high: our "
        "rate before and after theirs",
    )


def memory(task: str) -> None:
    code = (
        "import sys, psutil, sim, torch\n"
        "n = int(sys.argv[1]); env = sim.make(sys.argv[2], n)\n"
        "a = torch.zeros(n, env.spec.action.dim)\n"
        "[env.step(a) for _ in range(3)]\n"
        "print(psutil.Process().memory_info().rss)"
    )
    rss = [int(subprocess.check_output([sys.executable, "-c", code, str(n), task])) for n in (1, 2049)]
    row(
        f"memory {task}",
        "bytes_per_env",
        round((rss[1] - rss[0]) / 2048),
        notes=f"resident memory of a process with 2049 envs ({rss[1] / 2**20:.0f} MiB) less one with 1 "
        f"({rss[0] / 2**20:.0f} MiB), by 2048",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--task", default="pick")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured time per side against ManiSkill")
    parser.add_argument("--skip-maniskill", action="store_true")
    args = parser.parse_args()
    against_raw(args.task, args.num_envs, args.rounds)
    memory(args.task)
    if not args.skip_maniskill:
        against_maniskill(args.task, args.num_envs, args.seconds)


if __name__ == "__main__":
    main()
