"""residual.py: the correction on top of a base inside and outside the box of actions."""

from __future__ import annotations

import pytest
import torch

from robopolicy.policies.normalizer import Normalizer
from robopolicy.policies.residual import ResidualPolicy
from tests.fakes import PointPolicy


def residual(**options: object) -> ResidualPolicy:
    base = PointPolicy(chunk=3)
    normalizer = Normalizer.from_limits(base.spec.observation, base.spec.action)
    return ResidualPolicy(base.spec, normalizer, base, hidden=(8,), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("outside", [1.4, -3.0])
def test_a_base_outside_the_box_is_corrected_by_gradient(outside: float) -> None:
    """Descent from u = 0 reaches a target inside the box; every component of the gradient is the scale at first."""
    policy = residual(scale=1.5)
    base = torch.full((1, 2), outside)
    u = torch.zeros(1, 2, requires_grad=True)
    target = torch.full((1, 2), -0.46 if outside > 0 else 0.46)
    (slope,) = torch.autograd.grad(policy.combine(base, u).sum(), u)
    assert torch.equal(slope, policy.scale[None])
    for _ in range(50):
        (slope,) = torch.autograd.grad((policy.combine(base, u) - target).square().sum(), u)
        u = (u - 0.1 * slope).clamp(-1.0, 1.0).detach().requires_grad_()
    torch.testing.assert_close(policy.combine(base, u).detach(), target, atol=1e-3, rtol=0.0)


def test_without_a_correction_the_clamped_base_acts_to_the_digit() -> None:
    policy = residual()
    base = 3.0 * torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    assert bool((base.abs() > 1.0).any())
    assert torch.equal(policy.combine(base, torch.zeros(500, 2)), base.clamp(policy.low, policy.high))


def test_the_box_bounds_every_correction() -> None:
    policy = residual(scale=3.0)
    base, u = 3.0 * torch.randn(500, 2), torch.rand(500, 2) * 2.0 - 1.0
    full = policy.combine(base, u)
    assert bool((full >= policy.low).all() and (full <= policy.high).all())
