"""Train a trajectory model on windows of episodes, and evaluate it on held-out episodes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from robopolicy.algos.bc import BC
from robopolicy.config.schema import Count, Fraction, Natural, Node, NonNegative, Positive
from robopolicy.core.errors import DataError
from robopolicy.core.protocols import LogsMetrics
from robopolicy.core.rng import step_seed
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Metrics
from robopolicy.datasets.episodes import Episodes, take
from robopolicy.policies.base import Policy
from robopolicy.world_models.models.trajectories import Trajectories, make_trajectories
from robopolicy.world_models.models.windows import cut, whole
from robopolicy.world_models.training.data import HOLDOUT, check_learnable, load_source, mix, split
from robopolicy.world_models.training.supervised import learn

_EVALUATED, _FITTED = 2_000, 50_000  # windows that errors are measured on, and that units are taken from
_EVALUATION_SEED, _DRAW_STREAM = 9401, 9402


def fit(
    *, world_model: Node, dataset: Path | None, incomplete: bool, steps: Count, batch_size: Count, seed: int,
    device: torch.device, tracker: LogsMetrics, checkpointer: Any, data: dict[str, Path] | None = None,
    min_windows: Count = 1_000, holdout: Fraction = HOLDOUT, lr: Positive = 1e-3, warmup: Natural = 200,
    weight_decay: NonNegative = 1e-5, clip_norm: Positive = 1.0, ema_decay: Fraction = 0.998,
    log_every: Count | None = None, save_every: Natural = 2_000,
) -> Metrics:  # fmt: skip
    """Train on all windows of the data with equal weight, continuing from the newest checkpoint.

    Args:
        world_model: node of Trajectories.
        dataset, data: one dataset, and further ones by name.
        min_windows: least number of training windows; the held-out part needs a tenth.
        holdout: share of held-out episodes, for evaluation.
        batch_size: windows of an update.
        steps: number of updates.
        lr: learning rate.
        warmup: updates over which the learning rate rises linearly.
        weight_decay: AdamW's.
        clip_norm: bound of the gradient's global norm.
        ema_decay: of the moving average of the weights.
        log_every: updates between log entries; None: a twentieth of `steps`, at most 100.
        save_every: updates between checkpoints.

    Returns:
        Denoising errors of both parts, `steps`, `parameters` and `wall_s`, seconds in this process.

    Raises:
        DataError, SpecError: too few windows, pictures, several tasks; see check_learnable and mix in data.py.
        CheckpointError: a resumed run finds other data.
    """
    began = time.perf_counter()
    paths = {**({"dataset": dataset} if dataset is not None else {}), **(data or {})}
    model, parts = _build(world_model, paths, incomplete, holdout, min_windows, seed)
    train, begins = parts["train"]
    length = model.length
    model.to(device)
    algo = BC(
        cast(Policy, model), steps=steps, lr=lr, warmup=warmup, weight_decay=weight_decay, clip_norm=clip_norm,
        ema_decay=ema_decay,
    )  # fmt: skip
    average = cast(Trajectories, algo.policy)
    learn(
        algo,
        lambda step: _batch(train, begins, length, batch_size, step_seed(seed, step, stream=_DRAW_STREAM), device),
        name="trajectories", fitted=[name for name in average.state_dict() if not name.startswith("network.")],
        assess=lambda model: evaluate_denoising(model, parts), numbers=lambda model: model.report["denoising"],
        steps=steps, seed=seed, device=device, tracker=tracker, checkpointer=checkpointer, log_every=log_every,
        save_every=save_every,
    )  # fmt: skip
    errors = average.report["denoising"]
    print("denoising error: " + ", ".join(f"{name} {value:.4f}" for name, value in errors.items()))
    return {**errors, "steps": steps, "parameters": sum(p.numel() for p in average.parameters()),
            "wall_s": time.perf_counter() - began}  # fmt: skip


def _build(
    node: Node, paths: dict[str, Path], incomplete: bool, holdout: float, min_windows: int, seed: int
) -> tuple[Trajectories, dict[str, tuple[Episodes, Tensor]]]:
    """Load the data and build the model, in the units of the training part."""
    sources = {name: load_source(Path(path), name, incomplete=incomplete) for name, path in paths.items()}
    episodes = mix(sources, {}).episodes
    check_learnable(episodes, unroll=1)
    torch.manual_seed(step_seed(seed, 0, stream=1))
    spec = PolicySpec(episodes.observation, episodes.action_spec, episodes.dt, 1, 1, 1, episodes.tasks)
    model = make_trajectories(spec, node)
    parts = _parts(episodes, model.length, holdout, min_windows)
    train, begins = parts["train"]
    model.fit(train, cut(train, _some(begins, _FITTED), model.length))
    return model, parts


@torch.no_grad()
def evaluate_denoising(model: Trajectories, parts: dict[str, tuple[Episodes, Tensor]]) -> dict[str, Any]:
    """Denoising errors of each part, under the same noise; `nothing` is that of predicting 0 on the held-out one."""
    model.eval()
    levels, found, windows = len(model.alpha_bar), {}, {}
    by_level: dict[str, list[float]] = {}
    for name, (episodes, begins) in parts.items():
        window = cut(episodes, _some(begins, _EVALUATED), model.length)
        tokens = model.encode(window)
        generator = torch.Generator().manual_seed(_EVALUATION_SEED)
        noise = torch.randn(tokens.shape, generator=generator)
        step = torch.randint(levels, (len(tokens),), generator=generator)
        inputs = zip(*(x.split(512) for x in (tokens, window.state[:, 0], step, noise)), strict=True)
        error, zero = (torch.cat(x) for x in zip(*(model.errors(*part) for part in inputs), strict=True))
        found[name], windows[name] = float(error.mean()), len(begins)
        thirds = [error[(step * 3 // levels) == third] for third in range(3)]
        by_level[name] = [float(e.mean()) if len(e) else float("inf") for e in thirds]
    found["nothing"] = float(zero.mean())
    data = {name: {"episodes": e.num_episodes, "frames": e.num_frames, "windows": windows[name]}
            for name, (e, _) in parts.items()}  # fmt: skip
    return {"denoising": found, "by_third_of_levels": by_level, "data": data}


def _parts(episodes: Episodes, length: int, holdout: float, min_windows: int) -> dict[str, tuple[Episodes, Tensor]]:
    """Episodes to train on and to judge by, and the frames at which windows begin in them."""
    seen = split(episodes, holdout)[0]
    parts = {}
    for name, mask, needed in (("train", seen, min_windows), ("held_out", ~seen, -(-min_windows // 10))):
        part = take(episodes, mask)
        begins = whole(part, length) if part.num_episodes else torch.zeros(0, dtype=torch.int64)
        if len(begins) < needed:
            raise DataError(
                f"{name}: {part.num_episodes} episodes hold {len(begins)} windows of world_model.length={length} "
                f"steps, needed {needed}. Record more, change loop.holdout={holdout}, or lower world_model.length or "
                "loop.min_windows."
            )
        parts[name] = part, begins
    return parts


def _some(begins: Tensor, most: int) -> Tensor:
    """Return at most `most` of `begins`, evenly spaced."""
    return begins[torch.linspace(0, len(begins) - 1, min(most, len(begins)), dtype=torch.float64).long()]


def _batch(
    episodes: Episodes, begins: Tensor, length: int, size: int, seed: int, device: torch.device
) -> dict[str, Tensor]:
    """Fields of a Window; a pure function of `seed`, so resuming needs no state but the step."""
    rows = torch.randint(len(begins), (size,), generator=torch.Generator().manual_seed(seed))
    return {k: v.to(device) for k, v in cut(episodes, begins[rows], length)._asdict().items()}
