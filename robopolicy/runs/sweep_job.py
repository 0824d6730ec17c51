"""Record the state of a sweep's job in its run directory: job.json."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from robopolicy.core.errors import ConfigError
from robopolicy.core.untrusted import Strict, checked, parse_json, read_json, read_text
from robopolicy.runs.config_changes import with_choices
from robopolicy.runs.finished import went_on
from robopolicy.runs.inputs import changed_inputs
from robopolicy.runs.run_dir import read_config
from robopolicy.utils.atomic import write_atomically

JOB = "job.json"
_FREE = dict.fromkeys(("run_dir", "tracker", "threads"))  # change no result
_LONGEST = 100  # characters of a run's name
_Text = Annotated[str, pydantic.Field(max_length=4096)]


class JobState(Strict):
    """State of a job.

    Args:
        values: {key: value} of the keys that the sweep varies.
        state: begun: at work, or killed.
        error: why the job failed.
        success: of the last evaluation in training, for sweepers that optimise.
    """

    values: dict[_Text, _Text]
    state: Literal["begun", "finished", "failed", "interrupted"]
    error: str = ""
    success: float | None = None

    def save(self, run_dir: Path) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(run_dir / JOB, self.model_dump_json(indent=2) + "\n")


def read_job(run_dir: Path) -> JobState | None:
    """Read the state of a job; None where the directory has none.

    Raises:
        ConfigError: the file is damaged.
    """
    path = run_dir / JOB
    if not path.is_file():
        return None
    return checked(JobState, read_json(path, error=ConfigError), str(path), error=ConfigError)


def check_no_sweep(run_dir: Path) -> None:
    """Raise ConfigError where `run_dir` is the folder of a sweep, which one run would make unusable."""
    if any(run_dir.glob(f"*/{JOB}")):
        raise ConfigError(f"run_dir={run_dir}: is the folder of a sweep. Give a new one, or repeat it with --multirun")


def others_in(folder: Path, jobs: Sequence[dict[str, str]]) -> dict[Path, dict[str, str]]:
    """Return the runs in a sweep's folder that are not among `jobs` and vary the same keys, with their values."""
    found = dict[Path, dict[str, str]]()
    for path in sorted(folder.glob(f"*/{JOB}")):
        try:
            job = read_job(path.parent)
        except ConfigError:  # a damaged file fails later, alone
            continue
        if job is not None and jobs and job.values.keys() == jobs[0].keys() and job.values not in jobs:
            found[path.parent] = dict(job.values)
    return found


def is_finished(run_dir: Path, config: dict[str, Any]) -> bool:
    """Return whether a job ended with this very config, tracker and path apart; one with more steps has not.

    Nor has one whose dataset or policy has other contents now, or whose run went on alone since.
    """
    job = read_job(run_dir)
    if job is None or job.state != "finished" or went_on(run_dir) or (before := read_config(run_dir)) is None:
        return False
    same = {**before, **_FREE} == {**with_choices(config, before), **_FREE}
    return same and not changed_inputs(run_dir, config)


def run_names(jobs: Sequence[dict[str, str]]) -> list[str]:
    """Return the names of the run directories of jobs, e.g. `algo.tau_0.005-seed_0`.

    They need no quotes as a value on the command line. Where two are alike, each ends in a digest of its values.
    """
    names = [_plain("-".join(f"{key}_{value}" for key, value in job.items())) for job in jobs]
    return [
        name if names.count(name) == 1 and len(name) <= _LONGEST else f"{name[:_LONGEST]}-{_digest(job)}"
        for name, job in zip(names, jobs, strict=True)
    ]


def last_success(run_dir: Path) -> float | None:
    """Return the success rate of the last evaluation in training; None where there was none."""
    file = run_dir / "metrics.jsonl"
    for line in reversed(read_text(file, limit=2**30).splitlines() if file.is_file() else []):
        if '"eval/success_rate"' in line and isinstance(rate := _rate(line), float | int):
            return float(rate)
    return None


def _rate(line: str) -> Any:
    try:
        return parse_json(line, "metrics.jsonl", finite=False).get("eval/success_rate")
    except Exception:
        return None


def _plain(text: str) -> str:
    return re.sub(r"[^\w.+-]+", ".", text).strip(".")


def _digest(job: dict[str, str]) -> str:
    return hashlib.sha256(repr(sorted(job.items())).encode()).hexdigest()[:8]
