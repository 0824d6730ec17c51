"""Train a model of recorded data: sample → update → log → checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, cast

import torch
from torch import Tensor

from robopolicy.algos.bc import BC
from robopolicy.core.errors import CheckpointError
from robopolicy.core.protocols import LogsMetrics
from robopolicy.core.rng import seed_generators, step_seed
from robopolicy.core.types import Metrics
from robopolicy.core.untrusted import refusing
from robopolicy.runs.log_window import LogWindow, interval


def learn(
    algo: BC,
    batch: Callable[[int], dict[str, Any]],
    *,
    name: str,
    fitted: Collection[str],
    assess: Callable[[Any], dict[str, Any]],
    numbers: Callable[[Any], Metrics],
    steps: int,
    seed: int,
    device: torch.device,
    tracker: LogsMetrics,
    checkpointer: Any,
    log_every: int | None,
    save_every: int,
) -> None:
    """Update `algo` up to `steps` times, going on from the newest checkpoint where there is one, and fill the report.

    Args:
        algo: its averaged model has a `report`, which is empty until the end.
        batch: the batch of a step, a function of its number alone. name: label of the progress bar.
        fitted: names of the model's tensors that were fitted to the data.
        log_every: updates between log entries; None: a twentieth of `steps`, at most 100.
        assess: report of the averaged model, on the CPU. numbers: those of it to log.

    Raises:
        CheckpointError: the newest checkpoint was fitted to other data.
    """
    average = cast(Any, algo.policy)
    state = checkpointer.latest()
    step, window = 0, LogWindow(log_every or interval(steps, most=100))
    if state is not None:
        with refusing("checkpoint: state.json"):
            _check_same_data(state["algo"]["average"], {k: v for k, v in average.state_dict().items() if k in fitted})
            step = int(state["step"])
            window.load_state_dict(state)
            algo.load_state_dict(state["algo"])
            average.report = dict(state["report"]) if step >= steps else {}

    def snapshot() -> dict[str, Any]:
        return {"step": step, "algo": algo.state_dict(), "report": average.report, **window.state_dict()}

    with tracker.progress(steps, name) as progress:
        progress.update(step)
        while step < steps:
            seed_generators(step_seed(seed, step), device)
            metrics = algo.update(batch(step))
            step += 1
            window.add(metrics, step, tracker)
            progress.update(step, **window.means)
            if (save_every and step % save_every == 0 and step < steps) or checkpointer.requested:
                checkpointer.save(step, policy=average, state=snapshot())
    if not average.report:  # else the run had ended before
        average.report = assess(average.cpu())
        tracker.log({f"report/{key}": value for key, value in numbers(average).items()}, steps)
        checkpointer.save(steps, policy=average, state=snapshot())


def _check_same_data(saved: dict[str, Tensor], units: dict[str, Tensor]) -> None:
    """Other data of the same spec shows in the units, which were fitted to it."""
    for name, value in units.items():
        if not torch.allclose(saved[name].cpu(), value.cpu(), rtol=1e-4, atol=1e-7, equal_nan=True):
            raise CheckpointError(f"dataset: {name} is not that of the run. Restore it, or give a new run_dir.")
