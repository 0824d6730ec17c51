"""An edited policy: it begins as its base, edits stay in bounds, the critic chooses, it comes back from disk."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from robopolicy.config.instantiate import build
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.policies.base import SEEN
from robopolicy.policies.edited import EditedPolicy, make_edited
from robopolicy.policies.finetuning import finetuned
from robopolicy.policies.io import load_policy, save_policy
from tests.fakes import PointPolicy
from tests.policies.test_steered import KINDS, NODES, base_of, look

CRITIC = {"_target_": "ensemble", "_partial_": True, "heads": 3, "width": 16, "depth": 1}


def edited_of(kind: str = "flow", **options: Any) -> EditedPolicy:
    policy = make_edited(base_of(kind), **{"critic": CRITIC, "samples": 3, "hidden": (16,), **options})
    assert isinstance(policy, EditedPolicy)
    return policy


def stirred(policy: EditedPolicy) -> EditedPolicy:
    """Give the edits and the critic random weights."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in (*policy.net.parameters(), *policy.critic.parameters()):
            parameter.normal_(std=0.5)
    return policy


def noise_of(policy: EditedPolicy, count: int = 6) -> Tensor:
    return torch.randn(count, *policy.noise_shape, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("kind", KINDS)
def test_before_training_it_is_the_base(kind: str):
    policy, base, obs = edited_of(kind), base_of(kind), look()
    noise = noise_of(policy)
    low, high = (torch.tensor(limits) for limits in (base.spec.action.low, base.spec.action.high))
    want = base.act(obs, noise=noise[:, 0]).clamp(low, high)
    torch.testing.assert_close(policy.act(obs, noise=noise), want)
    still = base.act(obs, deterministic=True).clamp(low, high)
    torch.testing.assert_close(policy.act(obs, deterministic=True), still)


def test_edits_stay_within_their_bound_and_the_limits_and_leave_later_steps():
    policy = stirred(edited_of(bound=0.3))
    cond = 5.0 * torch.randn(32, policy.cond_dim)
    chunk = policy.candidates(cond, noise_of(policy, 32)).detach()
    drawn, edited = chunk[:, :3], chunk[:, 3:]
    moved = (edited - drawn)[:, :, : policy.played].abs()
    assert 0.1 < float(moved.max()) <= 0.3 + 1e-6
    assert torch.equal(edited[:, :, policy.played :], drawn[:, :, policy.played :])
    low, high = policy.limits
    assert (chunk >= low - 1e-6).all() and (chunk <= high + 1e-6).all()


def test_it_plays_the_candidate_whose_gain_less_the_heads_deviation_is_highest():
    policy = edited_of(confidence=2.0)
    cond, noise = torch.randn(5, policy.cond_dim), noise_of(policy, 5)
    chunk = policy.candidates(cond, noise).detach()  # [5 6 H Da]
    # An offset of a head changes nothing.
    policy.critic.forward = lambda features, action: torch.stack([k * action[:, 0] + k for k in (1.0, 3.0, 2.0)])
    gain = torch.stack([k * (chunk[:, :, 0, 0] - chunk[:, :3, 0, 0].mean(1, keepdim=True)) for k in (1.0, 3.0, 2.0)])
    want = (gain.mean(0) - 2.0 * gain.std(0, correction=0)).argmax(1)
    assert torch.equal(policy.sample(cond, noise=noise), chunk[torch.arange(5), want])
    other = policy.sample(cond, noise=noise.flip(1))[:, 0, 0]
    assert torch.equal(other, chunk[torch.arange(5), want][:, 0, 0]), "in any order"


def test_only_the_edits_have_gradients_and_nothing_is_shared_with_the_base():
    base, obs = base_of(), look()
    policy = stirred(make_edited(base, critic=CRITIC, samples=2, hidden=(16,)))  # type: ignore[arg-type]
    want = policy.act(obs, deterministic=True)
    with torch.no_grad():
        for value in (*base.parameters(), *base.buffers()):
            value.zero_()
    assert torch.equal(policy.act(obs, deterministic=True), want)
    learned = {id(p) for p in policy.finetuned_parameters()}
    assert all(p.requires_grad == (id(p) in learned) for p in policy.parameters())
    assert set(policy.replay_features(obs)) == {SEEN}


@pytest.mark.parametrize("kind", KINDS)
def test_it_comes_back_from_disk_with_its_critic_and_goes_on_from_there(kind: str, tmp_path):
    policy, obs = stirred(edited_of(kind)), look()
    noise = noise_of(policy)
    loaded = load_policy(save_policy(policy, tmp_path / "edited"))
    assert isinstance(loaded, EditedPolicy)
    assert torch.equal(loaded.act(obs, noise=noise), policy.act(obs, noise=noise))
    options = {"critic": CRITIC, "hidden": (16,)}
    assert make_edited(loaded, samples=3, **options) is loaded  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"base: is edited with .*'samples': 3"):
        make_edited(loaded, samples=4, **options)  # type: ignore[arg-type]


def test_bases_that_cannot_be_edited_are_refused():
    with pytest.raises(SpecError, match="PointPolicy"):
        make_edited(PointPolicy(), critic=CRITIC)
    with pytest.raises(ConfigError, match=r"base: 2 of its \d+ denoising steps are fine-tuned, and policy=edited"):
        make_edited(finetuned(base_of(), finetuned_steps=2), critic=CRITIC)
    with pytest.raises(ConfigError, match=r"policy\.sampling: \['hidden'\]"):
        edited_of(sampling={"hidden": 3})
    base = base_of()
    with pytest.raises(ConfigError, match=r"policy\.policy: expected a frozen diffusion"):
        build({"_target_": "edited", "policy": {**NODES["flow"], "finetuned_steps": 2}, "critic": CRITIC}, "policy",
              spec=base.spec, normalizer=base.normalizer)  # fmt: skip


def test_another_sampler_than_that_of_an_edited_base_is_refused():
    policy = edited_of(sampling={"sampling_steps": 3})
    more = {"critic": CRITIC, "samples": 3, "hidden": (16,)}
    assert make_edited(policy, **more, sampling={"sampling_steps": 3}) is make_edited(policy, **more) is policy
    with pytest.raises(ConfigError, match=r"base: is edited with .*'sampling_steps': 3.*'sampling_steps': 2"):
        make_edited(policy, **more, sampling={"sampling_steps": 2})
    assert make_edited(unchanged := edited_of(), **more, sampling={"noise_level": 0.0}) is unchanged, "its default"
