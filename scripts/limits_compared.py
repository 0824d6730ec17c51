"""Policies under the safety limits that were trained with and without them: success, and how much the limits take away.

    python scripts/limits_compared.py --runs runs/experiments [--episodes 500] [--deployed 100] [--record]

Reads the base and the two refined policies of `python scripts/experiments.py trained_under_limits` and plays all three
on the same test episodes under the limits: in the training env, and the first of them deployed, in the control loop at
250 Hz on the arm at 1 kHz (`robopolicy deploy`, in process). `intervention_rate`: share of control steps in which the
limits changed a joint's command by more than a hundredth of a degree, beyond the pace. `withheld`: the distance in
joint space between what was wanted and what was permitted, pace included, as a share of the distance that was wanted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from numpy.typing import NDArray

from robopolicy import sim
from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose
from robopolicy.core.rng import episode_seeds
from robopolicy.evaluation import rollout
from robopolicy.evaluation.statistics import wilson
from robopolicy.real.control.joint_filter import Array, SafetyFilter
from robopolicy.real.deploy.deploy import ROBOTS
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.deploy.deployment import prepare
from robopolicy.real.safety import load_profile
from robopolicy.reporting.result_rows import Evidence, measured, of_rows, write
from robopolicy.runs.checkpointer import load_policy
from scripts.experiment_plan import BASES, EXPERIMENTS

ROOT, ID = Path(__file__).resolve().parents[1], "trained_under_limits"
TRAINED = ["task=pick", *EXPERIMENTS[ID].settings[0].refine["limited"]]
FILTER = compose(find_verb("train"), TRAINED, checked=False)["task"]["joint_filter"]
DT, SPEED = FILTER["dt"], FILTER["profile"]["tcp_speed"]  # s, m/s
CHANGED = np.radians(0.01)
ENVS = 100


class Counting(SafetyFilter):
    """Counts what it changes of the commands of arms in `mask` [N]."""

    mask: NDArray[np.bool_] = np.ones(ENVS, dtype=bool)
    steps, changed = 0, 0
    wanted, withheld = 0.0, 0.0  # rad, summed

    def __call__(self, wanted: Array) -> Array:
        assert self.limiter is not None
        before = self.limiter.c[:, -1].copy()
        allowed = super().__call__(wanted)
        off = (wanted - allowed)[self.mask]
        self.steps += len(off)
        limits = (self.limiter.last - allowed)[self.mask]  # of what was paced
        self.changed += int((np.abs(limits).max(axis=1, initial=0.0) > CHANGED).sum())
        self.wanted += float(np.linalg.norm((wanted - before)[self.mask], axis=1).sum())
        self.withheld += float(np.linalg.norm(off, axis=1).sum())
        return allowed


def measure(checkpoint: Path, setting: str, seed: int, episodes: int) -> Iterator[Evidence]:
    limits = Counting(load_profile("panda", tcp_speed=SPEED), dt=DT)
    env = sim.make("pick", num_envs=ENVS, joint_filter=limits)
    policy = load_policy(checkpoint, env=env.spec)

    def watch(_: object, running: list[rollout.Running]) -> None:
        limits.mask = np.isin(np.arange(ENVS), [r.slot for r in running])

    rows = rollout.evaluate(policy, env, episode_seeds("test", 0, episodes), policy_id=setting, watch=watch)
    notes = f"under the limits, {SPEED} m/s; {limits.steps} control steps"
    yield of_rows(rows, id=ID, setting=setting, seed=seed, notes=notes)
    for metric, value in (
        ("intervention_rate", limits.changed / limits.steps),
        ("withheld", limits.withheld / limits.wanted),
    ):
        yield measured(
            id=ID, setting=setting, metric=metric, interval=value, seeds=seed, episodes=episodes, notes=notes
        )


def deployed(checkpoint: Path, setting: str, seed: int, episodes: int) -> Evidence:
    seeds = tuple(int(s) for s in episode_seeds("test", 0, episodes))
    d = prepare(DeployConfig(checkpoint=checkpoint, safety={"tcp_speed": SPEED}), seeds=seeds)
    done = [e.success for e in ROBOTS["mujoco"](d)]
    notes = f"in the control loop, {SPEED} m/s"
    return measured(
        id=ID, setting=setting, metric="success_rate", interval=wilson(sum(done), len(done)), seeds=seed,
        episodes=len(done), notes=notes,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/experiments"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="training seeds")
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--deployed", type=int, default=100, help="episodes in the control loop")
    parser.add_argument("--record", action="store_true", help=f"add to docs/results/{ID}.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Evidence] = []
    for seed in args.seeds:
        places = {"base": args.runs / "bases" / f"{BASES['pick'].name}-{seed}" / "bc"}
        places |= {name: args.runs / ID / f"{name}-{seed}" for name in ("free", "limited")}
        for name, checkpoint in places.items():
            new = list(measure(checkpoint, f"{name}/under_limits", seed, args.episodes))
            if args.deployed:
                new.append(deployed(checkpoint, f"{name}/deployed", seed, args.deployed))
            print(*(json.dumps(asdict(row), ensure_ascii=False) for row in new), sep="\n", flush=True)
            rows += new
    if args.record:
        print(*write(rows, root=ROOT / "docs" / "results"), file=sys.stderr)


if __name__ == "__main__":
    main()
