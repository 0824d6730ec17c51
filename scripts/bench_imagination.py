"""Imagined steps a second beside the native engine, in one run; rows of `imagination_speed` as JSON lines.

    python scripts/bench_imagination.py --model runs/world --task pick [--camera front --pixels 32] [--quick | --record]

Both sides are the `VecEnv` that algorithms see: resets, success, observations, and pictures where a camera is named.
Actions are drawn evenly from the middle third of the limits, the same for both; each side runs in as many threads as
there are cores and with the number of envs that it is fastest with. The sides alternate.

<task>/state or /pictures   ratio: median over rounds of imagined env steps/s over native ones, 95% bootstrap interval
<that>/<N>                  env_steps_per_s of either side with N envs
<that>/model                what the model is: parameters, bytes of them, seconds that its training took
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from robopolicy import sim
from robopolicy.core.types import VecEnv
from robopolicy.evaluation.statistics import Interval, bootstrap
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.runs.logger import Tracker
from robopolicy.sim.engine import available_cores
from robopolicy.world_models.envs.make_imagined import make
from robopolicy.world_models.models.world import find_world, load_world

ID, MIDDLE, DRAWN = "imagination_speed", 1 / 3, 64


class ImaginationSide:
    """An env and what it does; only its `step` is on the clock."""

    def __init__(self, env: VecEnv) -> None:
        self.env, spec = env, env.spec.action
        low, high = torch.tensor(spec.low), torch.tensor(spec.high)
        unit = torch.rand((DRAWN, env.num_envs, len(low)), generator=torch.Generator().manual_seed(0))
        self.actions: Tensor = (low + high) / 2 + MIDDLE * (unit - 0.5) * (high - low)
        self.taken = 0
        env.reset()

    def rate(self, seconds: float) -> float:
        """Env steps a second."""
        steps, began = 0, perf_counter()
        while perf_counter() - began < seconds:
            self.env.step(self.actions[self.taken % DRAWN])
            steps, self.taken = steps + 1, self.taken + 1
        return steps * self.env.num_envs / (perf_counter() - began)


def measure(args: argparse.Namespace) -> list[Evidence]:
    kind = f"{args.task}/{'pictures' if args.camera else 'state'}"
    seen = {"cameras": [args.camera], "image_size": [args.pixels, args.pixels]} if args.camera else {}
    cameras = (args.camera,) if args.camera else ()

    def imagined(n: int) -> VecEnv:
        return make(args.model, num_envs=n, cameras=cameras, even_if_bad=True)

    def native(n: int) -> VecEnv:
        return sim.make(args.task, n, **seen)

    counts = args.envs or ([16, 128] if args.quick else [1, 16, 64, 256, 1_024, 4_096])
    sides: dict[str, Any] = {"imagined": imagined, "native": native}
    rates: dict[tuple[str, int], float] = {}
    total, seconds = len(sides) * len(counts), 0.5 if args.quick else 3.0
    with Tracker().progress(total, f"{kind}: envs") as bar:
        for name, env in sides.items():
            for n in counts:
                side = ImaginationSide(env(n))
                side.rate(seconds / 3)  # warm
                rates[name, n] = side.rate(seconds)
                bar.update(len(rates), rate=rates[name, n])
    best = {name: max(counts, key=lambda n, name=name: rates[name, n]) for name in sides}
    ours, theirs = (ImaginationSide(sides[name](best[name])) for name in sides)
    pairs = []
    with Tracker().progress(args.rounds, f"{kind}: rounds") as bar:
        for i in range(args.rounds):
            pairs.append((ours.rate(seconds), theirs.rate(seconds)))
            bar.update(i + 1, ratio=pairs[-1][0] / pairs[-1][1])
    ratio = bootstrap([[a / b for a, b in pairs]], statistic=statistics.median)
    medians = [statistics.median(side) for side in zip(*pairs, strict=True)]
    shown = f", pictures of {args.pixels} px" if cameras else ""
    notes = (
        f"{args.task}, {available_cores()} cores: imagined with {best['imagined']} envs {medians[0]:,.0f} steps/s, "
        f"native with {best['native']} {medians[1]:,.0f} steps/s{shown}; "
        f"{args.rounds} rounds of {seconds:g} s a side"
    )
    found = [_row(kind, "ratio", ratio, notes)]
    for (name, n), rate in rates.items():
        found.append(_row(f"{kind}/{n}", f"env_steps_per_s_{name}", round(rate, 1), args.task))
    return found + _model(kind, args.model)


def _model(kind: str, path: Path) -> list[Evidence]:
    world = load_world(path)
    size = sum(p.numel() for p in world.parameters())
    weights = (find_world(path) / "model.safetensors").stat().st_size
    found = [_row(f"{kind}/model", "parameters", size, type(world.dynamics).__name__),
             _row(f"{kind}/model", "weights_mib", round(weights / 2**20, 3), "")]  # fmt: skip
    log = path / "metrics.jsonl"
    if log.is_file():
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        found.append(_row(f"{kind}/model", "training_s", round(lines[-1]["wall_s"], 1), f"{lines[-1]['step']} updates"))
    return found


def _row(setting: str, metric: str, value: Interval | float, notes: str) -> Evidence:
    return measured(id=ID, setting=setting, metric=metric, interval=value, notes=notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="run directory of train algo=world_model…")
    parser.add_argument("--task", required=True, help="the native task that it is a model of")
    parser.add_argument("--camera", help="also its pictures")
    parser.add_argument("--pixels", type=int, default=32)
    parser.add_argument("--envs", type=int, nargs="+", help="numbers of envs to try")
    parser.add_argument("--rounds", type=int, default=10)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--quick", action="store_true", help="a few short rounds, to see that it works")
    group.add_argument("--record", action="store_true", help="write docs/results too")
    args = parser.parse_args()
    args.rounds = 3 if args.quick else args.rounds
    torch.set_num_threads(available_cores())
    rows = measure(args)
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in rows), sep="\n")
    if args.record:
        print(*write(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
