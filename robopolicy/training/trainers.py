"""Build what a training needs, in order, and call its loop: imitation, reinforcement learning, world models."""

from __future__ import annotations

from typing import Any

import torch

from robopolicy.config.instantiate import build, open_arguments
from robopolicy.config.schema import TARGET
from robopolicy.core.types import Metrics
from robopolicy.policies.base import Policy
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.runs.logger import Axis, Tracker
from robopolicy.runs.run_dir import read_config
from robopolicy.training.batch_size import with_batch_size
from robopolicy.training.builders import (
    build_algorithm,
    build_env,
    build_evaluation,
    build_gate,
    load_demonstrations,
    reads_dataset,
    required,
    wrap_env,
)
from robopolicy.training.policy_builders import (
    build_policy_for,
    check_teacher,
    load_base,
    load_teacher,
    warn_of_random_encoder,
)
from robopolicy.training.ranked import check_supported, check_weights
from robopolicy.training.teacher_episodes import with_teacher_episodes
from robopolicy.training.train_config import TrainConfig
from robopolicy.training.validation import Validation
from robopolicy.utils import ranks
from robopolicy.utils.atomic import write_atomically


def train_imitation(config: TrainConfig, checkpointer: Checkpointer) -> Metrics:
    """Train a policy on demonstrations. A task, where one is given, is evaluated on, and a teacher recorded in it.

    The loop receives: algo, episodes, evaluate, seed, device, tracker, checkpointer.
    """
    resumed = checkpointer.latest_path()
    env = build_env(config) if config.has_env else None
    base = load_base(config, env, resumed)
    with torch.random.fork_rng(devices=[]):  # the student begins with the same weights, recorded or resumed
        teacher = load_teacher(config, env)
        check_teacher(config, env, base, teacher)
        config = with_teacher_episodes(config, teacher, env)
    episodes = required(config, load_demonstrations(config, base))
    policy = build_policy_for(config, env=env, base=base, demonstrations=episodes, resumed=resumed)
    algo = build_algorithm(config, policy, demonstrations=episodes, teacher=teacher)
    config = with_batch_size(config, policy, episodes, resumed=resumed is not None)
    validation = build_evaluation(config)
    return run_loop(
        config, checkpointer, policy=policy, validation=validation, evaluate=validation, algo=algo, episodes=episodes
    )


def train_offline_rl(config: TrainConfig, checkpointer: Checkpointer) -> Metrics:
    """Train a policy on recorded rollouts by the loop `offline_rl`. A task, where one is given, is only evaluated on.

    The loop receives: algo, demos (None without a dataset), evaluate, seed, device, tracker, checkpointer.
    """
    resumed = checkpointer.latest_path()
    env = build_env(config) if config.has_env else None
    base = load_base(config, env, resumed)
    demos = load_demonstrations(config, base)
    policy = build_policy_for(config, env=env, base=base, demonstrations=demos, resumed=resumed)
    algo = build_algorithm(config, policy, demonstrations=demos, resumed=resumed is not None)
    validation = build_evaluation(config)
    return run_loop(
        config, checkpointer, policy=policy, validation=validation, evaluate=validation, algo=algo, demos=demos
    )


def train_off_policy(config: TrainConfig, checkpointer: Checkpointer) -> Metrics:
    """Train a policy on a replay of its own transitions, with demonstrations beside where a dataset is given.

    The loops are `off_policy` and `synthetic_off_policy`. A loop of your own that names `env` is called in the same
    way. It receives: algo, env, demos (None without a dataset), evaluate, seed, device, tracker, checkpointer.
    """
    return _reinforce(config, checkpointer, reads=True)


def train_on_policy(config: TrainConfig, checkpointer: Checkpointer) -> Metrics:
    """Train a policy on rollouts of its own, by the loop `on_policy`.

    The loop receives: algo, env, evaluate, seed, device, tracker, checkpointer. The dataset is loaded only where the
    policy or the algorithm reads it.
    """
    return _reinforce(config, checkpointer, reads=reads_dataset(config))


def _reinforce(config: TrainConfig, checkpointer: Checkpointer, *, reads: bool) -> Metrics:
    """Build env, base, demonstrations where the dataset is read, policy and algorithm, then call the loop."""
    resumed = checkpointer.latest_path()
    env = build_env(config)
    base = load_base(config, env, resumed)
    demos = load_demonstrations(config, base) if reads else None
    policy = build_policy_for(config, env=env, base=base, demonstrations=demos, resumed=resumed)
    teacher = load_teacher(config, env)
    algo = build_algorithm(config, policy, demonstrations=demos, teacher=teacher, resumed=resumed is not None)
    warn_of_random_encoder(config, policy)
    wrapped = wrap_env(config, env, policy, teacher)
    validation = build_evaluation(config)
    evaluate, eval_every = build_gate(config, algo=algo, env=env, evaluation=validation)
    return run_loop(
        config, checkpointer, axis="env_steps", policy=policy, eval_every=eval_every, validation=validation,
        evaluate=evaluate, algo=algo, env=wrapped, demos=demos,
    )  # fmt: skip


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


def run_loop(
    config: TrainConfig,
    checkpointer: Checkpointer,
    *,
    axis: Axis = "updates",
    policy: Policy | None = None,
    eval_every: int | None = None,
    validation: Validation | None = None,
    evaluate: Any = None,
    **arguments: Any,
) -> Metrics:
    """Open the tracker and call the loop, which may be stopped by a signal.

    Args:
        axis: unit of the loop's steps.
        policy: the policy to train, whose spec is written into the run directory; None for world models.
        eval_every: replaces `loop.eval_every`; None: leave it.
        validation: evaluation in the task, which films episodes for the tracker.
        evaluate: of policy and step: the validation, or a gate, which also saves its state in the checkpoints.
        **arguments: of the loop. It receives those that it names, and `seed`, `device`, `evaluate`, `tracker` and
            `checkpointer`.
    """
    gated = evaluate.keeping(checkpointer) if hasattr(evaluate, "keeping") else None
    check_supported(config.loop[TARGET], arguments.get("algo"))
    if policy is not None:
        check_weights(policy)
    if policy is not None and not ranks.rank():
        write_atomically(config.run_dir / "spec.json", policy.spec.to_json() + "\n")
    tracker = open_tracker(config, axis, checkpointer.step)
    if validation is not None:
        validation.tracker = tracker
    available = {
        **arguments, "evaluate": evaluate, "seed": config.seed, "device": config.torch_device, "tracker": tracker,
        "checkpointer": gated or checkpointer,
    }  # fmt: skip
    names = open_arguments(config.loop, "loop")
    loop = {**config.loop, "eval_every": eval_every} if gated else config.loop
    failed = True
    try:
        with checkpointer.interruptible():
            result = build(loop, "loop", **{name: value for name, value in available.items() if name in names})
            if gated:
                gated.finish()
        failed = False
    except BaseException as error:
        tracker.note(f"ended early: {type(error).__name__} {error}")
        raise
    finally:
        tracker.close(failed=failed)
    return result


def open_tracker(config: TrainConfig, axis: Axis, step: int | None) -> Tracker:
    """Open the tracker of a run; only rank 0 has one that writes.

    Args:
        axis: unit of the loop's steps. step: of the checkpoint that the run continues from; None: it begins.
    """
    if ranks.rank():
        return Tracker(quiet=True)
    tracker = build(config.tracker, "tracker", run_dir=config.run_dir, config=read_config(config.run_dir), axis=axis)
    tracker.rewind(step)
    return tracker
