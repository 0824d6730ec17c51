"""Chunks formed from primitive steps: by hand, at ends of episodes, and who drove."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from robopolicy.buffers.chunk_replay_buffer import DEMONSTRATION, HUMAN, POLICY, REWIND, ChunkBatch, ChunkReplay
from robopolicy.buffers.recorded_rollouts import replay_of_episodes
from robopolicy.buffers.replay_buffer import Replay, split_batches
from robopolicy.core.errors import DataError
from robopolicy.core.types import STATE, Feature
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.lerobot_writer import DatasetWriter
from tests.buffers.test_replay_buffer import GAMMA, episodes, push
from tests.datasets.conftest import ACTION, OBSERVATION, episode
from tests.fakes import PointPolicy

SPEC = replace(PointPolicy().spec, horizon=4, n_action_steps=3)  # H = 4, Ta = 3


def make(rows: int = 20) -> ChunkReplay:
    return ChunkReplay(capacity=2 * rows, num_envs=2, gamma=GAMMA, spec=SPEC)


def window(replay: ChunkReplay, age: int, env: int) -> ChunkBatch:
    return replay.window(torch.tensor([age]), torch.tensor([env]))


def two_wide(replay: ChunkReplay, t: int, **kw) -> None:
    """As `push`, whose actions have one dimension: here they have two alike."""
    add = replay.add
    replay.add = lambda obs, step: add(obs, step._replace(executed=step.executed.expand(-1, 2)))
    push(replay, t, **kw)
    replay.add = add


def test_a_chunk_is_what_was_executed_and_its_reward_that_of_the_played_steps():
    replay = make()
    for t in range(10):
        two_wide(replay, t, reward=(1.0 + t, 0.0))
    found = window(replay, 2, 0)
    assert found.action[0, :, 0].tolist() == [4.0, 6.0, 8.0, 10.0] and bool(found.keep.all())
    assert float(found.reward) == 3 + 0.5 * 4 + 0.25 * 5, "H = 4 steps are imitated, Ta = 3 are paid for"
    assert float(found.discount) == GAMMA**3 and float(found.next_obs[STATE]) == 5.0


@pytest.mark.parametrize("terminates", [True, False])
def test_nothing_of_the_next_episode_leaks_into_a_chunk_that_ends_early(terminates: bool):
    replay, ends = make(), {"terminated" if terminates else "truncated": (1, 0)}
    for t in range(10):
        two_wide(replay, t, reward=(100.0 * (t > 3) + t, 0.0), **(ends if t == 3 else {}))
    found = window(replay, 2, 0)  # two steps are left of its episode
    assert found.keep.tolist() == [[True, True, False, False]]
    assert found.action[0, :, 0].tolist() == [4.0, 6.0, 0.0, 0.0]
    assert float(found.reward) == 2 + 0.5 * 3
    assert float(found.discount) == (0.0 if terminates else GAMMA**2), "γ^steps, not γ^Ta; a time limit bootstraps"
    assert float(found.next_obs[STATE]) == 3.5, "the true successor, not the new episode's first frame"
    beside = window(replay, 2, 1)
    assert bool(beside.keep.all()) and float(beside.discount) == GAMMA**3


def test_the_newest_chunks_stop_where_nothing_is_recorded_yet():
    replay = make(rows=6)
    for t in range(9):  # the ring has begun again: behind the newest row lies the oldest
        two_wide(replay, t)
    found = window(replay, 2, 0)
    assert found.action[0, :, 0].tolist() == [10.0, 12.0, 14.0, 16.0]
    found = window(replay, 3, 0)
    assert found.keep.tolist() == [[True, True, True, False]] and found.action[0, :, 0].tolist() == [12, 14, 16, 0]


def test_an_invalid_step_ends_a_chunk():
    replay = make()
    for t in range(10):
        two_wide(replay, t, reward=(torch.nan if t == 4 else 1.0, 0.0), truncated=(t == 4, 0), valid=(t != 4, 1))
    found = window(replay, 2, 0)
    assert found.keep.tolist() == [[True, True, False, False]] and float(found.reward) == 1.5
    assert float(found.discount) == GAMMA**2 and float(found.next_obs[STATE]) == 4.0


@pytest.mark.parametrize(
    ("reward", "position", "what"),
    [(float("nan"), 1.0, "reward of env 0 is nan"), (0.0, float("inf"), "executed action 'dx' of env 0 is inf")],
)
def test_what_is_not_finite_is_refused_by_name(reward: float, position: float, what: str):
    with pytest.raises(DataError, match=f"{what}, expected a finite number"):
        two_wide(make(), position, reward=(reward, 0.0))


def test_demonstrations_are_marked_and_their_drivers_kept():
    data = episodes([4, 3], [True, False])
    plain = replay_of_episodes(make(), data, obs=data.obs)
    found = plain.window(torch.tensor([0, 2]), torch.zeros(2, dtype=torch.int64))
    assert found.driver[found.keep].unique().tolist() == [DEMONSTRATION]
    assert found.keep.tolist() == [[True] * 4, [True, True, False, False]]
    assert found.discount.tolist() == [GAMMA**3, 0.0]
    driver = torch.tensor([POLICY, HUMAN, REWIND, POLICY, HUMAN, HUMAN, POLICY])
    marked = replay_of_episodes(make(), replace(data, driver=driver), obs=data.obs)
    found = marked.window(torch.tensor([0, 4]), torch.zeros(2, dtype=torch.int64))
    assert found.driver[0].tolist() == [POLICY, HUMAN, REWIND, POLICY]
    assert found.driver[1, :2].tolist() == [HUMAN, HUMAN]
    assert found.keep[1].tolist() == [True, True, False, False], "the last frame's successor is not stored"


@pytest.mark.parametrize(
    ("mark", "kind", "values", "want"),
    [
        ("driver", "int64", [0, 1, 1, 2, 0], [POLICY, HUMAN, HUMAN, REWIND, POLICY]),
        ("intervention", "bool", [0, 1, 1, 0, 0], [POLICY, HUMAN, HUMAN, POLICY, POLICY]),
        ("driver", "int64", [0, 1, 7, 2, 0], None),
        ("comment", "int64", [0, 1, 1, 2, 0], "nobody says"),
    ],
)
def test_datasets_say_who_drove(tmp_path: Path, mark: str, kind: str, values: list[int], want: object):
    marks = {mark: Feature((), kind)}
    with DatasetWriter(
        tmp_path / "a", observation=OBSERVATION, action=ACTION, dt=0.1, tasks=("push",), marks=marks
    ) as out:
        out.add_episode(**episode(0, 5), marks={mark: np.array(values, dtype=kind)})
    if want is None:
        with pytest.raises(DataError, match=r"'driver' is 7 in frame 2, expected 0 \(policy\), 1 \(human\)"):
            load_episodes(tmp_path / "a")
        return
    found = load_episodes(tmp_path / "a").driver
    assert (want == "nobody says") if found is None else found.tolist() == want


def test_batches_hold_their_share_of_demonstrations():
    data = episodes([10, 10], [True, True])
    online = make()
    for t in range(10):
        two_wide(online, t)
    offline, generator = replay_of_episodes(online, data, obs=data.obs), torch.Generator().manual_seed(0)
    parts = [source.sample(2 * size, generator) for source, size in ((online, 12), (offline, 4))]
    for batch in split_batches(parts, 2):
        assert isinstance(batch, ChunkBatch) and len(batch.reward) == 16
        assert (batch.driver[:, 0] == DEMONSTRATION).sum() == 4


def test_resume_samples_the_same():
    first, second = make(rows=8), make(rows=8)
    for t in range(20):
        two_wide(first, t, truncated=(t % 5 == 0, 0))
    second.load_state_dict(first.state_dict())
    a, b = (r.sample(32, torch.Generator().manual_seed(3)) for r in (first, second))
    assert torch.equal(a.action, b.action) and torch.equal(a.keep, b.keep) and torch.equal(a.reward, b.reward)
    assert isinstance(first, Replay)


def test_the_rows_of_an_episode_that_succeeded_are_marked_when_it_has_ended():
    replay = make()
    for t in range(12):  # `push` succeeds where it terminates; env 0 fails at t = 7
        two_wide(replay, t, terminated=(t in (3, 11), t == 5), truncated=(t == 7, 0))
        assert bool(window(replay, 0, 0).success) == (t >= 3)
    assert [bool(window(replay, t, 0).success) for t in range(9)] == [True] * 4 + [False] * 4 + [True]
    assert [bool(window(replay, t, 1).success) for t in range(9)] == [True] * 6 + [False] * 3


def test_rows_that_are_written_again_lose_their_mark():
    replay = make(rows=6)
    for t in range(11):  # an episode that succeeded is overwritten by one that is still running
        two_wide(replay, t, terminated=(t == 4, 0))
    assert [bool(window(replay, age, 0).success) for age in range(3)] == [False] * 3


def test_a_success_after_an_interruption_is_not_that_of_the_episode_before():
    """It is of an env that cannot resume: its reset begins another episode."""
    replay = make()
    for t in range(9):
        if t == 5:
            replay.interrupt()
        two_wide(replay, t, terminated=(t == 8, 0))
    assert replay.store["success"][:9, 0].tolist() == [False] * 5 + [True] * 4


def test_a_success_in_which_physics_failed_is_none():
    replay = make()
    for t in range(8):
        two_wide(replay, t, terminated=(t == 3, 0), valid=(t != 3, 1))
    assert not bool(window(replay, 0, 0).success)


def test_recorded_episodes_that_succeeded_are_marked():
    stored = episodes([4, 3, 2], [False, True, False])  # they succeed where they terminate
    replay = replay_of_episodes(make(), stored, obs=stored.obs)
    assert replay.store["success"][:9, 0].tolist() == [False] * 4 + [True] * 3 + [False] * 2


@pytest.mark.parametrize("length", [3, 63, 64, 65, 150, 299])
def test_episodes_of_any_length_are_marked_whole(length: int):
    replay = make(rows=310)
    for t in range(length + 5):
        two_wide(replay, t, terminated=(t == length + 4, 0), truncated=(t == 4, 0))
    assert replay.store["success"][:, 0].nonzero()[:, 0].tolist() == list(range(5, length + 5))
    full = make(rows=10)
    for t in range(25):  # longer than the ring: all that is held of it
        two_wide(full, t, terminated=(t == 24, 0))
    assert full.store["success"][:, 0].all() and not full.store["success"][:, 1].any()
