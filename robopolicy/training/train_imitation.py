"""Imitation: build base, demonstrations, policy and algorithm, then call the loop `offline`."""

from __future__ import annotations

from robopolicy.core.types import Metrics
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.training.builders import build_algorithm, build_env, build_evaluation, load_demonstrations, required
from robopolicy.training.policy_builders import build_policy_for, load_base
from robopolicy.training.run_loop import run_loop
from robopolicy.training.train_config import TrainConfig


def train_imitation(config: TrainConfig, checkpointer: Checkpointer) -> Metrics:
    """Train a policy on demonstrations. A task, where one is given, is only evaluated on.

    The loop receives: algo, episodes, evaluate, seed, device, tracker, checkpointer.
    """
    resumed = checkpointer.latest_path()
    env = build_env(config) if config.has_env else None
    base = load_base(config, env, resumed)
    episodes = required(config, load_demonstrations(config, base))
    policy = build_policy_for(config, env=env, base=base, demonstrations=episodes, resumed=resumed)
    algo = build_algorithm(config, policy, demonstrations=episodes)
    return run_loop(
        config, checkpointer, policy=policy, algo=algo, episodes=episodes, evaluate=build_evaluation(config)
    )
