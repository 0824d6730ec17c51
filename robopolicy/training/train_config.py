"""The keys of `robopolicy train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from robopolicy.config.instantiate import value_of
from robopolicy.config.schema import TARGET, Count, Device, Natural, Node, Positive, Seed
from robopolicy.core.errors import ConfigError

_ANCHOR = 0.01  # weight of the KL to the base in imagination, where `algo.anchor` is not given


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The keys of a training, with their defaults.

    Args:
        run_dir: directory of the run.
        policy, algo, loop, tracker, task: nodes. Their targets receive the rest from the `train_*` function.
        world: node of the env to learn in instead of the task's, an imagined one; validation uses `task`.
        world_model: node of the dynamics to learn.
        rounds: of imagination, real rollouts and refitting of the world model; coevolve: node that runs them.
        dataset: demonstrations (LeRobotDataset v3). incomplete: accept a dataset whose recording was interrupted.
        base: directory of the frozen policy underneath, or "zero_action": learning from scratch.
        base_critic: load the critic of the base's run too; for aloe, ogpo, pa_rl and offline.
        teacher: directory of a policy to distil. teacher_sampling: changes of its sampler, see `finetuned`.
        teacher_episodes: of the teacher, which a distillation without a dataset records; None: 500.
        n_obs_steps, horizon, n_action_steps: To, H, Ta of a policy without a base.
        cameras: names of the cameras to read; None: all. points: the same of point clouds.
        num_envs: N, envs that experience is collected in.
        group_size: envs that start in the same state, see GroupedEnv; None: each env starts in its own.
        validation_episodes: episodes of each evaluation. keep_checkpoints: number of checkpoints to keep.
        seed: of everything random. device: of the networks. threads: of torch; None: torch's choice.
        rank_timeout: seconds that the processes of torchrun wait for one another; an evaluation takes less.
    """

    run_dir: Path
    loop: Node
    tracker: Node
    policy: Node | None = None
    algo: Node | None = None
    task: Node | None = None
    world: Node | None = None
    world_model: Node | None = None
    rounds: Natural = 0
    coevolve: Node | None = None
    dataset: Path | None = None
    incomplete: bool = False
    base: Path | None = None
    base_critic: bool | None = None  # None: runs without the key resume
    teacher: Path | None = None
    teacher_sampling: dict[str, Any] | None = None
    teacher_episodes: Count | None = None
    n_obs_steps: Count = 1
    horizon: Count = 8
    n_action_steps: Count = 4
    cameras: tuple[str, ...] | None = None
    points: tuple[str, ...] | None = None
    num_envs: Count = 32
    group_size: Count | None = None
    validation_episodes: Natural = 200
    keep_checkpoints: Count = 2
    seed: Seed = 0
    device: Device = "cpu"
    threads: Count | None = None
    rank_timeout: Positive = 600.0

    @property
    def algo_node(self) -> dict[str, Any]:
        """Node of the algorithm, or raise ConfigError."""
        if self.algo is None:
            raise self.missing("algo", "Choose one: algo=<name>.")
        return self.algo

    @property
    def policy_node(self) -> dict[str, Any]:
        """Node of the policy, or raise ConfigError."""
        if self.policy is None:
            raise self.missing("policy", "Choose one: policy=<name>.")
        return self.policy

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

    @property
    def has_env(self) -> bool:
        return self.task is not None or self.world is not None

    @property
    def anchor(self) -> float:
        """Weight of the KL to the base: a world model is unreliable far away from its data."""
        return 0.0 if self.world is None else _ANCHOR

    @property
    def loop_steps(self) -> int:
        """Length of the loop, for schedules: updates, or primitive env steps."""
        env_steps = value_of(self.loop, "loop", "total_steps")
        return int(value_of(self.loop, "loop", "steps") if env_steps is None else env_steps)

    def check_evaluation(self) -> None:
        """Refuse `loop.eval_every` where there is nothing to evaluate on, neither a task nor the gate of a world."""
        every, played = self.loop.get("eval_every"), self.task is not None and self.validation_episodes
        if every and self.world is None and not played:
            fix = "Give task=<name>" if self.task is None else "Set validation_episodes=100"
            raise ConfigError(f"loop.eval_every={every}: there is nothing to evaluate on. {fix}, or leave it out.")

    def missing(self, key: str, fix: str, by: str | None = None) -> ConfigError:
        """Return the error for a key that the loop, or `by`, needs and the config does not give."""
        return ConfigError(f"{key}: is needed by {by or self.loop[TARGET]}. {fix}")
