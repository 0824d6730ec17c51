"""Samples, gradients and their shares, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robopolicy.world_models.models.categoricals import (
    balanced,
    divergence,
    drawn,
    keyed,
    likeliest,
    mixed,
    straight_through,
)


def log(*p: float) -> torch.Tensor:
    """[1 1 K] log probabilities."""
    return torch.tensor([[p]]).log()


def test_nothing_is_impossible() -> None:
    found = mixed(torch.tensor([[100.0, 0.0, 0.0, 0.0]]), 0.01).exp()
    torch.testing.assert_close(found, torch.tensor([[0.9925, 0.0025, 0.0025, 0.0025]]))
    torch.testing.assert_close(mixed(torch.zeros(3, 4), 0.0).exp(), torch.full((3, 4), 0.25))


def test_without_a_share_spread_evenly_losses_stay_finite() -> None:
    logits = torch.tensor([[[120.0, 0.0, -5.0]]], requires_grad=True)
    loss, _ = balanced(mixed(logits, 0.0), mixed(torch.tensor([[[100.0, -10.0, 0.0]]]), 0.0), balance=0.8, free=0.0)
    loss.sum().backward()
    assert loss.isfinite().all() and logits.grad is not None and logits.grad.isfinite().all()


def test_samples_come_as_often_as_their_odds_say() -> None:
    unit = torch.linspace(0.0005, 0.9995, 1000)
    found = drawn(log(0.2, 0.5, 0.3).expand(1000, 1, 3), unit[:, None])
    assert found.sum(0)[0].tolist() == [200, 500, 300] and (found.sum(-1) == 1).all()
    assert likeliest(log(0.2, 0.5, 0.3)).tolist() == [[[0, 1, 0]]]
    assert drawn(log(0.5, 0.5 - 1e-7), torch.tensor([[0.99999999]])).sum() == 1, "rounding leaves no row empty"


def test_gradients_pass_through_a_sample_as_through_its_odds() -> None:
    logits = torch.randn(5, 3, 4, requires_grad=True)
    weight = torch.randn(5, 3, 4)
    sample = straight_through(mixed(logits, 0.01))
    assert set(sample.unique().tolist()) == {0.0, 1.0} and (sample.sum(-1) == 1).all(), "exactly one-hot"
    (through,) = torch.autograd.grad((weight * sample).sum(), logits)
    (odds,) = torch.autograd.grad((weight * mixed(logits, 0.01).exp()).sum(), logits)
    torch.testing.assert_close(through, odds)
    assert odds.abs().max() > 0.01


def test_samples_are_the_generators() -> None:
    odds = mixed(torch.randn(9, 3, 4), 0.01)
    torch.manual_seed(3)
    first = straight_through(odds)
    torch.manual_seed(3)
    assert torch.equal(straight_through(odds), first)
    assert not torch.equal(straight_through(odds), first)


def test_divergence_by_hand() -> None:
    p, q = log(0.5, 0.5), log(0.25, 0.75)
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert float(divergence(p, q)) == pytest.approx(expected)
    assert float(divergence(p.expand(1, 3, 2), q.expand(1, 3, 2))) == pytest.approx(3 * expected), "variables add up"


def test_each_side_gets_its_share_of_the_gradient() -> None:
    """d KL(p ‖ q) / d logits of q is q − p; of p it is p (log p/q − KL)."""
    a, b = torch.zeros(1, 1, 2, requires_grad=True), torch.tensor([[[0.0, math.log(3.0)]]], requires_grad=True)
    loss, kl = balanced(a.log_softmax(-1), b.log_softmax(-1), balance=0.8, free=0.0)
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert float(loss.detach()) == pytest.approx(expected) and float(kl) == pytest.approx(expected)
    loss.sum().backward()
    torch.testing.assert_close(b.grad, 0.8 * torch.tensor([[[0.25 - 0.5, 0.75 - 0.5]]]))
    first = 0.2 * 0.5 * (math.log(2) - expected)
    torch.testing.assert_close(a.grad, torch.tensor([[[first, -first]]]))


def test_free_nats_have_no_gradient() -> None:
    a, b = torch.zeros(2, 1, 2, requires_grad=True), torch.tensor([[[0.0, math.log(3.0)]], [[0.0, 9.0]]])
    b.requires_grad_()
    loss, kl = balanced(a.log_softmax(-1), b.log_softmax(-1), balance=0.8, free=1.0)
    assert kl[0] < 1.0 < kl[1] and loss[0] == 1.0 and float(loss[1].detach()) == pytest.approx(float(kl[1]))
    loss.sum().backward()
    for grad in (a.grad, b.grad):
        assert grad is not None and grad[0].abs().max() == 0.0 and grad[1].abs().max() > 0.01


def test_numbers_follow_from_one() -> None:
    draw = torch.tensor([0.25, 0.75, 0.25, float("nan")])
    found = keyed(draw, 6)
    assert torch.equal(found[0], found[2]) and not (found[0] == found[1]).any() and found[3].isnan().all()
    assert found[0].unique().numel() == 6 and ((found[:3] > 0) & (found[:3] < 1)).all()
    assert torch.equal(keyed(draw[1:2], 6)[0], found[1]), "whatever the neighbours"
    spread = keyed(torch.rand(4000, generator=torch.Generator().manual_seed(0)), 2)
    assert spread.mean(0).tolist() == pytest.approx([0.5, 0.5], abs=0.02)
    assert abs(float(torch.corrcoef(spread.T)[0, 1])) < 0.05
