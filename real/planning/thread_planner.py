"""Planning in a thread of its own, so that a slow or hanging policy never holds up a tick."""

from __future__ import annotations

import threading
from typing import NamedTuple

from numpy.typing import NDArray

from robopolicy.core.types import Obs
from robopolicy.real.control.joints import Ahead
from robopolicy.real.planning.planner import Array, PlanningError, Plans


class _Job(NamedTuple):
    life: int  # episodes begun
    obs: Obs
    step: int
    now: float
    ahead: Ahead | None


class ThreadRunner:
    """A `robopolicy.real.planning.planner.Runner`: one plan at a time, in a daemon thread.

    Requests of an episode that is over are dropped. `close` does not wait for a policy that hangs.

    Args:
        planner: used by the thread alone.
        latency: s of the loop's clock that every plan is held back, as if planning took so long.
        wait: s of real time for which `poll` waits for a plan that is being made: for simulated time, in which
            planning takes none. 0 on an arm.
    """

    def __init__(self, planner: Plans, *, latency: float = 0.0, wait: float = 0.0) -> None:
        self.planner, self.latency, self.wait = planner, latency, wait
        self._changed = threading.Condition()
        self._life, self._seed, self._job, self._busy, self._closed = 0, 0, None, False, False
        self._done: tuple[NDArray, float] | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="planner", daemon=True)
        self._thread.start()

    _job: _Job | None

    def reset(self, seed: int) -> None:
        """Begin an episode, whose noise is keyed by `seed`."""
        with self._changed:
            self._life, self._seed = self._life + 1, seed
            self._job = self._done = self._error = None

    def request(self, obs: Obs, step: int, now: float, ahead: Ahead | None = None) -> None:
        """Plan from `obs` [1 To …], seen at `now` s, for control step `step`; replaces a request that was not begun."""
        with self._changed:
            self._job = _Job(self._life, {k: v.clone() for k, v in obs.items()}, step, now, ahead)
            self._changed.notify_all()

    def poll(self, now: float) -> tuple[Array, float] | None:
        """Return the chunk [Ta Da] and the time of its observation, once it is there.

        Raises:
            PlanningError: the policy raised; with its error.
        """
        with self._changed:
            if self.wait:
                self._changed.wait_for(lambda: self._job is None and not self._busy, timeout=self.wait)
            if self._error is not None:
                error, self._error = self._error, None
                raise PlanningError(f"the policy failed: {type(error).__name__}: {error}") from error
            if self._done is None or now < self._done[1] + self.latency - 1e-9:
                return None
            done, self._done = self._done, None
            return done

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
            done, error = None, None
            try:
                if job.life != life:
                    self.planner.reset(seed)
                    life = job.life
                done = self.planner.plan(job.obs, job.step, job.ahead), job.now
            except Exception as problem:  # the loop must hear of it, whatever it is
                error = problem
            with self._changed:
                self._busy = False
                if job.life == self._life:
                    self._done, self._error = done, error
                self._changed.notify_all()
