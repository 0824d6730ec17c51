"""Train a world model: sample → update → log → checkpoint, then calibrate and report."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any, cast

import torch

from robopolicy.algos.bc import BC
from robopolicy.config.schema import Count, Fraction, Natural, Node, NonNegative, Positive
from robopolicy.core.errors import ConfigError, DataError, SpecError
from robopolicy.core.protocols import LogsMetrics
from robopolicy.core.rng import step_seed
from robopolicy.core.types import EnvSpec, Metrics
from robopolicy.datasets.episodes import Episodes, succeeded
from robopolicy.datasets.metadata import RecordingMeta
from robopolicy.policies.base import Policy
from robopolicy.utils.storage import load_weights
from robopolicy.world_models.envs.starts import made_from
from robopolicy.world_models.evaluation.calibration import assess, summary
from robopolicy.world_models.models.world import World, features_read, load_world, make_world
from robopolicy.world_models.training.data import (
    HOLDOUT,
    Mixture,
    WorldModelBatches,
    check_learnable,
    load_source,
    mix,
    split,
)
from robopolicy.world_models.training.supervised import learn


def fit(
    *, world_model: Node, success: Node, dataset: Path | None, incomplete: bool, steps: Count, batch_size: Count,
    seed: int, device: torch.device, tracker: LogsMetrics, checkpointer: Any, init: Path | None = None,
    data: dict[str, Path] | None = None, mix_weights: dict[str, NonNegative] | None = None, labelled: Count = 256,
    holdout: Fraction = HOLDOUT, cameras: tuple[str, ...] | None = None, believed: Fraction = 0.95, lr: Positive = 1e-3,
    warmup: Natural = 200, weight_decay: NonNegative = 1e-5, clip_norm: Positive = 10.0, ema_decay: Fraction = 0.998,
    log_every: Count | None = None, save_every: Natural = 2_000,
) -> Metrics:  # fmt: skip
    """Train dynamics and success classifier on the same data, continuing from the newest checkpoint.

    Args:
        world_model: node of a Dynamics. success: node of a SuccessClassifier.
        dataset: the source "dataset". data: further ones, {name: path}; mix_weights: {name: weight}, see mix.
        init: run of a model whose weights and state units this one starts with; None: from scratch.
        batch_size: sequences per member and update. labelled: pairs for the classifier, half of them successes.
        holdout: share of held-out episodes, half for calibration and half for the report.
        cameras: cameras to model; None: all of the data. believed: see `assess`.
        steps: number of updates.
        lr: learning rate.
        warmup: updates over which the learning rate rises linearly.
        weight_decay: AdamW's.
        clip_norm: bound of the gradient's global norm.
        ema_decay: of the moving average of the weights.
        log_every: updates between log entries; None: a twentieth of `steps`, at most 100.
        save_every: updates between checkpoints.

    Returns:
        The report's main numbers, `steps`, `parameters` and `wall_s`, seconds in this process.

    Raises:
        ConfigError, DataError, SpecError: data that cannot teach a world model; see world_models/training/data.py.
        CheckpointError: a resumed run finds other data; `init` is of another shape.
    """
    began = time.perf_counter()
    paths = {n: Path(p) for n, p in {**({"dataset": dataset} if dataset is not None else {}), **(data or {})}.items()}
    nodes = {"world_model": world_model, "success": success}
    world, parts = _build(nodes, paths, incomplete, cameras, mix_weights or {}, holdout, init, seed, device)
    algo = BC(
        cast(Policy, world), steps=steps, lr=lr, warmup=warmup, weight_decay=weight_decay,
        part_decay={"success": world.success.weight_decay}, clip_norm=clip_norm, ema_decay=ema_decay,
    )  # fmt: skip
    average = cast(World, algo.policy)
    batches = WorldModelBatches(
        parts["train"], heads=world.dynamics.heads, unroll=world.dynamics.unroll, batch_size=batch_size,
        window=world.memory, labelled=labelled, seed=seed, device=device,
    )  # fmt: skip
    learn(
        algo, batches.__getitem__, name="world model", steps=steps, seed=seed, device=device, tracker=tracker,
        checkpointer=checkpointer, log_every=log_every, save_every=save_every, numbers=_numbers,
        fitted=[n for n in average.state_dict() if ".state_transform." in n or n.endswith((".mean", ".spread"))],
        assess=lambda world: assess(world, *(part.episodes for part in parts.values()), believed=believed),
    )  # fmt: skip
    print(summary(average.report))
    return {**_numbers(average), "steps": steps, "wall_s": time.perf_counter() - began}


def _build(
    nodes: dict[str, Node], paths: dict[str, Path], incomplete: bool, cameras: tuple[str, ...] | None,
    weights: dict[str, float], holdout: float, init: Path | None, seed: int, device: torch.device,
) -> tuple[World, dict[str, Mixture]]:  # fmt: skip
    """Load the data and build the world that it describes, in the units of the training part."""
    reads = functools.partial(features_read, nodes["world_model"])
    sources = {n: load_source(p, n, incomplete=incomplete, cameras=cameras, reads=reads) for n, p in paths.items()}
    mixture = mix(sources, weights)
    spec = _spec(paths, mixture.episodes)
    torch.manual_seed(step_seed(seed, 0, stream=1))
    world = make_world(spec, nodes)
    check_learnable(mixture.episodes, unroll=world.dynamics.unroll, key=world.dynamics.unroll_key)
    parts = _parts(mixture, holdout, world)
    train = parts["train"].episodes
    if init is not None:
        _check_holdout(init, paths, holdout)
        load_weights(world, load_world(init).state_dict(), where=f"loop.init={init}")
        world.dynamics.widen(train)
    else:
        world.dynamics.fit(train)
    return world.to(device), parts


def _check_holdout(init: Path, paths: dict[str, Path], holdout: float) -> None:
    """Raise ConfigError where `init` has learned from episodes that `holdout` would hold out now."""
    try:
        learned, before = made_from(init)
    except ConfigError:  # it does not say what it was made from
        return
    if before < holdout and {path.resolve() for path in learned} & {path.resolve() for path in paths.values()}:
        raise ConfigError(
            f"loop.holdout={holdout:g}: {init} held out {before:g}, so it has learned from some of these episodes. "
            f"Give loop.holdout={before:g} at most."
        )


def _spec(paths: dict[str, Path], episodes: Episodes) -> EnvSpec:
    """Return the env as the data describes it; without a description, the longest episode is its horizon."""
    metas = [m for p in paths.values() if (m := RecordingMeta.load(p)) is not None]
    envs = [m.provenance["env"] for m in metas if isinstance(m.provenance.get("env"), dict)]
    names = {str(e["id"]) for e in envs if "id" in e}
    if len(names) > 1:
        raise SpecError(f"the datasets are of different envs, {sorted(names)}; a world model is of one")
    horizon = max([int(e["horizon"]) for e in envs if type(e.get("horizon")) is int] or [int(episodes.lengths.max())])
    return EnvSpec(
        id=names.pop() if names else next(iter(paths.values())).name,
        observation=episodes.observation,
        action=episodes.action_spec,
        tasks=episodes.tasks,
        dt=episodes.dt,
        horizon=horizon,
        digest="+".join(sorted({str(e["digest"]) for e in envs if "digest" in e})),
    )


def _parts(mixture: Mixture, holdout: float, world: World) -> dict[str, Mixture]:
    masks = split(mixture.episodes, holdout)
    parts = {}
    for name, mask in zip(("train", "calibration", "validation"), masks, strict=True):
        if not bool(mask.any()):
            raise DataError(
                f"{name}: none of the {len(mask)} episodes fell to it with loop.holdout={holdout}. Record more, or "
                "change loop.holdout."
            )
        parts[name] = mixture.take(mask)
    world.success.check_enough({name: int(succeeded(p.episodes).sum()) for name, p in parts.items()})
    if not bool((parts["train"].episodes.lengths > 1).any()):
        raise ConfigError("loop.holdout: leaves no transition to learn from")
    return parts


def _numbers(world: World) -> Metrics:
    report = world.report
    found: Metrics = {f"error_{k}": e["model"] for k, e in report["open_loop"].items() if e["windows"]}
    found |= {"precision": report["success"]["precision"], "recall": report["success"]["recall"]}
    return {**found, "bound": report["trust"]["bound"], "parameters": sum(p.numel() for p in world.parameters())}
