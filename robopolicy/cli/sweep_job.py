"""Run one job of a sweep, in any process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robopolicy.config.compose import compose
from robopolicy.config.sweep_task import STOP, Values
from robopolicy.config.sweeps import Sweep
from robopolicy.config.verb import Verb
from robopolicy.core.command_line import hydra_text
from robopolicy.core.errors import RobopolicyError

if TYPE_CHECKING:
    from robopolicy.runs.sweep_job import JobState


@dataclass(frozen=True)
class SweepJob:
    """Runs one job of a sweep, in any process.

    Args:
        names: {ident of a job's values: name of its run}.
        modules, path: admitted modules and import path of the parent.
        parallel: other jobs run beside. What the job says goes to its folder, its beginning and end to the terminal.
        command: process of the sweep.
    """

    verb: Verb
    found: Sweep
    folder: Path
    names: dict[tuple[tuple[str, str], ...], str]
    config_dirs: tuple[Path, ...]
    modules: tuple[str, ...]
    path: tuple[str, ...]
    parallel: bool
    command: int

    def __call__(self, values: Values) -> float | None:
        """Run the job, unless it is finished; return the success that sweepers optimise.

        Raises:
            RobopolicyError: the job failed, and a sweeper must know. Else its state says so, and other jobs go on.
        """
        from robopolicy.config import registry
        from robopolicy.runs.sweep_job import JobState, is_finished, read_job

        if _stop.asked or (self.folder / STOP).exists():
            return None
        if self.parallel:
            sys.path[:] = self.path
            _stop.listen(self.command)
        for module in self.modules:
            registry.allow(module)
        if self.found.optimises:  # its jobs are not known at the start
            self.check(values)
        run_dir = self.run_dir(values)
        name, config = run_dir.name, self._config(values)
        if "group" in (tracker := config.get("tracker") or {}) and tracker["group"] is None:
            tracker["group"] = self.folder.resolve().name
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            job = read_job(run_dir) if is_finished(run_dir, config) else None
        except OSError as error:  # a file of that name
            print(f"failed: {name}: {error}", flush=True)
            return None
        except RobopolicyError as error:  # a damaged file
            job = JobState(values=values, state="failed", error=str(error))
            job.save(run_dir)
        if job is not None:
            print(f"{job.error and 'failed' or 'finished before'}: {name}{job.error and f': {job.error}'}", flush=True)
        else:
            print(f"begins: {name}", flush=True)
            job = self._train(run_dir, values, config)
            print(f"{job.state}: {name}{job.error and f': {job.error}'}", flush=True)
        assert job is not None
        if job.state == "failed" and self.found.optimises:
            raise RobopolicyError(f"{name}: {job.error}")
        return job.success

    def check(self, values: Values, run_dir: Path | None = None) -> None:
        """Refuse other settings than the job's run began with; a damaged run fails later, alone.

        Args:
            run_dir: of the run; None: where this sweep puts it.

        Raises:
            ConfigError: see check_same.
        """
        from robopolicy.runs.run_dir import check_same, has_checkpoint, read_config

        run_dir = run_dir or self.run_dir(values)
        try:
            begun = has_checkpoint(run_dir) and read_config(run_dir) is not None
        except (RobopolicyError, OSError):
            return
        if begun:
            check_same(run_dir, self._config(values))

    def run_dir(self, values: Values) -> Path:
        """Return the run directory of a job."""
        from robopolicy.runs.sweep_job import run_names

        return self.folder / (self.names.get(ident(values)) or run_names([values])[0])

    def _config(self, values: Values) -> dict[str, Any]:
        texts, settings = self.found.overrides(values), {"run_dir": self.run_dir(values)}
        return compose(self.verb, texts, settings=settings, config_dirs=self.config_dirs)

    def _train(self, run_dir: Path, values: Values, config: dict[str, Any]) -> JobState:
        """Train and record the state of the job."""
        from robopolicy.cli.run_verb import call
        from robopolicy.runs.sweep_job import JobState, last_success

        job = JobState(values=values, state="begun")
        job.save(run_dir)
        try:
            with (
                _called(self._command(run_dir, values)),
                _said_in(run_dir / "output.log" if self.parallel else None),
                _stop.raising(),
            ):
                call(self.verb, config)
            job = JobState(values=values, state="finished", success=last_success(run_dir))
            if job.success is None and self.found.optimises:
                job = JobState(values=values, state="failed", error="no evaluation was logged")
        except KeyboardInterrupt:
            job = JobState(values=values, state="interrupted")
            if not self.parallel:
                raise
            _stop.asked = True
        except (RobopolicyError, OSError) as error:
            job = JobState(values=values, state="failed", error=str(error))
        except Exception as error:
            traceback.print_exc()
            job = JobState(values=values, state="failed", error=f"{type(error).__name__}: {error}")
        finally:
            job.save(run_dir)
        return job

    def _command(self, run_dir: Path, values: Values) -> list[str]:
        """Return the command line that runs this job alone."""
        texts = [text for text in self.found.overrides(values) if not text.lstrip("+").startswith("run_dir=")]
        options = [word for folder in self.config_dirs for word in ("--config-dir", str(folder))]
        options += [word for module in self.modules for word in ("--allow", module)]
        return ["robopolicy", self.verb.name, *texts, f"run_dir={hydra_text(run_dir)}", *options]


class _Stop:
    """Stop of a worker process by SIGINT: the training saves and ends, and no other job begins.

    submitit's SIGUSR2, which comes two minutes before Slurm's time limit, counts as one. So does the end of the process
    `command` that started this one: nothing else ends the workers of a killed sweep.
    """

    def __init__(self) -> None:
        self.asked = self.inside = False

    def listen(self, command: int) -> None:
        """Leave the terminal's group, and take SIGINT from the parent alone."""
        if signal.getsignal(signal.SIGINT) != self._ask:
            with contextlib.suppress(OSError):  # leads a session already
                os.setpgid(0, 0)
            signal.signal(signal.SIGINT, self._ask)
            if "SUBMITIT_EXECUTOR" in os.environ:
                signal.signal(signal.SIGUSR2, self._ask_once)
            if os.getppid() == command:  # not where a job runs in the command itself, or is of a cluster
                threading.Thread(target=self._end_after, args=(command,), daemon=True).start()

    def _end_after(self, command: int) -> None:
        while os.getppid() == command:
            time.sleep(1)
        self._ask_once()

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Raise KeyboardInterrupt in the block, where the training itself does not take the signal."""
        self.inside = True
        try:
            yield
        finally:
            self.inside = False

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True
        if self.inside:
            raise KeyboardInterrupt

    def _ask_once(self, *_: Any) -> None:
        """Send this process a SIGINT, which the training takes while it can save; a second one would not let it."""
        if not self.asked:
            self.asked = True
            os.kill(os.getpid(), signal.SIGINT)


_stop = _Stop()


@contextlib.contextmanager
def _called(arguments: list[str]) -> Iterator[None]:
    """Let the run record the command that repeats it alone."""
    before, sys.argv = sys.argv, arguments
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _said_in(file: Path | None) -> Iterator[None]:
    """Append what is printed to `file`; None: leave it on the terminal."""
    if file is None:
        yield
        return
    with file.open("a", encoding="utf-8") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        yield


def ident(values: Values) -> tuple[tuple[str, str], ...]:
    """Return the values of a job as a key of a dict."""
    return tuple(sorted(values.items()))
