"""Exchanges between ranks, by gloo on one machine."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from robopolicy.core.errors import ConfigError, RankError
from robopolicy.utils import rank_group, ranks
from robopolicy.utils.rank_group import RankGroup
from tests.rank_processes import in_ranks

pytestmark = pytest.mark.timeout(300)


def test_one_rank_gets_its_arguments_back() -> None:
    x = torch.tensor([1.0, 2.0])
    assert ranks.total(x) is x and ranks.gather_rows(x) is x and ranks.average_gradients([], x, 3) is x
    assert ranks.gather({"a": 1}) == [{"a": 1}] and ranks.own_part(7) == slice(0, 7)
    assert float(ranks.mean_of(x)) == 1.5 and ranks.any_of(True) and not ranks.any_of(False)


def _exchange() -> dict[str, object]:
    rank = ranks.rank()
    used, unused, local = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    used.grad = torch.tensor([1.0, 2.0]) * (rank + 1)
    local.grad = torch.ones(2) if rank else None
    mean = ranks.average_gradients([used, unused, local], torch.tensor(float(rank)), weight=[1, 3][rank])
    return {
        "mean": float(mean), "used": used.grad.tolist(), "unused": unused.grad, "local": local.grad.tolist(),
        "all": ranks.gather({"rank": "é" * rank}), "rows": ranks.gather_rows(torch.tensor([[rank], [9]])).tolist(),
        "mean_of": float(ranks.mean_of(torch.arange(rank + 1.0))), "any": ranks.any_of(rank == 1),
        "part": [ranks.own_part(7).start, ranks.own_part(7).stop],
    }  # fmt: skip


def test_two_ranks_exchange() -> None:
    zero, one = in_ranks(_exchange, 2)
    assert zero["part"] == [0, 3] and one["part"] == [3, 7]
    del zero["part"], one["part"]
    assert zero == one == {
        "mean": 0.75, "used": [1.75, 3.5], "unused": None, "local": [0.75, 0.75], "all": [{"rank": ""}, {"rank": "é"}],
        "rows": [[0], [9], [1], [9]], "mean_of": pytest.approx(1 / 3), "any": True,
    }  # fmt: skip


def _die(how: str) -> float:
    ranks.barrier()
    began = time.perf_counter()
    if ranks.rank():
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "failed":
            raise ValueError("out of luck")
        time.sleep(9)  # busy
    try:
        ranks.barrier()
    except RankError as error:
        raise RankError(f"{time.perf_counter() - began:.0f} {error}") from None
    return 0.0


@pytest.mark.parametrize(("how", "said", "within"), [
    ("killed", "rank 1 is silent", 10), ("failed", "rank 1 ended by ValueError: out of luck", 10),
    ("busy", "rank 1 did not come to exchange", 8),
])  # fmt: skip
def test_the_others_end_and_name_the_missing_rank(how: str, said: str, within: int) -> None:
    error = in_ranks(_die, 2, how, timeout=3.0)[0]
    assert isinstance(error, RankError), error
    seconds, text = str(error).split(" ", 1)
    assert said in text and int(seconds) < within, error


def _work_alone(seconds: float, fails: bool) -> int:
    done: list[int] = []

    def work() -> None:
        time.sleep(seconds)
        if fails:
            raise ValueError("disk full")
        done.append(1)

    ranks.in_first(work)
    ranks.in_first(lambda: done.append(1))
    return len(done)


def test_the_others_wait_as_long_as_the_first_works_alone() -> None:
    assert in_ranks(_work_alone, 2, 4.0, False, timeout=2.0) == [2, 0], "longer than they wait for an exchange"
    first, second = in_ranks(_work_alone, 2, 0.0, True, timeout=2.0)
    assert isinstance(first, ValueError) and isinstance(second, RankError)
    assert str(second).startswith("rank 1 of 2 cannot go on: rank 0")


def test_no_thread_waits_for_the_store_when_a_group_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python aborts where it ends in that moment: "terminate called without an active exception"."""
    for key, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(rank_group, "BEAT_S", 0.01)
    group, waits = RankGroup(10.0), threading.Event()

    def sign(text: str) -> None:
        waits.set()
        time.sleep(0.3)

    monkeypatch.setattr(group, "sign", sign)
    assert waits.wait(10)
    group.end()
    assert group.thread is not None and not group.thread.is_alive()


def test_an_attempt_of_torchrun_reads_no_signs_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    monkeypatch.setattr(rank_group, "_store", lambda timeout: (store, 0, 2))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    RankGroup(1.0, beats=False).sign_end(ValueError("out of luck"))
    assert RankGroup(1.0, beats=False).signs()[0].endswith("ended by ValueError: out of luck")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert RankGroup(1.0, beats=False).signs() == ["", ""]


@pytest.mark.parametrize(("name", "value", "said"), [
    ("MASTER_PORT", None, "MASTER_PORT: expected beside RANK, WORLD_SIZE, MASTER_ADDR"),
    ("MASTER_PORT", "http", "cannot be used .*http"), ("RANK", "first", "cannot be used .*first"),
])  # fmt: skip
def test_an_environment_that_is_not_torchruns_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str | None, said: str
) -> None:
    for key, given in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(key, given)
    monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    with pytest.raises(RankError, match=said), ranks.joined(cuda=False, timeout=5.0):
        pass


_FAILS = """
import os, sys
from robopolicy.cli.main import main
if os.environ["RANK"] == "1":
    sys.exit(main(["train", "algo=dppo", "task=reach", "base=nowhere", "run_dir=run"]))
from robopolicy.utils import ranks
with ranks.joined(cuda=False, timeout=60.0):
    pass
"""


def test_the_others_hear_of_a_rank_that_fails_before_it_joins(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def start(rank: str) -> subprocess.Popen[str]:
        own = {**env, "RANK": rank, "LOCAL_RANK": rank}
        command = [sys.executable, "-c", _FAILS]
        return subprocess.Popen(command, cwd=tmp_path, env=own, stderr=subprocess.PIPE, text=True)

    waits = start("0")
    limit = time.monotonic() + 60
    while not _listens(port):  # torchrun's store does before it starts a rank
        assert waits.poll() is None and time.monotonic() < limit
        time.sleep(0.1)
    fails = start("1").communicate(timeout=100)[1]
    assert "nowhere" in fails, fails
    said = waits.communicate(timeout=100)[1]
    assert re.search(r"RankError: rank 0 of 2 cannot go on: rank 1 ended by \w+: .*nowhere", said), said


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_where_no_store_listens_a_failure_is_told_to_none_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters export these variables for every process; torch would try for a minute."""
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        port = taken.getsockname()[1]
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks, "RankGroup", None)  # would fail
    ranks.tell_failure(ConfigError("a typo"))
    monkeypatch.setenv("MASTER_PORT", "none")
    ranks.tell_failure(ConfigError("a typo"))
