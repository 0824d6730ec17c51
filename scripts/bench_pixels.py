"""What learning from pictures is spared, side by side; JSON lines.

    python scripts/bench_pixels.py [--quick | --record]

pixels_speed, ratios of seconds, median over rounds in which the sides alternate, with 95% bootstrap intervals, one
thread:
collect/Ta: a rollout of DPPO through a VLA of two 64-px cameras, whose chunks have Ta executed steps, in an env that
    takes every picture, over one that takes those that are looked at.
critic: forward, backward and Adam of a residual's critics of seven tasks and what such a VLA sees, the layout written
    out, over the same by task_product.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from robopolicy import sim
from robopolicy.algos.dppo import DPPO
from robopolicy.buffers.collector import RolloutCollector
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import VecEnv
from robopolicy.envs.wrappers import HistoryEnv
from robopolicy.evaluation.statistics import bootstrap
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.networks.mlp import ValueMLP
from robopolicy.networks.task_conditioned import TaskLayout, by_task
from robopolicy.policies.factory import build_policy
from robopolicy.policies.finetuning import finetuned
from robopolicy.policies.normalizer import Normalizer
from robopolicy.reporting.result_rows import Evidence, measured, write

PREFIX = {
    "_target_": "prefix", "_partial_": True, "width": 96,
    "vision": {"_target_": "keypoint_tokens", "_partial_": True},
}  # fmt: skip
EXPERT = {"_target_": "action_expert", "_partial_": True, "width": 96, "depth": 3}
CHUNK = 4
SEEN, TASKS, REST = 430, 7, 5  # numbers that a residual on that VLA reads; tabletop's goals; its actions


class EveryImage:
    """An env whose pictures are all taken: it hides `request_images`."""

    def __init__(self, env: Any) -> None:
        self.env, self.spec, self.num_envs, self.device = env, env.spec, env.num_envs, env.device
        self.reset, self.step = env.reset, env.step

    @property
    def episode_seed(self) -> torch.Tensor:
        return self.env.episode_seed


def collecting(env: VecEnv) -> RolloutCollector:
    spec = PolicySpec(dict(env.spec.observation), env.spec.action, env.spec.dt, 1, 2 * CHUNK, CHUNK, env.spec.tasks)
    node = {"_target_": "vla", "prefix": PREFIX, "network": EXPERT,
            "precision": "bfloat16"}  # fmt: skip
    torch.manual_seed(0)
    base = build_policy(node, spec=spec, normalizer=Normalizer.from_limits(spec.observation, spec.action))
    policy = finetuned(base, finetuned_steps=1, sampling={"sampling_steps": 1})
    collector = RolloutCollector(DPPO(policy, critic=partial(ValueMLP, width=256)), HistoryEnv(env, 1))
    collector.reset()
    return collector


def learning(layout: TaskLayout | None) -> Callable[[], None]:
    """An update of three critics from 256 samples."""
    torch.manual_seed(0)
    critic = CriticEnsemble(SEEN * (1 + TASKS) + TASKS + REST, heads=3, width=128, layout=layout)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, fused=True)
    seen, task, action = torch.randn(256, SEEN), torch.randint(0, TASKS, (256,)), torch.randn(256, REST)
    one = torch.nn.functional.one_hot(task, TASKS).float()

    def update() -> None:
        state = torch.cat([by_task(seen, task, TASKS) if layout is None else seen, one], dim=1)
        optimizer.zero_grad(set_to_none=True)
        critic(state, action).square().mean().backward()
        optimizer.step()

    return update


def bench(setting: str, sides: list[Callable[[], Any]], *, rounds: int, names: tuple[str, str]) -> Evidence:
    pairs = []
    for i in range(rounds + 1):  # the first round warms up
        times = []
        for side in sides:
            began = perf_counter()
            side()
            times.append(perf_counter() - began)
        pairs += [times] if i else []
    slow, fast = (1e3 * statistics.median(t) for t in zip(*pairs, strict=True))
    return measured(
        id="pixels_speed", setting=setting, metric="ratio",
        interval=bootstrap([[a / b] for a, b in pairs], statistic=statistics.median),
        notes=f"{names[0]} {slow:.1f}, {names[1]} {fast:.1f} ms; one thread",
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="few rounds: whether it runs, not how fast")
    how.add_argument("--record", action="store_true", help="write into docs/results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    num_envs, length, rounds = (4, 4, 2) if options.quick else (64, 40, 9)

    def env() -> Any:
        return sim.make("tabletop", num_envs, objects=False, cameras=("front", "wrist"), image_size=(64, 64), threads=1)

    collectors = [collecting(EveryImage(env())), collecting(env())]
    sides: list[Callable[[], Any]] = [partial(collector.collect, length) for collector in collectors]
    found = [bench(f"collect/{CHUNK}", sides, rounds=rounds, names=("all pictures", "those looked at"))]
    updates = [learning(None), learning(TaskLayout(SEEN, TASKS))]
    found.append(bench("critic", updates, rounds=5 * rounds, names=("written out", "by task")))
    for row in found:
        print(json.dumps(asdict(row), ensure_ascii=False))
    if options.record:
        write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
