"""A whole suite evaluated: tasks, and pieces of the last ones, in several processes; what is finished is not redone."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from robopolicy.config import registry
from robopolicy.config.instantiate import build
from robopolicy.core.errors import ConfigError, DataError, RobopolicyError
from robopolicy.core.rng import Split
from robopolicy.core.types import TASK, Feature, Obs, Step, VecEnv
from robopolicy.envs.wrappers import Wrapper
from robopolicy.evaluation import rollout
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.policy_ref import PolicyRef
from robopolicy.policies.find import find_policy, is_ours, read_spec
from robopolicy.policies.lerobot.find import HUB
from robopolicy.reporting.run_reader import label
from robopolicy.reporting.suite import Suite, SuiteResult
from robopolicy.runs.checkpointer import load_policy
from robopolicy.runs.logger import Tracker
from robopolicy.runs.run_dir import claimed
from robopolicy.utils.provenance import version
from robopolicy.utils.suite_packages import PACKAGES, installed

SLOT = "@"  # in checkpoint=…: stands for the task's name
_LEAST = 5  # episodes of a piece; smaller ones cost more (policy, env, batches of few) than an even end saves


@dataclass(frozen=True)
class Job:
    """One task's evaluation, or a piece of it, as it is sent to a process."""

    task: str
    node: dict[str, Any]
    checkpoint: Path
    policy: str  # its ident in the rows
    which: Literal["latest", "best"]
    seeds: list[int]
    deterministic: bool
    num_envs: int
    device: str
    threads: int
    file: Path

    @property
    def pieces(self) -> Path:
        """Where the rows of its pieces lie until all are there."""
        return self.file.with_suffix("")


class SuitePlan(NamedTuple):
    """How a task's rows come about."""

    job: Job
    kept: list[Path]  # pieces that an interrupted command left
    pieces: list[Job]  # the other episodes


def evaluate_suite(
    suite: Suite,
    checkpoint: Path,
    *,
    which: Literal["latest", "best"] = "latest",
    episodes: int | None = None,
    split: Split = "test",
    deterministic: bool = False,
    only: tuple[str, ...] = (),
    out: Path | None = None,
    num_envs: int = 100,
    jobs: int | None = None,
    device: str = "cpu",
    threads: int | None = None,
) -> SuiteResult:
    """Evaluate every task and write rows, table and report to <out>/suites/<name>.

    A task's rows on disk, and those of its pieces, are taken where they are of these weights, seeds, settings, task
    and code. An episode depends on its seed alone, in a piece as in the whole task; only the rounding of a network
    depends on how many rows it is given at once, as with another `num_envs`.

    Args:
        checkpoint: one policy for all tasks; with "@" in it, one for each: @ stands for the task's name.
        episodes: of each task; None: the suite's.
        only: names of tasks; (): all.
        jobs: processes; None: one a core, at most one a task. 1: this one.

    Raises:
        ConfigError: unknown tasks, no place for results, or another evaluation of the suite is at work there.
        CheckpointError: a policy is missing; before anything is evaluated.
        RobopolicyError: tasks failed; the others were evaluated and are kept.
    """
    nodes = suite.nodes(only)
    places = {task: _place(checkpoint, task, which, out) for task in nodes}
    first = next(iter(places.values()))
    kind = label(suite.name, checkpoint=first.checkpoint, deterministic=deterministic, split=split)
    folder = _out(checkpoint, first, out) / "suites" / kind
    seeds = suite.episode_seeds(split, episodes or suite.episodes)
    count = jobs or min(len(os.sched_getaffinity(0)), len(nodes))
    folder.mkdir(parents=True, exist_ok=True)
    todo = [
        Job(task, node, places[task].policy, places[task].ident, which, seeds.tolist(), deterministic,
            min(num_envs, suite.num_envs, len(seeds)), device, threads or 1, folder / _file(task, node))
        for task, node in nodes.items()
    ]  # fmt: skip
    began = time.perf_counter()
    with claimed(folder, "out"):  # another evaluation would mix its pieces with ours
        waiting = [job for job in todo if not _finished(job)]
        failed = _run(waiting, count, total=len(todo))
        rows = {job.task: EpisodeTable.load(job.file) for job in todo if job.task not in failed}
    result = SuiteResult(suite, rows, failed)
    if not rows:
        raise RobopolicyError(f"{suite.name}: no task could be evaluated; {_list(failed)}")
    page = result.save(folder)
    print(result.text())
    kept = f", {len(todo) - len(waiting)} kept" if len(waiting) < len(todo) else ""
    print(f"{len(waiting) - len(failed)} tasks evaluated in {time.perf_counter() - began:.1f} s with up to {count} "
          f"process{'es' if count > 1 else ''}{kept}; report: {page}")  # fmt: skip
    if failed:
        raise RobopolicyError(
            f"{suite.name}: {len(failed)} of {len(todo)} tasks failed; the same command does them alone again. "
            f"{_list(failed)}"
        )
    return result


def _place(checkpoint: Path, task: str, which: Literal["latest", "best"], out: Path | None) -> PolicyRef:
    if not _slotted(checkpoint):
        return PolicyRef.of(checkpoint, which, out)
    path = Path(str(checkpoint).replace(SLOT, task.replace("/", "-")))
    return PolicyRef.of(path, which, out if out is not None else Path())


def _slotted(checkpoint: Path) -> bool:
    return SLOT in str(checkpoint) and not str(checkpoint).startswith(HUB)  # there it leads a revision


def _out(checkpoint: Path, place: PolicyRef, out: Path | None) -> Path:
    """`out`; else the run; else, for one policy a task, the folder that holds their runs."""
    if out is not None or not _slotted(checkpoint):
        return place.out
    parts = checkpoint.parts
    return Path(*parts[: next(i for i, part in enumerate(parts) if SLOT in part)])


def _file(task: str, node: dict[str, Any]) -> str:
    """Rows of another horizon, another version of a suite, or of anything else that differs, lie beside one another."""
    packages = {name: installed(package.distribution) for name, package in PACKAGES.items()}
    digest = hashlib.sha256(json.dumps([node, packages], sort_keys=True).encode()).hexdigest()[:8]
    return f"{task.replace('/', '-')}-{digest}.csv"


def _finished(job: Job) -> bool:
    """Whether all of its rows are on disk; where only its pieces are, they are joined."""
    if _seeds_in(job, job.file) == job.seeds:
        return True
    kept, missing = _kept(job)
    if not missing:
        _join(SuitePlan(job, kept, []))
    return not missing


def _kept(job: Job) -> tuple[list[Path], list[int]]:
    """Pieces on disk that are parts of the job, whoever cut them, and the seeds that none of them holds."""
    kept, missing = [], set(job.seeds)
    for file in sorted(job.pieces.glob("*.csv")):
        seeds = set(_seeds_in(job, file))
        if seeds and seeds <= missing:
            kept.append(file)
            missing -= seeds
    return kept, [seed for seed in job.seeds if seed in missing]


def _seeds_in(job: Job, file: Path) -> list[int]:
    """Seeds of a file's rows; [] unless all of them are of the job's weights, settings and code."""
    if version().endswith("dirty"):  # two changed trees look alike
        return []
    try:
        rows = EpisodeTable.load(file)
    except DataError:
        return []
    wanted = {"policy": {job.policy}, "deterministic": {job.deterministic}, "version": {version()}}
    return rows.seeds if all(set(rows.frame[k]) == v for k, v in wanted.items()) else []


def _plans(waiting: list[Job], count: int) -> dict[str, SuitePlan]:
    """The episodes that are not on disk, cut such that `count` processes end at about the same time.

    A piece holds about 1 / (2 count) of the episodes that are not handed out yet at most, unless it were of fewer than
    _LEAST, and a task of more than `count` pieces has as many for each process. So most tasks stay whole, since each
    piece builds its own env and loads the policy; the last ones are cut the smallest, and fill the time that one
    process would wait for another. One process has nothing to wait for.
    """
    found = [_kept(job) for job in waiting]
    left = sum(len(missing) for _, missing in found)
    plans = {}
    for job, (kept, missing) in zip(waiting, found, strict=True):
        n = len(missing)
        number = 1 if count == 1 else min(-(-2 * count * n // left), max(1, n // _LEAST))
        number -= number % count if number > count else 0
        parts = [missing[n * i // number : n * (i + 1) // number] for i in range(number)]
        pieces = [
            replace(job, seeds=seeds, num_envs=min(job.num_envs, len(seeds)), file=job.pieces / f"{seeds[0]}.csv")
            for seeds in parts
        ]
        plans[job.task] = SuitePlan(job, kept, pieces)
        left -= n
    return plans


def _join(plan: SuitePlan) -> None:
    """One file of all rows, in the order of the job's seeds, in place of the pieces'."""
    job = plan.job
    frame = EpisodeTable.concat(
        [EpisodeTable.load(file) for file in (*plan.kept, *(piece.file for piece in plan.pieces))]
    ).frame
    EpisodeTable(frame.set_index("seed").loc[job.seeds].reset_index()).save(job.file)
    shutil.rmtree(job.pieces)


def _run(waiting: list[Job], count: int, *, total: int) -> dict[str, str]:
    """Carry out all jobs; {task: why it failed}. What else a failed task was cut into is kept for the next time, of
    committed code."""
    failed: dict[str, str] = {}
    if not waiting:
        return failed
    plans = _plans(waiting, count)
    left = {task: len(plan.pieces) for task, plan in plans.items()}
    with Tracker().progress(total, "tasks") as bar:

        def over(piece: Job, error: Exception | None) -> None:
            left[piece.task] -= 1
            if error is not None:
                failed.setdefault(piece.task, _why(error))
            elif not left[piece.task] and piece.task not in failed:
                _join(plans[piece.task])
            bar.update(total - sum(n > 0 for n in left.values()))

        bar.update(total - len(waiting))
        _carry_out([piece for plan in plans.values() for piece in plan.pieces], count, over)
    return failed


def _carry_out(pieces: list[Job], count: int, over: Callable[[Job, Exception | None], None]) -> None:
    """Evaluate all, in their order; `over` hears of each that ended, and of what it failed from."""
    if count == 1:
        for piece in pieces:
            try:
                _evaluate(piece)
            except Exception as error:
                over(piece, error)
            else:
                over(piece, None)
        return
    # Spawned: a forked child would inherit torch's threads.
    context = multiprocessing.get_context("spawn")
    known = (registry.admitted(), list(sys.path))
    pool = ProcessPoolExecutor(min(count, len(pieces)), mp_context=context, initializer=_begin, initargs=known)
    try:
        running: dict[Future[None], Job] = {pool.submit(_evaluate, piece): piece for piece in pieces}
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                piece = running.pop(future)
                try:
                    future.result()
                except Exception as error:
                    over(piece, error)
                else:
                    over(piece, None)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _why(error: Exception) -> str:
    if isinstance(error, BrokenProcessPool):
        return "its process died; is memory short? Fewer jobs= take less"
    return str(error) if isinstance(error, RobopolicyError) else f"{type(error).__name__}: {error}"


def _begin(modules: tuple[str, ...], path: list[str]) -> None:
    """What a process has to know of the one that started it."""
    sys.path[:] = path
    for module in modules:
        registry.allow(module)


def _evaluate(job: Job) -> None:
    """One task or piece, in whatever process."""
    torch.set_num_threads(job.threads)
    env: Any = build(job.node, "task", "suite.task", num_envs=job.num_envs, seed=0)
    try:
        if (known := _numbered_tasks(job)) and env.spec.tasks[0] in known:
            env = Numbered(env, known)
        policy = load_policy(job.checkpoint, device=job.device, env=env.spec, which=job.which)
        rows = rollout.evaluate(
            policy, env, torch.tensor(job.seeds), deterministic=job.deterministic, policy_id=job.policy
        )
        rows.save(job.file)
    finally:
        close = getattr(env, "close", None)
        if close is not None:
            close()


def _numbered_tasks(job: Job) -> tuple[str, ...]:
    """The instructions of a policy of ours that is told tasks by number; none of others."""
    if not is_ours(find_policy(job.checkpoint, which=job.which)):
        return ()
    spec = read_spec(job.checkpoint, which=job.which)
    return spec.tasks if TASK in spec.observation else ()


class Numbered(Wrapper):
    """An env of one task, whose number is the one that a policy of many tasks knows its instruction by.

    Raises:
        ConfigError: the policy was not trained on that instruction.
    """

    def __init__(self, env: VecEnv, tasks: tuple[str, ...]) -> None:
        super().__init__(env)
        if env.spec.tasks[0] not in tasks:
            known = ", ".join(repr(t) for t in tasks)
            raise ConfigError(
                f"{env.spec.id}: the policy tells tasks apart, and {env.spec.tasks[0]!r} is none of {known}"
            )
        self.number = tasks.index(env.spec.tasks[0])
        self.spec = replace(env.spec, tasks=tasks, observation={**env.spec.observation, TASK: Feature((), "int64")})

    def reset(self, seeds: Tensor | None = None) -> Obs:
        return self._numbered(self.env.reset(seeds))

    def step(self, action: Tensor) -> Step:
        step = self.env.step(action)
        obs = self._numbered(step.obs)
        return step._replace(obs=obs, next_obs=obs if step.next_obs is step.obs else self._numbered(step.next_obs))

    def close(self) -> None:
        close = getattr(self.env, "close", None)
        if close is not None:
            close()

    def _numbered(self, obs: Obs) -> Obs:
        return {**obs, TASK: torch.full((self.num_envs,), self.number, device=self.device)}


def _list(failed: dict[str, str]) -> str:
    return " ".join(f"{task}: {why}" for task, why in failed.items())
