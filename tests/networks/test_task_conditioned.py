"""Weights for each task: the layout is `by_task`'s, and the products are those of the written-out layout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from robopolicy.networks.critics import CriticEnsemble
from robopolicy.networks.task_conditioned import TaskLayout, TaskLinear, by_task

LAYOUT, REST = TaskLayout(seen=5, tasks=4), 2


def batch(*tasks: int) -> tuple[Tensor, Tensor, Tensor]:
    """What is read [B 5 + 4], the rest [B 2], and both written out [B 5·5 + 4 + 2]."""
    generator = torch.Generator().manual_seed(1)
    seen, rest = (torch.randn((len(tasks), n), generator=generator) for n in (LAYOUT.seen, REST))
    number = torch.tensor(tasks)
    one = nn.functional.one_hot(number, LAYOUT.tasks).float()
    whole = torch.cat([by_task(seen, number, LAYOUT.tasks), one, rest], dim=1)
    return torch.cat([seen, one], dim=1), rest, whole


@pytest.mark.parametrize("tasks", [(2, 0, 3, 0, 1, 2, 2), (3, 1), (1,), (2, 2, 2)])
def test_a_layer_is_the_one_of_the_written_out_layout(tasks: tuple[int, ...]):
    state, rest, whole = batch(*tasks)
    layer = TaskLinear(LAYOUT, REST, 6)
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
    critic = CriticEnsemble(whole.shape[1], heads=3, width=8, depth=depth, layout=LAYOUT)
    torch.manual_seed(0)
    plain = CriticEnsemble(whole.shape[1], heads=3, width=8, depth=depth)
    assert all(torch.equal(a, b) for a, b in zip(critic.parameters(), plain.parameters(), strict=True))
    wide, heads = whole[:, :-REST], torch.tensor([2, 0])
    torch.testing.assert_close(critic(state, action), plain(wide, action))
    torch.testing.assert_close(critic(state, action, heads), plain(wide, action, heads))
    critic(state, action).square().sum().backward(), plain(wide, action).square().sum().backward()
    for found, want in zip(critic.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, want.grad)


def test_gradients_lie_as_their_parameters_do():
    """A fused optimiser on a CPU goes through both as they lie in memory: other strides would scramble the step."""
    state, rest, _ = batch(2, 0, 3, 0, 1, 2, 2)
    layer, critic = TaskLinear(LAYOUT, REST, 6), CriticEnsemble(LAYOUT.own + 4 + REST, heads=3, width=8, layout=LAYOUT)
    for module, found in ((layer, layer(torch.cat([state, rest], dim=1))), (critic, critic(state, rest))):
        torch.autograd.backward(found.square().sum(), inputs=list(module.parameters()))
        assert all(p.grad.stride() == p.stride() for p in module.parameters())


class WrittenOut(nn.Module):
    """A network of the written-out layout, called as one of the layout is."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        seen, number = x[:, : LAYOUT.seen], x[:, LAYOUT.seen : LAYOUT.seen + LAYOUT.tasks].argmax(1)
        return self.net(torch.cat([by_task(seen, number, LAYOUT.tasks), x[:, LAYOUT.seen :]], dim=1), *more)


def test_optimisers_take_the_same_steps():
    """Adam, fused as learners have it, through a critic, as an actor's gradient comes."""
    torch.manual_seed(0)
    layer = TaskLinear(LAYOUT, REST, 2)
    plain = nn.Linear(layer.in_features, 2)
    plain.load_state_dict(layer.state_dict())
    sides = []
    for net in (layer, WrittenOut(plain)):
        torch.manual_seed(1)
        critic = CriticEnsemble(LAYOUT.own + LAYOUT.tasks + 2, heads=2, width=8, layout=LAYOUT)
        optimizer = torch.optim.Adam(list(net.parameters()), lr=1e-2, fused=True)
        for step in range(20):
            state, rest, _ = batch(*torch.randint(0, 4, (6,), generator=torch.Generator().manual_seed(step)).tolist())
            optimizer.zero_grad(set_to_none=True)
            loss = -critic(state, torch.tanh(net(torch.cat([state, rest], dim=1)))).mean()
            torch.autograd.backward(loss, inputs=list(net.parameters()))
            optimizer.step()
        sides.append(list(net.parameters()))
    for found, want in zip(*sides, strict=True):
        torch.testing.assert_close(found, want)
