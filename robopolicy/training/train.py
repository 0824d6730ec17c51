"""The `train` verb: from a config to a running loop.

Loops, algorithms and policies name what they need by their parameters (`env`, `demos`, `evaluate`, `seed` …). `Parts`
makes each of these when it is first asked for, so a new loop or algorithm needs no change here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from robopolicy.config.instantiate import arguments_for, build
from robopolicy.config.schema import Count, Device, Natural, Node
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import Metrics
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.runs.run_dir import has_checkpoint, open_run, read_config
from robopolicy.training.parts import Parts, TrainArguments
from robopolicy.utils.atomic import write_atomically


def train(
    *,
    run_dir: Path,
    loop: Node,
    tracker: Node,
    policy: Node | None = None,
    algo: Node | None = None,
    task: Node | None = None,
    world: Node | None = None,
    world_model: Node | None = None,
    rounds: Natural = 0,
    coevolve: Node | None = None,
    dataset: Path | None = None,
    incomplete: bool = False,
    base: Path | None = None,
    teacher: Path | None = None,
    teacher_sampling: dict[str, Any] | None = None,
    n_obs_steps: Count = 1,
    horizon: Count = 8,
    n_action_steps: Count = 4,
    cameras: tuple[str, ...] | None = None,
    num_envs: Count = 32,
    group_size: Count | None = None,
    validation_episodes: Natural = 200,
    keep_checkpoints: Count = 2,
    seed: int = 0,
    device: Device = "cpu",
    threads: Count | None = None,
) -> Metrics:
    """Train a policy in `run_dir`, going on from its newest checkpoint where there is one.

    Args:
        policy, algo, loop, tracker, task: nodes; what their targets need beside the config is supplied by `Parts`.
        world: node of the env that is learned in instead of the task's, an imagined one; validation stays with `task`.
        world_model: node of the dynamics to learn, where that is what is trained.
        rounds: of imagining, a few real rollouts and refitting the world; coevolve: node of what carries them out.
        dataset: demonstrations (LeRobotDataset v3).
        incomplete: a dataset whose recording was interrupted will do.
        base: directory of the policy underneath, or "hold" for the one that stands still: learning from scratch.
        teacher: directory of a policy to learn from beside the env; any that fits it. teacher_sampling: changes of its
            sampler, see `tuned`.
        n_obs_steps, horizon, n_action_steps: To, H, Ta of a policy without a base.
        group_size: envs that start in the same state, see GroupedEnv; None: each in one of its own.

    Returns:
        What the loop returns.

    Raises:
        ConfigError: something that the algorithm needs is not given. SpecError: env, data and policies do not fit.
        DataError: a dataset that cannot be trained on, or was interrupted (see `incomplete`).
        CheckpointError: a resumed run finds other data or another env than it began with.
        KeyboardInterrupt: stopped by the user, after a checkpoint.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    if rounds:
        if coevolve is None or world is None:
            raise ConfigError("rounds: need a world to imagine in and to refit: world=imagined, world.model=<its run>.")
        return build(coevolve, "coevolve", rounds=rounds, run_dir=run_dir, config=read_config(run_dir))
    if teacher_sampling and teacher is None:
        raise ConfigError(
            "teacher_sampling: changes the sampler of a teacher, and there is none. Add teacher=<run directory>, or "
            "leave it away."
        )
    torch.manual_seed(seed)
    settings = TrainArguments(
        run_dir, policy, loop, algo, task, dataset, incomplete, base, (n_obs_steps, horizon, n_action_steps), cameras,
        num_envs, validation_episodes, seed, torch.device(device), world, world_model, group_size, teacher,
        teacher_sampling,
    )  # fmt: skip
    checkpointer = Checkpointer(run_dir, keep=keep_checkpoints)
    parts = Parts(settings, checkpointer)
    call = parts.complete(loop, "loop")  # loads data, builds envs and the policy: whatever does not fit shows now
    loop, call = parts.gated(loop, call)
    if policy is not None:
        write_atomically(run_dir / "spec.json", parts.policy.spec.to_json() + "\n")
    parts.tracker = build(tracker, "tracker", run_dir=run_dir, config=read_config(run_dir))
    parts.tracker.rewind(checkpointer.step)
    try:
        with checkpointer.interruptible():
            result = build(loop, "loop", **call, **parts.offered(loop, "tracker"))
            parts.finish()
    finally:
        parts.tracker.close()
    print(f"trained: {run_dir} ({', '.join(f'{k} {v:.4g}' for k, v in result.items())})")
    return result


def train_run(config: dict[str, Any]) -> Metrics:
    """Train as a composed and checked config says, in its run directory, as the command line does.

    Raises:
        As `train`; ConfigError: another process works in the run directory, or it was begun with another config.
    """
    arguments = arguments_for(train, config)
    with open_run(arguments["run_dir"], config, begun=has_checkpoint):
        return train(**arguments)
