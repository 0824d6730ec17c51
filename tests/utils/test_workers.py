"""Calls of objects in worker processes: errors, deaths, time-outs, other code; always with the worker's name."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from robopolicy.core.errors import ConfigError, WorkerError, WorkerLost
from robopolicy.utils import worker_process, workers
from robopolicy.utils.workers import Workers


class Counter:
    """Counts its calls; some of its methods end or stop their process."""

    def __init__(self, start: int = 0, marker: str = "") -> None:
        if marker and os.path.exists(marker):
            os._exit(9)
        self.count = start

    def add(self, n: int) -> int:
        self.count += n
        return self.count

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def unsendable(self):
        return lambda: 1

    def interrupted(self, number: int = signal.SIGINT) -> int:
        os.kill(os.getpid(), number)
        return self.count

    def pid(self) -> int:
        return os.getpid()


def counters(*starts: int, **options) -> Workers:
    return Workers([functools.partial(Counter, start) for start in starts], what="counter", **options)


@pytest.fixture(scope="module")
def two():
    group = counters(10, 20, timeout=60.0)
    yield group
    group.close()


def test_each_worker_holds_its_object(two):
    for k in (0, 1):
        two.send(k, "add", 1)
    assert [two.answer(k) for k in (1, 0)] == [21, 11]
    two.send(0, "interrupted")
    assert two.answer(0) == 11, "Ctrl-C is the parent's to heed"
    two.send(0, "interrupted", signal.SIGTERM)
    assert two.answer(0) == 11, "so is the SIGTERM of a job's end"
    two.send(0, "unsendable")
    with pytest.raises(WorkerError, match=r"(?s)counter 0 of 2, process \d+ failed:.*lambda"):
        two.answer(0)


@pytest.mark.parametrize("how", ["die", "stop"])
def test_a_lost_worker_is_named_and_begins_again(two, how, monkeypatch):
    two.send(1, "add", 0)
    before = two.answer(1)
    monkeypatch.setattr(two, "timeout", 2.0 if how == "stop" else 60.0)
    two.send(0, how)
    said = r"died \(exit code -9; " if how == "die" else r"did not answer within 2 s"
    with pytest.raises(WorkerLost, match=rf"counter 0 of 2, process \d+ {said}"):
        two.answer(0)
    monkeypatch.setattr(two, "timeout", 60.0)
    for k in (0, 1):
        two.send(k, "add", 0)
    assert [two.answer(k) for k in (0, 1)] == [10, before], "the other one goes on"
    two.well(0)


def test_a_worker_that_dies_again_and_again_ends_the_program(two):
    for expected in (WorkerLost, WorkerLost, WorkerError):
        two.send(0, "die")
        with pytest.raises(expected, match="exit code -9") as caught:
            two.answer(0)
    assert type(caught.value) is WorkerError and "3 times in a row" in str(caught.value)


def test_a_request_that_a_stopped_worker_does_not_take_does_not_block(monkeypatch):
    group = counters(0, timeout=60.0)
    group.send(0, "add", 1)
    group.answer(0)
    monkeypatch.setattr(group, "timeout", 1.0)
    worker_process._bound(group._workers[0].pipe, 1.0)
    os.kill(group._workers[0].process.pid, signal.SIGSTOP)
    began = time.monotonic()
    group.send(0, "add", b"x" * 2**24)
    with pytest.raises(WorkerLost):
        group.answer(0)
    assert time.monotonic() - began < 30
    group.close()


def test_a_worker_of_other_code_is_refused(monkeypatch):
    monkeypatch.setattr(workers, "code_digest", lambda: "0123abcd")
    with pytest.raises(WorkerError, match=r"counter 0 of 1, process \d+: runs other code .*0123abcd"):
        counters(0)


def test_an_object_that_cannot_begin_again_ends_the_program(tmp_path, caplog):
    marker = tmp_path / "marker"
    group = Workers([functools.partial(Counter, 0, str(marker))], what="counter", timeout=60.0)
    marker.touch()
    group.send(0, "die")
    with pytest.raises(WorkerLost):
        group.answer(0)
    with pytest.raises(WorkerError, match=r"exit code 9; .*while it was started. It was lost 3 times"):
        group.send(0, "add", 1)
    group.close()
    assert "exit code 9" in caplog.text and "It is started again" in caplog.text


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match="timeout: expected"):
        counters(0, timeout=0.0)
    with pytest.raises(ConfigError, match="counter 0: its object cannot be sent"):
        Workers([lambda: 1], what="counter")


class Busy:
    """A worker in a long call, which ends with no request of its parent."""

    def __init__(self) -> None:
        self.waited = 0.0

    def leave(self) -> None:
        pass

    def stop(self, *, wait_s: float = 0.0) -> None:
        self.waited = wait_s
        time.sleep(wait_s)


def test_all_busy_workers_together_get_the_time_of_one_to_end(monkeypatch):
    monkeypatch.setattr(workers, "GRACE_S", 0.3)
    group, busy = Workers([]), [Busy() for _ in range(8)]
    group._workers = list(busy)
    group.close()
    assert busy[0].waited > 0.2 and sum(worker.waited for worker in busy) < 0.4


PARENT = """
import os, signal, sys, time
from tests.utils.test_workers import counters
group = counters(0)
group.send(0, "pid")
print(group.answer(0), flush=True)
group.send(0, "sleep", {seconds})
{end}
"""


@pytest.mark.parametrize(("end", "seconds"), [
    ("sys.exit(3)", 60), ("time.sleep(1); os.kill(os.getpid(), signal.SIGKILL)", 0),
    ("time.sleep(1); os.kill(os.getpid(), signal.SIGKILL)", 60),
])  # fmt: skip
def test_workers_end_with_their_parent_and_do_not_hold_it_up(end, seconds):
    command = [sys.executable, "-c", PARENT.format(end=end, seconds=seconds)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True, timeout=50)
    assert done.returncode in (3, -signal.SIGKILL)
    limit = time.monotonic() + 20
    while psutil.pid_exists(pid := int(done.stdout)) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < limit, "the worker is still there"
        time.sleep(0.1)
