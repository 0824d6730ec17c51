"""What refinement does to the modes of Push-T: by how many of the T's eight edges a policy begins from the same start.

    python scripts/pusht_modes.py --runs runs/experiments [--starts 50] [--repeats 32] [--record]

Reads the bases and the refined policies of `python scripts/experiments.py pusht_dppo`. From every start a policy plays
`repeats` times, each time with noise of its own, until the T moves; the edge that the stick is nearest to then is the
episode's mode. `modes`: exp(entropy of the edges), in [1, 8], mean over the starts, which are those of validation
episodes; interval: bootstrap over starts. `untouched`: the share of plays in which the T never moves.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from robopolicy import sim
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import STATE, VecEnv
from robopolicy.envs.chunk_executor import ChunkExecutor
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.evaluation.statistics import bootstrap
from robopolicy.policies.base import Policy
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.runs.checkpointer import load_policy
from robopolicy.sim.tasks.pusht import PushT
from scripts.experiment_plan import BASES, EXPERIMENTS

ROOT, ID = Path(__file__).resolve().parents[1], "pusht_dppo"
MOVED = 0.002  # m, or rad of turn times 0.05 m


def first_edges(policy: Policy, env: VecEnv, start: int, repeats: int) -> np.ndarray:
    """[repeats] the edge, 0 … 7, from which the T is first moved; −1 where it never is."""
    env = wrap_for(policy, env)
    names = env.spec.observation[STATE].names or ()
    at = {k: names.index(k) for k in ("to_goal_x", "to_goal_y", "turn_sin", "turn_cos", "tool_x", "tool_y")}
    obs = env.reset(torch.full((env.num_envs,), start, dtype=torch.int64))
    executor = ChunkExecutor(policy, env.num_envs)
    noise = start * 1000 + torch.arange(env.num_envs)  # the same start, other noise
    edge, alive, begin = np.full(repeats, -1), np.ones(repeats, dtype=bool), None
    for _ in range(env.spec.horizon):
        state = obs[STATE].reshape(env.num_envs, -1, len(names))[:repeats, -1].double().numpy()
        shift = state[:, [at["to_goal_x"], at["to_goal_y"]]]
        turn = np.arctan2(state[:, at["turn_sin"]], state[:, at["turn_cos"]])
        begin = (shift, turn) if begin is None else begin
        turned = np.abs((turn - begin[1] + np.pi) % (2 * np.pi) - np.pi)
        moved = np.hypot(*(shift - begin[0]).T) + 0.05 * turned > MOVED
        new = alive & moved & (edge < 0)
        edge[new] = nearest_edge(state[new][:, [at["tool_x"], at["tool_y"]]])
        if not (alive & (edge < 0)).any():
            break
        step = env.step(executor.next_action(obs, noise))
        alive &= ~step.ended.numpy()[:repeats]
        obs = step.obs
    return edge


def nearest_edge(point: np.ndarray) -> np.ndarray:
    """[M] edges of the T's outline nearest to `point` [M 2], m, as the T sees it."""
    begin = PushT().tblock.corners  # [8 2]
    along = np.roll(begin, -1, axis=0) - begin
    part = ((point[:, None] - begin) * along).sum(-1) / (along**2).sum(-1)
    gap = point[:, None] - begin - np.clip(part, 0.0, 1.0)[..., None] * along
    return (gap**2).sum(-1).argmin(1)


def modes(edges: np.ndarray) -> float:
    """exp(entropy) of the edges that were touched; 1 where none was."""
    share = np.bincount(edges[edges >= 0], minlength=8) / max(1, (edges >= 0).sum())
    share = share[share > 0]
    return float(np.exp(-(share * np.log(share)).sum()))


def measure(checkpoint: Path, setting: str, seed: int, starts: int, repeats: int) -> list[Evidence]:
    env = sim.make("pusht", num_envs=repeats)
    policy = load_policy(checkpoint, env=env.spec)
    policy.eval()
    seeds = episode_seeds("validation", 0, starts).tolist()
    edges = [first_edges(policy, env, int(start), repeats) for start in seeds]
    notes = f"edges of the T first pushed, of 8; {starts} starts × {repeats} plays, validation seeds"
    found = {"modes": [modes(e) for e in edges], "untouched": [float((e < 0).mean()) for e in edges]}
    return [
        measured(id=ID, setting=setting, metric=metric, interval=bootstrap([values]), seeds=seed,
                 episodes=starts * repeats, notes=notes) for metric, values in found.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/experiments"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="training seeds")
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=32)
    parser.add_argument("--record", action="store_true", help=f"add to docs/results/{ID}.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in args.seeds:
        base = args.runs / "bases" / f"{BASES['pusht'].name}-{seed}" / "bc"
        refined = args.runs / EXPERIMENTS[ID].runs / f"pusht-refined-{seed}"
        for setting, checkpoint in (("pusht/base", base), ("pusht/refined", refined)):
            rows += measure(checkpoint, setting, seed, args.starts, args.repeats)
            print(*(json.dumps(asdict(row), ensure_ascii=False) for row in rows[-2:]), sep="\n", flush=True)
    if args.record:
        print(*write(rows, root=ROOT / "docs" / "results"), file=sys.stderr)


if __name__ == "__main__":
    main()
