"""The check of MuJoCo Warp: optional, and silent where there is no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from robopolicy import doctor
from robopolicy.doctor import probes, warp


@pytest.mark.parametrize(
    ("gpu", "packages", "answer", "state", "words"),
    [
        (False, False, None, "ok", "not installed"),
        (True, False, None, "optional", "not installed"),
        (False, True, {"cuda": []}, "ok", "no CUDA device"),
        (True, True, {"cuda": []}, "optional", "no CUDA device"),
        (True, True, {"cuda": ["cuda:0 H100"]}, "ok", "cuda:0 H100"),
        (True, True, None, "optional", "does not load: broken"),
    ],
)
def test_states(monkeypatch: pytest.MonkeyPatch, gpu: bool, packages: bool, answer, state: str, words: str) -> None:
    def probe(code: str):
        if answer is None:
            raise probes.ProbeError("broken")
        return answer

    monkeypatch.setattr(warp, "probe", probe)
    monkeypatch.setattr(warp, "installed", lambda name: "1.0" if packages else None)
    monkeypatch.setattr(Path, "exists", lambda self: gpu)
    check = warp.check_warp()
    assert check.state == state and words in check.detail
    assert bool(check.fix) == (state != "ok")


def test_the_doctor_asks_it() -> None:
    assert warp.check_warp in doctor.examine.__defaults__[0]
