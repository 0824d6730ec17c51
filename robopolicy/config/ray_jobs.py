"""Run the jobs of a sweep as tasks of Ray, on this machine or on a cluster that RAY_ADDRESS names.

Ray pickles jobs between processes of one program.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

from robopolicy.config.sweep_task import STOP, Job, SweepTask, Values
from robopolicy.core.errors import UsageError, WorkerError
from robopolicy.utils.provenance import code_digest
from robopolicy.utils.ray_workers import start_ray

_POLL_S = 0.5
_PROGRESS = ".progress"  # in the folder of the sweep: lines of the jobs for the terminal


def run_on_ray(
    task: SweepTask, folder: Path, job_overrides: Sequence[Sequence[str]], *, num_cpus: float, num_gpus: float
) -> list[JobReturn]:
    """Run jobs; return when all have ended. A job whose process dies does not end the others.

    After STOP appears in the folder, running jobs save and end, and no other begins.

    Args:
        folder: of the sweep; on a cluster all machines share it.
        job_overrides: of Hydra's config, for each job.
        num_cpus, num_gpus: claimed by each job.

    Raises:
        UsageError: no machine has the claimed CPUs or GPUs. ConfigError, WorkerError: see start_ray.
    """
    claims = {"num_cpus": num_cpus, "num_gpus": num_gpus}
    for key, value in claims.items():
        if not value >= 0:
            raise UsageError(f"hydra.launcher.{key}={value:g}: expected a number of at least 0")
    ray = _started()
    _check_claims(ray, claims)
    job = ray.remote(**claims, max_retries=0, max_calls=1)(_run)  # a process of its own for each job
    place = (folder, Path.cwd(), code_digest())
    jobs = [job.remote(task.job, task.values(texts), *place) for texts in job_overrides]
    said, running, stopped = folder / _PROGRESS, jobs, False
    said.unlink(missing_ok=True)
    shown = 0
    while running:
        _, running = ray.wait(running, timeout=_POLL_S)
        if not stopped and (stopped := (folder / STOP).exists()):
            for reference in running:
                ray.cancel(reference)  # a SIGINT, as Python sees it, in its process
        shown = _show(said, shown)
    said.unlink(missing_ok=True)
    return [_ended(ray, reference, texts) for reference, texts in zip(jobs, job_overrides, strict=True)]


def _started() -> Any:
    """Return the module `ray`, started; handlers of signals stay ours."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # num_gpus=0 hides no GPU
    handler = signal.getsignal(signal.SIGTERM)
    ray = start_ray("hydra/launcher=ray", instead="hydra/launcher=joblib")
    signal.signal(signal.SIGTERM, handler)
    return ray


def _check_claims(ray: Any, claims: dict[str, float]) -> None:
    """Refuse claims that no machine meets, whose jobs would wait for ever; warn where a cluster may still grow."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for key, name in (("num_cpus", "CPU"), ("num_gpus", "GPU")):
        most = max((machine.get(name, 0) for machine in machines), default=0)
        if claims[key] > most:
            text = f"hydra.launcher.{key}={claims[key]:g}: a machine has at most {most:g}"
            if "RAY_ADDRESS" not in os.environ:
                raise UsageError(f"{text}. Give at most so many.")
            warnings.warn(f"{text}; jobs wait until one with more joins the cluster", stacklevel=2)


def _run(job: Job, values: Values, folder: Path, start: Path, code: str) -> float | None:
    """Run a job in a process of Ray, where paths mean the same as in the command.

    Raises:
        WorkerError: the machine lacks the command's folders, or has other code.
    """
    if code_digest() != code:
        raise WorkerError(f"{platform.node()}: runs other code than the command. Install the same version everywhere.")
    for key, path in (("working directory", start), ("run_dir", folder)):
        if not path.is_dir():
            raise WorkerError(f"{platform.node()}: has no {key} {path}. Share it between the machines of the cluster.")
    os.chdir(start)
    with (folder / _PROGRESS).open("a", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        return job(values)


def _show(file: Path, start: int) -> int:
    """Print what jobs said since `start`, in bytes; return the new end."""
    with contextlib.suppress(FileNotFoundError), file.open("rb") as lines:
        lines.seek(start)
        new = lines.read()
        print(new.decode(errors="replace"), end="", flush=True)
        return start + len(new)
    return start


def _ended(ray: Any, reference: Any, texts: Sequence[str]) -> JobReturn:
    """Return how a job ended."""
    found = JobReturn(overrides=texts, status=JobStatus.COMPLETED)
    try:
        found.return_value = ray.get(reference)
    except (ray.exceptions.TaskCancelledError, KeyboardInterrupt):  # its state says so
        found.return_value = None
    except Exception as error:
        found.status, found.return_value = JobStatus.FAILED, getattr(error, "cause", None) or error
    return found
