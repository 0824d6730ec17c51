"""Weights for each task: the layout is `by_task`'s, and the products are those of the written-out layout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from robopolicy.networks.by_task import Told, ToldLinear, by_task
from robopolicy.networks.critics import CriticEnsemble

TOLD, REST = Told(seen=5, tasks=4), 2


def batch(*tasks: int) -> tuple[Tensor, Tensor, Tensor]:
    """What is read [B 5 + 4], the rest [B 2], and both written out [B 5·5 + 4 + 2]."""
    generator = torch.Generator().manual_seed(1)
    seen, rest = (torch.randn((len(tasks), n), generator=generator) for n in (TOLD.seen, REST))
    number = torch.tensor(tasks)
    one = nn.functional.one_hot(number, TOLD.tasks).float()
    whole = torch.cat([by_task(seen, number, TOLD.tasks), one, rest], dim=1)
    return torch.cat([seen, one], dim=1), rest, whole


@pytest.mark.parametrize("tasks", [(2, 0, 3, 0, 1, 2, 2), (3, 1), (1,), (2, 2, 2)])
def test_a_layer_is_the_one_of_the_written_out_layout(tasks: tuple[int, ...]):
    state, rest, whole = batch(*tasks)
    layer = ToldLinear(TOLD, REST, 6)
    plain = nn.Linear(layer.in_features, 6)
    plain.load_state_dict(layer.state_dict())
    x = torch.cat([state, rest], dim=1).requires_grad_()
    wide = whole.clone().requires_grad_()
    found, want = layer(x), plain(wide)
    torch.testing.assert_close(found, want)
    weight = torch.randn_like(found)
    (found * weight).sum().backward(), (want * weight).sum().backward()
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad)
    torch.testing.assert_close(layer.bias.grad, plain.bias.grad)
    torch.testing.assert_close(x.grad[:, -REST:], wide.grad[:, -REST:])  # what an actor's gradient goes through


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_critics_are_those_of_the_written_out_layout(depth: int):
    state, action, whole = batch(2, 0, 3, 0, 1, 2, 2)
    torch.manual_seed(0)
    critic = CriticEnsemble(whole.shape[1], heads=3, width=8, depth=depth, told=TOLD)
    torch.manual_seed(0)
    plain = CriticEnsemble(whole.shape[1], heads=3, width=8, depth=depth)
    assert all(torch.equal(a, b) for a, b in zip(critic.parameters(), plain.parameters(), strict=True))
    wide, heads = whole[:, :-REST], torch.tensor([2, 0])
    torch.testing.assert_close(critic(state, action), plain(wide, action))
    torch.testing.assert_close(critic(state, action, heads), plain(wide, action, heads))
    critic(state, action).square().sum().backward(), plain(wide, action).square().sum().backward()
    for found, want in zip(critic.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, want.grad)
