"""A recording says how fast the joints were beside their limits, and which ticks were changed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from robopolicy.core.errors import DataError
from robopolicy.real.recording.recording import Recording, read
from robopolicy.real.recording.replay import replay
from robopolicy.real.recording.speeds import episode_of, summary, table
from robopolicy.real.safety import load_profile
from tests.real.control.test_robots import WIDE
from tests.real.recording.test_recorder import simulated_arm


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speeds") / "rec"
    simulated_arm(folder, [0.05, 0.05, -0.03, 0.0, -1.0], horizon=6).run(3)
    return folder


def test_the_largest_speeds_stand_beside_their_limits(folder, capsys):
    recording = read(folder / "episode_000000.mcap")
    found, ticks = episode_of(recording), recording.of("tick")
    assert found is not None and found.ticks == len(ticks) > 50 and found.changed == sum(t["changed"] for t in ticks)
    commands = np.array([t["command"] for t in ticks])
    assert found.commanded == pytest.approx(np.abs(np.diff(commands, axis=0)).max(axis=0) / 0.004)
    assert found.limit.tolist() == load_profile("panda", **WIDE).velocity.tolist()
    assert (found.commanded <= found.limit * (1 + 1e-9)).all() and found.commanded.max() > 0.05
    assert found.measured.max() == pytest.approx(found.commanded.max(), rel=0.2)
    replay(recording=folder)
    told = capsys.readouterr().out
    assert str(found) in told and table([found]) in told and table([found]) in summary(folder)


def test_missed_ticks_and_recordings_without_speeds_claim_nothing(folder):
    whole = read(folder / "episode_000000.mcap")
    messages = [(t, json.loads(json.dumps(c))) for t, c in whole.messages]
    ticks = [c for t, c in messages if t == "tick"]
    for tick in ticks:
        del tick["qd"]
    ticks[20]["command"] = [c + 1.0 for c in ticks[20]["command"]]
    for tick in ticks[20:]:
        tick["now"] += 1.0
    ticks[21:] = []
    kept = {id(c) for c in ticks}
    found = episode_of(Recording(whole.path, [(t, c) for t, c in messages if t != "tick" or id(c) in kept]))
    assert found is not None and np.isnan(found.measured).all() and (found.commanded < 1.0).all()
    assert episode_of(Recording(whole.path, [m for m in messages if m[0] != "tick"])) is None
    ticks[3]["command"] = [0.0]
    with pytest.raises(DataError):
        episode_of(Recording(whole.path, messages))
