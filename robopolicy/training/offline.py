"""Offline training: sample → update → log → evaluate → checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from robopolicy.buffers.recorded_rollouts import with_successes
from robopolicy.config.schema import Count, Fraction, Natural
from robopolicy.core.errors import CheckpointError, ConfigError, DataError
from robopolicy.core.protocols import Checkpoints, LogsMetrics
from robopolicy.core.rng import seed_generators, step_seed
from robopolicy.core.types import Algorithm, Metrics
from robopolicy.core.untrusted import refusing
from robopolicy.datasets.batches import Batches
from robopolicy.datasets.compatibility import number_tasks
from robopolicy.datasets.episodes import Episodes, succeeded, take
from robopolicy.policies.base import Policy
from robopolicy.runs.log_window import LogWindow, interval
from robopolicy.training.batch_size import USUAL, Estimate, advice
from robopolicy.training.contract import check_algorithm

_log = logging.getLogger(__name__)


def offline(
    *,
    algo: Algorithm,
    episodes: Episodes,
    steps: Count,
    batch_size: Count | None = None,
    seed: int,
    tracker: LogsMetrics,
    checkpointer: Checkpoints,
    log_every: Count | None = None,
    save_every: Natural = 2_000,
    evaluate: Callable[[Policy, int], Metrics] | None = None,
    eval_every: Natural = 0,
    only_success: bool | None = None,
    rollouts: dict[str, Path] | None = None,
    held_out: Fraction = 0.0,
) -> Metrics:
    """Train `algo` on fixed data for `steps` updates, resuming from the newest checkpoint.

    All randomness of step s is drawn from a stream seeded by (seed, s). So an interrupted and resumed run ends in the
    same weights, bit for bit, as an uninterrupted one.

    Several ranks learn neighbouring rows of each batch. Its random numbers are those of one rank, dropout's excepted.

    Args:
        evaluate: called with `algo.policy` and step every `eval_every` steps; its numbers are logged under `eval/`.
        steps: number of updates.
        batch_size: windows of an update; None: 256; `train` chooses it before, see with_batch_size.
        log_every: updates between log entries; None: a twentieth of `steps`, at most 100.
        save_every: updates between checkpoints. eval_every: updates between evaluations; 0: none.
        only_success: True: episodes that failed are not learned from. None: they are, with a warning where others
            succeeded. False: they are.
        rollouts: datasets of a policy's own episodes, {name: path}; those that succeeded are learned from too.
        held_out: share of the rollouts' episodes that is not learned from, for `robopolicy gate`; 0: none.

    Returns:
        Means over the last log interval, `steps`, and `wall_s`, seconds in this process.

    Raises:
        ConfigError: `held_out` without rollouts. SpecError, DataError: see with_successes and chosen_episodes.
        CheckpointError: the data of a resumed run has changed.
    """
    if held_out and not rollouts:
        raise ConfigError(
            f"loop.held_out={held_out:g}: is a share of loop.rollouts, and none are given. The dataset is learned from "
            "whole. Leave held_out out, or give loop.rollouts.own=<path>."
        )
    check_algorithm(algo, Algorithm, "offline")
    began = time.perf_counter()
    policy, device = algo.policy, next(algo.policy.parameters()).device
    episodes = chosen_episodes(episodes, only_success)
    if rollouts:
        episodes = with_successes(episodes, rollouts, policy, held_out)
    episodes = number_tasks(episodes, policy.spec)
    batches = Batches(
        episodes, policy.spec, batch_size=batch_size or USUAL, seed=seed, device=device,
        precompute_features=policy.precompute_features, shared=True,
    )  # fmt: skip
    step, best, window = 0, -1.0, LogWindow(log_every or interval(steps, most=100))  # best: success rate
    if (state := checkpointer.latest()) is not None:
        _check_same_frames(state, episodes)
        with refusing("checkpoint: state.json"):
            step, best = int(state["step"]), float(state["best"])
            window.load_state_dict(state)
            algo.load_state_dict(state["algo"])
    estimate = Estimate(steps - step, advice=advice(policy, device))
    with tracker.progress(steps, "offline") as progress:
        progress.update(step)
        while step < steps:
            seed_generators(step_seed(seed, step), device)
            with batches.drawing():
                metrics, better = algo.update(batches[step]), False
            step += 1
            window.add(metrics, step, tracker)
            progress.update(step, **window.means)
            estimate.update()
            if evaluate is not None and eval_every and step % eval_every == 0:
                result = evaluate(algo.policy, step)
                tracker.log({f"eval/{name}": value for name, value in result.items()}, step)
                best, better = max(best, result["success_rate"]), result["success_rate"] >= best
            if (save_every and step % save_every == 0) or step == steps or better or checkpointer.requested:
                state = {"step": step, "algo": algo.state_dict(), "best": best, **window.state_dict()}
                state["recorded"] = episodes.num_frames
                checkpointer.save(step, policy=algo.policy, state=state, best=better)
    return {**window.means, "steps": step, "wall_s": time.perf_counter() - began}


def _check_same_frames(state: Mapping[str, Any], episodes: Episodes) -> None:
    """Raise CheckpointError unless a saved `state` was reached with as many frames; older checkpoints do not say."""
    if state.get("recorded", episodes.num_frames) != episodes.num_frames:
        raise CheckpointError(
            f"dataset, loop.rollouts, loop.held_out, loop.only_success: {episodes.num_frames} frames are learned from, "
            f"and the run began with {state['recorded']}. Restore them, or give a new run_dir."
        )


def chosen_episodes(episodes: Episodes, only_success: bool | None) -> Episodes:
    """Return what is imitated of a dataset, see `offline`.

    Raises:
        DataError: successes alone are asked for, and the dataset has none or does not say which episodes succeeded.
    """
    good, count = succeeded(episodes), episodes.num_episodes
    wins = int(good.sum())
    if only_success and not wins:
        found = f"none of its {count} episodes succeeded" if episodes.outcomes else "it does not say who succeeded"
        raise DataError(f"dataset, loop.only_success=true: {found}, so nothing is left to imitate. Leave it out.")
    if only_success is None and 0 < wins < count:
        _log.warning(
            "dataset: %d of %d episodes failed, and are imitated too. loop.only_success=true leaves them out.",
            count - wins, count,
        )  # fmt: skip
    return take(episodes, good) if only_success else episodes
