"""A training that makes its policy worse says so: once, in time, and not where chance or waves would explain it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from robopolicy.training.loop_state import RegressionMonitor


def env(num_envs: int = 4, horizon: int = 10) -> Any:
    return SimpleNamespace(num_envs=num_envs, spec=SimpleNamespace(horizon=horizon))


def said(
    caplog: pytest.LogCaptureFixture, *successes: int, decline: RegressionMonitor | None = None, steps: int = 80
) -> list[str]:
    """What is said where so many of a hundred episodes succeed, hundred after hundred."""
    decline = decline or RegressionMonitor("patience")
    caplog.clear()
    for i, count in enumerate(successes):
        decline.add([1.0] * count + [0.0] * (100 - count), steps=steps * (i + 1), env=env())
    return [record.getMessage() for record in caplog.records]


def test_it_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = said(caplog, 48, 40, 12, 3)
    assert "after 240 env steps 12% of the newest 100" in line and "at the beginning 48%" in line
    assert line.endswith("What may help: patience.")


@pytest.mark.parametrize("successes", [(48, 90, 48, 25), (5, 0), (100, 96), (2, 50, 2)])
def test_chance_and_gains_lost_again_are_not_a_decline(
    successes: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert said(caplog, *successes) == []


def test_a_sure_policy_that_fails_now_and_then_is_a_decline(caplog: pytest.LogCaptureFixture) -> None:
    assert len(said(caplog, 100, 80)) == 1


def test_the_beginning_is_when_every_env_had_time_for_two_episodes() -> None:
    decline = RegressionMonitor("")
    decline.add([1.0] * 100, steps=79, env=env())
    assert decline.first is None
    decline.add([], steps=80, env=env())
    assert decline.first == 1.0


@pytest.mark.parametrize("num_envs", [8, 128, 512])
@pytest.mark.parametrize("rollout", [40, 80])
def test_waves_of_envs_that_began_together_are_not_a_decline(
    num_envs: int, rollout: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of all episodes succeed, somewhere between a quarter of the horizon and its end; the rest last it out."""
    generator, horizon, decline = torch.Generator().manual_seed(0), 80, RegressionMonitor("")

    def lengths(count: int) -> torch.Tensor:
        early = torch.rand(count, generator=generator) < 0.5
        return torch.where(early, torch.randint(20, horizon, (count,), generator=generator), horizon)

    left = lengths(num_envs)
    early = left < horizon
    ended: list[float] = []
    for t in range(1, 1 + 40 * horizon):
        left -= 1
        done = left == 0
        ended += early[done].float().tolist()
        left[done] = lengths(int(done.sum()))
        early[done] = left[done] < horizon
        if t % rollout == 0:
            decline.add(ended, steps=t * num_envs, env=env(num_envs, horizon))
            ended = []
    assert decline.first is not None and 0.3 < decline.first < 0.7 and not decline.said
    assert caplog.records == []


def test_a_resumed_training_remembers(caplog: pytest.LogCaptureFixture) -> None:
    before, after = RegressionMonitor(""), RegressionMonitor("")
    assert said(caplog, 60, decline=before) == []
    after.load_state_dict(before.state_dict())
    assert len(said(caplog, 20, decline=after)) == 1
    again = RegressionMonitor("")
    again.load_state_dict(after.state_dict())
    assert said(caplog, 5, decline=again) == []
