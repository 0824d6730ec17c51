"""How long one whole tick of the safety chain takes on one core, everything on, a risk critic and the clock too; rows.

    python scripts/bench_filter.py [--ticks 20000] [--robots panda ur5e] [--record]

calm   a smooth motion inside the limits: one certificate a tick, commands pass bit for bit.
wild   random targets that push the arm against every limit: projections, second certificates, stops.

All ticks count but the first 200. `cpu_p99_ms`: of the time in which this thread ran, without what else the machine did
meanwhile. `rss_growth_mb`: memory gained since a fifth of the ticks.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from time import perf_counter, thread_time

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil

from robopolicy.real.safety import SafetyChain, load_profile, profile_names
from robopolicy.real.safety.decision import Measured
from robopolicy.real.safety.profile import Profile
from robopolicy.real.safety.risk import RiskCritic
from robopolicy.real.safety.settings import Box, Plane
from robopolicy.reporting.result_rows import Evidence, measured, write

DT, WIDTH = 0.004, 32  # s; of the hidden layers of scripts/train_risk.py


def calm(profile: Profile, ticks: int) -> Iterator[np.ndarray]:
    home, phase = np.array(profile.data["home"]), np.sin(np.arange(len(profile.joints)) + 1.0)
    for k in range(ticks):
        t = DT * k
        yield home + 0.03 * (1 - np.cos(2 * t)) * (1 - np.cos(t)) * phase


def wild(profile: Profile, ticks: int) -> Iterator[np.ndarray]:
    rng, target = np.random.default_rng(0), np.array(profile.data["home"])
    for k in range(ticks):
        if k % 60 == 0:
            target = np.array(profile.data["home"]) if k % 240 == 0 else rng.uniform(profile.low, profile.high)
        yield target


def critic(profile: Profile) -> RiskCritic:
    """Of the size that scripts/train_risk.py trains, with weights at random; it costs time, and never slows the arm."""
    rng, sizes = np.random.default_rng(0), (3 * len(profile.joints), WIDTH, WIDTH, 1)
    layers = [(rng.normal(0, a**-0.5, (a, b)), np.zeros(b)) for a, b in pairwise(sizes)]
    return RiskCritic(profile, DT, tuple(layers), low=0.999, high=1.0)


def box(low: tuple[float, ...], high: tuple[float, ...], length: float) -> Box:
    """A box for an arm that is `length` times as large as a Panda."""
    return Box(*((length * x, length * y, length * z) for x, y, z in (low, high)))


def measure(robot: str, setting: str, ticks: int) -> list[Evidence]:
    length = load_profile(robot).length
    profile = load_profile(
        robot, tcp_speed=0.5, planes=(Plane((0.0, 0.0, 1.0), 0.0),), energy=5.0, reference_clip=10.0,
        keep_out=(box((0.3, 0.35, 0.0), (0.6, 0.6, 0.4), length),), tracking_error=10.0,
        workspace=box((-0.9, -0.9, -0.2), (0.9, 0.9, 1.3), length),
    )  # fmt: skip
    chain, now = SafetyChain(profile, dt=DT, clock=time.monotonic, risk=critic(profile)), 0.0
    chain.activate(Measured(np.array(profile.data["home"])), now)
    times, cpu, memory = (np.full(ticks, np.nan) for _ in range(3))  # written: its memory is not to count as growth
    same = 0
    process = psutil.Process()
    gc.disable()
    for k, target in enumerate((calm if setting == "calm" else wild)(profile, ticks)):
        state = Measured(chain.limiter.c[0, -1].copy(), np.zeros(len(profile.joints)))
        now += DT
        begin, begin_cpu = perf_counter(), thread_time()
        decision = chain.filter(target, state, now)
        times[k], cpu[k] = perf_counter() - begin, thread_time() - begin_cpu
        same += not decision.changed
        if k % 100 == 0:
            memory[k:] = process.memory_info().rss / 2**20
    gc.enable()
    ms = 1e3 * times[200:]
    notes = f"{ticks} ticks of {DT} s, one core; {100 * same / ticks:.1f}% passed bit for bit; {dict(chain.counts)}"
    values = {"p50_ms": np.median(ms), "p99_ms": np.percentile(ms, 99), "max_ms": ms.max()}
    values["cpu_p99_ms"] = 1e3 * np.percentile(cpu[200:], 99)
    values["rss_growth_mb"] = memory[-1] - memory[ticks // 5]
    return [
        measured(
            id="filter_speed",
            setting=setting if robot == "panda" else f"{robot}/{setting}",
            metric=m,
            interval=round(float(v), 4),
            notes=notes,
        )
        for m, v in values.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ticks", type=int, default=20_000)
    parser.add_argument("--robots", nargs="+", default=["panda"], choices=profile_names())
    parser.add_argument("--record", action="store_true", help="write docs/results/filter_speed.json too")
    args = parser.parse_args()
    rows = [row for robot in args.robots for s in ("calm", "wild") for row in measure(robot, s, args.ticks)]
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in rows), sep="\n")
    if args.record:
        print(*write(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
