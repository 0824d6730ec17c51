from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from robopolicy.utils import other_work
from robopolicy.utils.other_work import OtherWork

BURN = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"


def test_what_this_process_and_its_workers_take_is_not_other_work() -> None:
    before = other_work._seconds()
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        began = time.process_time()
        while time.process_time() < began + 0.3:
            pass
        clock, busy, own = other_work._seconds()
        worker.communicate(b"\n")
    assert own - before[2] >= 0.7
    assert other_work._seconds()[2] >= own, "a worker that has ended still counts"
    assert clock > before[0] and busy - before[1] >= 0.7


def test_the_share_is_of_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([(10.0, 100.0, 5.0), (20.0, 116.0, 9.0), (20.0, 103.0, 9.0), (10.1, 100.4, 5.0)])
    monkeypatch.setattr(other_work, "_seconds", lambda: next(times))
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    others = OtherWork()
    assert others.share() == pytest.approx((16.0 - 4.0) / 40.0)
    assert others.share() == 0.0, "more of ours than of all: clocks of the kernel are coarse"
    assert others.share() == 0.0, "too short to say, as where episodes of an earlier look were read"
