"""Step Gymnasium envs that are not batched themselves in several worker processes (a farm).

A process costs a suite's whole import (0.3 to 0.7 GB), an env next to nothing: so a worker runs many envs.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from robopolicy.config import registry
from robopolicy.core.errors import WorkerError, WorkerLost
from robopolicy.sim.gymnasium.film import RGB
from robopolicy.sim.render import choose_gl
from robopolicy.utils.workers import TIMEOUT_S, Backend, Workers

MakeEnv = Callable[[], gymnasium.Env]
_log = logging.getLogger(__name__)


class Farm(VectorEnv):
    """N envs over K workers, each of which steps some; all answers are in the order of the envs.

    The caller resets ended episodes (AutoresetMode.DISABLED); infos are {"success": bool [N]}. Where a worker dies or
    does not answer, another one takes its place, and the running episodes of its envs are lost: their next step is
    truncated, repeats the last observation, and is marked in `lost`.

    Args:
        one: builds one env; picklable.
        ident: names the task in messages.
        timeout: seconds for each answer of a worker, the building of its envs included.

    Attributes:
        lost: [N] bool: the latest step lost the env's episode.
        lost_episodes: number of episodes lost so far.

    Raises:
        WorkerError: an env failed in its worker (the traceback is in the message), or a worker was lost three times
            without ending an episode in between.
    """

    def __init__(
        self, one: MakeEnv, num_envs: int, workers: int, *, ident: str = "env", backend: Backend = "process",
        timeout: float = TIMEOUT_S,
    ) -> None:  # fmt: skip
        self.num_envs, self._ident = num_envs, ident
        edges = np.linspace(0, num_envs, workers + 1).round().astype(int).tolist()
        self._slices = [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]
        self.lost, self.lost_episodes = np.zeros(num_envs, dtype=bool), 0
        self._gone = np.zeros(num_envs, dtype=bool)  # [N] episodes that are lost; the next step tells it
        self._seen: list[Any] = [None] * workers  # the latest observations of each worker
        self._blank = [True] * workers  # workers whose envs have not begun
        admitted = registry.admitted()
        makes = [functools.partial(WorkerEnvs, one, part.stop - part.start, admitted) for part in self._slices]
        self._workers = Workers(
            makes, what=f"{ident}: env worker", backend=backend, timeout=timeout, key="task.processes"
        )
        self.single_observation_space, self.single_action_space, metadata = self._facts()
        self.metadata = {**metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode = RGB if RGB in metadata.get("render_modes", ()) else None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the envs of options["reset_mask"] [N] bool, or all; the others keep their observations."""
        seeds = [None] * self.num_envs if seed is None else list(seed)
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        rows: NDArray[np.bool_] = np.ones(self.num_envs, dtype=bool) if mask is None else np.asarray(mask)
        self._gone &= ~rows  # what was lost there before is not this episode
        with self._closed_on_error():
            asked = [k for k, part in enumerate(self._slices) if rows[part].any() and not self._blank[k]]
            for k in asked:
                part = self._slices[k]
                self._workers.send(k, "reset", seeds[part], {**options, "reset_mask": rows[part]})
            for k in asked:
                try:
                    self._seen[k] = self._workers.answer(k)
                except WorkerLost as lost:
                    self._lose(k, lost, running=~rows[self._slices[k]])
            for k, part in enumerate(self._slices):
                if rows[part].any() and self._blank[k]:
                    self._begin(k, seeds[part], options, rows[part])
        return _joined(self._seen), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        with self._closed_on_error():
            asked = [k for k, blank in enumerate(self._blank) if not blank]
            for k in asked:
                self._workers.send(k, "step", actions[self._slices[k]])
            parts = [_no_step(part.stop - part.start) for part in self._slices]
            for k in asked:
                part = self._slices[k]
                try:
                    seen, parts[k] = self._workers.answer(k)
                except WorkerLost as lost:
                    self._lose(k, lost, running=~self._gone[part])
                else:
                    self._seen[k] = _replaced(seen, self._seen[k], self._gone[part])
                    if ((parts[k].terminated | parts[k].truncated) & ~self._gone[part]).any():
                        self._workers.well(k)
        reward, terminated, truncated, success = map(np.concatenate, zip(*parts, strict=True))
        self.lost, self._gone = self._gone, np.zeros(self.num_envs, dtype=bool)
        kept = ~self.lost
        ends = terminated & kept, truncated | self.lost
        return _joined(self._seen), np.where(kept, reward, 0.0), *ends, {"success": success & kept}

    def render_env(self, index: int) -> Any:
        """Return the picture of env `index`."""
        k = next(k for k, part in enumerate(self._slices) if part.start <= index < part.stop)
        if self._blank[k]:
            raise WorkerError(f"{self._workers.name(k)}: was lost, and there is no picture until the next reset")
        self._workers.send(k, "render", index - self._slices[k].start)
        try:
            return self._workers.answer(k)
        except WorkerLost as lost:
            self._lose(k, lost, running=~self._gone[self._slices[k]])
            raise

    def close_extras(self, **_: Any) -> None:
        self._workers.close()

    def _facts(self) -> tuple[Any, Any, dict[str, Any]]:
        """Return the spaces and metadata of an env.

        Raises:
            WorkerError: the spaces differ between workers, as of other versions of a package on another machine.
        """
        with self._closed_on_error():
            for k in range(len(self._workers)):
                self._workers.send(k, "facts")
            first, *others = (self._workers.answer(k) for k in range(len(self._workers)))
            for k, found in enumerate(others, start=1):
                for name, expected, space in zip(("observation", "action"), first, found, strict=False):
                    if repr(space) != repr(expected):  # bounds of NaN are equal here
                        raise WorkerError(
                            f"{self._workers.name(k)}: its {name} space is {space}, and {expected} in worker 0. "
                            "Install the same versions of the suite's packages everywhere."
                        )
        return first

    def _lose(self, k: int, lost: WorkerLost, *, running: NDArray[np.bool_]) -> None:
        """Give up the episodes of the envs `running` [n] of worker `k`, which is a new one now."""
        self._blank[k], count = True, int(running.sum())
        self._gone[self._slices[k]] |= running
        self.lost_episodes += count
        _log.warning(
            "%s It was started again. %d running episodes are lost, %d so far.", lost, count, self.lost_episodes
        )

    def _begin(self, k: int, seeds: list[Any], options: dict[str, Any], rows: NDArray[np.bool_]) -> None:
        """Begin the envs `rows` [n] of a new worker. The episodes of the others are lost: they begin anywhere."""
        seeds = [seed if row else 0 for seed, row in zip(seeds, rows, strict=True)]
        while self._blank[k]:
            self._workers.send(k, "reset", seeds, options)
            try:
                seen = self._workers.answer(k)
            except WorkerLost as lost:
                self._lose(k, lost, running=np.zeros(len(rows), dtype=bool))
            else:
                self._seen[k] = seen if rows.all() else _replaced(seen, self._seen[k], ~rows)
                self._blank[k] = False

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """End the other workers where one fails."""
        try:
            yield
        except WorkerError:
            self.close()
            raise


class WorkerStep(NamedTuple):
    """The results of a step of one worker's n envs, without observations."""

    reward: NDArray[Any]  # [n]
    terminated: NDArray[np.bool_]  # [n]
    truncated: NDArray[np.bool_]  # [n]
    success: NDArray[np.bool_]  # [n]


class WorkerEnvs:
    """The envs of one worker.

    Args:
        one: builds an env. count: n, number of envs. admitted: modules of the user to import, see registry.allow.
    """

    def __init__(self, one: MakeEnv, count: int, admitted: tuple[str, ...]) -> None:
        torch.set_num_threads(1)  # K workers of many threads each would only wait for one another
        for module in admitted:
            registry.allow(module)
        self.env = in_one_process(one, count)

    def facts(self) -> tuple[Any, Any, dict[str, Any]]:
        """Return the space of one observation, of one action, and the metadata."""
        return self.env.single_observation_space, self.env.single_action_space, self.env.metadata

    def reset(self, seeds: list[Any], options: dict[str, Any]) -> Any:
        """Return all n observations."""
        return self.env.reset(seed=seeds, options=options)[0]

    def step(self, actions: Any) -> tuple[Any, WorkerStep]:
        seen, reward, terminated, truncated, info = self.env.step(actions)
        return seen, WorkerStep(reward, terminated, truncated, info["success"])

    def render(self, index: int) -> Any:
        choose_gl()
        return self.env.envs[index].render()

    def close(self) -> None:
        self.env.close()


def in_one_process(one: MakeEnv, count: int) -> SyncVectorEnv:
    """Return `count` envs that step one after the other, whose ended episodes wait for a reset."""
    return SyncVectorEnv([one] * count, autoreset_mode=AutoresetMode.DISABLED)


def _no_step(count: int) -> WorkerStep:
    no = np.zeros(count, dtype=bool)
    return WorkerStep(np.zeros(count), no, no, no)


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {k: _joined([p[k] for p in parts]) for k in parts[0]}
    return np.concatenate(parts)


def _replaced(seen: Any, before: Any, rows: NDArray[np.bool_]) -> Any:
    """Return `seen` with the rows [n] of `before`."""
    if not rows.any():
        return seen
    if isinstance(seen, dict):
        return {k: _replaced(seen[k], before[k], rows) for k in seen}
    return np.where(rows.reshape(-1, *[1] * (seen.ndim - 1)), before, seen)
