"""Run a suite's single envs as one vector env, in this process or over several.

A process costs the suite's whole import (0.3 to 0.7 GB), an env next to nothing: so a worker runs many envs, and there
are as many workers as cores that may be used, not as envs.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from robopolicy.core.errors import ConfigError, RobopolicyError
from robopolicy.sim.gymnasium.film import RGB
from robopolicy.sim.gymnasium.info import Success
from robopolicy.sim.gymnasium.info_columns import flag
from robopolicy.sim.render import choose_gl

MakeEnv = Callable[[], gymnasium.Env]


def vector_env(
    make: MakeEnv,
    ident: str,
    num_envs: int,
    *,
    horizon: int,
    processes: int,
    success: str | None = None,
    sparse: bool = True,
    **task: Any,
) -> VectorEnv:
    """Run `num_envs` copies of the env of `make`, whose ended episodes wait for a reset (AutoresetMode.DISABLED).

    Their infos are {"success": bool}.

    Args:
        make: builds one env; picklable where `processes` > 0.
        ident: names the task in specs and rows.
        processes: 0: in this one; else so many workers, at most one an env.
        success: key of success, see `robopolicy.sim.gymnasium.info.Success`.
        sparse: success ends the episode and is the reward.
        task: further parameters of the task for the spec's digest.

    Raises:
        ConfigError: a negative number of processes.
    """
    if processes < 0:
        raise ConfigError(f"task.processes: expected 0 (in this process) or a number of workers, found {processes}")
    one = functools.partial(limited, make, horizon, Success(success, ident), sparse)
    count = min(processes, num_envs)
    envs = Workers(one, num_envs, count) if count else _sync(one, num_envs)
    return identified(envs, ident, horizon=horizon, **task)


def identified(envs: VectorEnv, ident: str, *, horizon: int, **task: Any) -> VectorEnv:
    """Return `envs`, with the id, the horizon and the parameters that the spec's digest is made of."""
    envs.spec = gymnasium.envs.registration.EnvSpec(ident, max_episode_steps=horizon, kwargs=task)
    return envs


def limited(make: MakeEnv, horizon: int, success: Success, sparse: bool) -> gymnasium.Env:
    """Build one time-limited env that tells success."""
    return TellsSuccess(TimeLimit(make(), horizon), success, sparse)


class TellsSuccess(gymnasium.Wrapper):
    """Tells success under one name, at every step; where `sparse`, it ends the episode and is the reward."""

    def __init__(self, env: gymnasium.Env, success: Success, sparse: bool) -> None:
        super().__init__(env)
        self.success, self.sparse = success, sparse

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Raises ConfigError where the info does not tell success."""
        obs, given, terminated, truncated, info = self.env.step(action)
        terminated, truncated = flag(terminated, "terminated"), flag(truncated, "truncated")
        ended, ones = np.array([terminated or truncated]), np.ones(1, dtype=bool)
        (success,) = self.success.read([info], np.array([terminated]), active=ones, ended=ended).tolist()
        reward: Any = given  # NumPy's numbers are kept
        if self.sparse:
            reward, terminated = float(success), terminated or success
        return obs, reward, terminated, truncated, {"success": success}


def _sync(one: MakeEnv, count: int) -> SyncVectorEnv:
    return SyncVectorEnv([one] * count, autoreset_mode=AutoresetMode.DISABLED)


class Workers(VectorEnv):
    """N envs over K processes, each stepping its share; all answers are in the order of the envs.

    Raises:
        RobopolicyError: an env failed in its worker (the traceback is in the message), or a worker died.
    """

    def __init__(self, one: MakeEnv, num_envs: int, processes: int) -> None:
        self.num_envs = num_envs
        edges = np.linspace(0, num_envs, processes + 1).round().astype(int).tolist()
        self._slices = [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]
        context = multiprocessing.get_context("spawn")  # a forked child would inherit torch's and a renderer's threads
        self._pipes: list[Connection] = []
        self._workers = []
        for part in self._slices:
            ours, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(theirs, one, part.stop - part.start), daemon=True)
            worker.start()
            theirs.close()
            self._pipes.append(ours)
            self._workers.append(worker)
        facts = self._gather()[0]
        self.single_observation_space, self.single_action_space, metadata = facts
        self.metadata = {**metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode = RGB if RGB in metadata.get("render_modes", ()) else None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seeds = [None] * self.num_envs if seed is None else list(seed)
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        for pipe, part in zip(self._pipes, self._slices, strict=True):
            chosen = None if mask is None else mask[part]
            # A share without a reset returns its observations.
            _send(pipe, ("reset", (seeds[part], options if chosen is None else {**options, "reset_mask": chosen})))
        parts = self._gather()
        return _joined([obs for obs, _ in parts]), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        for pipe, part in zip(self._pipes, self._slices, strict=True):
            _send(pipe, ("step", actions[part]))
        parts = self._gather()
        obs = _joined([p[0] for p in parts])
        reward, terminated, truncated = (np.concatenate([p[i] for p in parts]) for i in (1, 2, 3))
        return obs, reward, terminated, truncated, {"success": np.concatenate([p[4] for p in parts])}

    def render_env(self, index: int) -> Any:
        """Return the picture of env `index`."""
        k = next(k for k, part in enumerate(self._slices) if part.start <= index < part.stop)
        _send(self._pipes[k], ("render", index - self._slices[k].start))
        return self._gather(k)[0]

    def close_extras(self, **_: Any) -> None:
        for pipe in self._pipes:
            _send(pipe, ("close", None))
        for worker in self._workers:
            worker.join(timeout=5)
            if worker.is_alive():
                worker.terminate()

    def _gather(self, only: int | None = None) -> list[Any]:
        """Return every worker's answer; all are heard before an error is raised, so that pipes stay in step.

        Args:
            only: the one worker that was asked; None: all.
        """
        answers, asked = [], slice(None) if only is None else slice(only, only + 1)
        for pipe, worker in zip(self._pipes[asked], self._workers[asked], strict=True):
            try:
                answers.append(pipe.recv())
            except (EOFError, OSError):
                worker.join(timeout=5)
                answers.append((False, f"the process died (exit code {worker.exitcode}); is memory short?"))
        broken = [answer for fine, answer in answers if not fine]
        if broken:
            self.close()
            raise RobopolicyError(f"{len(broken)} of {len(answers)} env workers failed, the first with:\n{broken[0]}")
        return [answer for _, answer in answers]


def _send(pipe: Connection, request: Any) -> None:
    """To a worker that may be dead, which `_gather` then finds out."""
    with contextlib.suppress(OSError):
        pipe.send(request)


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {k: _joined([p[k] for p in parts]) for k in parts[0]}
    return np.concatenate(parts)


def _work(pipe: Connection, one: MakeEnv, count: int) -> None:
    """Answer (True, result) or (False, text) to every request until "close"."""
    try:
        import torch

        torch.set_num_threads(1)  # K workers of many threads each would only wait for one another
        env = _sync(one, count)
        pipe.send((True, (env.single_observation_space, env.single_action_space, env.metadata)))
        seen: Any = None
        while True:
            what, given = pipe.recv()
            if what == "close":
                env.close()
                return
            if what == "render":
                choose_gl()
                pipe.send((True, env.envs[given].render()))
            elif what == "step":
                seen, reward, terminated, truncated, info = env.step(given)
                pipe.send((True, (seen, reward, terminated, truncated, info["success"])))
            else:
                seeds, options = given
                if options.get("reset_mask") is None or options["reset_mask"].any():
                    seen, _ = env.reset(seed=seeds, options=options)
                pipe.send((True, (seen, {})))
    except (EOFError, KeyboardInterrupt):  # the parent is gone, or was told to stop
        return
    except BaseException as error:
        with contextlib.suppress(OSError):
            known = isinstance(error, RobopolicyError)
            pipe.send((False, str(error) if known else traceback.format_exc()))
