"""Compare two checkpoints of a run on the same episodes: a paired test, a film and a figure."""

from __future__ import annotations

import sys

import robopolicy as rp

SMALL = "--small" in sys.argv  # shows that it runs, and learns nothing
EPISODES = 10 if SMALL else 300

rp.demos("data/reach", task="reach", episodes=4 if SMALL else 30, overwrite=True)
steps = 20 if SMALL else 1_000
rp.train(
    "runs/bc", policy="flow", task="reach", dataset="data/reach", tracker="local", keep_checkpoints=5,
    loop={"steps": steps, "save_every": steps // 2},
)  # fmt: skip
early, late = f"runs/bc/checkpoints/step_{steps // 2:010d}", "runs/bc"

# One line compares paths. Policies and rows in memory are compared as well.
rp.compare(early, late, names=("early", "late"), episodes=EPISODES)

env = rp.make_env("reach", num_envs=50)
rows = {name: rp.rollout(rp.load_policy(path), env, episodes=EPISODES) for name, path in
        (("early", early), ("late", late))}  # fmt: skip
result = rp.compare(rows["early"], rows["late"], names=("early", "late"))
print(f"p = {result.p_value:.3g}: {result.verdict}")
print(rp.plot(rows, "rates.svg"))

lost = [i for i, success in enumerate(rows["late"].successes()) if not success]
print("film:", rp.film(rp.load_policy(late), env, "late.mp4", episode=lost[0] if lost else 0))
