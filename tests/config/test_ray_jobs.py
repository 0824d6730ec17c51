"""config/ray_jobs.py: claims, lost processes, a stop, other machines; without Ray's processes (tests/cli has those)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobStatus

from robopolicy.config import ray_jobs
from robopolicy.config.ray_jobs import run_on_ray
from robopolicy.config.sweep_task import STOP, SweepTask, Values
from robopolicy.config.sweeps import read_sweep
from robopolicy.core.errors import UsageError, WorkerError

JOBS = [["+seed=0"], ["+seed=1"]]


class Cancelled(Exception):
    """A task that was cancelled."""


class Died(Exception):
    """A task whose process died."""


class Ray:
    """The calls of `ray` that are used; its tasks run in this process, where `wait` is called."""

    exceptions = SimpleNamespace(TaskCancelledError=Cancelled)

    def __init__(self) -> None:
        self.machine: dict[str, float] = {"CPU": 2.0}
        self.cancelled: list[Any] = []
        self.claims: dict[str, Any] = {}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": self.machine}, {"Alive": False, "Resources": {"CPU": 64.0}}]

    def remote(self, **claims: Any) -> Any:
        self.claims = claims
        return lambda work: SimpleNamespace(remote=lambda *given: [lambda: work(*given)])

    def wait(self, running: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        first, *others = running
        if first not in self.cancelled:
            try:
                first.append(first[0]())
            except Exception as error:
                first.append(error)
        return [first], others

    def get(self, reference: list[Any]) -> Any:
        if reference in self.cancelled:
            raise Cancelled
        if isinstance(reference[1], Exception):
            raise reference[1]
        return reference[1]

    def cancel(self, reference: list[Any]) -> None:
        self.cancelled.append(reference)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    found = Ray()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_jobs, "_started", lambda: found)
    return found


def run(job: Any, folder: Path, **claims: float) -> list[Any]:
    return run_on_ray(SweepTask(job, {"seed": "seed"}), folder, JOBS, **{"num_cpus": 1.0, "num_gpus": 0.0, **claims})


def test_jobs_get_their_values_and_what_they_say_is_shown(
    ray: Ray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def job(values: Values) -> float:
        print(f"begins: {values['seed']}")
        return float(values["seed"])

    assert [found.return_value for found in run(job, tmp_path, num_cpus=0.5)] == [0.0, 1.0]
    assert capsys.readouterr().out == "begins: 0\nbegins: 1\n" and not list(tmp_path.iterdir())
    assert ray.claims["num_cpus"] == 0.5 and ray.claims["max_retries"] == 0


def test_a_process_that_dies_ends_no_other(ray: Ray, tmp_path: Path) -> None:
    def job(values: Values) -> float:
        if values["seed"] == "0":
            raise Died("killed")
        return 1.0

    first, second = run(job, tmp_path)
    assert first.status == JobStatus.FAILED and second.return_value == 1.0
    with pytest.raises(Died):
        _ = first.return_value


def test_at_a_stop_the_running_jobs_are_cancelled(ray: Ray, tmp_path: Path) -> None:
    ran = []

    def job(values: Values) -> None:
        ran.append(values)
        (tmp_path / STOP).touch()

    assert [found.return_value for found in run(job, tmp_path)] == [None, None]
    assert len(ran) == 1 and len(ray.cancelled) == 1


@pytest.mark.parametrize(
    ("claims", "named"),
    [
        ({"num_cpus": 4.0}, r"num_cpus=4: a machine has at most 2\. Give"),
        ({"num_gpus": 1.0}, r"num_gpus=1: a machine has at most 0\. Give"),
        ({"num_gpus": -1.0}, "num_gpus=-1: expected a number of at least 0"),
        ({"num_cpus": float("nan")}, "num_cpus=nan"),
    ],
)
def test_claims_that_no_machine_meets_are_refused(
    ray: Ray, tmp_path: Path, claims: dict[str, float], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        run(print, tmp_path, **claims)


def test_a_cluster_may_grow(ray: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "node0:6379")
    with pytest.warns(UserWarning, match=r"num_gpus=1: a machine has at most 0; jobs wait"):
        run(lambda values: None, tmp_path, num_gpus=1.0)


@pytest.mark.parametrize("wrong", ["code", "folder", "start"])
def test_a_machine_with_other_code_or_without_the_folders_is_named(tmp_path: Path, wrong: str) -> None:
    there = {"folder": tmp_path, "start": tmp_path, "code": ray_jobs.code_digest()}
    there[wrong] = "other" if wrong == "code" else tmp_path / "gone"
    with pytest.raises(WorkerError, match="other code" if wrong == "code" else "gone"):
        ray_jobs._run(lambda values: pytest.fail("ran"), {}, **there)


def test_without_ray_its_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    launchers = ConfigStore.instance().repo["hydra"].get("launcher", {})
    monkeypatch.delitem(launchers, "ray.yaml", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    with pytest.raises(UsageError, match=r"hydra/launcher=ray: is not installed\. Install it: .*'robopolicy\[ray\]'"):
        read_sweep(["seed=0,1", "hydra/launcher=ray"])


def test_settings_of_the_launcher_are_checked() -> None:
    pytest.importorskip("ray")
    command = ["seed=0,1", "hydra/launcher=ray"]
    assert read_sweep([*command, "hydra.launcher.num_gpus=0.5"]).option("hydra/launcher") == "ray"
    for wrong, named in (("num_gpu=1", "Did you mean 'num_gpus'"), ("num_cpus=two", "num_cpus=two")):
        with pytest.raises(UsageError, match=named):
            read_sweep([*command, f"hydra.launcher.{wrong}"])
