"""Where chunks come from: the policy, asked in the tick or in a thread, so that a slow one never holds up a tick."""

from __future__ import annotations

import threading
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from robopolicy.core.errors import RobopolicyError
from robopolicy.core.types import BASE_ACTION, Obs
from robopolicy.envs.chunk_executor import ChunkExecutor
from robopolicy.policies.base import Policy, with_bases
from robopolicy.real.control.chunk_buffer import Ahead

Array = NDArray[np.float64]


class PlanningError(RobopolicyError):
    """There is no chunk, e.g. since a server is gone. The arm holds, and asks again."""


class Planner:
    """Chunks from observations, for one arm, with the executor that evaluation uses."""

    def __init__(self, policy: Policy, *, seed: int = 0, deterministic: bool = False) -> None:
        self.policy = policy.eval()
        levels = with_bases(policy)
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


class _Job(NamedTuple):
    life: int  # episodes begun
    obs: Obs
    step: int
    now: float
    ahead: Ahead | None


class ThreadRunner(InlineRunner):
    """Plans one at a time in a daemon thread.

    Requests of an episode that is over are dropped. `close` does not wait for a policy that hangs.

    Args:
        planner: used by the thread alone.
        latency: s of the loop's clock that every plan is held back, as if planning took so long.
        wait: s of real time for which `poll` waits for a plan that is being made: for simulated time, in which
            planning takes none. 0 on an arm.
    """

    def __init__(self, planner: Plans, *, latency: float = 0.0, wait: float = 0.0) -> None:
        super().__init__(planner, latency=latency)
        self.wait = wait
        self._changed = threading.Condition()
        self._life, self._seed, self._busy, self._closed = 0, 0, False, False
        self._job: _Job | None = None
        self._thread = threading.Thread(target=self._work, name="planner", daemon=True)
        self._thread.start()

    def reset(self, seed: int) -> None:
        """Begin an episode, whose noise is keyed by `seed`."""
        with self._changed:
            self._life, self._seed = self._life + 1, seed
            self._job = self.ready = self.failed = None

    def request(self, obs: Obs, step: int, now: float, ahead: Ahead | None = None) -> None:
        """Plan from `obs` [1 To …], seen at `now` s, for control step `step`; replaces a request that was not begun."""
        with self._changed:
            self._job = _Job(self._life, {k: v.clone() for k, v in obs.items()}, step, now, ahead)
            self._changed.notify_all()

    def poll(self, now: float) -> tuple[Array, float] | None:
        """As InlineRunner's.

        Raises:
            PlanningError: the policy raised; with its error.
        """
        with self._changed:
            if self.wait:
                self._changed.wait_for(lambda: self._job is None and not self._busy, timeout=self.wait)
            return super().poll(now)

    def close(self) -> None:
        """End the thread as soon as it is idle."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        life = -1
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._job is not None or self._closed)
                if self._closed:
                    return
                job, self._job, self._busy, seed = self._job, None, True, self._seed
            assert job is not None
            done, failed = None, None
            try:
                if job.life != life:
                    self.planner.reset(seed)
                    life = job.life
                done = self.planner.plan(job.obs, job.step, job.ahead), job.now
            except Exception as error:  # the loop must hear of it, whatever it is
                failed = PlanningError(f"the policy failed: {type(error).__name__}: {error}")
                failed.__cause__ = error
            with self._changed:
                self._busy = False
                if job.life == self._life:
                    self.ready, self.failed = done, failed
                self._changed.notify_all()
