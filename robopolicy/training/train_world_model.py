"""World models: call `fit_world_model` or `fit_trajectories`, which load their datasets and build their model."""

from __future__ import annotations

from robopolicy.core.types import Metrics
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.training.run_loop import run_loop
from robopolicy.training.train_config import TrainConfig


def train_world_model(config: TrainConfig, checkpointer: Checkpointer) -> Metrics:
    """Train a model of recorded data.

    The loop receives: world_model (node), dataset, incomplete, cameras, seed, device, tracker, checkpointer.
    """
    if config.world_model is None:
        raise config.missing("world_model", "Choose one: world_model=<name>.")
    return run_loop(
        config, checkpointer, world_model=config.world_model, dataset=config.dataset, incomplete=config.incomplete,
        cameras=config.cameras,
    )  # fmt: skip
