"""Write the data of the report on a world model: real and imagined episodes side by side.

For a policy trained in imagination: its real episodes, and imagined ones from the same first frames with the same
noise. For a world model: held-out episodes, and their actions imagined from the first frame on. The data goes to
world_model_report.json in the run directory, films of real episodes to videos/real.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from robopolicy.config.instantiate import build
from robopolicy.config.schema import TARGET, Count
from robopolicy.core.errors import CheckpointError, ConfigError, SpecError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import IMAGES, STATE, TASK, Obs
from robopolicy.core.untrusted import WANDB, check_links, parse_json, read_bytes, read_json, refusing
from robopolicy.datasets.episodes import concatenate, succeeded, take
from robopolicy.evaluation import video
from robopolicy.policies.base import Policy
from robopolicy.policies.find import policy_digest
from robopolicy.runs.checkpointer import find_policy, load_policy
from robopolicy.runs.run_dir import CONFIG, own_task, read_config
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.storage import MANIFEST
from robopolicy.world_models.envs.starts import fitting, made_from
from robopolicy.world_models.evaluation.calibration import no_better
from robopolicy.world_models.evaluation.imagined_evaluation import ImaginedEvaluation
from robopolicy.world_models.evaluation.real_rollouts import roll_out
from robopolicy.world_models.evaluation.validation import dream
from robopolicy.world_models.models.dynamics import History
from robopolicy.world_models.models.world import World, find_world, load_world
from robopolicy.world_models.training.data import split

REPORT = "world_model_report.json"
_DIGITS = 5
_MODEL_LOOPS = ("fit_trajectories", "fit_world_model")  # loops that train a world model
_MOMENTS = 12  # images of an episode in a strip


def write_world_model_report(*, run_dir: Path, episodes: Count = 3) -> Path | None:
    """Write the report on `episodes` episodes, unless one of the same weights exists; None for a run without a world.

    Args:
        episodes: number of episodes, real and imagined side by side.

    Raises:
        RobopolicyError: model, policy or data are missing or do not fit together; the run has a link out of its
            folder, or an invalid config.
    """
    check_links(run_dir, apart=WANDB, where=str(run_dir), error=ConfigError)
    with refusing(f"{run_dir}: its world", ConfigError):
        return _write_report(run_dir, episodes)


def _write_report(run_dir: Path, episodes: int) -> Path | None:
    config = read_config(run_dir) or {}
    trains_world = (config.get("loop") or {}).get(TARGET) in _MODEL_LOOPS
    if not trains_world and not config.get("world"):
        return None
    model = run_dir if trains_world else _newest_model(run_dir, config)
    world = load_world(model)
    policy = None if trains_world or not config.get("task") else find_policy(run_dir)
    ident = hashlib.sha256((find_world(model) / MANIFEST).read_bytes()).hexdigest()[:16]
    ident += f" {policy_digest(policy)[:16] if policy else 'data'} {episodes}"
    out = run_dir / REPORT
    if out.is_file() and _ident_of(out) == ident:
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
        "pictures": world.report.get("pictures", {}),
    }  # fmt: skip
    write_atomically(out, json.dumps(found) + "\n")
    return out


def _ident_of(out: Path) -> object:
    try:
        return read_json(out, finite=False).get("of")
    except CheckpointError:  # damaged: written again
        return None


def _newest_model(run_dir: Path, config: dict[str, Any]) -> Path:
    """Return the model of the run's beginning, or of its last round."""
    file = run_dir / "rounds.json"
    found = parse_json(read_bytes(file), str(file), finite=False) if file.is_file() else []
    done = len(found) if isinstance(found, list) else 0
    if done:
        return run_dir / f"round_{done}" / "model"
    if not (model := config["world"].get("model")):
        raise ConfigError(f"{run_dir}/{CONFIG}: world.model: expected the folder of a world model, found {model!r}")
    return Path(model)


def _of_data(world: World, model: Path, count: int) -> list[dict[str, Any]]:
    """Return validation episodes, successes and failures alternating, and their actions imagined."""
    paths, holdout = made_from(model)
    parts = [fitting(path, world) for path in paths]
    held = concatenate([take(e, split(e, holdout)[2]) for e in parts])
    won = succeeded(held)
    alternating = torch.cat([won.nonzero()[:, 0].argsort() * 2, (~won).nonzero()[:, 0].argsort() * 2 + 1])
    order = torch.cat([won.nonzero()[:, 0], (~won).nonzero()[:, 0]])[alternating.argsort()][:count]
    rollout, shown = dream(world, likeliest=False), []
    keys = [k for k in world.spec.observation if k == STATE or k.startswith(IMAGES)]
    for e in order.tolist():
        part = take(held, torch.arange(held.num_episodes) == e)
        first = History.before(part, torch.zeros(1, dtype=torch.int64), world.dynamics.memory)
        dreamt = {k: torch.cat([part.obs[k][:1], rollout(first, part.action[None], k)[0, :-1]]) for k in keys}
        shown.append({
            "seed": int(part.seeds[0]), "real": _side(world, part.obs, part.action, bool(won[e])),
            "imagined": _side(world, dreamt, part.action, None), "strips": _strips(part.obs, dreamt),
        })  # fmt: skip
    return shown


def _of_policy(policy: Policy, config: dict[str, Any], world: World, run_dir: Path, count: int) -> list[dict[str, Any]]:
    """Return validation episodes of the policy in the true task, with films, and imagined from the same starts."""
    seeds = episode_seeds("validation", 0, count)
    env = build(own_task(config) or {}, "task", num_envs=count, seed=0)
    rows, real = roll_out(policy, env, seeds)
    try:
        video.film(policy, env, rows, run_dir / "videos" / "real", seeds=seeds.tolist(), label="real")
    except Exception as error:  # a machine that cannot render loses nothing else
        print(f"no films: {type(error).__name__}: {error}. `robopolicy doctor` explains how to repair rendering.")
    frames = {k: torch.stack([e.obs[k][0] for e in real]) for k in real[0].obs}
    if missing := {k for k in world.spec.observation if k != TASK} - set(frames):
        raise SpecError(
            f"the world model needs {sorted(missing)} to begin with, the task shows none: add task.cameras=[…] and "
            "task.image_size=[…] as they were recorded with"
        )
    starts = History.first(frames, world.spec.action.dim, world.memory)
    numbers, options = torch.arange(count), config["world"]
    evaluation = ImaginedEvaluation(
        world, starts, count, seeds=seeds, start=numbers, unit=(numbers + 0.5) / count,
        trust=1.0 if options.get("trust") is None else options["trust"], sampled=options.get("sampled") is not False,
    )  # fmt: skip
    _, imagined = roll_out(policy, evaluation, seeds)
    return [
        {"seed": int(a.seed), "real": _side(world, a.obs, a.action, bool(a.success.any())),
         "imagined": _side(world, b.obs, b.action, bool(b.success.any())), "strips": _strips(a.obs, b.obs)}
        for a, b in zip(real, imagined, strict=True)
    ]  # fmt: skip


@torch.no_grad()
def _side(world: World, obs: Obs, action: Tensor, success: bool | None) -> dict[str, Any]:
    """Return one side of an episode: states [T Ds], uncertainty [T] and success."""
    latent = world.dynamics.encode(History.along(obs, action, world.dynamics.memory))[:, -1]
    uncertainty = world.dynamics.step(latent, action, episode=torch.zeros(len(action)), draw=None).uncertainty
    return {"state": _rounded(obs[STATE]), "uncertainty": _rounded(uncertainty[:, None]), "success": success}


def _strips(real: Obs, imagined: Obs) -> dict[str, str]:
    """Return {camera: PNG in base64} with real images above imagined ones of the same steps."""
    found = {}
    for key in (k for k in real if k.startswith(IMAGES) and k in imagined):
        steps = torch.linspace(0, min(len(real[key]), len(imagined[key])) - 1, _MOMENTS).round().long()
        rows = [torch.cat(list(side[key][steps]), dim=2) for side in (real, imagined)]  # [3 h n·w]
        picture = Image.fromarray(torch.cat(rows, dim=1).permute(1, 2, 0).numpy())
        file = io.BytesIO()
        picture.save(file, format="PNG")
        found[key.removeprefix(IMAGES)] = base64.b64encode(file.getvalue()).decode()
    return found


def _rounded(values: Tensor) -> list[Sequence[float | None]]:
    """Return [D] curves of T numbers each; non-finite numbers are None."""
    return [[float(f"{v:.{_DIGITS}g}") if abs(v) < float("inf") else None for v in column]
            for column in values.double().T.tolist()]  # fmt: skip
