"""Group runs by their settings: runs that differ in the training seed, task or tracker alone have the same one."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from robopolicy.config.schema import TARGET
from robopolicy.core.errors import DataError, RobopolicyError
from robopolicy.core.trees import flatten
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.reporting.run_reader import Run, distinct_runs, read_run
from robopolicy.runs.finished import has_finished, went_on
from robopolicy.runs.run_dir import CONFIG, read_config
from robopolicy.runs.sweep_job import JOB, JobState, read_job

Source = Literal["test", "validation"]
_APART = re.compile(r"(seed|run_dir|threads|device|keep_checkpoints|incomplete|task|world\.gate|tracker)(\.|$)")
_PATHS = ("base", "dataset", "memory", "model", "teacher")  # each seed or task may have its own
_NO_RESULT = re.compile(  # keys that make no other training
    r"(run_dir|threads|device|keep_checkpoints|incomplete|tracker|rank_timeout|loop\.log_every)(\.|$)"
)
WORKERS = ("processes", "farm", "worker_timeout")  # keys of a task that change none of its episodes
_ENDED = "finished"
_MOST_RUNS = 2000


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Args:
        values: {key: value} that tell its setting from others.
        config: of the run; {} where there is none yet.
        job: its state in the sweep; None for a run of its own.
        task_values: {key: value} that tell its task from others of the same name.
    """

    run: Run
    config: Mapping[str, Any]
    job: JobState | None
    values: Mapping[str, str]
    task_values: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def state(self) -> str:
        """Return begun, finished or failed."""
        if self.job is not None:
            return "begun" if self.job.state == _ENDED and went_on(self.run.path) else self.job.state
        return "finished" if has_finished(self.run.path) else "begun"

    @property
    def seed(self) -> int | None:
        return self.config.get("seed")

    @property
    def task(self) -> str:
        """Return the name of the task with the keys that tell it from others of this name; "" without one."""
        return ", ".join([task_name(self.config), *(f"{key}={value}" for key, value in self.task_values.items())])

    @property
    def training(self) -> frozenset[tuple[str, str]] | None:
        """Return what makes the training: all keys that change its result, the seed too; None without a config."""
        keys = {key: str(value) for key, value in flatten(self.config).items() if not _NO_RESULT.match(key)}
        return frozenset(keys.items()) or None

    @property
    def setting(self) -> str:
        return setting_name(self.values)

    def rows(self, source: Source) -> EpisodeTable | None:
        """Return the episodes of the newest checkpoint; None where there are none, or the run has not ended."""
        if self.state != _ENDED:
            return None
        if source == "test":
            own = [e for e in self.run.evaluations if not e.label and not e.aside and e.rows.split == "test"]
            return own[0].rows if own else None
        files = sorted((self.run.path / "evaluations").glob("*.parquet"))
        try:
            return EpisodeTable.load(files[-1]) if files else None
        except DataError as error:
            if (said := f"evaluations/{error}") not in self.run.missing:
                self.run.missing.append(said)
            return None


def task_name(config: Mapping[str, Any]) -> str:
    """Return the name of a config's task, or "" without one."""
    node = config.get("task") or {}
    return str(node.get("name") or node.get("task") or node.get(TARGET) or "")


def setting_name(values: Mapping[str, str]) -> str:
    """Return `tau=0.005, lr=1e-4`: keys by their last part, where no other has the same."""
    short = {key: key.removesuffix(f".{TARGET}").rpartition(".")[2] for key in values}
    counts = Counter(short.values())
    named = [f"{short[k] if counts[short[k]] == 1 else k}={v}" for k, v in values.items()]
    return ", ".join(named) or "one setting"


def runs_below(folder: Path) -> list[Path]:
    """Return the runs right below a folder, numbers in their names in order; [] where the folder is a run itself.

    Raises:
        DataError: there are too many.
    """
    if not folder.is_dir() or (folder / CONFIG).exists():
        return []
    found = [d for d in folder.iterdir() if d.is_dir() and not d.is_symlink() and not d.name.startswith(".")
             and ((d / CONFIG).is_file() or (d / JOB).is_file())]  # fmt: skip
    if len(found) > _MOST_RUNS:
        raise DataError(f"{folder}: holds {len(found)} runs, expected {_MOST_RUNS} at most. Name those to show")
    return sorted(found, key=lambda path: _natural(path.name))


def read_members(runs: Sequence[Path]) -> list[SweepRun]:
    """Read runs and find what tells their settings apart: the keys of their configs that differ.

    Where the values of their sweep tell the same settings apart, these name them.
    """
    read = distinct_runs([read_run(path) for path in runs])  # refuses links that lead out
    configs = [_noted(run, read_config) or {} for run in read]
    jobs = [_noted(run, read_job) for run in read]
    known = [i for i, config in enumerate(configs) if config]
    differ = _differing([configs[i] for i in known])
    by_config: list[dict[str, str]] = [{} for _ in read]
    for i, found in zip(known, _settings(differ, [configs[i] for i in known]), strict=True):
        by_config[i] = found
    by_job = _settings([{} if job is None else job.values for job in jobs], configs)
    pairs = {(str(by_config[i]), str(by_job[i])) for i in known}
    alike = len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
    values = by_job if all(jobs) and alike else by_config
    return [SweepRun(*parts) for parts in zip(read, configs, jobs, values, _task_values(configs), strict=True)]


def copies_of(members: Sequence[SweepRun]) -> dict[Path, SweepRun]:
    """Return {folder of a run: the run that counts in its place}: a training counts once, however often it was copied.

    Of the folders with the same config and seed, the first one counts that ended and has test episodes.
    """
    found: dict[frozenset[tuple[str, str]], list[SweepRun]] = defaultdict(list)
    for member in members:
        if member.training is not None:
            found[member.training].append(member)
    copies: dict[Path, SweepRun] = {}
    for same in found.values():
        first = min(same, key=lambda m: (m.state != _ENDED, m.rows("test") is None)) if len(same) > 1 else same[0]
        copies |= {m.run.path: first for m in same if m is not first}
    return copies


def _task_values(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the keys of each config's task in which tasks of one name differ."""
    nodes = [{k: v for k, v in (config.get("task") or {}).items() if k not in WORKERS} for config in configs]
    names = [task_name(config) for config in configs]
    found: list[dict[str, str]] = [{} for _ in configs]
    for name in dict.fromkeys(names):
        own = [i for i, other in enumerate(names) if other == name]
        for i, differing in zip(own, _differing([nodes[i] for i in own]), strict=True):
            found[i] = differing
    return found


def grouped(members: Sequence[SweepRun]) -> dict[str, list[SweepRun]]:
    """Return {setting: its runs}, numbers in the settings in order."""
    found: dict[str, list[SweepRun]] = defaultdict(list)
    for member in sorted(members, key=lambda m: (_natural(m.setting), m.task, m.seed or 0)):
        found[member.setting].append(member)
    return dict(found)


def source_of(members: Sequence[SweepRun]) -> Source:
    """Return "test" where every run that ended has test episodes of its newest checkpoint, else "validation".

    Where no run has validation episodes, those with test episodes count.
    """
    ended = [m for m in members if m.state == _ENDED]
    tested = [m for m in ended if m.rows("test") is not None]
    if tested and (len(tested) == len(ended) or all(m.rows("validation") is None for m in ended)):
        return "test"
    return "validation"


def common_seeds(tables: Sequence[EpisodeTable]) -> list[int]:
    """Return the seeds of the episodes that are in all of `tables`."""
    return sorted(set(tables[0].seeds).intersection(*(rows.seeds for rows in tables)))


def outcomes(tables: Sequence[EpisodeTable]) -> np.ndarray:
    """Return success [S E] of S runs on the E episodes that all have; [S 1] of rates where they share none."""
    if not (seeds := common_seeds(tables)):
        return np.array([[rows.success_rate().value] for rows in tables])
    found = [dict(zip(rows.seeds, rows.successes(), strict=True)) for rows in tables]
    return np.array([[own[s] for s in seeds] for own in found], dtype=np.float64)


def _noted[T](run: Run, read: Callable[[Path], T | None]) -> T | None:
    """Return what `read` returns; where the file is damaged None, and the page names it."""
    try:
        return read(run.path)
    except RobopolicyError as error:
        if str(error) not in run.missing:
            run.missing.append(str(error))
        return None


def _differing(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the values of keys that differ between configs; of a node that differs in its target the target alone."""
    flat = [flatten(config) for config in configs]
    keys = sorted({key for one in flat for key in one})
    differ = [key for key in keys if len({str(one.get(key)) for one in flat}) > 1]
    nodes = [key.removesuffix(TARGET) for key in differ if key.endswith(f".{TARGET}")]

    def follows(key: str) -> bool:
        """Return whether a key's value is the target's own."""
        own = [node for node in nodes if key.startswith(node) and key != node + TARGET]
        return any(len({(one[node + TARGET], str(one.get(key))) for one in flat if node + TARGET in one})
                   <= len({one[node + TARGET] for one in flat if node + TARGET in one}) for node in own)  # fmt: skip

    return [{key: str(one.get(key)) for key in differ if not follows(key)} for one in flat]


def _settings(given: Sequence[Mapping[str, str]], configs: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Leave out keys that make no setting: seed, task, tracker, and paths of which each seed or task has its own."""

    def own(key: str) -> bool:
        if key.rpartition(".")[2] not in _PATHS:
            return False
        pairs = {((c.get("seed"), str(c.get("task"))), v.get(key)) for v, c in zip(given, configs, strict=True)}
        return len(pairs) == len({whose for whose, _ in pairs})

    keys = dict.fromkeys(key for values in given for key in values)
    kept = [key for key in keys if not _APART.match(key) and not own(key)]
    return [{key: values[key] for key in kept if key in values} for values in given]


def _natural(text: str) -> list[tuple[int, float, str]]:
    """Return a key that sorts numbers by their value."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", text)
    return [(0, float(part), "") if i % 2 else (1, 0.0, part) for i, part in enumerate(parts)]
