"""Run a suite's single envs as one vector env, in this process or over several (sim.gymnasium.farm)."""

from __future__ import annotations

import functools
import logging
from typing import Any, TypedDict

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TimeLimit

from robopolicy.config.schema import Positive
from robopolicy.core.errors import ConfigError
from robopolicy.sim.gymnasium.farm import Farm, MakeEnv, in_one_process
from robopolicy.sim.gymnasium.info import Success, refuse_final
from robopolicy.sim.gymnasium.info_columns import flag
from robopolicy.sim.suites.base import seed32
from robopolicy.utils.workers import TIMEOUT_S, Backend

_log = logging.getLogger(__name__)


class FarmOptions(TypedDict, total=False):
    """How the workers of an env run, where `processes` asks for some.

    farm: workers are processes of this machine (process, the default), or actors of Ray (ray).
    worker_timeout: seconds for each answer of a worker, the building of its envs included; 600.
    """

    farm: Backend
    worker_timeout: Positive


def vector_env(
    make: MakeEnv,
    ident: str,
    num_envs: int,
    *,
    horizon: int,
    processes: int,
    farm: Backend = "process",
    worker_timeout: float = TIMEOUT_S,
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
        farm: workers are processes of this machine, or actors of Ray. worker_timeout: seconds for each of their
            answers.
        success: key of success, see `robopolicy.sim.gymnasium.info.Success`.
        sparse: success ends the episode and is the reward.
        task: further parameters of the task for the spec's digest.

    Raises:
        ConfigError: no env, a negative number of processes, or Ray without a number.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs: expected at least 1, found {num_envs}")
    if processes < 0:
        raise ConfigError(f"task.processes: expected 0 (in this process) or a number of workers, found {processes}")
    if farm != "process" and not processes:
        raise ConfigError(f"task.farm={farm}: set the number of its workers too, task.processes=2")
    one = functools.partial(limited, make, horizon, Success(success, ident), sparse)
    if (count := min(processes, num_envs)) < processes:
        _log.warning("task.processes=%d: %d envs take as many workers at most", processes, num_envs)
    envs = (
        Farm(one, num_envs, count, ident=ident, backend=farm, timeout=worker_timeout)
        if count
        else in_one_process(one, num_envs)
    )
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

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Map seeds by `seed32` where an env takes 32 bits alone, as `numpy.random.RandomState` does.

        Seeds that fit are passed on as they are: 0.4% of demonstration seeds. One may then be that of a test episode.
        Options that Gymnasium has emptied are none, as at the first reset.
        """
        options = options or None
        try:
            return self.env.reset(seed=seed, options=options)
        except ValueError as error:
            if seed is None or "2**32" not in str(error):
                raise
            return self.env.reset(seed=seed32(seed), options=options)
        except OverflowError:  # of numpy.int32 and the like
            if seed is None or seed < 1 << 31:
                raise
            return self.env.reset(seed=seed32(seed) >> 1, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Raises ConfigError where the info does not tell success, SpecError where the env has reset itself."""
        obs, given, terminated, truncated, info = self.env.step(action)
        terminated, truncated = flag(terminated, "terminated"), flag(truncated, "truncated")
        if terminated or truncated:
            refuse_final([info], 1, self.success.env, "Keep the env from resetting itself.")
        ended, ones = np.array([terminated or truncated]), np.ones(1, dtype=bool)
        (success,) = self.success.read([info], np.array([terminated]), active=ones, ended=ended).tolist()
        reward: Any = given  # NumPy's numbers are kept
        if self.sparse:
            reward, terminated = float(success), terminated or success
        return obs, reward, terminated, truncated, {"success": success}
