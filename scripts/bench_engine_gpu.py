"""Speed of native tasks on a GPU beside ManiSkill's, and success of one checkpoint on both kinds of physics.

    python scripts/bench_engine_gpu.py [--record]                               # engine_gpu, some minutes
    python scripts/bench_engine_gpu.py --policies runs [--record]               # engine_gpu_same, of runs/pick …
    python scripts/bench_engine_gpu.py --device cpu --envs 4 --skip-maniskill   # without a GPU: does it work?

engine_gpu       `env.step` of pick (physics=warp) with observation, reward, success and resets, under random actions.
                 `physics_share`: part of that time spent in MuJoCo Warp, copies to and from the device included. Then
                 ManiSkill's PickCube-v1 in its GPU simulator: as many scenes, state observations, random delta poses of
                 the hand, ended episodes reset. One after the other, each in a process of its own.
engine_gpu_same  success over the same test episodes on the CPU (physics=rollout) and on the GPU, less one another.

A rate is the median over rounds. Rows are recorded on CUDA alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from robopolicy import sim
from robopolicy.core.errors import RobopolicyError
from robopolicy.core.rng import episode_seeds
from robopolicy.evaluation.rollout import evaluate
from robopolicy.evaluation.statistics import Pairs, paired_difference
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.runs.checkpointer import load_policy

TASKS = ("pick", "push", "drawer", "stack")
WARM_UP = 80  # control steps, pick's time limit: afterwards the episodes are spread over all their phases
STEPS = 40  # of a round
Rates = list[float]  # env steps/s of each round


def ours(device: str, num_envs: int, rounds: int) -> tuple[Rates, float, float]:
    """Env steps/s of each round, the share of physics, and seconds of an env step."""
    env = sim.make("pick", num_envs, physics="warp", warp={"device": device})
    low, high = torch.tensor(env.spec.action.low), torch.tensor(env.spec.action.high)
    actions = [low + (high - low) * torch.rand(num_envs, len(low)) for _ in range(16)]
    physics, spent = env.physics.step, [0.0]

    def timed(*arguments: Any) -> Any:
        begin = perf_counter()
        bad = physics(*arguments)
        spent[0] += perf_counter() - begin
        return bad

    env.physics.step = timed  # type: ignore[assignment, method-assign]
    env.reset()
    for i in range(WARM_UP):
        env.step(actions[i % 16])
    rates, spent[0] = list[float](), 0.0
    for _ in range(rounds):
        begin = perf_counter()
        for i in range(STEPS):
            env.step(actions[i % 16])
        rates.append(num_envs * STEPS / (perf_counter() - begin))
    return rates, spent[0] / sum(num_envs * STEPS / rate for rate in rates), env.dt


def maniskill(num_envs: int, rounds: int) -> tuple[Rates, float]:
    """Env steps/s of each round, and seconds of an env step."""
    import gymnasium
    import mani_skill.envs  # noqa: F401 (registers PickCube-v1 with gymnasium)

    env: Any = gymnasium.make(
        "PickCube-v1", num_envs=num_envs, obs_mode="state", reward_mode="sparse", sim_backend="physx_cuda",
        render_backend="none", control_mode="pd_ee_delta_pose",
    )  # fmt: skip
    env.reset(seed=0)
    actions = [torch.from_numpy(env.action_space.sample()).cuda() for _ in range(16)]

    def run() -> None:
        for i in range(STEPS):
            _, _, terminated, truncated, _ = env.step(actions[i % 16])
            if bool((ended := terminated | truncated).any()):
                env.reset(options={"env_idx": ended.nonzero()[:, 0]})

    run()
    rates = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = perf_counter()
        run()
        torch.cuda.synchronize()
        rates.append(num_envs * STEPS / (perf_counter() - begin))
    return rates, 1 / env.unwrapped.control_freq


def alone(function: Any, *arguments: Any) -> Any:
    """Run a function in a process of its own: PhysX and Warp each want the GPU's memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def speed(device: str, num_envs: int, rounds: int, with_maniskill: bool) -> list[Evidence]:
    rates, share, dt = alone(ours, device, num_envs, rounds)
    mine = statistics.median(rates)
    values = {"env_steps_per_s": mine, "simulated_s_per_wall_s": mine * dt, "physics_share": share}
    if with_maniskill:
        rates, dt = alone(maniskill, num_envs, rounds)
        theirs = statistics.median(rates)
        values |= {"env_steps_per_s_maniskill": theirs, "simulated_s_per_wall_s_maniskill": theirs * dt,
                   "simulated_ratio": values["simulated_s_per_wall_s"] / (theirs * dt)}  # fmt: skip
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    notes = f"{gpu}; N={num_envs}; {rounds} rounds of {STEPS} steps a side, random actions"
    return [measured(id="engine_gpu", setting="pick", metric=k, interval=round(v, 4), notes=notes)
            for k, v in values.items()]  # fmt: skip


def same(device: str, folder: Path, episodes: int, num_envs: int) -> list[Evidence]:
    """Rows of success on both kinds of physics for the checkpoint of each task."""
    found, seeds = list[Evidence](), episode_seeds("test", 0, episodes)
    for task in TASKS:
        settings: dict[str, dict[str, Any]] = {"cpu": {}, "gpu": {"physics": "warp", "warp": {"device": device}}}
        tables = {}
        for name, options in settings.items():
            env = sim.make(task, min(num_envs, episodes), **options)
            tables[name] = evaluate(load_policy(folder / task, env=env.spec), env, seeds)
            env.close()
        values = {f"success_rate_{name}": table.success_rate() for name, table in tables.items()}
        pairs = Pairs.of(*(table.successes() for table in tables.values()))
        for metric, interval in {**values, "difference": paired_difference(pairs)}.items():
            found.append(measured(id="engine_gpu_same", setting=task, metric=metric, interval=interval,
                                  episodes=episodes))  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="of the physics: cuda, cuda:1 …, or cpu to see that it works")
    parser.add_argument("--envs", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--skip-maniskill", action="store_true")
    parser.add_argument("--policies", type=Path, help=f"folder with a run directory each of {', '.join(TASKS)}")
    parser.add_argument("--episodes", type=int, default=2000, help="of each task, with --policies")
    parser.add_argument("--record", action="store_true", help="write the rows to docs/results too")
    args = parser.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"--device {args.device}: PyTorch finds no CUDA device. To try the script: --device cpu")
    if args.record and args.device == "cpu":
        parser.error("--record: rows are recorded on CUDA alone, found --device cpu")
    compared = not args.skip_maniskill and args.policies is None
    if compared and importlib.util.find_spec("mani_skill") is None:
        parser.error("ManiSkill is missing: uv pip install mani-skill==3.0.1, or --skip-maniskill")
    try:
        if args.policies is None:
            rows = speed(args.device, args.envs, args.rounds, compared)
        else:
            rows = same(args.device, args.policies, args.episodes, args.envs)
    except RobopolicyError as error:
        sys.exit(f"error: {error}")
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in rows), sep="\n")
    if args.record:
        print(*write(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
