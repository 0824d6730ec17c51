"""Recorded episodes that run again in a task, on a suite of one number."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from robopolicy.core.errors import ConfigError, DataError
from robopolicy.core.types import STATE
from robopolicy.datasets.hdf5.replays import RecordedStart, RecordedStarts
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.sim.gymnasium.adapter import adapt
from robopolicy.sim.suites import replay
from robopolicy.sim.suites.base import SuiteEnv
from robopolicy.sim.suites.vector_env import vector_env


class Line(SuiteEnv):
    """A place on a line, from which actions lead; success beyond 3."""

    begins_anywhere, name = True, "Line"

    def __init__(self):
        self.inner = SimpleNamespace(close=lambda: None)
        self.observation_space, self.action_space = Box(-99, 99, (1,), np.float32), Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.uniform(0, 1, 1) if self.begin_in is None else self.begin_in
        return self.at.astype(np.float32), {"success": False}

    def act(self, action):
        self.at = self.at + action
        return self.at.astype(np.float32), bool(self.at[0] > 3)


def line(horizon: int = 8, **how):
    return adapt(vector_env(Line, "line", 1, horizon=horizon, processes=0, **how))


def recorded(*episodes: tuple[float, int], env: str = "Line", channels: int = 1) -> RecordedStarts:
    """Episodes of (first place, number of steps of +1)."""
    found = tuple(
        RecordedStart(f"demo_{i}", np.array([first]), np.ones((steps, channels), np.float32), None)
        for i, (first, steps) in enumerate(episodes)
    )
    return RecordedStarts("robomimic", env, "", found)


@pytest.fixture
def source(monkeypatch, tmp_path):
    """Sets the content of the file."""

    def given(replays: RecordedStarts):
        monkeypatch.setattr(replay, "read_replays", lambda path: replays)
        return tmp_path / "a.hdf5"

    return given


def test_episodes_begin_in_their_recorded_states_and_end_with_success(source, tmp_path):
    file = source(recorded((2.5, 5), (0.5, 2), (1.5, 3)))
    found = replay.record_replays(line(), file, tmp_path / "data")
    assert (found.attempted, found.successes, found.episodes) == (3, 2, 2), "one does not succeed again"
    episodes = load_episodes(tmp_path / "data")
    assert episodes.obs[STATE][:, 0].tolist() == [2.5, 1.5, 2.5]
    assert episodes.success.tolist() == [True, False, True]


def test_failures_and_fewer_episodes_are_kept_on_demand(source, tmp_path):
    file = source(recorded((0.5, 2), (2.5, 1)))
    found = replay.record_replays(line(), file, tmp_path / "data", only_success=False, episodes=1)
    assert (found.attempted, found.successes, found.episodes) == (1, 0, 1)


def test_the_same_command_replaces_an_interrupted_one(source, tmp_path, monkeypatch):
    file, run, times = source(recorded((2.5, 5), (1.5, 3))), replay._run, iter(range(9))

    def interrupted(*given):
        if next(times) == 1:
            raise KeyboardInterrupt
        return run(*given)

    monkeypatch.setattr(replay, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replay.record_replays(line(), file, tmp_path / "data")
    with pytest.raises(DataError, match="only_success was True, now False"):
        replay.record_replays(line(), file, tmp_path / "data", only_success=False)
    assert replay.record_replays(line(), file, tmp_path / "data").episodes == 2


def test_after_a_replay_episodes_begin_as_their_seeds_say(source, tmp_path):
    env = line()
    replay.record_replays(env, source(recorded((2.5, 5))), tmp_path / "data")
    assert torch.equal(env.reset(torch.tensor([5]))[STATE], line().reset(torch.tensor([5]))[STATE])


@pytest.mark.parametrize(
    ("replays", "horizon", "error", "said"),
    [
        (recorded((2.5, 5), env="Plane"), 8, ConfigError, "task.name=Plane"),
        (recorded((2.5, 5), channels=2), 8, ConfigError, "channels"),
        (recorded((0.5, 2)), 8, DataError, "none of 1 episodes succeeds again"),
        (recorded((0.5, 5)), 2, DataError, "longer than the horizon of 2 steps"),
    ],
)
def test_files_that_do_not_fit_are_named(source, tmp_path, replays, horizon, error, said):
    with pytest.raises(error, match=said):
        replay.record_replays(line(horizon), source(replays), tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_tasks_that_begin_nowhere_else_are_refused(source, tmp_path, monkeypatch):
    monkeypatch.setattr(Line, "begins_anywhere", False)
    with pytest.raises(ConfigError, match="robopolicy convert"):
        replay.record_replays(line(), source(recorded((2.5, 5))), tmp_path / "data")
