"""`robopolicy train --multirun`: one training for each combination of values, below one folder."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from robopolicy.cli.sweep_job import SweepJob, ident
from robopolicy.config.compose import check_paths, compose
from robopolicy.config.sweep_task import STOP, Values
from robopolicy.config.sweeps import Sweep, launch, read_sweep
from robopolicy.config.verb import Verb
from robopolicy.core.command_line import argument
from robopolicy.core.errors import ConfigError, RobopolicyError, UsageError

_VERB = "train"  # the verb whose runs can be swept
_STOPPABLE = ("joblib", "ray")  # launchers whose running jobs save at a stop


def sweep(verb: Verb, overrides: Sequence[str], *, config_dirs: Sequence[Path] = (), show: bool = False) -> int:
    """Check every job of a sweep, then run those that are not finished; return the exit code.

    `run_dir=` is the folder of the sweep. Each job is a run in it, named after its values.

    Args:
        show: print the jobs and stop.

    Raises:
        UsageError: a job's config is wrong. DataError, CheckpointError: a path of one does not exist.
        KeyboardInterrupt: jobs were interrupted; the same command goes on.
        RobopolicyError: the launcher or the sweeper failed.
    """
    if verb.name != _VERB:
        raise UsageError(f"--multirun: `{verb.name}` runs once. Only `{_VERB}` can be swept")
    found = read_sweep(overrides, config_dirs)
    folder = _check(verb, found, config_dirs)
    if show:
        print("\n".join(" ".join([verb.name, *found.overrides(job)]) for job in _known_jobs(found)))
        return 0
    return _run(verb, found, folder, config_dirs)


def _check(verb: Verb, found: Sweep, config_dirs: Sequence[Path]) -> Path:
    """Check the configs and paths of all jobs; return the folder of the sweep."""
    if "run_dir" in found.values:
        raise UsageError("run_dir: is the folder of the whole sweep, so it has one value; its runs are named by theirs")
    folder = ""
    for job in found.to_check():
        try:
            config = compose(verb, found.overrides(job), config_dirs=config_dirs)
            check_paths({**config, "run_dir": ""})
        except RobopolicyError as error:
            where = " ".join(f"{key}={value}" for key, value in job.items())
            raise type(error)(f"job {where}: {error}") from error
        folder = config["run_dir"]
        loop = config.get("loop") or {}
        if found.optimises and not loop.get("eval_every"):
            raise UsageError(
                f"{found.option('hydra/sweeper')}: optimises the success of the last evaluation in training, and there "
                "is none. Add task=… and loop.eval_every=<steps between evaluations>."
            )
    return Path(folder)


def _known_jobs(found: Sweep) -> list[Values]:
    """Return the jobs that are known before the start: all, or none where a sweeper chooses them one by one."""
    if found.optimises:
        raise UsageError(f"--cfg: hydra/sweeper={found.option('hydra/sweeper')} chooses the jobs one by one")
    return found.jobs()


def _run(verb: Verb, found: Sweep, folder: Path, config_dirs: Sequence[Path]) -> int:
    from robopolicy.config import registry
    from robopolicy.runs.folder_lock import claimed
    from robopolicy.runs.run_dir import CONFIG
    from robopolicy.runs.sweep_job import run_names
    from robopolicy.utils.provenance import write_provenance

    if (folder / CONFIG).exists():
        raise ConfigError(f"run_dir={folder}: is a run. A sweep puts its runs below a folder: give a new one")
    jobs = [] if found.optimises else found.jobs()
    names = dict(zip(map(ident, jobs), run_names(jobs), strict=True))
    parallel = found.option("hydra/launcher") != "basic"
    job = SweepJob(
        verb, found, folder, names, tuple(Path(d).absolute() for d in config_dirs), registry.admitted(),
        tuple(sys.path), parallel, os.getpid(),
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    with claimed(folder, "run_dir"), _stopping(folder, found.option("hydra/launcher")):
        _check_begun(job, jobs)
        write_provenance(folder)
        try:
            launch(found, folder, job)
            failure = ""
        except UsageError:  # of a launcher, before the first job
            raise
        except Exception as error:  # of a launcher or a sweeper
            failure = f"{type(error).__name__}: {error}"
    return _summary(folder, list(names.values()), failure)


def _check_begun(job: SweepJob, jobs: Sequence[Values]) -> None:
    """Refuse a sweep whose settings changed before any job begins: finished runs stay finished.

    Raises:
        ConfigError: names the first run that began with other settings, and the keys.
    """
    from robopolicy.runs.sweep_job import others_in

    refused, others = dict[str, ConfigError](), others_in(job.folder, jobs)
    for run_dir, values in [*((job.run_dir(values), values) for values in jobs), *others.items()]:
        try:
            job.check(values, run_dir)
        except ConfigError as error:
            refused[run_dir.name] = error
    if refused:
        name, why = next(iter(refused.items()))
        mine = job.folder / name not in others
        mend = "To train these runs again, remove their folders" if mine else "Give a new run_dir"
        raise ConfigError(
            f"{len(refused)} of {len(jobs) + len(others)} runs in {job.folder} began with other settings, and nothing "
            f"was started. The first is {name}: {why}\n{mend}."
        )


@contextlib.contextmanager
def _stopping(folder: Path, launcher: str) -> Iterator[None]:
    """Let workers of joblib or Ray save and end at the first SIGINT or SIGTERM; the second one interrupts at once.

    Args:
        launcher: of another one the signal ends the block as usual.
    """
    import psutil

    (folder / STOP).unlink(missing_ok=True)
    if launcher not in _STOPPABLE:
        try:
            yield
        except KeyboardInterrupt:
            if launcher != "basic":
                print("Jobs that were sent go on: cancel them (scancel), or wait for them first.", file=sys.stderr)
            raise
        return

    def stop(number: int, frame: Any) -> None:
        if (folder / STOP).exists():
            raise KeyboardInterrupt
        (folder / STOP).touch()
        warnings.filterwarnings("ignore", module="joblib")  # of workers that end
        print("Stopping: running jobs save first. Press Ctrl-C again to stop at once.", file=sys.stderr, flush=True)
        for child in psutil.Process().children() if launcher == "joblib" else ():  # Ray's launcher reads STOP
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGINT)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if (folder / STOP).exists():
        (folder / STOP).unlink()
        raise KeyboardInterrupt


def _summary(folder: Path, names: list[str], failure: str) -> int:
    """Print how the jobs ended; return the exit code.

    Args:
        names: of all runs; []: those that a sweeper chose, which are there.
        failure: of launcher or sweeper.
    """
    from robopolicy.runs.sweep_job import JOB, read_job

    runs = names or sorted(path.parent.name for path in folder.glob(f"*/{JOB}"))
    states = {name: read_job(folder / name) for name in runs}
    good = {name: job.success for name, job in states.items() if job is not None and job.state == "finished"}
    bad = {name: job.error for name, job in states.items() if job is not None and job.state == "failed"}
    bad |= {name: "its process died (is memory short?), or has not ended"
            for name, job in states.items() if job is not None and job.state == "begun"}  # fmt: skip
    print(f"sweep: {len(good)} of {len(runs)} runs finished in {folder}")
    if not names and (scored := {name: success for name, success in good.items() if success is not None}):
        best = max(scored, key=scored.__getitem__)
        print(f"highest success in the last evaluation of training: {100 * scored[best]:.1f}%, {best}")
    print(f"their page: robopolicy report {argument('run_dir', folder)}")
    if failure and not bad:
        raise RobopolicyError(f"the sweep ended early: {failure}. The same command goes on")
    if bad:
        lines = [f"  - {name}: {error}" for name, error in bad.items()]
        lines += [f"  {failure.splitlines()[0]}"] if failure else []
        print("\n".join([f"error: {len(bad)} failed; the same command runs them again:", *lines]), file=sys.stderr)
    return 1 if len(good) < len(runs) else 0
