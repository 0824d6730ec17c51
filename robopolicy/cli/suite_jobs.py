"""Plan the evaluation of a suite: jobs, their pieces, and the pieces that an interrupted command left."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from robopolicy.core.errors import DataError
from robopolicy.evaluation.code_version import code_version
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.utils.provenance import version

_LEAST = 5  # episodes of a piece; smaller ones cost more (policy, env, batches of few) than an even end saves


@dataclass(frozen=True)
class Job:
    """Evaluation of one task, or a piece of it, for one process."""

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
        """Folder of the rows of the pieces, until all are finished."""
        return self.file.with_suffix("")


class SuitePlan(NamedTuple):
    """The pieces that a task's rows are made from."""

    job: Job
    kept: list[Path]  # pieces that an interrupted command left
    pieces: list[Job]  # the other episodes


def is_finished(job: Job) -> bool:
    """Return whether all rows of a job are on disk; join its pieces where all are there."""
    if _seeds_in(job, job.file) == job.seeds:
        return True
    kept, missing = kept_pieces(job)
    if not missing:
        join_pieces(SuitePlan(job, kept, []))
    return not missing


def kept_pieces(job: Job) -> tuple[list[Path], list[int]]:
    """Return the pieces on disk that belong to the job, and the seeds that are missing from them."""
    kept, missing = [], set(job.seeds)
    for file in sorted(job.pieces.glob("*.csv")):
        seeds = set(_seeds_in(job, file))
        if seeds and seeds <= missing:
            kept.append(file)
            missing -= seeds
    return kept, [seed for seed in job.seeds if seed in missing]


def _seeds_in(job: Job, file: Path) -> list[int]:
    """Return the seeds of a file's rows; [] unless all have the job's weights, settings and code."""
    if "dirty" in version():  # two changed trees look alike
        return []
    try:
        rows = EpisodeTable.load(file)
    except DataError:
        return []
    wanted = {"policy": {job.policy}, "deterministic": {job.deterministic}, "version": {code_version()}}
    return rows.seeds if all(set(rows.frame[k]) == v for k, v in wanted.items()) else []


def plan_pieces(waiting: list[Job], count: int) -> dict[str, SuitePlan]:
    """Split the missing episodes such that `count` processes end at about the same time.

    A piece holds at most about 1 / (2 count) of the remaining episodes, and at least _LEAST. A task of more than
    `count` pieces has equally many for each process. Most tasks stay whole, since each piece builds its env and loads
    the policy. The last tasks have the smallest pieces, so that no process waits long. One process never waits.
    """
    found = [kept_pieces(job) for job in waiting]
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


def join_pieces(plan: SuitePlan) -> None:
    """Replace the pieces by one file of all rows, in the order of the job's seeds."""
    job = plan.job
    frame = EpisodeTable.concat(
        [EpisodeTable.load(file) for file in (*plan.kept, *(piece.file for piece in plan.pieces))]
    ).frame
    EpisodeTable(frame.set_index("seed").loc[job.seeds].reset_index()).save(job.file)
    shutil.rmtree(job.pieces)
