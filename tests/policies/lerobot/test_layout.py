"""Latents and encoded observations of LeRobot's VLAs as numbers."""

from __future__ import annotations

import torch

from robopolicy.networks.mlp import MLP, ValueMLP
from robopolicy.policies.lerobot.layout import NetworkLayout, Sizes


def test_latents_as_rows():
    """By hand: H = 2 of Dl = 5 in rows of Da = 2, and of Da = 3 with a row to fill up."""
    x = torch.arange(10.0).view(1, 2, 5)
    two, three, all_five = NetworkLayout(2, 2, 5), NetworkLayout(2, 3, 5), NetworkLayout(2, 5, 5)
    assert two.pack(x).tolist() == [[[0, 1], [5, 6], [2, 3], [4, 7], [8, 9]]] and two.rows == 5
    assert three.pack(x).tolist() == [[[0, 1, 2], [5, 6, 7], [3, 4, 8], [9, 0, 0]]] and three.rows == 4
    assert torch.equal(all_five.pack(x), x) and all_five.rows == 2
    for layout in (two, three, all_five):
        assert torch.equal(layout.unpack(layout.pack(x)), x)


def test_values_read_the_first_numbers_alone():
    torch.manual_seed(0)
    value = ValueMLP(3, 1, width=8)
    cond = torch.randn(2, 7)
    assert torch.equal(value(cond), MLP.forward(value, cond[:, :3]))


def test_tokens_of_an_encoded_observation():
    """By hand: 3 layers of keys and values, 2 heads of 4: 48 numbers a token and its mark, 24 where two lie in one."""
    sizes = Sizes(width=5, state=2, layers=3, heads=2, head_dim=4)
    assert sizes.tokens(7 + 10 * 49, compact=False) == 10
    assert sizes.tokens(7 + 10 * 25, compact=True) == 10
