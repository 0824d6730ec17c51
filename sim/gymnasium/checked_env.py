"""Call a Gymnasium vector env, and check the values that it returns."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from robopolicy.core.errors import RobopolicyError, SpecError
from robopolicy.sim.gymnasium.info import final_observations, refuse_final
from robopolicy.sim.gymnasium.info_columns import flags
from robopolicy.sim.gymnasium.observations import as_array, leaves

_RETURNS = "Return (obs, info) from reset, and (obs, reward, terminated, truncated, info) from step."


class CheckedEnv:
    """Vector env whose calls and results are checked; `id` names it in messages."""

    def __init__(self, env: VectorEnv, id: str) -> None:
        self.env, self.id, self.num_envs = env, id, int(env.num_envs)
        self._before: Any = None  # observations before the latest call
        self._seen: Any = None  # those of the latest call

    def call(self, what: str, count: int, *args: Any, **kw: Any) -> tuple[Any, ...]:
        """Call the env's `step` or `reset` and return its `count` values.

        Raises:
            RobopolicyError: the call failed; the traceback is in the message.
            SpecError: another number of values, as in the old Gym.
        """
        try:
            result = getattr(self.env, what)(*args, **kw)
        except RobopolicyError:
            raise
        except Exception as error:
            hint = ""
            if "Output array is the wrong shape" in str(error):
                hint = "\nAn observation has another shape than the env's observation_space. Correct the wrong one."
            if "2**32" in str(error):
                hint = ("\nEpisode seeds have up to 42 bits: draw from self.np_random after super().reset(seed=seed), "
                        "or reduce them by seed % 2**32.")  # fmt: skip
            raise RobopolicyError(f"{self.id}: the env's {what} failed:\n{traceback.format_exc()}{hint}") from error
        if isinstance(result, tuple) and len(result) == count:
            self._before, self._seen = self._seen, result[0]
            return result
        found = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
        raise SpecError(f"{self.id}: {what}: expected {count} values as in Gymnasium, found {found}. {_RETURNS}")

    def to_env(self, executed: Tensor) -> NDArray[Any]:
        space: Any = self.env.single_action_space  # a Box
        sent = executed.numpy().astype(space.dtype).reshape(self.num_envs, *space.shape)
        return np.clip(sent, space.low, space.high)  # in float64 a limit may lie within that of float32

    def flags(self, values: Any, name: str) -> NDArray[np.bool_]:
        found = self._array(values, name)
        return flags(found, np.ones(self.num_envs, dtype=bool), f"{self.id}: {name}")

    def reward(self, values: Any, idle: NDArray[np.bool_]) -> NDArray[np.float32]:
        try:
            with np.errstate(over="ignore"):  # found below
                reward = self._array(values, "reward").astype(np.float64).astype(np.float32)
        except (TypeError, ValueError) as error:
            raise SpecError(f"{self.id}: reward: expected numbers [{self.num_envs}] ({error})") from error
        reward = np.where(idle, np.float32(0), reward)
        if not (good := np.isfinite(reward)).all():
            i = int((~good).nonzero()[0][0])
            raise SpecError(f"{self.id}: reward of env {i}: expected a finite number, found {reward[i]}")
        return reward

    def _array(self, values: Any, name: str) -> NDArray[Any]:
        found = as_array(values, f"{self.id}: {name}")
        if found.shape != (self.num_envs,):
            raise SpecError(f"{self.id}: {name}: expected shape ({self.num_envs},), found {found.shape}")
        return found

    def final_observations(self, info: Any, ended: NDArray[np.bool_]) -> list[Any]:
        """Return the last observations of the envs in `ended` [N], in order, each without batch axis.

        Raises:
            SpecError: they are not there for every ended env, or the reset has written into their arrays.
        """
        try:
            last = final_observations(info, self.num_envs, ended)
        except SpecError as error:
            raise SpecError(f"{self.id}: {error}") from error
        begun = getattr(self.env.unwrapped, "_env_obs", None)  # of SyncVectorEnv: what each of its envs returned itself
        for i, final in zip(ended.nonzero()[0], last, strict=True):
            if begun is not None and (key := self._overwritten(final, begun[i], i)) is not None:
                raise SpecError(
                    f"{self.id}: observation {key!r}: expected a new array from every step and reset, found one of env "
                    f"{i} that its reset wrote into: the last observation of the episode is lost. Return a copy, or "
                    "build the env with AutoresetMode.DISABLED."
                )
        return last

    def _overwritten(self, final: Any, begun: Any, i: int) -> str | None:
        """Return the part whose array is the same in both observations of env `i`, though it changed; None: none is."""
        now, before = dict(leaves(begun)), dict(leaves(self._before))
        for key, value in leaves(final):
            if not (isinstance(value, np.ndarray) and key in now and np.may_share_memory(value, now[key])):
                continue
            if not np.array_equal(value.astype(before[key].dtype), before[key][i]):
                return key
        return None

    def refuse_final(self, info: Any, mode: AutoresetMode) -> None:
        """Raise SpecError where an info has last observations in another mode than SAME_STEP."""
        if mode != AutoresetMode.SAME_STEP:
            fix = "Correct metadata['autoreset_mode'], or keep its envs from resetting themselves."
            refuse_final(info, self.num_envs, f"{self.id}: autoreset mode {mode.name}", fix)
