"""A training that makes its policy worse says so: once, in time, and not where chance would explain it."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from robopolicy.loops.decline import Decline

ENV: Any = SimpleNamespace(num_envs=4, spec=SimpleNamespace(horizon=10))


def newest(successes: int) -> deque[float]:
    return deque([0.0] * (100 - successes) + [1.0] * successes, maxlen=100)


def said(caplog: pytest.LogCaptureFixture, *successes: int, decline: Decline | None = None) -> list[str]:
    decline = decline or Decline()
    caplog.clear()
    for i, count in enumerate(successes):
        decline.look(newest(count), 100, 40 * (i + 1), ENV)
    return [record.getMessage() for record in caplog.records]


def test_it_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = said(caplog, 48, 40, 12, 3)
    assert "after 120 env steps 12% of the newest 100" in line and "at the beginning 48%" in line


@pytest.mark.parametrize("successes", [(48, 90, 48, 25), (5, 0), (100, 96), (2, 50, 2)])
def test_chance_and_gains_lost_again_are_not_a_decline(
    successes: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert said(caplog, *successes) == []


def test_a_certain_policy_that_fails_now_and_then_is_a_decline(caplog: pytest.LogCaptureFixture) -> None:
    assert len(said(caplog, 100, 80)) == 1


def test_the_beginning_is_when_every_env_had_time_for_an_episode(caplog: pytest.LogCaptureFixture) -> None:
    """The episodes that end first are successes, whatever the policy."""
    decline = Decline()
    decline.look(newest(100), 100, 39, ENV)
    decline.look(deque([1.0] * 99, maxlen=100), 100, 4000, ENV)
    assert decline.first is None and said(caplog, 30, 25, decline=decline) == []


def test_a_resumed_training_remembers(caplog: pytest.LogCaptureFixture) -> None:
    before, after = Decline(), Decline()
    assert said(caplog, 60, decline=before) == []
    after.load_state_dict(before.state_dict())
    assert len(said(caplog, 20, decline=after)) == 1
    again = Decline()
    again.load_state_dict(after.state_dict())
    assert said(caplog, 5, decline=again) == []
