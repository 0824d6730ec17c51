"""Off-policy reinforcement learning: build env, base, demonstrations, policy and algorithm, then call the loop.

The loops are `off_policy` and `synthetic_off_policy`. A loop of your own that names `env` is called in the same way.
"""

from __future__ import annotations

from robopolicy.core.types import Metrics
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.training.builders import (
    build_algorithm,
    build_env,
    build_evaluation,
    build_gate,
    load_demonstrations,
    wrap_env,
)
from robopolicy.training.policy_builders import build_policy_for, load_base, load_teacher
from robopolicy.training.run_loop import run_loop
from robopolicy.training.train_config import TrainConfig


def train_off_policy(config: TrainConfig, checkpointer: Checkpointer) -> Metrics:
    """Train a policy on a replay of its own transitions, with demonstrations beside where a dataset is given.

    The loop receives: algo, env, demos (None without a dataset), evaluate, seed, device, tracker, checkpointer.
    """
    resumed = checkpointer.latest_path()
    env = build_env(config)
    base = load_base(config, env, resumed)
    demos = load_demonstrations(config, base)
    policy = build_policy_for(config, env=env, base=base, demonstrations=demos, resumed=resumed)
    teacher = load_teacher(config, env)
    algo = build_algorithm(config, policy, demonstrations=demos, teacher=teacher)
    wrapped = wrap_env(config, env, policy, teacher)
    evaluate, eval_every = build_gate(config, algo=algo, env=env, evaluation=build_evaluation(config))
    return run_loop(
        config, checkpointer, policy=policy, eval_every=eval_every, algo=algo, env=wrapped, demos=demos,
        evaluate=evaluate,
    )  # fmt: skip
