"""Build an imagined env from the run directory of a world model."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from robopolicy.config.schema import Count, Node, Positive
from robopolicy.core.errors import ConfigError
from robopolicy.utils.storage import MANIFEST
from robopolicy.world_models.envs.imagined import ImaginedEnv
from robopolicy.world_models.envs.starts import Part, Where, fitting, own_starts, starts_of
from robopolicy.world_models.evaluation.calibration import dynamics_faults, faults
from robopolicy.world_models.models.dynamics import History
from robopolicy.world_models.models.world import World, find_world, load_world


def make(
    model: Path | None = None,
    *,
    num_envs: Count,
    seed: int = 0,
    which: Literal["latest", "best"] = "latest",
    starts: Path | None = None,
    part: Part = "train",
    start_at: Where = "first",
    horizon: Count | None = None,
    branch: Count | None = None,
    trust: Positive = 1.0,
    pessimism: float = 0.0,
    sampled: bool = True,
    cameras: tuple[str, ...] | None = None,
    even_if_bad: bool = False,
    even_if_imprecise: bool = False,
    gate: Node | None = None,
) -> ImaginedEnv:
    """Build the env imagined by a trained world model.

    Args:
        model: run directory of `train algo=world_model`. which: its newest or best checkpoint.
        starts: dataset in whose states episodes begin; None: the data of the model.
        part: episodes of that data: those of its training, those held out, or all.
        start_at: "first" frames of its episodes, or "any" before a success.
        branch: primitive steps after which an episode is cut. It then begins in any state before a success (MBPO,
            Janner et al. 2019). The gate and the evaluation of rounds use whole episodes. None: whole ones.
        even_if_bad: also a model whose open-loop error exceeds that of copying the last state, or an imprecise one.
        even_if_imprecise: also a model whose success classifier misses its precision.
        horizon, trust, pessimism, sampled, cameras: see ImaginedEnv.
        gate: node of the gate that decides which updates are kept; None: all are kept.

    Raises:
        ConfigError: no model or starts named, a model worse than copying, branches not shorter than episodes.
        CheckpointError: not a whole and trained model. SpecError, DataError: starts that do not fit it.
    """
    if model is None:
        raise ConfigError("world.model: needs a value. Add world.model=<run directory of train algo=world_model>")
    world = _load(model, which, even_if_bad=even_if_bad, even_if_imprecise=even_if_imprecise)
    whole = horizon or world.spec.horizon
    if branch and (branch >= whole or start_at == "any"):
        raise ConfigError(
            f"world.branch={branch}: begins in any state and cuts episodes of {whole} steps; expected fewer, and "
            "world.start_at left as it is"
        )
    where: Where = "any" if branch else start_at
    if starts is not None:
        together = starts_of(fitting(starts, world), world.memory, where=where)
    else:
        together = own_starts(model, world, part, where=where)
    manifest = (find_world(model, which=which) / MANIFEST).read_bytes()
    settings = (where, branch or horizon, trust, pessimism, sampled)
    env = ImaginedEnv(
        world, together, num_envs, seed=seed, horizon=branch or horizon, trust=trust, pessimism=pessimism,
        sampled=sampled, cameras=cameras, digest=_digest(manifest, settings, together, cameras),
    )  # fmt: skip
    env.held_out, env.gate = partial(own_starts, model, world, "held_out"), gate
    env.spec = replace(env.spec, branches=branch is not None, task_horizon=whole if branch else None)
    return env


def _load(model: Path, which: Literal["latest", "best"], *, even_if_bad: bool, even_if_imprecise: bool) -> World:
    world = load_world(model, which=which)
    bad = dynamics_faults(world.report) if even_if_imprecise else faults(world.report)
    if bad and not even_if_bad:
        raise ConfigError(
            f"world.model={model}: on held-out episodes it is not fit to learn in:\n  - " + "\n  - ".join(bad)
            + "\nTrain it longer or on more data; to use it nevertheless: world.even_if_bad=true."
        )  # fmt: skip
    return world


def _digest(manifest: bytes, settings: tuple[Any, ...], starts: History, cameras: tuple[str, ...] | None) -> str:
    text = manifest + repr(settings).encode()
    text += b"".join(v.contiguous().numpy().tobytes() for _, v in sorted(starts.obs.items()))
    text += b"" if cameras is None else repr(tuple(cameras)).encode()
    return hashlib.sha256(text).hexdigest()[:16]
