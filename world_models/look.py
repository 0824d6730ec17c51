"""What `robopolicy report` shows of a world: real and imagined episodes side by side, and how far both are believed.

Of a policy that was trained in imagination: its real episodes, and what it does in the world from the same first
frames with the same noise. Of a world model: held-out episodes, and what it makes of their actions from the first frame
on. All of it goes to look.json in the run directory, films of real episodes to videos/real.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robopolicy.build import build
from robopolicy.checkpoint import find_policy, load_policy
from robopolicy.evaluate import video
from robopolicy.noise import episode_seeds
from robopolicy.policies.base import Policy
from robopolicy.policy_files import policy_digest
from robopolicy.runs import read_config
from robopolicy.schema import TARGET, Count
from robopolicy.storage import MANIFEST, write_text
from robopolicy.types import STATE
from world_models.assess import no_better
from world_models.data import concatenate, split, take
from world_models.exam import Exam
from world_models.rollouts import roll_out
from world_models.starts import Starts, fitting, made_from
from world_models.validate import dream, succeeded
from world_models.world import World, find_world, load_world

LOOK = "look.json"
_DIGITS = 5


def look(*, run_dir: Path, episodes: Count = 3) -> Path | None:
    """Look at `episodes` of them, unless that was done for these very weights; None where the run is of no world.

    Raises:
        RobopolicyError: model, policy or data are not there any more, or do not fit one another.
    """
    config = read_config(run_dir) or {}
    trains_world = str((config.get("loop") or {}).get(TARGET, "")).startswith("world_models.")
    if not trains_world and not config.get("world"):
        return None
    model = run_dir if trains_world else _newest_model(run_dir, config)
    world = load_world(model)
    policy = None if trains_world or not config.get("task") else find_policy(run_dir)
    ident = hashlib.sha256((find_world(model) / MANIFEST).read_bytes()).hexdigest()[:16]
    ident += f" {policy_digest(policy)[:16] if policy else 'data'} {episodes}"
    out = run_dir / LOOK
    if out.is_file() and json.loads(out.read_text(encoding="utf-8")).get("of") == ident:
        return out
    if policy is None:
        shown = _of_data(world, model, episodes)
    else:
        shown = _of_policy(load_policy(policy), config, world, run_dir, episodes)
    found = {
        "of": ident, "kind": "data" if policy is None else "policy", "model": model.resolve().name,
        "names": list(world.spec.observation[STATE].names or ()), "bound": float(world.bound), "dt": world.spec.dt,
        "episodes": shown, "stuck": no_better(world.report),
        **{k: world.report[k] for k in ("open_loop", "success", "trust", "data")},
    }  # fmt: skip
    write_text(out, json.dumps(found) + "\n")
    return out


def _newest_model(run_dir: Path, config: dict[str, Any]) -> Path:
    """The one that the run began with, or that its last round ended with."""
    file = run_dir / "rounds.json"
    done = len(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else 0
    return run_dir / f"round_{done}" / "model" if done else Path(config["world"]["model"])


def _of_data(world: World, model: Path, count: int) -> list[dict[str, Any]]:
    """Validation episodes, successes and failures in turns, and the same actions imagined."""
    paths, holdout = made_from(model)
    parts = [fitting(path, world) for path in paths]
    held = concatenate([take(e, split(e, holdout)[2]) for e in parts])
    won = succeeded(held)
    turns = torch.cat([won.nonzero()[:, 0].argsort() * 2, (~won).nonzero()[:, 0].argsort() * 2 + 1])
    order = torch.cat([won.nonzero()[:, 0], (~won).nonzero()[:, 0]])[turns.argsort()][:count]
    rollout, shown = dream(world, likeliest=False), []
    for e in order.tolist():
        part = take(held, torch.arange(held.num_episodes) == e)
        state, action = part.obs[STATE], part.action
        with torch.no_grad():
            imagined = torch.cat([state[:1], rollout(state[:1], action[None])[0, :-1]])
        shown.append({
            "seed": int(part.seeds[0]), "real": _side(world, state, action, bool(won[e])),
            "imagined": _side(world, imagined, action, None),
        })  # fmt: skip
    return shown


def _of_policy(policy: Policy, config: dict[str, Any], world: World, run_dir: Path, count: int) -> list[dict[str, Any]]:
    """Validation episodes of the policy in the true task, filmed where it can be, and from the same starts imagined."""
    seeds = episode_seeds("validation", 0, count)
    env = build(config["task"], "task", num_envs=count, seed=0)
    rows, real = roll_out(policy, env, seeds)
    try:
        video.film(policy, env, rows, run_dir / "videos" / "real", seeds=seeds.tolist(), label="real")
    except Exception as error:  # a machine that cannot render loses nothing else
        print(f"no films: {type(error).__name__}: {error}. `robopolicy doctor` says how to mend rendering.")
    frames = {k: torch.stack([e.obs[k][0] for e in real])[:, None] for k in real[0].obs}
    window = world.success.window
    starts = Starts({k: v.expand(-1, window, *v.shape[2:]) for k, v in frames.items()})
    numbers, options = torch.arange(count), config["world"]
    exam = Exam(
        world, starts, count, seeds=seeds, start=numbers, unit=(numbers + 0.5) / count,
        trust=float(options.get("trust", 1.0)), sampled=bool(options.get("sampled", True)),
    )  # fmt: skip
    _, imagined = roll_out(policy, exam, seeds)
    return [
        {"seed": int(a.seed), "real": _side(world, a.obs[STATE], a.action, bool(a.success.any())),
         "imagined": _side(world, b.obs[STATE], b.action, bool(b.success.any()))}
        for a, b in zip(real, imagined, strict=True)
    ]  # fmt: skip


@torch.no_grad()
def _side(world: World, state: Tensor, action: Tensor, success: bool | None) -> dict[str, Any]:
    """One side of an episode: states [T Ds], what the members disagree on at each [T], and how it ended."""
    latent = world.dynamics.encode({STATE: state[:, None]})
    doubt = world.dynamics.step(latent, action, episode=torch.zeros(len(state)), draw=None).doubt
    return {"state": _rounded(state), "doubt": _rounded(doubt[:, None]), "success": success}


def _rounded(values: Tensor) -> list[Sequence[float | None]]:
    """[D] curves of T numbers each; what is not finite is null."""
    return [[float(f"{v:.{_DIGITS}g}") if abs(v) < float("inf") else None for v in column]
            for column in values.double().T.tolist()]  # fmt: skip
