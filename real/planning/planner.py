"""Where chunks come from: the policy, asked in the tick or elsewhere."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from robopolicy.core.errors import RobopolicyError
from robopolicy.core.types import BASE_ACTION, Obs
from robopolicy.envs.wrappers import ChunkExecutor
from robopolicy.policies.base import Policy
from robopolicy.real.control.joints import Ahead

Array = NDArray[np.float64]


class PlanningError(RobopolicyError):
    """There is no chunk, e.g. since a server is gone. The arm holds, and asks again."""


class Planner:
    """Chunks from observations, for one arm, with the executor that evaluation uses."""

    def __init__(self, policy: Policy, *, seed: int = 0, deterministic: bool = False) -> None:
        self.policy = policy.eval()
        levels = [policy]
        while levels[-1].base is not None:
            levels.append(levels[-1].base)
        self.executors = [ChunkExecutor(level, 1, deterministic=deterministic) for level in levels]
        self.history = max(level.spec.n_obs_steps for level in levels)
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Begin an episode; its noise is keyed by `seed`."""
        self.seed = torch.tensor([seed], dtype=torch.int64)
        for executor in self.executors:
            executor.reset()

    def plan(self, obs: Obs, step: int, ahead: Ahead | None = None) -> Array:
        """Plan a chunk [Ta Da] for observations [1 To …], at control step `step` of the episode; it does not go on
        from the actions `ahead` (real/planning/chunking.py does)."""
        for executor in reversed(self.executors):
            if executor is self.executors[0]:
                executor.replan()
            executor.clock.fill_(step)
            action = executor.next_action(obs, self.seed)
            obs = {**obs, BASE_ACTION: action}
        return self.executors[0].queue[0].double().numpy().copy()


class Plans(Protocol):
    """A Planner, or one whose policy is elsewhere (real/planning/remote_planner.py). `plan` may raise PlanningError."""

    history: int

    def reset(self, seed: int) -> None: ...
    def plan(self, obs: Obs, step: int, ahead: Ahead | None = None) -> Array: ...


class Runner(Protocol):
    """Where planning happens: in the tick, in a thread. `poll` raises PlanningError where a request failed."""

    def request(self, obs: Obs, step: int, now: float, ahead: Ahead | None = None) -> None: ...
    def poll(self, now: float) -> tuple[Array, float] | None: ...
    def reset(self, seed: int) -> None: ...


class InlineRunner:
    """Plans in the tick; `latency` [s] pretends that it took so long."""

    def __init__(self, planner: Plans, *, latency: float = 0.0) -> None:
        self.planner, self.latency = planner, latency
        self.ready: tuple[Array, float] | None = None
        self.failed: PlanningError | None = None

    def reset(self, seed: int) -> None:
        self.planner.reset(seed)
        self.ready = self.failed = None

    def request(self, obs: Obs, step: int, now: float, ahead: Ahead | None = None) -> None:
        try:
            self.ready = (self.planner.plan(obs, step, ahead), now)
        except PlanningError as error:
            self.failed = error

    def poll(self, now: float) -> tuple[Array, float] | None:
        """Return the chunk and the time of its observation, once it is there."""
        if self.failed is not None:
            failed, self.failed = self.failed, None
            raise failed
        if self.ready is None or now < self.ready[1] + self.latency - 1e-9:
            return None
        done, self.ready = self.ready, None
        return done
