"""Policies, environments, episodes and films as Python objects."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from robopolicy.config.compose import task_node
from robopolicy.config.instantiate import build
from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import EnvSpec, VecEnv
from robopolicy.evaluation import rollout as rollouts
from robopolicy.evaluation import video
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.saved import Split
from robopolicy.policies import io
from robopolicy.policies.base import Policy

Task = str | Mapping[str, Any]  # an option of the config group `task`, or a node with _target_


def load_policy(
    path: Path | str,
    *,
    env: VecEnv | EnvSpec | None = None,
    which: Literal["latest", "best"] = "latest",
    device: torch.device | str = "cpu",
) -> Policy:
    """Load a policy of robopolicy or of LeRobot.

    Args:
        path: a run directory, a checkpoint, a policy directory, LeRobot's directory, or `hub:<owner>/<name>`.
        env: checked against the policy before its weights load. A LeRobot policy takes the meaning of its actions
            from it where its dataset is gone.
        which: the checkpoint of a run directory.
        device: of the weights.

    Returns:
        The policy in evaluation mode. `policy.act({key: [B To ...]})` returns chunks [B H Da] in the physical units of
        `policy.spec.action`.

    Raises:
        CheckpointError: missing, damaged, a pickle, or weights that do not fit.
        SpecError: the policy does not fit `env`.

    Example:
        >>> policy = rp.load_policy("runs/base")
        >>> policy.spec.action.dim
        5
    """
    spec = env if env is None or isinstance(env, EnvSpec) else env.spec
    return io.load_policy(path, device=device, env=spec, which=which)


def make_env(
    task: Task = "pick", *, num_envs: int = 1, cameras: Sequence[str] | None = None, seed: int = 0, **parameters: Any
) -> VecEnv:
    """Make a batch of environments of a task.

    Args:
        task: an option of the config group `task`, e.g. "pick"; or a mapping with `_target_`, the name under which a
            task of your own is registered, and its parameters.
        num_envs: N, environments that step together.
        cameras: names of cameras whose pictures the observation holds; None: the task's default, no pictures.
        seed: names the stream of training episodes; those of `rollout` do not depend on it.
        **parameters: parameters of the task, e.g. `horizon=60` (control steps) or `reward="dense"`.

    Returns:
        The env. `env.reset(seeds [N])` and `env.step(action [N Da])` give observations {key: [N ...]}; `env.spec` says
        their units and the control period `dt` in s.

    Raises:
        ConfigError: no such task or parameter; names the closest ones.

    Example:
        >>> rp.make_env("reach", num_envs=2).spec.dt
        0.05
    """
    node = task_node(task) if isinstance(task, str) else dict(task)
    shown = {} if cameras is None else {"cameras": list(cameras)}
    env: VecEnv = build({**node, **parameters, **shown}, "task", num_envs=num_envs, seed=seed)
    return env


def _check_split(split: str) -> None:
    if split not in get_args(Split):
        raise ConfigError(
            f"split: expected one of {get_args(Split)}, found {split!r}. Training episodes are for training alone."
        )


def rollout(
    policy: Policy,
    env: VecEnv,
    *,
    episodes: int = 100,
    split: Split = "test",
    seed: int = 0,
    seeds: Sequence[int] | None = None,
    deterministic: bool = False,
) -> EpisodeTable:
    """Run a policy on fixed episodes, each to its end.

    Args:
        policy: from `load_policy`, or any Policy of your own.
        env: from `make_env`; it is reset, and left within other episodes.
        episodes: E, how many.
        split: "test" or "validation"; training meets neither.
        seed: another number gives other episodes of the split; 0 are those of `robopolicy eval`.
        seeds: [E] episode seeds in place of the three above.
        deterministic: the policy's mode instead of a sample.

    Returns:
        One row an episode: success, return, length in control steps. `.success_rate()` has its 95% interval.

    Raises:
        ConfigError: another split. SpecError: policy and env do not fit.

    Example:
        >>> rp.rollout(rp.load_policy("runs/base"), rp.make_env("reach", num_envs=4), episodes=4)
        EpisodeTable(reach: success ...% (95% CI ...), at end ...%, 4 episodes of ... steps)
    """
    _check_split(split)
    chosen = episode_seeds(split, seed, episodes) if seeds is None else torch.tensor(list(seeds), dtype=torch.int64)
    return rollouts.evaluate(policy, env, chosen, deterministic=deterministic)


def film(
    policy: Policy,
    env: VecEnv,
    out: Path | str,
    *,
    episode: int = 0,
    split: Split = "test",
    deterministic: bool = False,
    camera: str | None = None,
    width: int = 320,
    height: int = 240,
) -> Path:
    """Film one episode of a policy.

    Args:
        policy, env, deterministic: as for `rollout`.
        out: the file, an .mp4; it is replaced where it exists.
        episode: number of the episode within its split: row `episode` of `rollout(…)`.
        split: "test" or "validation".
        camera: of the task; None: its first one.
        width, height: pixels.

    Returns:
        `out`.

    Raises:
        ConfigError: `out` does not end in .mp4, or `episode` is negative.
        SpecError: the env cannot be filmed, or the policy does not fit.

    Example:
        >>> rp.film(rp.load_policy("runs/base"), rp.make_env("reach"), "reach.mp4").name
        'reach.mp4'
    """
    out = Path(out)
    if out.suffix != ".mp4":
        raise ConfigError(f"out: expected a file that ends in .mp4, got {out.name!r}. Name it {out.stem}.mp4.")
    if episode < 0:
        raise ConfigError(f"episode: expected a number ≥ 0, got {episode}. The first episode of a split is 0.")
    _check_split(split)
    seeds = episode_seeds(split, 0, 1, start=episode).tolist()
    rows = rollout(policy, env, seeds=seeds, deterministic=deterministic)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".") as folder:
        (made,) = video.film(
            policy, env, rows, folder, seeds=seeds, deterministic=deterministic, camera=camera, width=width,
            height=height,
        )  # fmt: skip
        return made.replace(out)
