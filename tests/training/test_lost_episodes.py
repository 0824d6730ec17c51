"""Episodes that were lost with their worker are counted in the logs of trainings."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from robopolicy.core.protocols import lost_episodes
from robopolicy.envs.wrappers import HistoryEnv
from robopolicy.training import off_policy, on_policy
from tests.evaluation.points import LosingPoint
from tests.fakes import NoTracker, PointEnv


@pytest.mark.parametrize("loop", [off_policy, on_policy])
@pytest.mark.parametrize("lost", [0, 3])
def test_lost_episodes_are_logged(loop, lost):
    env = LosingPoint(2, times=1)
    env.lost_episodes = lost
    state = SimpleNamespace(
        collector=SimpleNamespace(env=HistoryEnv(env, 1)), success={}, train_s=1.0, steps=10, logged=0, metrics={},
        sums={}, rounds=1, diverged=0,
    )  # fmt: skip
    tracker = NoTracker()
    loop.log(state, tracker, *(({}, [0.0, 1.0, 2.0, 3.0]) if loop is on_policy else ()))
    assert tracker.rows[0][1].get("train/lost_episodes", 0) == lost


def test_other_envs_have_lost_none():
    assert lost_episodes(HistoryEnv(PointEnv(1), 1)) == 0
