"""Run a policy on the simulated arm behind the safety limits, record it, and reproduce every decision."""

from __future__ import annotations

import sys

import robopolicy as rp

SMALL = "--small" in sys.argv  # shows that it runs, and learns nothing

rp.demos("data/reach", task="reach", episodes=4 if SMALL else 30, overwrite=True)
rp.train(
    "runs/reach", policy="flow", task="reach", dataset="data/reach", tracker="local",
    loop={"steps": 20 if SMALL else 1_000},
)  # fmt: skip

# First compute everything and move nothing; then move at a tenth of the permitted speeds.
rp.run("deploy", checkpoint="runs/reach", episodes=1, dry_run=True)
rp.run("deploy", checkpoint="runs/reach", episodes=1, speed=0.1)

episodes = rp.run(
    "deploy",
    checkpoint="runs/reach",
    episodes=2 if SMALL else 20,
    safety={"tcp_speed": 0.5, "workspace": {"low": [0.2, -0.5, 0.0], "high": [0.8, 0.5, 0.8]}},  # m/s, m
    latency_ms=50,  # of the pretended planner
    record="recordings",  # a new folder; one file an episode
)
print(f"{sum(e.success for e in episodes)} of {len(episodes)} succeeded")
print("steps slowed down by the limits:", [f"{100 * e.paced:.0f}%" for e in episodes])

rp.run("replay", recording="recordings")  # raises where one decision comes out otherwise
