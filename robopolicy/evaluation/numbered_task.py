"""Number the task of an env as a policy of many tasks does."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from robopolicy.core.errors import ConfigError
from robopolicy.core.types import TASK, Feature, Obs, Step, VecEnv
from robopolicy.envs.wrappers import Wrapper


class NumberedTask(Wrapper):
    """Env of one task that emits the task number of a policy of many tasks.

    Raises:
        ConfigError: the policy was not trained on that instruction.
    """

    def __init__(self, env: VecEnv, tasks: tuple[str, ...]) -> None:
        super().__init__(env)
        if env.spec.tasks[0] not in tasks:
            known = ", ".join(repr(t) for t in tasks)
            raise ConfigError(f"{env.spec.id}: the policy tells tasks apart, {env.spec.tasks[0]!r} is none of {known}")
        self.number = tasks.index(env.spec.tasks[0])
        self.spec = replace(env.spec, tasks=tasks, observation={**env.spec.observation, TASK: Feature((), "int64")})

    def reset(self, seeds: Tensor | None = None) -> Obs:
        return self._numbered(self.env.reset(seeds))

    def step(self, action: Tensor) -> Step:
        step = self.env.step(action)
        obs = self._numbered(step.obs)
        return step._replace(obs=obs, next_obs=obs if step.next_obs is step.obs else self._numbered(step.next_obs))

    def _numbered(self, obs: Obs) -> Obs:
        return {**obs, TASK: torch.full((self.num_envs,), self.number, device=self.device)}
