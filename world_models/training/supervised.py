"""Train a model of recorded data: sample → update → log → checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from robopolicy.algos.bc import BC
from robopolicy.core.protocols import LogsMetrics
from robopolicy.core.rng import seed_generators, step_seed
from robopolicy.core.types import Metrics
from robopolicy.core.untrusted import refusing


def learn(
    algo: BC,
    batch: Callable[[int], dict[str, Any]],
    *,
    name: str,
    check_same_data: Callable[[dict[str, Tensor]], None],
    steps: int,
    seed: int,
    device: torch.device,
    tracker: LogsMetrics,
    checkpointer: Any,
    log_every: int,
    save_every: int,
) -> Callable[[], dict[str, Any]]:
    """Update `algo` up to `steps` times, going on from the newest checkpoint where there is one.

    Args:
        algo: its averaged model has a `report`: that of a finished run, else empty for the caller to fill and save.
        batch: the batch of a step, a function of its number alone. name: label of the progress bar.
        check_same_data: takes the saved model's tensors and raises where they are of other data.

    Returns:
        Function that returns the state to save with the finished model.
    """
    average = cast(Any, algo.policy)
    state = checkpointer.latest()
    step, sums, means = 0, cast(Metrics, {}), cast(Metrics, {})
    if state is not None:
        with refusing("checkpoint: state.json"):
            check_same_data(state["algo"]["average"])
            step, sums, means = int(state["step"]), dict(state["sums"]), dict(state["means"])
            algo.load_state_dict(state["algo"])
            average.report = dict(state["report"]) if step >= steps else {}

    def snapshot() -> dict[str, Any]:
        return {"step": step, "sums": sums, "means": means, "algo": algo.state_dict(), "report": average.report}

    with tracker.progress(steps, name) as progress:
        progress.update(step)
        while step < steps:
            seed_generators(step_seed(seed, step), device)
            for key, value in algo.update(batch(step)).items():
                sums[key] = sums.get(key, 0.0) + value
            step += 1
            if step % log_every == 0:
                means, sums = {key: total / log_every for key, total in sums.items()}, {}
                tracker.log({f"train/{key}": value for key, value in means.items()}, step)
            progress.update(step, **means)
            if (save_every and step % save_every == 0 and step < steps) or checkpointer.requested:
                checkpointer.save(step, policy=average, state=snapshot())
    return snapshot
