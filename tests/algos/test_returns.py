"""Arithmetic of on-policy learning against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from robopolicy.algos.returns import (
    RewardScale,
    clip_schedule,
    clipped_loss,
    denoising_discount,
    gae,
    minibatches,
    schedule,
    standardize,
)

GAMMA, LAM = 0.9, 0.8


def column(*values: float) -> Tensor:
    """[T 1] of one env."""
    return torch.tensor(values, dtype=torch.float64)[:, None]


def flags(length: int, *at: int) -> Tensor:
    out = torch.zeros(length, 1, dtype=torch.bool)
    out[list(at)] = True
    return out


def one_env(
    *, reward: Tensor, planned: Tensor, value: list[float], last: float, final: tuple[float, ...] = (), **ends: Tensor
):
    length = len(reward)
    given = {name: ends.get(name, flags(length)) for name in ("terminated", "truncated")}
    return gae(
        reward=reward, planned=planned, valid=ends.get("valid", torch.ones(length, 1, dtype=torch.bool)), **given,
        value=torch.tensor(value, dtype=torch.float64), last_value=torch.tensor([last], dtype=torch.float64),
        final_value=torch.tensor(final, dtype=torch.float64), gamma=GAMMA, lam=LAM,
    )  # fmt: skip


def test_chunks_discount_by_their_own_length_and_the_trace_once_a_chunk():
    # Chunks of 2, 3 and (cut off by the end of the rollout) 1 steps.
    found = one_env(reward=column(1, 2, 3, 4, 5, 6), planned=flags(6, 0, 2, 5), value=[10, 20, 30], last=40)
    d3 = 6 + 0.9 * 40 - 30
    d2 = 3 + 0.9 * 4 + 0.81 * 5 + 0.729 * 30 - 20
    d1 = 1 + 0.9 * 2 + 0.81 * 20 - 10
    a2 = d2 + 0.729 * LAM * d3
    torch.testing.assert_close(found.advantage.tolist(), [d1 + 0.81 * LAM * a2, a2, d3])
    assert found.steps.tolist() == [2, 3, 1]
    torch.testing.assert_close(found.target, found.advantage + torch.tensor([10.0, 20, 30], dtype=torch.float64))


def test_termination_has_no_future():
    # The first chunk of 3 is cut off after 2 steps by success; the next episode begins at step 2.
    found = one_env(reward=column(0, 1, 0, 0), planned=flags(4, 0, 2), terminated=flags(4, 1), value=[5, 7], last=9)
    torch.testing.assert_close(found.advantage.tolist(), [0.9 - 5, 0.81 * 9 - 7])
    assert found.steps.tolist() == [2, 2]


def test_a_time_limit_takes_the_value_of_the_true_successor_and_ends_the_trace():
    # The new episode's first value (700) and its advantage must leave no trace in the old one's.
    found = one_env(
        reward=column(1, 2, 3, 4), planned=flags(4, 0, 2), truncated=flags(4, 1), value=[5, 700], last=9, final=(11,)
    )
    assert found.advantage[0].item() == pytest.approx(1 + 0.9 * 2 + 0.81 * 11 - 5)
    assert found.advantage[1].item() == pytest.approx(3 + 0.9 * 4 + 0.81 * 9 - 700)


def test_an_episode_that_terminates_at_its_time_limit_has_no_future():
    found = one_env(
        reward=column(0, 1, 0), planned=flags(3, 0, 2), terminated=flags(3, 1), truncated=flags(3, 1), value=[5, 7],
        last=9, final=(11,),
    )  # fmt: skip
    torch.testing.assert_close(found.advantage.tolist(), [0.9 - 5, 0.9 * 9 - 7])


def test_final_values_belong_to_truncated_steps_in_the_order_of_step_and_env():
    planned = torch.tensor([[1, 1], [1, 1], [1, 1]], dtype=torch.bool)
    truncated = torch.tensor([[0, 1], [1, 0], [0, 0]], dtype=torch.bool)
    zero = torch.zeros(3, 2, dtype=torch.float64)
    found = gae(
        reward=zero, planned=planned, terminated=torch.zeros_like(truncated), truncated=truncated,
        valid=torch.ones_like(truncated), value=torch.zeros(6, dtype=torch.float64), last_value=zero[0],
        final_value=torch.tensor([100.0, 10.0], dtype=torch.float64), gamma=GAMMA, lam=0.0,
    )  # fmt: skip
    torch.testing.assert_close(found.advantage.view(3, 2).tolist(), [[0.0, 90.0], [9.0, 0.0], [0.0, 0.0]])


def test_a_chunk_in_which_physics_failed_is_not_learned_from_and_leaves_no_trace():
    valid = torch.ones(6, 1, dtype=torch.bool)
    valid[3] = False
    found = one_env(
        reward=column(1, 1, 0, 0, 2, 2), planned=flags(6, 0, 2, 4), truncated=flags(6, 3), valid=valid,
        value=[1, 2, 3], last=4, final=(1e6,),
    )  # fmt: skip
    assert found.valid.tolist() == [True, False, True]
    assert found.advantage[0].item() == pytest.approx(1 + 0.9 + 0.81 * 2 - 1)


def test_one_step_chunks_are_textbook_gae():
    torch.manual_seed(0)
    reward, value = torch.randn(6, 3, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    planned, none = torch.ones(6, 3, dtype=torch.bool), torch.zeros(6, 3, dtype=torch.bool)
    found = gae(
        reward=reward, planned=planned, terminated=none, truncated=none, valid=planned, value=value[:-1].flatten(),
        last_value=value[-1], final_value=value[0, :0], gamma=GAMMA, lam=LAM,
    )  # fmt: skip
    delta = reward + GAMMA * value[1:] - value[:-1]
    want = torch.stack([sum((GAMMA * LAM) ** i * delta[t + i] for i in range(6 - t)) for t in range(6)])
    torch.testing.assert_close(found.advantage.view(6, 3), want)


def test_clip_schedule_by_hand():
    # s = 0, ½, 1 at rate 3: (e^1.5 − 1)/(e³ − 1) = 3.481689/19.085537 = 0.182426.
    torch.testing.assert_close(clip_schedule(3, first=0.001, last=0.01), torch.tensor([0.001, 0.002641831, 0.01]))
    assert clip_schedule(1, first=0.001, last=0.01).tolist() == pytest.approx([0.01]), "one step: no 0/0"


def test_denoising_discount_by_hand():
    torch.testing.assert_close(denoising_discount(4, 0.9), torch.tensor([0.729, 0.81, 0.9, 1.0]))


def test_clipped_loss_by_hand():
    log_ratio = torch.tensor([1.2, 1.2, 0.7, 0.7, 1.0]).log()
    advantage, clip = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0]), torch.tensor([0.1, 0.1, 0.1, 0.4, 0.1])
    loss, stats = clipped_loss(log_ratio, advantage, clip)
    # gains: 1.1 (clipped), −1.2, 0.7, −0.7, 2
    assert loss.item() == pytest.approx(-(1.1 - 1.2 + 0.7 - 0.7 + 2.0) / 5)
    kl = [-math.log(1.2)] * 2 + [-math.log(0.7)] * 2 + [0.0]
    assert stats.tolist() == pytest.approx([sum(kl) / 5, 3 / 5, (0.2 + 0.2 + 0.3 + 0.3) / 5, loss.item()])


def test_kl_is_that_of_an_element_however_many_there_are():
    """A Gaussian whose mean moves by d of its deviations is d²/2 away, in every element of a chunk of 20."""
    z = torch.randn(20_000, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for d in (0.2, 1.0):
        log_ratio = (-0.5 * (z - d).square() + 0.5 * z.square()).mean(1)
        kl = clipped_loss(log_ratio, torch.zeros(len(z)), torch.full((len(z),), 0.1))[1][0]
        assert float(kl) == pytest.approx(d**2 / 2, abs=4 * d / (20 * len(z)) ** 0.5)


def test_equal_advantages_are_defined_as_zero():
    assert standardize(torch.full((5,), 3.0)).tolist() == [0.0] * 5
    assert standardize(torch.tensor([7.0])).tolist() == [0.0]
    assert standardize(torch.tensor([1.0, 3.0])).tolist() == [-1.0, 1.0]
    assert bool(standardize(torch.tensor([1.0, torch.nan])).isnan().all()), "not silently nothing"


def test_reward_scale_is_the_deviation_of_running_returns_over_all_rollouts():
    scale = RewardScale(gamma=0.5, clip=100.0)
    none = torch.zeros(2, 1, dtype=torch.bool)
    first = scale(column(1.0, 2.0), none)  # returns 1, 2.5: deviation 0.75
    torch.testing.assert_close(first, column(1.0, 2.0) / 0.75)
    second = scale(column(0.0, 4.0), torch.tensor([[True], [False]]))  # 1.25, the episode ends, 4
    returns = torch.tensor([1.0, 2.5, 1.25, 4.0], dtype=torch.float64)
    torch.testing.assert_close(second, column(0.0, 4.0) / returns.std(correction=0))
    restored = RewardScale(gamma=0.5)
    restored.load_state_dict(scale.state_dict())
    assert torch.equal(restored(column(1.0), none[:1]), scale(column(1.0), none[:1]))


def test_rewards_that_never_vary_are_left_alone():
    scale = RewardScale(gamma=0.9)
    assert scale(torch.zeros(4, 2), torch.zeros(4, 2, dtype=torch.bool)).tolist() == torch.zeros(4, 2).tolist()
    assert scale.deviation == 1.0


def test_every_sample_and_every_chunk_once_an_epoch():
    samples = torch.tensor([4, 5, 6, 7, 8, 9, 12])
    options = dict(epochs=2, generator=torch.Generator().manual_seed(0))
    pairs = list(minibatches(samples, 5, whole=7, count=2, **options))
    assert len(pairs) == 4
    for half in (pairs[:2], pairs[2:]):
        assert sorted(torch.cat([a for a, _ in half]).tolist()) == samples.tolist()
        assert sorted(torch.cat([b for _, b in half]).tolist()) == list(range(5))
    assert pairs[0][0].tolist() != pairs[2][0].tolist()
    few = list(minibatches(samples, 2, whole=7, count=7, epochs=1, generator=torch.Generator()))
    assert [len(b) for _, b in few] == [1, 1], "no critic step without a chunk"
    part = list(minibatches(samples[:2], 12, whole=7, count=7, epochs=1, generator=torch.Generator()))
    assert sorted(len(a) for a, _ in part) == [0, 0, 0, 0, 0, 1, 1] and sum(len(b) for _, b in part) == 12


def test_learning_rate_schedules():
    assert [schedule("linear", p, final=0.2) for p in (0.0, 0.5, 1.0, 2.0)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert schedule("cosine", 0.5) == pytest.approx(0.5) and schedule("constant", 0.9) == 1.0
