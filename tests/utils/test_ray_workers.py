"""How Ray's answers and errors are read; without Ray's processes, whose start takes a minute on a busy machine."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from robopolicy.core.errors import ConfigError, WorkerError, WorkerLost
from robopolicy.utils.workers import Workers


class RayError(Exception):
    """Base class of Ray's errors."""


class GetTimeoutError(RayError):
    """No answer yet."""


class RayTaskError(RayError):
    """The call failed in the actor."""


class ActorDiedError(RayError):
    """The actor's process ended."""


class Ray:
    """The calls of `ray` that are used, with actors in this process. `fail`: errors of the coming answers."""

    def __init__(self) -> None:
        self.up, self.killed, self.how = False, 0, dict[str, Any]()
        self.fail: list[Exception] = []
        self.exceptions = SimpleNamespace(GetTimeoutError=GetTimeoutError, RayTaskError=RayTaskError, RayError=RayError)

    def is_initialized(self) -> bool:
        return self.up

    def init(self, **how: Any) -> None:
        if self.fail:
            raise self.fail.pop()
        self.up, self.how = True, how

    def remote(self, made: type) -> Any:
        return SimpleNamespace(options=lambda **how: SimpleNamespace(remote=lambda: _Actor(made())))

    def get(self, answer: Any, timeout: float) -> Any:
        if self.fail:
            raise self.fail.pop()
        return answer

    def kill(self, actor: Any) -> None:
        self.killed += 1


class _Actor:
    def __init__(self, made: Any) -> None:
        self.made = made

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self.made, name))


@pytest.fixture
def ray(monkeypatch):
    found = Ray()
    for key in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(key, "x")  # so that it is as before afterwards
        monkeypatch.delenv(key)
    monkeypatch.setitem(sys.modules, "ray", found)
    return found


def test_answers_and_losses(ray):
    group = Workers([list, list], what="list", backend="ray")
    group.send(1, "append", 7)
    assert group.answer(1) is None and ray.how["include_dashboard"] is False
    for error, said in (
        (ActorDiedError("The actor died unexpectedly.\n\tpid: 7"), r"list 1 of 2, process \d+ on \S+ died \(The actor"),
        (GetTimeoutError(), "did not answer within 600 s"),
    ):
        group.send(1, "append", 7)
        ray.fail.append(error)
        with pytest.raises(WorkerLost, match=said):
            group.answer(1)
        group.send(1, "copy")
        assert group.answer(1) == [], "a new one"
        group.well(1)
    assert ray.killed == 2
    group.send(0, "append")
    with pytest.raises(WorkerError, match=r"(?s)list 0 of 2.*append\(\) takes exactly one"):
        group.answer(0)
    group.send(0, "copy")
    ray.fail.append(RayTaskError("ModuleNotFoundError: No module named 'mine'"))
    with pytest.raises(WorkerError, match="No module named 'mine'"):
        group.answer(0)
    group.close()
    assert ray.killed == 4


def test_a_cluster_of_others_is_used_as_it_is(ray, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "node0:6379")
    Workers([list], backend="ray")
    assert "object_store_memory" not in ray.how and "RAY_AUTH_MODE" not in os.environ


def test_a_cluster_of_our_own_asks_for_a_token(monkeypatch, ray):
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    with pytest.raises(ConfigError, match=r"Choose .*, or install it: .*'robopolicy\[ray\]'"):
        Workers([list], backend="ray")
    monkeypatch.delitem(sys.modules, "ray")
    monkeypatch.setattr(sys, "meta_path", [])
    with pytest.raises(ConfigError, match="cannot be imported"):
        Workers([list], backend="ray")
    assert os.environ["RAY_AUTH_MODE"] == "token" and len(os.environ["RAY_AUTH_TOKEN"]) == 64


def test_a_cluster_that_runs_on_this_machine_is_left_alone(ray, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    Workers([list], backend="ray")
    assert ray.how["address"] == "local"


def test_a_ray_that_does_not_start_is_told(ray):
    ray.fail.append(RuntimeError("Failed to start GCS"))
    with pytest.raises(
        WorkerError, match=r"does not start here \(RuntimeError: Failed to start GCS\)\. task\.farm=pro"
    ):
        Workers([list], backend="ray")
