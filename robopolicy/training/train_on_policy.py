"""On-policy reinforcement learning: build env, base, policy and algorithm, then call the loop `on_policy`."""

from __future__ import annotations

from robopolicy.core.types import Metrics
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.training.builders import (
    build_algorithm,
    build_env,
    build_evaluation,
    build_gate,
    load_demonstrations,
    reads_dataset,
    wrap_env,
)
from robopolicy.training.policy_builders import build_policy_for, load_base, load_teacher
from robopolicy.training.run_loop import run_loop
from robopolicy.training.train_config import TrainConfig


def train_on_policy(config: TrainConfig, checkpointer: Checkpointer) -> Metrics:
    """Train a policy on rollouts of its own.

    The loop receives: algo, env, evaluate, seed, device, tracker, checkpointer. The dataset is loaded only where the
    policy or the algorithm reads it.
    """
    resumed, reads = checkpointer.latest_path(), reads_dataset(config)
    env = build_env(config)
    base = load_base(config, env, resumed)
    demonstrations = load_demonstrations(config, base) if reads else None
    policy = build_policy_for(config, env=env, base=base, demonstrations=demonstrations, resumed=resumed)
    teacher = load_teacher(config, env)
    algo = build_algorithm(config, policy, demonstrations=demonstrations, teacher=teacher)
    wrapped = wrap_env(config, env, policy, teacher)
    evaluate, eval_every = build_gate(config, algo=algo, env=env, evaluation=build_evaluation(config))
    return run_loop(
        config, checkpointer, policy=policy, eval_every=eval_every, algo=algo, env=wrapped, evaluate=evaluate
    )
