"""Violations of the safety limits under adversarial targets, counted by the independent checker; rows of evidence.

    python scripts/safety_suite.py [--commands 1000000] [--projection] [--record]

Each arm's published commands are upsampled to 1 kHz and held against its profile by real/safety/audit.py, which
shares no arithmetic with the limits: joint limits on every sample, limits in space on randomly drawn poses.
`--projection` solves the quadratic programmes too, as a single arm does (several times slower).

The commands are sent in pieces, each from rest and with a seed of its own. A finished piece is kept under `--out`,
named by the limits' source, so that the same command goes on where it was stopped, and starts over once the code of
the limits has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from robopolicy.real.safety import CommandLimiter, load_profile, profile_names
from robopolicy.real.safety.audit import joint_violations, space_violations
from robopolicy.real.safety.projection import project
from robopolicy.real.safety.settings import Box, Plane
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.runs.logger import Tracker
from robopolicy.utils.atomic import write_atomically
from tests.real.adversary import targets

ROOT, DT = Path(__file__).resolve().parents[1], 0.004
SCENE = {"workspace": ((-0.9, -0.9, -0.2), (0.9, 0.9, 1.3)), "keep_out": ((0.3, 0.35, 0.0), (0.6, 0.6, 0.4))}  # m
POSES = 200  # checked for limits in space, every 250 ticks


def code_digest() -> str:
    """Of the limits, their data and the adversary: what a finished piece is a result of."""
    files = [*(ROOT / "real" / "safety").rglob("*.py"), *(ROOT / "real" / "safety").rglob("*.json")]
    whole = hashlib.sha256()
    for path in sorted([*files, ROOT / "tests" / "real" / "adversary.py"]):
        whole.update(path.read_bytes())
    return whole.hexdigest()[:12]


def scene(length: float) -> dict[str, Any]:
    """Settings of a scene beside and below an arm that is `length` times as large as a Panda."""
    boxes = {k: Box(*(tuple(length * x for x in corner) for corner in box)) for k, box in SCENE.items()}  # type: ignore[arg-type]
    return {
        "planes": (Plane((0.0, 0.0, 1.0), 0.0),), "workspace": boxes["workspace"], "keep_out": (boxes["keep_out"],)
    }  # fmt: skip


def attack(robot: str, *, seed: int, arms: int, ticks: int, projection: bool) -> dict[str, Any]:
    """One piece: `arms` × `ticks` commands. Counts of violations and of what was done."""
    profile = load_profile(robot, tcp_speed=0.8, **scene(load_profile(robot).length))
    limiter = CommandLimiter(profile, arms, dt=DT, projection=project if projection else None)
    limiter.start(np.tile(profile.data["home"], (arms, 1)))
    recent, violations = list(limiter.c.transpose(1, 0, 2)[-4:]), dict[str, int]()
    begin, cpu = perf_counter(), process_time()
    braking, moved, poses = 0.0, 0.0, 0
    with np.errstate(all="ignore"):
        for k, target in enumerate(targets(profile, arms, ticks, seed=seed)):
            verdict = limiter.filter(target)
            if verdict.error:
                sys.exit(f"{robot}: {verdict.error}")
            braking += float(verdict.stopping.mean())
            recent.append(verdict.command)
            if len(recent) >= 250 or k == ticks - 1:  # checked in pieces that overlap by a spline's reach
                block = np.array(recent)
                moved = max(moved, float(np.ptp(block, axis=0).max()))
                space = space_violations(block, profile, DT, poses=POSES, seed=1000 * seed + k)
                poses += POSES
                for name, value in (joint_violations(block, profile, DT) | space).items():
                    violations[name] = violations.get(name, 0) + value
                recent = recent[-6:]
    return {
        "commands": arms * ticks, "violations": violations, "poses": poses, "braking": braking / ticks, "moved": moved,
        "seconds": perf_counter() - begin, "cpu_seconds": process_time() - cpu,
    }  # fmt: skip


def summary(robot: str, pieces: list[dict[str, Any]], projection: bool) -> Evidence:
    """One row of all pieces of one arm."""
    counted: dict[str, int] = {}
    for piece in pieces:
        for name, value in piece["violations"].items():
            counted[name] = counted.get(name, 0) + value
    total, poses = (sum(p[k] for p in pieces) for k in ("commands", "poses"))
    braking, cpu = np.mean([p["braking"] for p in pieces]), sum(p["cpu_seconds"] for p in pieces)
    notes = (
        f"{total} commands, 1 kHz; {poses} poses for limits in space; braking {100 * braking:.0f}% of ticks; "
        f"{'with' if projection else 'without'} projection; {cpu:.0f} s of one core; {counted}"
    )
    return measured(
        id="safety_suite", setting=robot, metric="violations", interval=float(sum(counted.values())), notes=notes
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", type=int, default=1_000_000, help="for each robot")
    parser.add_argument("--arms", type=int, default=50, help="side by side")
    parser.add_argument("--ticks", type=int, default=1000, help="of each piece")
    parser.add_argument("--robots", nargs="+", default=profile_names(), choices=profile_names())
    parser.add_argument("--projection", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/safety_suite"), help="finished pieces")
    parser.add_argument("--record", action="store_true", help="write docs/results/safety_suite.json too")
    args = parser.parse_args()
    count = -(-args.commands // (args.arms * args.ticks))
    name = f"{code_digest()}-{args.arms}x{args.ticks}{'-projection' if args.projection else ''}"
    done: dict[str, list[dict[str, Any]]] = {robot: [] for robot in args.robots}
    with Tracker().progress(count * len(args.robots), "adversarial commands") as bar:
        for k in range(count):
            for robot in args.robots:
                path = args.out / name / f"{robot}-{k}.json"
                if not path.is_file():
                    piece = attack(robot, seed=k, arms=args.arms, ticks=args.ticks, projection=args.projection)
                    write_atomically(path, json.dumps(piece))
                done[robot].append(json.loads(path.read_text()))
                broken = sum(sum(p["violations"].values()) for pieces in done.values() for p in pieces)
                bar.update(sum(map(len, done.values())), violations=float(broken))
    rows = [summary(robot, pieces, args.projection) for robot, pieces in done.items()]
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in rows), sep="\n")
    if args.record:
        print(*write(rows), file=sys.stderr)
    sys.exit(any(row.value for row in rows))


if __name__ == "__main__":
    main()
