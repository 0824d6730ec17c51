from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robopolicy.networks.denoiser import Denoiser, Mish, TimeFeatures, sees_time
from robopolicy.networks.mlp import MLP, ResidualMLP
from robopolicy.networks.transformer import Attention, Transformer, attention
from robopolicy.networks.unet1d import Conv, ResidualBlock, UNet1d, Upsample

DENOISERS = {
    "mlp": partial(ResidualMLP, width=32, time_dim=8),
    "unet1d": partial(UNet1d, dims=(16, 32, 64), time_dim=8),
    "transformer": partial(Transformer, width=32, depth=2, time_dim=8),
}


def build(make: Callable[..., Denoiser], horizon: int, action_dim: int = 3) -> Denoiser:
    """With random weights everywhere, so that nothing is hidden behind a zero initialisation."""
    torch.manual_seed(0)
    network = make(horizon=horizon, action_dim=action_dim, cond_dim=5)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return network


def inputs(horizon: int, action_dim: int = 3, batch: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(batch, horizon, action_dim), torch.rand(batch), torch.randn(batch, 5)


@pytest.mark.parametrize("make", DENOISERS.values(), ids=DENOISERS)
@pytest.mark.parametrize("horizon", [1, 2, 5, 7, 8, 16])
def test_any_horizon(make: Callable[..., Denoiser], horizon: int):
    x, t, cond = inputs(horizon)
    y = build(make, horizon)(x, t, cond)
    assert y.shape == x.shape
    assert bool(y.isfinite().all())


@pytest.mark.parametrize("make", DENOISERS.values(), ids=DENOISERS)
def test_every_parameter_and_input_matters(make: Callable[..., Denoiser]):
    network = build(make, 8)
    x, t, cond = (v.requires_grad_() for v in inputs(8))
    network(x, t, cond).square().sum().backward()
    for name, p in [*network.named_parameters(), ("x", x), ("t", t), ("cond", cond)]:
        assert p.grad is not None, name
        assert float(p.grad.abs().sum()) > 0, name
    assert float(x.grad.abs().amin()) > 0  # every element of the chunk


@pytest.mark.parametrize("make", DENOISERS.values(), ids=DENOISERS)
def test_every_step_of_the_chunk_sees_every_other(make: Callable[..., Denoiser]):
    network = build(make, 8)
    x, t, cond = inputs(8, batch=1)
    jacobian = torch.autograd.functional.jacobian(lambda z: network(z, t, cond).sum(-1)[0], x)  # [8 1 8 Da]
    assert float(jacobian.abs().sum(-1).min()) > 0


@pytest.mark.parametrize("make", DENOISERS.values(), ids=DENOISERS)
def test_rows_of_a_batch_do_not_mix(make: Callable[..., Denoiser]):
    network = build(make, 7)
    x, t, cond = inputs(7)
    alone = torch.cat([network(x[i : i + 1], t[i : i + 1], cond[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(network(x, t, cond), alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", DENOISERS.values(), ids=DENOISERS)
def test_the_embedding_is_a_sum_and_one_time_serves_a_batch(make: Callable[..., Denoiser]):
    network = build(make, 8)
    x, _, cond = inputs(8)
    t = torch.tensor([0.3])
    split = network.denoise(x, network.embed_cond(cond) + network.embed_time(t)[0])
    torch.testing.assert_close(split, network(x, t.expand(4), cond), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", DENOISERS.values(), ids=DENOISERS)
def test_without_time_features_the_time_changes_nothing(make: Callable[..., Denoiser]):
    timed, network = build(make, 8), build(partial(make, time_dim=0), 8)
    x, t, cond = inputs(8)
    assert sees_time(timed) and not sees_time(network)
    assert torch.equal(network(x, t, cond), network(x, 1 - t, cond))
    assert torch.equal(network(x, t, cond), network.denoise(x, network.embed_cond(cond)))


def test_mish_value_and_gradient():
    x = torch.linspace(-30, 30, 20_001, dtype=torch.float64).requires_grad_()
    ours, theirs = Mish()(x), F.mish(x)  # long enough to take the fast path
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-9)
    ours_grad, theirs_grad = torch.autograd.grad(ours.sum(), x)[0], torch.autograd.grad(theirs.sum(), x)[0]
    torch.testing.assert_close(ours_grad, theirs_grad, atol=1e-12, rtol=1e-9)
    half = torch.linspace(-100, 100, 20_001)
    torch.testing.assert_close(Mish()(half), F.mish(half), atol=2e-6, rtol=1e-5)


def test_time_features_tell_a_hundred_steps_apart():
    features = TimeFeatures(32)(torch.arange(100) / 100)
    distance = torch.cdist(features, features) + 10 * torch.eye(100)
    assert features.shape == (100, 32)
    assert float(distance.min()) > 0.3
    with pytest.raises(ValueError, match="even"):
        TimeFeatures(5)


@pytest.mark.parametrize(("kernel", "stride"), [(5, 1), (3, 2), (1, 1)])
def test_convolution_equals_conv1d(kernel: int, stride: int):
    conv = Conv(6, 4, kernel, stride=stride)
    x = torch.randn(3, 9, 6)  # [B H C]
    weight = conv.weight[:, 0].transpose(1, 2)  # [out in kernel]
    want = F.conv1d(x.transpose(1, 2), weight, conv.bias, stride=stride, padding=kernel // 2)
    torch.testing.assert_close(conv(x.transpose(1, 2).unsqueeze(2)).squeeze(2), want)


def test_upsampling_equals_conv_transpose1d():
    up = Upsample(6)
    x = torch.randn(3, 6, 5)
    want = F.conv_transpose1d(x, up.weight[:, 0].transpose(1, 2), up.bias, stride=2, padding=1)
    assert want.shape == (3, 6, 10)
    torch.testing.assert_close(up(x.unsqueeze(2)).squeeze(2), want)


def test_residual_block_equals_its_definition():
    block = ResidualBlock(6, 8, 5, 4)
    x, film = torch.randn(2, 6, 1, 7), torch.randn(2, 2, 8, 1, 1)

    def conv_block(part: nn.Sequential, z: Tensor) -> Tensor:
        z = F.conv1d(z, part[0].weight[:, 0].transpose(1, 2), part[0].bias, padding=2)
        return F.mish(F.group_norm(z, 4, part[1].weight, part[1].bias))

    flat, (scale, shift) = x.squeeze(2), film.squeeze(-1)
    skip = F.conv1d(flat, block.skip.weight[:, 0].transpose(1, 2), block.skip.bias)
    want = conv_block(block.second, conv_block(block.first, flat) * scale + shift) + skip
    torch.testing.assert_close(block(x, *film).squeeze(2), want, rtol=1e-4, atol=1e-5)


def test_unet_has_the_parameters_of_lerobots():
    # DiffusionConditionalUnet1d of lerobot 0.6.1: down_dims=(64, 128, 256), kernel 5, step embedding 128, FiLM scale,
    # 5 action and 25 condition dimensions.
    network = UNet1d(horizon=16, action_dim=5, cond_dim=25, dims=(64, 128, 256), kernel=5, time_dim=128)
    assert sum(p.numel() for p in network.parameters()) == 4_507_141


def test_attention_equals_torchs():
    ours = Attention(16, 4)
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    theirs.in_proj_weight, theirs.in_proj_bias = ours.qkv.weight, ours.qkv.bias
    theirs.out_proj.weight, theirs.out_proj.bias = ours.out.weight, ours.out.bias
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(ours(x), theirs(x, x, x, need_weights=False)[0], rtol=1e-4, atol=1e-5)


def test_transformer_starts_as_a_map_of_each_step():
    """Gates start at zero: before training, no step sees another and the observation has no effect."""
    network = Transformer(horizon=4, action_dim=2, cond_dim=5, width=32, depth=2)
    x, t, cond = torch.randn(3, 4, 2), torch.rand(3), torch.randn(3, 5)
    torch.testing.assert_close(network(x, t, cond), network(x, t, cond + 1.0))


def test_mlp_layers():
    net = MLP(3, 2, width=8, depth=2, norm=True)
    assert [type(m).__name__ for m in net] == ["Linear", "LayerNorm", "SiLU"] * 2 + ["Linear"]
    assert net.out_dim == 2
    assert net(torch.randn(5, 3)).shape == (5, 2)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_in_bfloat16_is_that_in_float32_to_its_precision(masked: bool):
    torch.manual_seed(0)
    parts = [torch.randn(3, 2, 5, 8) for _ in range(3)]
    mask = torch.ones(5, 5, dtype=torch.bool).tril().expand(3, 1, 5, 5) if masked else None
    full, half = ([p.clone().to(kind).requires_grad_() for p in parts] for kind in (torch.float32, torch.bfloat16))
    a, b = attention(*full, mask), attention(*half, mask)
    assert b.dtype == torch.bfloat16
    torch.testing.assert_close(b.float(), a, atol=0.03, rtol=0.03)
    for found, seen in ((a, full), (b, half)):
        found.float().square().sum().backward()
        assert bool((seen[2].grad[:, :, -1].float().abs().sum() > 0).all()), "the last row sees the last column"
    for p, q in zip(full, half, strict=True):
        torch.testing.assert_close(q.grad.float(), p.grad, atol=0.1, rtol=0.05)
    if masked:
        changed = [p.clone() for p in parts]
        changed[1][:, :, 3:], changed[2][:, :, 3:] = 9.0, -9.0
        again = attention(*(p.bfloat16() for p in changed), mask)
        assert torch.equal(again[:, :, :3], b[:, :, :3]) and not torch.equal(again[:, :, 3:], b[:, :, 3:])
