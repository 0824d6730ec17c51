"""Evaluate a suite in several processes: whole tasks, and pieces of the last ones. Finished pieces are reused."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import torch

from robopolicy.cli.suite_jobs import Job, is_finished, join_pieces, plan_pieces
from robopolicy.config import registry
from robopolicy.config.instantiate import build
from robopolicy.core.errors import RobopolicyError
from robopolicy.core.rng import Split
from robopolicy.core.types import TASK, close
from robopolicy.evaluation import rollout
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.numbered_task import NumberedTask
from robopolicy.evaluation.policy_ref import PolicyRef
from robopolicy.policies.find import find_policy, is_ours, read_spec
from robopolicy.policies.lerobot.find import HUB
from robopolicy.reporting.run_reader import label
from robopolicy.reporting.suite import Suite, SuiteResult
from robopolicy.runs.checkpointer import load_policy
from robopolicy.runs.folder_lock import claimed
from robopolicy.runs.logger import Tracker
from robopolicy.utils.suite_packages import PACKAGES, installed

_HOW = ("processes", "farm", "worker_timeout")  # of a task's node: how it runs, not what it is
SLOT = "@"  # in checkpoint=…: stands for the task's name


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
    size = min(num_envs, suite.num_envs, len(seeds))
    todo = [Job(task, node, places[task].policy, places[task].ident, which, seeds.tolist(), deterministic, size, device,
                threads or 1, folder / _file(task, node)) for task, node in nodes.items()]  # fmt: skip
    began = time.perf_counter()
    with claimed(folder, "out"):  # another evaluation would mix its pieces with ours
        waiting = [job for job in todo if not is_finished(job)]
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
        said = f"{len(failed)} of {len(todo)} tasks failed; the same command does them alone again. {_list(failed)}"
        raise RobopolicyError(f"{suite.name}: {said}")
    return result


def _place(checkpoint: Path, task: str, which: Literal["latest", "best"], out: Path | None) -> PolicyRef:
    if not _slotted(checkpoint):
        return PolicyRef.of(checkpoint, which, out)
    path = Path(str(checkpoint).replace(SLOT, task.replace("/", "-")))
    return PolicyRef.of(path, which, out if out is not None else Path())


def _slotted(checkpoint: Path) -> bool:
    return SLOT in str(checkpoint) and not str(checkpoint).startswith(HUB)  # there it leads a revision


def _out(checkpoint: Path, place: PolicyRef, out: Path | None) -> Path:
    """Return `out`; else the run; else, with one policy per task, the folder of their runs."""
    if out is not None or not _slotted(checkpoint):
        return place.out
    parts = checkpoint.parts
    return Path(*parts[: next(i for i, part in enumerate(parts) if SLOT in part)])


def _file(task: str, node: dict[str, Any]) -> str:
    """Name the file of a task's rows: rows of another horizon or suite version get another file."""
    node = {key: value for key, value in node.items() if key not in _HOW}
    packages = {name: installed(package.distribution) for name, package in PACKAGES.items()}
    digest = hashlib.sha256(json.dumps([node, packages], sort_keys=True).encode()).hexdigest()[:8]
    return f"{task.replace('/', '-')}-{digest}.csv"


def _run(waiting: list[Job], count: int, *, total: int) -> dict[str, str]:
    """Run all jobs and return {task: why it failed}. The other pieces of a failed task are kept for the next run."""
    failed: dict[str, str] = {}
    if not waiting:
        return failed
    plans = plan_pieces(waiting, count)
    left = {task: len(plan.pieces) for task, plan in plans.items()}
    with Tracker().progress(total, "tasks") as bar:

        def over(piece: Job, error: Exception | None) -> None:
            left[piece.task] -= 1
            if error is not None:
                failed.setdefault(piece.task, _why(error))
            elif not left[piece.task] and piece.task not in failed:
                join_pieces(plans[piece.task])
            bar.update(total - sum(n > 0 for n in left.values()))

        bar.update(total - len(waiting))
        _carry_out([piece for plan in plans.values() for piece in plan.pieces], count, over)
    return failed


def _carry_out(pieces: list[Job], count: int, over: Callable[[Job, Exception | None], None]) -> None:
    """Evaluate all pieces in order; `over` is called with each finished piece and its error."""
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
    ours, theirs = context.Pipe()
    known = (theirs, registry.admitted(), list(sys.path))
    pool = ProcessPoolExecutor(min(count, len(pieces)), mp_context=context, initializer=_begin_below, initargs=known)
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
    except BaseException:  # Ctrl-C: the pool would finish the pieces that its processes have taken
        ours.close()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        ours.close()
        theirs.close()


def _why(error: Exception) -> str:
    if isinstance(error, BrokenProcessPool):
        return "its process died; is memory short? Fewer jobs= take less"
    return str(error) if isinstance(error, RobopolicyError) else f"{type(error).__name__}: {error}"


def _begin_below(parent: Connection, modules: tuple[str, ...], path: list[str]) -> None:
    """Initialise a worker process, which ends at once where the other end of `parent` closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _begin(modules, path)


def _begin(modules: tuple[str, ...], path: list[str]) -> None:
    """Admit modules, and take the import path."""
    sys.path[:] = path
    for module in modules:
        registry.allow(module)


def _end_with(parent: Connection) -> None:
    """End this process with its parent: its pool would wait for further pieces for good."""
    parent.poll(None)
    os._exit(1)


def _evaluate(job: Job) -> None:
    """Evaluate one task or piece, in any process."""
    torch.set_num_threads(job.threads)
    env: Any = build(job.node, "task", "suite.task", num_envs=job.num_envs, seed=0)
    try:
        if (known := _numbered_tasks(job)) and env.spec.tasks[0] in known:
            env = NumberedTask(env, known)
        policy = load_policy(job.checkpoint, device=job.device, env=env.spec, which=job.which)
        rows = rollout.evaluate(
            policy, env, torch.tensor(job.seeds), deterministic=job.deterministic, policy_id=job.policy
        )
        rows.save(job.file)
    finally:
        close(env)


def _numbered_tasks(job: Job) -> tuple[str, ...]:
    """Return the instructions of a policy that receives tasks by number; () for others."""
    if not is_ours(find_policy(job.checkpoint, which=job.which)):
        return ()
    spec = read_spec(job.checkpoint, which=job.which)
    return spec.tasks if TASK in spec.observation else ()


def _list(failed: dict[str, str]) -> str:
    return " ".join(f"{task}: {why}" for task, why in failed.items())
