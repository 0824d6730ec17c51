from __future__ import annotations

import torch
import torch.nn.functional as F

from robopolicy.networks.critics import CriticEnsemble


def test_every_head_equals_its_own_plain_network():
    critic = CriticEnsemble(7, heads=4, width=16, depth=2)
    with torch.no_grad():
        for p in critic.parameters():
            p.add_(0.1 * torch.randn_like(p))
    state, action = torch.randn(5, 4), torch.randn(5, 3)
    q = critic(state, action)
    assert q.shape == (4, 5)
    for e in range(4):
        x = torch.cat([state, action], dim=1)
        for linear, norm in zip(critic.linears, critic.norms, strict=True):
            x = F.linear(x, linear.weight[e].T, linear.bias[e, 0])
            x = torch.relu(F.layer_norm(x, (16,), norm.weight[e, 0], norm.bias[e, 0]))
        last = critic.last
        want = F.linear(x, last.weight[e].T, last.bias[e, 0])[:, 0]
        assert torch.allclose(q[e], want, atol=1e-5)
    assert torch.allclose(critic(state, action, torch.tensor([2, 0])), q[[2, 0]], atol=1e-6)


def test_parameters_keep_their_order():
    """States of optimisers are saved by position: in another order a resumed run would go on with another's."""
    assert [name for name, _ in CriticEnsemble(5, heads=2, width=8, depth=1).named_parameters()] == [
        "linears.0.weight", "linears.0.bias", "norms.0.weight", "norms.0.bias", "last.weight", "last.bias"
    ]  # fmt: skip


def test_heads_start_different_and_gradients_stay_apart():
    critic = CriticEnsemble(5, heads=3, width=8, depth=1)
    q = critic(torch.randn(6, 3), torch.randn(6, 2))
    assert not torch.allclose(q[0], q[1])
    q[1].sum().backward()
    grad = critic.linears[0].weight.grad
    assert grad[1].abs().sum() > 0 and grad[0].abs().sum() == 0 and grad[2].abs().sum() == 0
