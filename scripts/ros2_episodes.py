"""Paired episodes over ROS 2 and in process without a delay, with the same limits: does the policy do as well?

    python scripts/ros2_episodes.py --base runs/pick_base --refined runs/pick_dppo [--limited runs/pick_limited]
        [--episodes 500] [--only refined_latency] [--out runs/ros2_episodes] [--record] [safety.tcp_speed=1.0 …]

`limited`: a policy that was trained under these limits; `delayed`: and with actions that come up to a control step late
(`task.randomization.latency`). Settings: each policy, and each with 50 ms added latency and 5% lost messages over ROS 2
(base_latency, …); by --only also with real-time chunking, base_rtc and base_latency_rtc (a residual has no chunk to go
on from), and with _measured at the end: plans begin from the measured state (`predict=false`). All in real time: the
machine must have two cores to itself; with _lockstep it is simulated time. Finished episodes are kept as lines of JSON
in --out; the same command, at the same commit, goes on there.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from robopolicy.core.rng import episode_seeds
from robopolicy.evaluation.statistics import Pairs, paired_difference, wilson
from robopolicy.real.deploy.deploy import ROBOTS
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.deploy.deployment import prepare
from robopolicy.real.deploy.simulated_arm import Episode
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.utils.provenance import commit
from scripts.kept_lines import keep_line, kept_lines

LATENCY_MS, LOST = 50, 0.05
KINDS = ("base", "refined", "limited", "delayed")
SIDES = {"in_process": "mujoco", "ros2": "mujoco_ros2"}


def play(args: argparse.Namespace, setting: str, safety: dict[str, float]) -> dict[str, dict[int, dict[str, Any]]]:
    """Episodes of both sides by seed; those on disk are not played again."""
    kind, *more = setting.split("_")
    chunking = "rtc" if "rtc" in more else "async"
    seeds = tuple(int(s) for s in episode_seeds("test", 0, args.episodes))
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for side, robot in SIDES.items():
        late = side == "ros2" and "latency" in more
        ways: dict[str, Any] = {"latency_ms": LATENCY_MS, "lost": LOST} if late else {}
        if side == "ros2":
            ways |= {"chunking": chunking, "predict": "measured" not in more, "lockstep": "lockstep" in more}
        file = args.out / f"{setting if side == 'ros2' else kind}-{side}.jsonl"
        head = {"checkpoint": str(getattr(args, kind)), "commit": commit(), "safety": safety, **ways}
        done = read(file, head)
        config = DeployConfig(checkpoint=getattr(args, kind), safety=safety, **ways)
        deployment = prepare(config)
        for attempt in range(3):  # a process that was lost is started again
            left = tuple(s for s in seeds if s not in done)
            if not left:
                break
            try:
                for episode in ROBOTS[robot](replace(deployment, seeds=left)):
                    done[episode.seed] = keep(file, episode)
                    print(side, setting, json.dumps(done[episode.seed]), file=sys.stderr, flush=True)
            except Exception as error:
                if attempt == 2:
                    raise
                print(f"{side} {setting}: {error}; again", file=sys.stderr, flush=True)
        found[side] = {s: done[s] for s in seeds}
    return found


def read(file: Path, head: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the episodes on disk by seed; they are of this very setting, see kept_lines."""
    return {line["seed"]: line for line in kept_lines(file, head)}


def keep(file: Path, episode: Episode, **more: Any) -> dict[str, Any]:
    """Append an episode, with further values, to a file of them."""
    line = {**episode._asdict(), "reasons": dict(episode.reasons), **more}
    keep_line(file, line)
    return line


def rows_of(setting: str, found: dict[str, dict[int, dict[str, Any]]], note: str) -> list[Evidence]:
    success = {side: [bool(e["success"]) for e in done.values()] for side, done in found.items()}
    aborts = sum(bool(e["aborted"]) for e in found["ros2"].values())
    faults = sum(e["mode"] == "FAULT" for e in found["ros2"].values())
    n, rows = len(success["ros2"]), []
    for side, values in success.items():
        rows.append(measured(id="closed_loop_ros2", setting=f"{setting}/{side}", metric="success_rate",
                             interval=wilson(sum(values), n), episodes=n, notes=note))  # fmt: skip
    difference = paired_difference(Pairs.of(success["in_process"], success["ros2"]))
    for metric, value in (("difference", difference), ("aborts", float(aborts)), ("faults", float(faults))):
        rows.append(
            measured(id="closed_loop_ros2", setting=setting, metric=metric, interval=value, episodes=n, notes=note)
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=Path)
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("runs/ros2_episodes"))
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--record", action="store_true", help="write docs/results/closed_loop_ros2.json too")
    parser.add_argument("safety", nargs="*", help="safety.<setting>=<number>")
    args = parser.parse_args()
    torch.set_num_threads(1)
    safety = {k.removeprefix("safety."): float(v) for k, v in (item.split("=", 1) for item in args.safety)}
    given = [k for k in KINDS if getattr(args, k) is not None]
    settings = args.only or [f"{k}{more}" for more in ("", "_latency") for k in given]
    rows = []
    for setting in settings:
        note = f"limits {safety or 'as by default'}; {'simulated time' if 'lockstep' in setting else 'real time'}"
        note += f"; {LATENCY_MS} ms latency, {100 * LOST:.0f}% lost over ROS 2" * ("_latency" in setting)
        note += "; planned from the measured state" * ("_measured" in setting)
        note += "; chunking=rtc" * ("_rtc" in setting)
        rows += rows_of(setting, play(args, setting, safety), note)
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in rows), sep="\n")
    if args.record:
        print(*write(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
