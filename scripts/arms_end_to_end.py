"""Each simulated arm from demonstrations to deployment: does its policy do as well over its driver as in process?

    python scripts/arms_end_to_end.py [--arms panda ur5e so101] [--episodes 200] [--out runs/arms_end_to_end] [--record]

Demonstrations → imitation (base) → residual RL (refined) → deployment, of `reach`. panda and ur5e are deployed over
ROS 2 (two processes, simulated time), so101 through LeRobot's own class on a mock of its servo bus that lags and drops.
Both sides of a comparison have the same episodes and limits. Violations are counted at 1 kHz: over ROS 2 by the
simulated arm, which gives up at its maker's limits (aborts); on the bus by an independent checker of the limits in
force. Trainings that are complete, and episodes that are kept as lines of JSON in --out, are not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from robopolicy.core.rng import episode_seeds
from robopolicy.datasets.metadata import recorded
from robopolicy.evaluation.statistics import Pairs, paired_difference, wilson
from robopolicy.real.deploy.deploy import ROBOTS
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.deploy.deployment import Deployment, prepare
from robopolicy.real.deploy.simulated_arm import Episode
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.utils.provenance import commit
from scripts.ros2_episodes import keep, read

DEMOS, NOISE = 40, 0.6
IMITATION, REFINEMENT = ("algo=bc", "loop.steps=3000"), ("algo=residual", "loop.total_steps=30_000")
DRIVERS = {"panda": "mujoco_ros2", "ur5e": "mujoco_ros2", "so101": "mujoco_lerobot"}
WIRINGS = {"panda": "mujoco_panda", "ur5e": "mujoco_ur5e", "so101": "so101_follower"}
DROP, LAG, LAG_S = 0.01, 0.05, 0.03  # of the mock bus: lost replies and goals, late replies, s


def robopolicy(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "robopolicy", *arguments], check=True)


def train(arm: str, out: Path) -> dict[str, Path]:
    """Return the run directories of both policies of an arm; what is complete is not trained again."""
    task = ("task=reach", f"task.arm={arm}")
    data, base, refined = out / f"{arm}_demos", out / f"{arm}_base", out / f"{arm}_refined"
    if recorded(data) != "whole":
        robopolicy("demos", *task, f"out={data}", f"episodes={DEMOS}", f"expert_noise={NOISE}", "overwrite=true")
    robopolicy("train", *IMITATION, *task, f"dataset={data}", f"run_dir={base}")
    robopolicy("train", *REFINEMENT, *task, f"base={base}", f"run_dir={refined}")
    return {"base": base, "refined": refined}


def on_the_bus(deployment: Deployment) -> Iterator[tuple[Episode, int]]:
    """Episodes on a mock bus that lags and drops, each with its violations at 1 kHz."""
    from robopolicy.real.lerobot.mock_port import BusTrouble
    from robopolicy.real.lerobot.simulated import MockedArm
    from robopolicy.real.lerobot.wiring import load_wiring
    from robopolicy.real.safety.audit import joint_violations

    config, wiring = deployment.config, load_wiring(deployment.config.wiring)
    trouble = BusTrouble(drop=DROP, lag=LAG, lag_s=LAG_S)
    settings = config.settings(wiring.arm.safety)
    it = MockedArm(deployment.env, deployment.policy, wiring, settings=settings, trouble=trouble)
    commands: list[Any] = []
    it.ticked = lambda: commands.append(it.chain.limiter.c[0, -1].copy())
    with closing(it.arm):
        for seed in deployment.seeds:
            commands.clear()
            episode = it.run(seed)
            played = np.array([commands[0]] * 3 + commands)[:, None]
            yield episode, sum(joint_violations(played, it.arm.profile, it.dt).values())
        print(dict(it.arm.driver.counts), file=sys.stderr)


def played(deployment: Deployment, robot: str) -> Iterator[tuple[Episode, int]]:
    """Episodes with their violations, on one side."""
    if robot == "mujoco_lerobot":
        yield from on_the_bus(deployment)
        return
    for episode in ROBOTS[robot](deployment):
        yield episode, int(bool(episode.aborted))


def compare(arm: str, which: str, checkpoint: Path, args: argparse.Namespace) -> list[Evidence]:
    """Play the same episodes on both sides, and return the rows."""
    seeds, found = tuple(int(s) for s in episode_seeds("test", 0, args.episodes)), dict[str, dict[int, Any]]()
    for side, robot in (("in_process", "mujoco"), ("driver", DRIVERS[arm])):
        options: dict[str, Any] = {} if robot == "mujoco" else {"wiring": WIRINGS[arm]}
        options |= {"lockstep": True} if robot == "mujoco_ros2" else {}
        file = args.out / f"{arm}-{which}-{side}.jsonl"
        head = {"checkpoint": str(checkpoint), "commit": commit(), **options}
        done = read(file, head)
        deployment = prepare(DeployConfig(checkpoint=checkpoint, robot=robot, **options))
        left = tuple(s for s in seeds if s not in done)
        for episode, violations in played(replace(deployment, seeds=left), robot) if left else ():
            done[episode.seed] = keep(file, episode, violations=violations)
        found[side] = {s: done[s] for s in seeds}
    success = {side: [bool(e["success"]) for e in rows.values()] for side, rows in found.items()}
    driver = list(found["driver"].values())
    note = "ROS 2, simulated time"
    if arm == "so101":
        note = f"LeRobot's class, mock bus: {DROP:.0%} of replies and goals lost, {LAG:.0%} {1000 * LAG_S:.0f} ms late"
    values = {f"{side}/success_rate": wilson(sum(v), len(v)) for side, v in success.items()}
    values |= {
        "difference": paired_difference(Pairs.of(success["in_process"], success["driver"])),
        "violations": float(sum(e["violations"] for e in driver)),
        "faults": float(sum(e["mode"] == "FAULT" for e in driver)),
    }
    return [
        measured(
            id="arms_end_to_end", setting="/".join([arm, which, *key.split("/")[:-1]]), metric=key.split("/")[-1],
            interval=value, episodes=len(seeds), notes=note,
        )
        for key, value in values.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", default=list(DRIVERS), choices=DRIVERS)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("runs/arms_end_to_end"))
    parser.add_argument("--record", action="store_true", help="write docs/results/arms_end_to_end.json too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for arm in args.arms:
        for which, checkpoint in train(arm, args.out).items():
            rows += compare(arm, which, checkpoint, args)
            print(*(json.dumps(asdict(row), ensure_ascii=False) for row in rows[-5:]), sep="\n", flush=True)
    if args.record:
        print(*write(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
