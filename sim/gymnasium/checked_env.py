"""Call a Gymnasium vector env, and check the values that it returns."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from robopolicy.core.errors import RobopolicyError, SpecError
from robopolicy.sim.gymnasium.info import refuse_final
from robopolicy.sim.gymnasium.info_columns import flags
from robopolicy.sim.gymnasium.observations import as_array

_RETURNS = "Return (obs, info) from reset, and (obs, reward, terminated, truncated, info) from step."


class CheckedEnv:
    """Vector env whose calls and results are checked; `id` names it in messages."""

    def __init__(self, env: VectorEnv, id: str) -> None:
        self.env, self.id, self.num_envs = env, id, int(env.num_envs)

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

    def refuse_final(self, info: Any, mode: AutoresetMode) -> None:
        """Raise SpecError where an info has last observations in another mode than SAME_STEP."""
        if mode != AutoresetMode.SAME_STEP:
            fix = "Correct metadata['autoreset_mode'], or keep its envs from resetting themselves."
            refuse_final(info, self.num_envs, f"{self.id}: autoreset mode {mode.name}", fix)
