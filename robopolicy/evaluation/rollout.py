"""Run a policy on a fixed list of episodes, every one of them to its end.

The first 500 finished episodes would be mostly short ones, which are mostly successes. Here seeds assign the episodes,
all of them finish, and further episodes of an env are ignored.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from robopolicy.core.errors import SpecError, WorkerError
from robopolicy.core.types import TASK, Obs, Step, VecEnv
from robopolicy.envs.chunk_executor import ChunkExecutor
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.envs.wrappers import request_images
from robopolicy.evaluation.code_version import code_version
from robopolicy.evaluation.episode_table import COLUMNS, EpisodeTable
from robopolicy.policies.base import Policy


class Running(NamedTuple):
    """An episode of the list that is under way in env number `slot`, before its step number `step`."""

    slot: int
    seed: int
    step: int


_TRIES = 3  # of an episode whose worker dies

# Called with the wrapped env before every step; films are taken here.
Watcher = Callable[[VecEnv, list[Running]], None]
Progress = Callable[[int, int, float], None]  # episodes done, episodes in all, success rate so far


def evaluate(
    policy: Policy,
    env: VecEnv,
    seeds: Tensor,
    *,
    deterministic: bool = False,
    policy_id: str = "",
    watch: Watcher | None = None,
    progress: Progress | None = None,
) -> EpisodeTable:
    """Return one row for each of `seeds`, in their order, for any N.

    Episodes that were lost because a worker of the env died are run again (sim.gymnasium.farm).

    Args:
        env: emits single frames; history and base actions are added here. It is reset, and left within other
            episodes, so a training env must not be passed.
        seeds: [E] int64, all different, from `rng.episode_seeds("validation" | "test", 0, E)`.
        deterministic: the policy's mode instead of a sample; deployment samples by default.
        policy_id: names the checkpoint in every row.

    Raises:
        SpecError: policy and env do not fit, seeds repeat, or the env breaks the seed or horizon contract.
        WorkerError: an episode was lost three times.
    """
    todo = [int(s) for s in seeds.tolist()]
    if len(set(todo)) != len(todo):
        raise SpecError(f"evaluate: the {len(todo)} episode seeds must all differ, {len(set(todo))} do")
    modes = [(module, module.training) for module in policy.modules()]  # a frozen base stays in its own
    policy.eval()
    try:
        tally = _Tally(env, todo)
        wrapped = wrap_for(policy, env) if todo else env
        while seeds_left := tally.left():
            _run(policy, wrapped, tally, seeds_left, deterministic=deterministic, watch=watch, progress=progress)
    finally:
        for module, training in modes:
            module.training = training
    return tally.rows(policy_id=policy_id, deterministic=deterministic)


def _run(
    policy: Policy, env: VecEnv, tally: _Tally, seeds: list[int], *, deterministic: bool, watch: Watcher | None,
    progress: Progress | None,
) -> None:  # fmt: skip
    # The env needs at least N seeds. Fillers repeat the last one, whose copies are ignored.
    filled = seeds + seeds[-1:] * (env.num_envs - len(seeds))
    obs = env.reset(torch.tensor(filled, dtype=torch.int64, device=env.device))
    executor = ChunkExecutor(policy, env.num_envs, device=env.device, deterministic=deterministic)
    tally.claim(torch.ones(env.num_envs, dtype=torch.bool), env.episode_seed, obs)
    while not tally.finished:
        if watch is not None:
            watch(env, tally.running())
        action = executor.next_action(obs, env.episode_seed, mask=tally.active.to(env.device))
        request_images(env, executor.needs_images & tally.active.to(env.device))
        step = env.step(action)
        done = tally.add(step)
        obs = step.obs
        if bool(step.ended.any()):
            executor.reset(step.ended)
            tally.claim(step.ended.cpu(), env.episode_seed, obs)
        if done and progress is not None:
            progress(len(tally.done), len(tally.todo), tally.successes / len(tally.done))


class _Tally:
    """Assignment of episodes to envs, and the results so far."""

    def __init__(self, env: VecEnv, todo: list[int]) -> None:
        n = env.num_envs
        self.spec, self.todo = env.spec, todo
        self.pending = set(todo)
        self.lost = Counter[int]()  # seed: how often its episode was lost
        self.done: dict[int, dict[str, Any]] = {}
        self.successes = 0
        self.active = torch.zeros(n, dtype=torch.bool)  # [N] runs an episode of the list
        self.seed = [0] * n
        self.task = [""] * n
        self.began = [0.0] * n
        self.length = torch.zeros(n, dtype=torch.int64)
        self.once = torch.zeros(n, dtype=torch.bool)
        self.diverged = torch.zeros(n, dtype=torch.bool)
        self.total = torch.zeros(n, dtype=torch.float64)

    def left(self) -> list[int]:
        """Return the seeds without a row; they become pending again.

        Raises:
            WorkerError: an episode was lost three times.
        """
        seeds = [seed for seed in self.todo if seed not in self.done]
        if ends := [seed for seed in seeds if self.lost[seed] >= _TRIES]:
            raise WorkerError(
                f"{self.spec.id}: the worker died in each of {_TRIES} trials of the episode of seed {ends[0]}. The "
                "warnings above say how. task.processes=0 runs it in this process."
            )
        self.pending = set(seeds)
        return seeds

    @property
    def finished(self) -> bool:
        over = not bool(self.active.any())
        if self.pending and over:
            raise SpecError(
                f"{self.spec.id}: {len(self.pending)} of {len(self.todo)} episode seeds were never handed out, "
                f"the first is {next(s for s in self.todo if s in self.pending)}. "
                "`reset(seeds)` must start the first N seeds and hand out the others in order as episodes end."
            )
        return over

    def running(self) -> list[Running]:
        return [Running(i, self.seed[i], int(self.length[i])) for i in self.active.nonzero()[:, 0].tolist()]

    def claim(self, started: Tensor, episode_seed: Tensor, obs: Obs) -> None:
        """Assign the envs of `started` [N] whose new episode is on the list and not running elsewhere."""
        for i in started.nonzero()[:, 0].tolist():
            seed = int(episode_seed[i])
            self.active[i] = seed in self.pending
            if self.active[i]:
                self.pending.remove(seed)
                self.seed[i], self.task[i], self.began[i] = seed, self._task(obs, i), time.perf_counter()
                self.length[i], self.once[i], self.diverged[i], self.total[i] = 0, False, False, 0.0

    def _task(self, obs: Obs, index: int) -> str:
        tasks = self.spec.tasks
        if TASK in obs:
            return tasks[int(obs[TASK][index].reshape(-1)[-1])]  # the newest of To frames
        return tasks[0] if len(tasks) == 1 else ""

    def add(self, step: Step) -> bool:
        """Account for one step; True where an episode of the list ended."""
        valid, success = step.valid.cpu(), step.success.cpu() & step.valid.cpu()
        self.length += step.steps.cpu()
        self.once |= success
        self.diverged |= ~valid
        self.total += torch.where(valid, step.reward.cpu().double(), 0.0)
        ended = step.ended.cpu()
        endless = self.active & ~ended & (self.length >= self.spec.horizon)
        if bool(endless.any()):
            i = int(endless.nonzero()[0, 0])
            raise SpecError(
                f"{self.spec.id}: the episode of seed {self.seed[i]} took {int(self.length[i])} steps without ending, "
                f"its horizon is {self.spec.horizon}. The env must truncate there."
            )
        over = (ended & self.active).nonzero()[:, 0].tolist()
        for i in over:
            if not step.steps[i]:  # the episode ended without a step: its worker died
                self.lost[self.seed[i]] += 1
                self.active[i] = False
                continue
            fine = not bool(self.diverged[i])
            by = "diverged" if not fine else "success" if step.terminated[i] and success[i] else None
            self.done[self.seed[i]] = {
                "seed": self.seed[i],
                "task": self.task[i],
                "success_once": fine and bool(self.once[i]),
                "success_at_end": fine and bool(success[i]),
                "return": float(self.total[i]),
                "length": int(self.length[i]),
                "ended_by": by or ("terminated" if step.terminated[i] else "truncated"),
                "wall_s": time.perf_counter() - self.began[i],
            }
            self.successes += fine and bool(self.once[i])
            self.active[i] = False
        return bool(over)

    def rows(self, *, policy_id: str, deterministic: bool) -> EpisodeTable:
        same: dict[str, Any] = {"env": self.spec.id, "digest": self.spec.digest}
        same |= {"policy": policy_id, "version": code_version()}
        same |= {"deterministic": deterministic}
        return EpisodeTable(pd.DataFrame([{**self.done[s], **same} for s in self.todo], columns=list(COLUMNS)))
