from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from robopolicy.buffers.recorded_rollouts import replay_of_episodes
from robopolicy.buffers.replay_buffer import Replay
from robopolicy.core.errors import ConfigError, DataError
from robopolicy.core.types import STATE, Feature, Step
from robopolicy.datasets.episodes import Episodes
from tests.fakes import POINT_ACTION

GAMMA = 0.5


def push(replay, t, *, reward=(0.0, 0.0), terminated=(0, 0), truncated=(0, 0), valid=(1, 1)):
    """Row t of two envs: obs is 10·env + t, the true successor is obs + 0.5."""
    obs = torch.tensor([[float(t)], [10.0 + t]])
    terminated, truncated = torch.tensor(terminated).bool(), torch.tensor(truncated).bool()
    replay.add(
        {STATE: obs},
        Step({STATE: obs + 1}, {STATE: obs + 0.5}, obs * 2, torch.ones(2).long(), torch.tensor(reward), terminated,
             truncated, terminated, torch.tensor(valid).bool(), {}),
    )  # fmt: skip


def window(replay, age, env):
    batch = replay.window(torch.tensor([age]), torch.tensor([env]))
    return float(batch.reward), float(batch.discount), float(batch.next_obs[STATE])


def test_n_step_by_hand():
    replay = Replay(capacity=40, num_envs=2, n_step=3, gamma=GAMMA)
    for t in range(8):
        push(replay, t, reward=(1.0 + t, 0.0), terminated=(t == 2, 0), truncated=(0, t == 4))
    assert window(replay, 3, 0) == (4 + 0.5 * 5 + 0.25 * 6, GAMMA**3, 6.0)  # nothing ended: bootstrap at obs t+3
    assert window(replay, 1, 0) == (2 + 0.5 * 3, 0.0, 2.5)  # termination inside: no bootstrap, window stops
    assert window(replay, 3, 1) == (0.0, GAMMA**2, 14.5)  # time limit: bootstraps from the *true* successor


def test_window_never_enters_the_next_episode():
    replay = Replay(capacity=40, num_envs=2, n_step=3, gamma=GAMMA)
    for t in range(8):
        push(replay, t, reward=(float(t >= 3) * 100, 0.0), truncated=(t == 2, 0))
    for age in range(3):
        reward, discount, successor = window(replay, age, 0)
        assert reward == 0.0 and successor == 2.5 and discount == GAMMA ** (3 - age)


def test_invalid_transitions_end_windows_and_are_never_drawn():
    replay = Replay(capacity=80, num_envs=2, n_step=3, gamma=GAMMA)
    for t in range(12):
        push(replay, t, reward=(torch.nan if t == 5 else 0.0, 0.0), truncated=(t == 5, 0), valid=(t != 5, 1))
    assert window(replay, 4, 0) == (0.0, GAMMA, 5.0)  # stops before the invalid step and bootstraps where it began
    batch = replay.sample(2_000, torch.Generator().manual_seed(0))
    assert 5.0 not in batch.obs[STATE].flatten().tolist()
    assert float(batch.reward.abs().max()) == 0.0, "whatever the reward of the invalid step was"


def test_a_replay_of_nothing_valid_does_not_hang():
    replay = Replay(capacity=80, num_envs=2, n_step=3, gamma=GAMMA)
    for t in range(12):
        push(replay, t, truncated=(1, 1), valid=(0, 0))
    with pytest.raises(DataError, match="hardly one of its 24 transitions is valid: the physics diverges"):
        replay.sample(8, torch.Generator().manual_seed(0))


def test_ring_overwrites_the_oldest_and_keeps_final_frames_right():
    replay = Replay(capacity=12, num_envs=2, n_step=2, gamma=GAMMA)
    for t in range(50):
        push(replay, t, truncated=(t % 3 == 0, t % 4 == 0))
    assert replay.size == 6 and replay.num_transitions == 12
    for age in range(4):
        t = 44 + age
        for env, every in ((0, 3), (1, 4)):
            stop = next((k for k in range(2) if (t + k) % every == 0), None)
            base = 10.0 * env + t
            expected = base + 2 if stop is None else base + stop + 0.5
            assert window(replay, age, env)[2] == expected
    assert next(iter(replay.final.values())).shape[0] <= 64  # slots are recycled


def test_sampling_covers_every_eligible_transition_once_in_expectation():
    replay = Replay(capacity=40, num_envs=2, n_step=1, gamma=GAMMA)
    for t in range(11):
        push(replay, t)
    batch = replay.sample(20_000, torch.Generator().manual_seed(0))
    values, counts = batch.obs[STATE].flatten().unique(return_counts=True)
    assert len(values) == 20
    assert counts.min() > 800 and counts.max() < 1200


def test_resume_samples_the_same():
    replay = Replay(capacity=40, num_envs=2, n_step=3, gamma=GAMMA)
    for t in range(15):
        push(replay, t, truncated=(t % 5 == 0, 0))
    other = Replay(capacity=40, num_envs=2, n_step=3, gamma=GAMMA)
    other.load_state_dict(replay.state_dict())
    for r in (replay, other):
        for t in range(15, 30):
            push(r, t, truncated=(t % 5 == 0, 0))
    a, b = (r.sample(64, torch.Generator().manual_seed(3)) for r in (replay, other))
    assert torch.equal(a.next_obs[STATE], b.next_obs[STATE]) and torch.equal(a.reward, b.reward)


@pytest.mark.parametrize("gamma", [0, 1])
def test_gamma_may_be_a_whole_number(gamma):
    replay = Replay(capacity=40, num_envs=2, n_step=2, gamma=gamma)
    for t in range(4):
        push(replay, t, reward=(1.0, 1.0))
    assert window(replay, 0, 0) == (1.0 + gamma, gamma, 2.0)


def test_too_small_or_too_empty_is_an_error():
    with pytest.raises(DataError, match=r"loop\.replay\.capacity=6: "):
        Replay(capacity=6, num_envs=2, n_step=3, gamma=GAMMA)
    replay = Replay(capacity=40, num_envs=2, n_step=3, gamma=GAMMA)
    push(replay, 0)
    with pytest.raises(DataError, match="holds 1 rows"):
        replay.sample(4, torch.Generator())


def episodes(lengths, terminated):
    starts = torch.tensor([0, *lengths]).cumsum(0)
    frames = int(starts[-1])
    done = torch.zeros(frames, dtype=torch.bool)
    done[starts[1:] - 1] = torch.tensor(terminated)
    return Episodes(
        obs={STATE: torch.arange(frames).float()[:, None]}, action=torch.zeros(frames, 2), reward=done.float(),
        terminated=done, success=done, starts=starts, seeds=torch.arange(len(lengths)),
        observation={STATE: Feature((1,))}, action_spec=POINT_ACTION, dt=0.1, tasks=("t",),
    )  # fmt: skip


def test_stored_episodes_become_windows_that_stop_at_their_ends():
    data = episodes([4, 3], [True, False])
    extra = {"base_action": torch.arange(7).float()[:, None].repeat(1, 2)}
    replay = replay_of_episodes(Replay(capacity=10, num_envs=1, n_step=2, gamma=GAMMA), data, obs=data.obs | extra)
    batch = replay.window(torch.tensor([1, 2, 3, 4, 5]), torch.zeros(5, dtype=torch.int64))
    assert batch.reward.tolist() == [0.0, 0.5, 1.0, 0.0, 0.0]
    # Frame 6 has no stored successor and did not terminate: the window from 5 stops there and bootstraps at 6.
    assert batch.discount.tolist() == [0.25, 0.0, 0.0, 0.25, 0.5]
    assert batch.next_obs[STATE][[0, 3, 4], 0].tolist() == [3.0, 6.0, 6.0]
    drawn = set(replay.sample(4_000, torch.Generator().manual_seed(0)).obs[STATE].flatten().tolist())
    assert drawn == {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}


def test_windows_of_stored_episodes_end_with_the_first_frame_that_terminates():
    """Some recorders keep done and success set on the frames after a success."""
    data = episodes([4, 3], [True, True])
    data.terminated[2], data.reward[2] = True, 1.0
    replay = replay_of_episodes(Replay(capacity=10, num_envs=1, n_step=3, gamma=GAMMA), data, obs=data.obs)
    batch = replay.window(torch.arange(7), torch.zeros(7, dtype=torch.int64))
    assert batch.reward.tolist() == [0.25, 0.5, 1.0, 1.0, 0.25, 0.5, 1.0] and not batch.discount.any()


def test_stored_episodes_without_outcomes_are_refused():
    data = replace(episodes([4, 3], [False, False]), outcomes=False)
    with pytest.raises(
        DataError, match=r"neither rewards nor successes.*data import .*outcomes=success.*loop\.demo_fraction=0"
    ):
        replay_of_episodes(Replay(capacity=10, num_envs=1, n_step=2, gamma=GAMMA), data, obs=data.obs)


@pytest.mark.parametrize(("horizon", "gamma"), [(50, 0.98), (100, 0.98), (160, 0.9875), (200, 0.99), (500, 0.99)])
def test_the_discount_follows_the_horizon(horizon: int, gamma: float) -> None:
    assert Replay(capacity=100, num_envs=2, n_step=3, horizon=horizon).gamma == pytest.approx(gamma)
    assert Replay(capacity=100, num_envs=2, n_step=3, horizon=horizon, gamma=0.5).gamma == 0.5


def test_a_discount_without_a_horizon_must_be_given() -> None:
    with pytest.raises(ConfigError, match=r"loop\.replay\.gamma: is chosen by the env's horizon"):
        Replay(capacity=100, num_envs=2, n_step=3)


def test_a_capacity_that_holds_no_window_is_named() -> None:
    with pytest.raises(DataError, match=r"loop\.replay\.capacity=64: expected at least .* = 128\. Raise it"):
        Replay(capacity=64, num_envs=32, n_step=3, gamma=GAMMA)
    Replay(capacity=128, num_envs=32, n_step=3, gamma=GAMMA)
