"""Real-time chunking on policies whose chunks lie on either of two sides, and whose network is known exactly."""

from __future__ import annotations

import math

import pytest
import torch

from robopolicy.core.errors import SpecError
from robopolicy.core.types import STATE
from robopolicy.policies.diffusion import DiffusionPolicy
from robopolicy.policies.flow import FlowPolicy
from robopolicy.policies.realtime_chunking import continue_chunk, longest_delay, weights
from tests import toy

H, TA, B = 8, 4, 300
LIMIT = toy.ACTION.high[1]
KINDS = {
    "flow": (FlowPolicy, {}),
    "flow_sde": (FlowPolicy, {"noise_level": 0.5}),
    "ddpm": (DiffusionPolicy, {"sampler": "ddpm"}),
    "ddim": (DiffusionPolicy, {"sampler": "ddim", "sampling_steps": 5}),
}


def case(kind: str, **options):
    """A policy, what it sees, what is left of old chunks [B 4 2], and fresh noise."""
    cls, more = KINDS[kind]
    policy = toy.two_sides(cls, toy.spec(horizon=H, n_action_steps=TA), **more, **options)
    generator = torch.Generator().manual_seed(0)
    obs = {STATE: torch.zeros(B, 1, 3)}
    noise, other = (torch.randn(B, *policy.noise_shape, generator=generator) for _ in range(2))
    return policy, obs, policy.act(obs, noise=other)[:, TA:], noise


def jump(chunk, left, delay):
    """[B] of y, in limits, where the new chunk takes over after `delay` steps of the old one."""
    return (chunk[:, delay, 1] - left[:, delay - 1, 1]).abs() / LIMIT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["rtc", "inpaint"])
def test_without_an_old_chunk_it_is_the_plain_sampler(kind, mode):
    policy, obs, left, noise = case(kind)
    chunk = continue_chunk(policy, obs, left[:, :0], delay=0, mode=mode, noise=noise)
    assert torch.equal(chunk, policy.act(obs, noise=noise))


@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_unrolled_is_the_chain(kind):
    """Nothing frozen, and guidance of no weight: the steps are those of `sample`."""
    policy, obs, left, noise = case(kind)
    plain = policy.act(obs, noise=noise)
    for mode, limit in (("rtc", 0.0), ("inpaint", 5.0)):
        chunk = continue_chunk(policy, obs, left, delay=0, mode=mode, noise=noise, limit=limit)
        torch.testing.assert_close(chunk, plain, rtol=0.0, atol=1e-5 * LIMIT)


@pytest.mark.parametrize("kind", KINDS)
def test_rtc_stays_on_its_side_where_naive_switching_jumps(kind):
    """The paper's motivating failure. Without guidance half of the seams are jumps from one side to the other."""
    policy, obs, left, noise = case(kind)
    naive = jump(policy.act(obs, noise=noise), left, 2)
    off = jump(continue_chunk(policy, obs, left, delay=2, noise=noise, limit=0.0), left, 2)
    rtc = jump(continue_chunk(policy, obs, left, delay=2, noise=noise), left, 2)
    assert (naive > 1.0).float().mean() > 0.4 and (off > 1.0).float().mean() > 0.4
    assert (rtc > 1.0).float().mean() < 0.15 and rtc.mean() < 0.3 * naive.mean()


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_prefix(kind):
    """Inpainted it is the old one bit for bit; guided it comes close, where the policy can reach it at all."""
    policy, obs, left, noise = case(kind)
    chunk = continue_chunk(policy, obs, left, delay=3, mode="inpaint", noise=noise)
    assert torch.equal(chunk[:, :3], left[:, :3])
    stayed = (chunk[:, 3:, 1].mean(1) * left[:, 0, 1] > 0).float().mean()
    plain = (policy.act(obs, noise=noise)[:, 3:, 1].mean(1) * left[:, 0, 1] > 0).float().mean()
    assert stayed > plain + 0.1, "what follows takes notice of the prefix"
    policy, obs, left, noise = case(kind, height=0.0, std=0.3)  # a single broad mode
    chunk = continue_chunk(policy, obs, left, delay=3, mode="rtc", noise=noise)
    plain = policy.act(obs, noise=noise)
    error, before = ((c[:, :3] - left[:, :3]).abs().mean() / LIMIT for c in (chunk, plain))
    assert error < 0.12 and error < 0.5 * before
    assert (chunk[:, 4:] - plain[:, 4:]).abs().max() / LIMIT < 1e-5, "what is beyond the old chunk is free"


def test_a_gaussian_is_guided_to_the_very_prefix():
    """Standard normal actions: the expected chunk is linear in the latent, and eq. 2 lands on Y by arithmetic."""
    policy, obs, left, noise = case("flow", height=0.0, std=1.0)
    chunk = continue_chunk(policy, obs, left, delay=4, noise=noise, limit=1e9)
    torch.testing.assert_close(chunk[:, :4], left, rtol=0.0, atol=1e-4 * LIMIT)


def test_weights_are_those_of_equation_5():
    """H = 6, H − s = 4, d = 2: c = 2/3 and 1/3."""
    soft = [c * (math.exp(c) - 1.0) / (math.e - 1.0) for c in (2 / 3, 1 / 3)]
    torch.testing.assert_close(weights(6, 4, 2), torch.tensor([1.0, 1.0, *soft, 0.0, 0.0]))
    assert weights(6, 4, 4).tolist() == [1.0] * 4 + [0.0] * 2
    assert 0.0 < float(weights(6, 4, 0)[0]) < 1.0


def test_what_does_not_fit_is_refused():
    policy, obs, left, noise = case("flow")
    for delay in (-1, 5):
        with pytest.raises(SpecError, match=rf"found a delay of {delay} control steps and 4 actions left"):
            continue_chunk(policy, obs, left, delay=delay, noise=noise)
    assert longest_delay(toy.spec(horizon=8, n_action_steps=6)) == 2
    assert longest_delay(toy.spec(horizon=8, n_action_steps=3)) == 3
    assert longest_delay(toy.spec(horizon=8, n_action_steps=8)) == 0
