"""The `train` verb: from a config to a running loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from robopolicy.config.instantiate import arguments_for, build, open_arguments
from robopolicy.config.schema import TARGET
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import Metrics
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.runs.finished import write_finished
from robopolicy.runs.run_dir import has_checkpoint, open_run, read_config
from robopolicy.training.ranked import RankedCheckpointer, check_supported
from robopolicy.training.train_config import TrainConfig
from robopolicy.training.trainers import (
    train_imitation,
    train_off_policy,
    train_offline_rl,
    train_on_policy,
    train_world_model,
)
from robopolicy.utils import ranks
from robopolicy.utils.threads import set_threads

Trainer = Callable[[TrainConfig, Checkpointer], Metrics]

TRAINERS: dict[str, Trainer] = {  # by the loop's registered name
    "fit_trajectories": train_world_model,
    "fit_world_model": train_world_model,
    "off_policy": train_off_policy,
    "offline": train_imitation,
    "offline_rl": train_offline_rl,
    "on_policy": train_on_policy,
    "synthetic_off_policy": train_off_policy,
}
_BY_ARGUMENT: dict[str, Trainer] = {"env": train_off_policy, "episodes": train_imitation}  # of a user's own loop


def train(**keys: Any) -> Metrics:
    """Train a policy or a world model in `run_dir`, from its newest checkpoint where there is one.

    Args:
        **keys: the fields of TrainConfig.

    Returns:
        The loop's metrics.

    Raises:
        ConfigError: something that the algorithm needs is not given. SpecError: env, data and policies do not fit.
        DataError: the dataset cannot be trained on, or was interrupted (see `incomplete`).
        CheckpointError: a resumed run finds other data or another env than it began with.
        KeyboardInterrupt: stopped by the user, after a checkpoint.
    """
    config = TrainConfig(**keys)
    config.check_evaluation()
    set_threads(config.threads)
    check_supported("coevolve" if config.rounds else config.loop[TARGET])
    ranks.in_first(lambda: None)  # rank 0 has opened the run directory, which takes minutes for big datasets
    if config.rounds:
        if config.coevolve is None or config.world is None:
            raise ConfigError("rounds: need a world to imagine in and to refit: world=imagined, world.model=<its run>.")
        settings = {"rounds": config.rounds, "run_dir": config.run_dir, "config": read_config(config.run_dir)}
        return build(config.coevolve, "coevolve", **settings)
    if config.teacher_sampling and config.teacher is None:
        raise ConfigError(
            "teacher_sampling: changes the sampler of a teacher, and there is none. Add teacher=<run directory>, or "
            "remove teacher_sampling."
        )
    torch.manual_seed(config.seed)
    kind = Checkpointer if ranks.count() == 1 else RankedCheckpointer
    result = _trainer(config.loop)(config, kind(config.run_dir, keep=config.keep_checkpoints))
    if ranks.rank():
        return result
    write_finished(config.run_dir)
    print(f"trained: {config.run_dir} ({', '.join(f'{k} {_shown(v)}' for k, v in result.items())})")
    return result


train.forwards_to = lambda given: (TrainConfig,)  # type: ignore[attr-defined]


def train_run(config: dict[str, Any]) -> Metrics:
    """Train as a composed and checked config says, in its run directory, as the command line does.

    Raises:
        As `train`; ConfigError: another process works in the run directory, or it was begun with another config.
    """
    arguments = arguments_for(train, config)
    with open_run(arguments["run_dir"], config, begun=has_checkpoint):
        return train(**arguments)


def _trainer(loop: dict[str, Any]) -> Trainer:
    """Return the function that builds what `loop` needs; a user's own loop is told by what it names."""
    if (trainer := TRAINERS.get(loop[TARGET])) is not None:
        return trainer
    names = open_arguments(loop, "loop")
    return next((trainer for name, trainer in _BY_ARGUMENT.items() if name in names), train_world_model)


def _shown(value: float) -> str:
    """Write a metric in four digits; whole numbers, as steps are, in full."""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.4g}"
