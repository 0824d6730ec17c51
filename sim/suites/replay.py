"""Record demonstrations by running a suite's own recorded episodes again: `robopolicy demos … source=<file>`.

An episode begins in its recorded state and takes its recorded actions, so observations, success and time limit are the
task's own, whatever the file observed. An episode that does not succeed again is left out.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robopolicy.core.errors import ConfigError, DataError
from robopolicy.core.specs import with_cameras
from robopolicy.core.types import TASK
from robopolicy.datasets.demonstrations import RecordedDemos, begun_episodes
from robopolicy.datasets.hdf5.replays import RecordedStart, RecordedStarts, read_replays
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.sim.gymnasium.adapter import GymVecEnv
from robopolicy.sim.suites.base import SuiteEnv

_SEEDS = 2**30  # below it, a seed of the suite is one of ours (base.seed32)


def record_replays(
    env: Any, source: Path, out: Path, *, episodes: int | None = None, only_success: bool = True,
    cameras: tuple[str, ...] | None = None, overwrite: bool = False,
) -> RecordedDemos:  # fmt: skip
    """Run the episodes of a file again in a task of one env, and write them as a LeRobotDataset v3.

    Args:
        env: of ManiSkill or LIBERO, in this process.
        source: the suite's HDF5 file.
        episodes: at most so many are kept; None: all. An interrupted recording of the same command is replaced.
        only_success: leave out episodes that do not succeed again.
        cameras: pictures to keep; None: all that the task shows.

    Raises:
        ConfigError: a task that cannot begin in a recorded state, or another than the file's.
        DataError: the file is damaged, or no episode succeeds again.
    """
    began, inner = time.monotonic(), _inner(env)
    replays = read_replays(source)
    _check(env, inner, replays, source)
    keys = list(with_cameras(env.spec.observation, cameras, where="cameras"))
    kept = frames = successes = attempted = cut = steps = 0
    facts = {"source": replays.format, "file": source.name, "env": {"id": env.spec.id, "digest": env.spec.digest},
             "only_success": only_success}  # fmt: skip
    begun = begun_episodes(out, {**facts, "observation": tuple(keys)}, episodes, overwrite=overwrite)
    with DatasetWriter(
        out, observation={k: env.spec.observation[k] for k in keys}, action=env.spec.action, dt=env.spec.dt,
        tasks=env.spec.tasks, provenance=facts, overwrite=overwrite, begun=begun,
    ) as writer:  # fmt: skip
        for replay in replays.episodes:
            columns = _run(env, inner, replay, [k for k in keys if k != TASK])
            attempted, steps = attempted + 1, steps + len(columns["action"])
            success = bool(columns["success"][-1])
            successes += success
            cut += not success and len(replay.action) > env.spec.horizon
            if success or not only_success:
                writer.add_episode(**columns, task=env.spec.tasks[0])
                kept, frames = kept + 1, frames + len(columns["action"])
            if kept == episodes:
                break
        if not kept:
            raise DataError(_none(source, attempted, cut, env.spec.horizon))
    if cut:
        print(f"{cut} episodes are longer than the horizon of {env.spec.horizon} steps and were cut: task.horizon=…")
    return RecordedDemos(out, kept, frames, attempted, successes, 0, steps, time.monotonic() - began)


def _inner(env: Any) -> SuiteEnv:
    """Return the suite's env of a VecEnv of one env in this process.

    Raises:
        ConfigError: it cannot begin in a recorded state.
    """
    envs: Any = getattr(env.env, "envs", ()) if isinstance(env, GymVecEnv) else ()
    inner: Any = next((one.unwrapped for one in envs), None) if len(envs) == 1 else None
    if not isinstance(inner, SuiteEnv) or not inner.begins_anywhere:
        raise ConfigError(
            f"source: {env.spec.id} cannot begin in a recorded state; ManiSkill's and LIBERO's tasks can, with "
            "task.processes=0. Files with observations are converted: robopolicy convert recording=<file>"
        )
    return inner


def _check(env: Any, inner: Any, replays: RecordedStarts, source: Path) -> None:
    name, control = getattr(inner, "name", ""), getattr(inner, "control", "")
    if replays.env and name and replays.env != name:
        raise ConfigError(f"source={source}: is of {replays.env}, the task is {name}: task.name={replays.env}")
    if replays.format == "ManiSkill" and replays.control != control:
        raise ConfigError(
            f"source={source}: its control mode is {replays.control}, the task's is {control}: "
            f"task.control={replays.control}"
        )
    if wrong := {e.action.shape[1] for e in replays.episodes} - {env.spec.action.dim}:
        raise ConfigError(f"source={source}: has {wrong} channels of actions, {env.spec.id} has {env.spec.action.dim}")


def _run(env: Any, inner: SuiteEnv, replay: RecordedStart, keys: list[str]) -> dict[str, Any]:
    """Return the columns of one episode, until it ends or its actions do."""
    inner.begin_in = replay.state
    seed = replay.seed if replay.seed is not None and 0 <= replay.seed < _SEEDS else 0
    obs, steps = env.reset(torch.tensor([seed])), list[Any]()
    inner.begin_in = None  # what follows begins as its seed says
    for action in torch.from_numpy(replay.action):
        steps.append((obs, env.step(action[None])))
        obs = steps[-1][1].obs
        if bool(steps[-1][1].ended[0]):
            break
    return {
        "obs": {k: torch.cat([seen[k] for seen, _ in steps]).numpy() for k in keys},
        "action": torch.cat([step.executed for _, step in steps]).numpy(),
        "reward": np.array([float(step.reward[0]) for _, step in steps], dtype=np.float32),
        "success": np.array([bool(step.success[0]) for _, step in steps]),
        "terminated": bool(steps[-1][1].terminated[0]),
        "seed": seed,
    }


def _none(source: Path, attempted: int, cut: int, horizon: int) -> str:
    longer = f"{cut} are longer than the horizon of {horizon} steps (task.horizon=…). " if cut else ""
    return (
        f"source={source}: none of {attempted} episodes succeeds again. {longer}Was the file made with another version "
        "of the suite, robot or control mode? Failures are kept with only_success=false."
    )
