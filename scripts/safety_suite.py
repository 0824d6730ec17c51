"""Violations of the safety limits under adversarial targets, counted by the independent checker; rows of evidence.

    python scripts/safety_suite.py [--commands 1000000] [--arms 250] [--projection] [--record]

Each arm's published commands are upsampled to 1 kHz and held against its profile by real/safety/audit.py, which
shares no arithmetic with the limits: joint limits on every sample, limits in space on randomly drawn poses.
`--projection` solves the quadratic programmes too, as a single arm does (several times slower).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from real.safety import Governor, load_profile, profile_names
from real.safety.audit import joint_violations, space_violations
from real.safety.profile import Box, Plane
from real.safety.projection import project
from robopolicy.evaluate.evidence import Evidence, measured, write
from robopolicy.tracking import Tracker
from tests.real.adversary import targets

DT = 0.004
SCENE = {"planes": (Plane((0.0, 0.0, 1.0), 0.0),), "keep_out": (Box((0.3, 0.35, 0.0), (0.6, 0.6, 0.4)),)}


def attack(robot: str, commands: int, arms: int, projection: bool) -> list[Evidence]:
    profile = load_profile(robot, tcp_speed=0.8, workspace=Box((-0.9, -0.9, -0.2), (0.9, 0.9, 1.3)), **SCENE)
    governor = Governor(profile, arms, dt=DT, projection=project if projection else None)
    governor.reset(np.tile(profile.data["home"], (arms, 1)))
    ticks, begin, braking = -(-commands // arms), perf_counter(), 0.0
    recent, counted, poses = list(governor.c.transpose(1, 0, 2)[-4:]), dict[str, int](), 0
    with Tracker().progress(ticks, f"attacking {robot}") as bar, np.errstate(all="ignore"):
        for k, target in enumerate(targets(profile, arms, ticks, seed=7)):
            verdict = governor.filter(target)
            if verdict.error:
                sys.exit(f"{robot}: {verdict.error}")
            braking += float(verdict.stopping.mean())
            recent.append(verdict.command)
            if len(recent) >= 500 or k == ticks - 1:  # checked in pieces that overlap by a spline's reach
                block = np.array(recent)
                space = space_violations(block, profile, DT, poses=200, seed=k)
                poses += 200
                for name, value in (joint_violations(block, profile, DT) | space).items():
                    counted[name] = counted.get(name, 0) + value
                recent = recent[-6:]
            bar.update(k + 1, violations=float(sum(counted.values())))
    notes = (
        f"{ticks * arms} commands to {arms} arms, 1 kHz; {poses} poses for limits in space; braking "
        f"{100 * braking / ticks:.0f}% of ticks; {perf_counter() - begin:.0f} s; {counted}"
    )
    return [
        measured(
            id="safety_suite", setting=robot, metric="violations", interval=float(sum(counted.values())), notes=notes
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", type=int, default=1_000_000, help="for each robot")
    parser.add_argument("--arms", type=int, default=250, help="side by side")
    parser.add_argument("--robots", nargs="+", default=profile_names(), choices=profile_names())
    parser.add_argument("--projection", action="store_true")
    parser.add_argument("--record", action="store_true", help="write docs/results/safety_suite.json too")
    args = parser.parse_args()
    rows = [row for robot in args.robots for row in attack(robot, args.commands, args.arms, args.projection)]
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in rows), sep="\n")
    if args.record:
        print(*write(rows), file=sys.stderr)
    sys.exit(any(row.value for row in rows))


if __name__ == "__main__":
    main()
