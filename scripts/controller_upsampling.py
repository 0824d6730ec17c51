"""What a driver gives the arm at 1 kHz, by every way out, against the maker's limits; rows of evidence.

    python scripts/controller_upsampling.py [--ticks 4000] [--robots fr3] [--ways trajectory] [--record]

Hostile targets and random policies go through the real limits, stream and outputs, and over a line that delays and
loses messages, to models of the real controllers (tests/real/controllers.py), which hold the arm elsewhere than it is
measured when they are first commanded. Settings permit all that the maker permits, except where a driver's own way of
upsampling must have less (real/ros2/upsampling.py). Lives end in emergency stops, dead nodes and deactivations.
Positions at 1 kHz are judged by their differences: 1 is the maker's limit. `violations` counts ways and policies of
which one is above it.
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

from robopolicy.real.safety import profile_names
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.runs.logger import Tracker
from tests.real.ways_out import WAYS, attacked

ROUNDING = 1e-6  # of a limit: what the certificate itself allows
KINDS = ("hostile", "policy")


def rows_of(robot: str, way: str, ticks: int, seeds: int) -> list[Evidence]:
    """Of all drives of one arm by one way out."""
    worst, lives, rejected, start, over = dict[str, float](), dict[str, int](), 0, perf_counter(), 0
    for seed in range(seeds):
        for kind in KINDS:
            line, seen = attacked(robot, way, ticks=ticks // (seeds * len(KINDS)), seed=seed, kind=kind)
            if line.chain.error:
                sys.exit(f"{robot}/{way}: {line.chain.error}")
            found = line.ratios()
            over += any(not ratio <= 1.0 + ROUNDING for ratio in found.values())
            worst = {name: max(ratio, worst.get(name, 0.0)) for name, ratio in found.items()}
            lives = {name: count + lives.get(name, 0) for name, count in seen.items()}
            rejected += len(getattr(line.driver, "rejected", []))
    notes = (
        f"{ticks} ticks, {', '.join(KINDS)}; lives ended by {lives}; {rejected} messages rejected by the driver; "
        f"settings {WAYS[way][3]}; {perf_counter() - start:.0f} s"
    )
    made = [
        measured(id="controller_upsampling", setting=f"{robot}/{way}", metric=f"{name}_ratio",
                 interval=round(ratio, 6), notes=notes)
        for name, ratio in worst.items()
    ]  # fmt: skip
    counts = {"violations": over, "rejected": rejected}
    return made + [
        measured(id="controller_upsampling", setting=f"{robot}/{way}", metric=k, interval=float(v), notes=notes)
        for k, v in counts.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ticks", type=int, default=4000, help="of motion, for each arm and way out")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--robots", nargs="+", default=profile_names(), choices=profile_names())
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--record", action="store_true", help="write docs/results/controller_upsampling.json too")
    args = parser.parse_args()
    rows: list[Evidence] = []
    pairs = [(robot, way) for robot in args.robots for way in args.ways]
    with Tracker().progress(len(pairs), "ways out") as bar:
        for k, (robot, way) in enumerate(pairs, 1):
            rows += rows_of(robot, way, args.ticks, args.seeds)
            bar.update(k, violations=sum(r.value for r in rows if r.metric == "violations"))
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in rows), sep="\n")
    if args.record:
        print(*write(rows), file=sys.stderr)
    sys.exit(any(row.value for row in rows if row.metric in ("violations", "rejected")))


if __name__ == "__main__":
    main()
