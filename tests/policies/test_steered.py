"""A steered policy: it begins as its base, only its steering differs, it comes back from disk, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from robopolicy.config.instantiate import build
from robopolicy.core.errors import CheckpointError, ConfigError, SpecError
from robopolicy.core.types import STATE
from robopolicy.policies.base import SEEN
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.factory import build_policy
from robopolicy.policies.finetuning import finetuned
from robopolicy.policies.io import load_policy, save_policy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.policies.steered import SteeredPolicy, make_steered
from tests.fakes import PointPolicy

NETWORK = {"_target_": "residual_mlp", "_partial_": True, "width": 32, "time_dim": 16}
NODES: dict[str, dict[str, Any]] = {
    "ddpm": {"_target_": "diffusion", "denoising_steps": 5, "network": NETWORK},
    "ddim": {"_target_": "diffusion", "denoising_steps": 5, "sampler": "ddim", "network": NETWORK},
    "flow": {"_target_": "flow", "sampling_steps": 5, "network": NETWORK},
    "flow_sde": {"_target_": "flow", "sampling_steps": 5, "noise_level": 0.5, "network": NETWORK},
}
KINDS = sorted(NODES)


def base_of(kind: str = "flow", **options: Any) -> ChunkDenoiser:
    """A denoiser of the point, as a checkpoint gives it."""
    torch.manual_seed(0)
    spec = PointPolicy(chunk=3).spec
    normalizer = Normalizer.from_limits(spec.observation, spec.action)
    normalizer._affine(STATE).set(torch.tensor([0.0, 0.0, 500.0, 6.0]), torch.tensor([0.3, 0.3, 500.0, 6.0]))
    policy = build_policy({**NODES[kind], **options}, spec=spec, normalizer=normalizer)
    assert isinstance(policy, ChunkDenoiser)
    return policy.eval()


def stirred(policy: SteeredPolicy) -> SteeredPolicy:
    """Give the steering random weights."""
    with torch.no_grad():
        for parameter in policy.net.parameters():
            parameter.normal_(std=0.5)
    return policy


def look(count: int = 6) -> dict[str, torch.Tensor]:
    return {STATE: torch.randn(count, 1, 4, generator=torch.Generator().manual_seed(1))}


@pytest.mark.parametrize("kind", KINDS)
def test_before_training_it_is_the_base_without_later_noise(kind: str):
    base, obs = base_of(kind), look()
    policy, noise = make_steered(base), torch.randn(6, 4, 2)
    still = base.changed(**({"sampler": "ddim"} if kind.startswith("dd") else {"noise_level": 0.0})).eval()
    still.load_state_dict(base.state_dict())
    assert policy.noise_shape == still.noise_shape == (4, 2)
    assert torch.equal(policy.act(obs, noise=noise), still.act(obs, noise=noise))
    assert torch.equal(policy.act(obs, deterministic=True), still.act(obs, deterministic=True))


def test_the_chain_begins_at_mean_and_deviation_within_their_bounds():
    policy = stirred(make_steered(base_of(), bound=0.5))
    cond, noise = 50.0 * torch.randn(64, policy.cond_dim), torch.randn(64, 4, 2)
    mean, log_std = (x.detach() for x in policy.distribution(cond))
    assert 0.4 < float(mean.abs().max()) <= 0.5 and 1.5 < float(log_std.abs().max()) <= 2.0
    w = mean + log_std.exp() * noise
    assert torch.equal(policy.sample(cond, noise=noise), policy.chain.sample(cond, noise=w))
    assert not torch.allclose(policy.sample(cond, noise=noise), policy.chain.sample(cond, noise=noise), atol=0.05)
    more = torch.cat([cond, torch.randn(64, 3)], dim=1)  # what a VLA's cond holds for its expert alone
    assert torch.equal(policy.distribution(more)[0], mean)


def test_it_stands_by_itself_and_only_the_steering_has_gradients():
    base = base_of()
    policy, obs = stirred(make_steered(base)), look()
    want = policy.act(obs, deterministic=True)
    with torch.no_grad():
        for value in (*base.parameters(), *base.buffers()):
            value.zero_()
    assert torch.equal(policy.act(obs, deterministic=True), want), "nothing is shared with the base"
    learned = {id(p) for p in policy.finetuned_parameters()}
    assert learned == {id(p) for n, p in policy.named_parameters() if n.startswith("net.")}
    assert all(p.requires_grad == (id(p) in learned) for p in policy.parameters())
    assert set(policy.replay_features(obs)) == {SEEN}


@pytest.mark.parametrize("kind", KINDS)
def test_it_comes_back_from_disk_and_goes_on_from_there(kind: str, tmp_path):
    policy, obs, noise = stirred(make_steered(base_of(kind), hidden=(8,))), look(), torch.randn(6, 4, 2)
    loaded = load_policy(save_policy(policy, tmp_path / "steered"))
    assert isinstance(loaded, SteeredPolicy) and loaded.base is None
    assert torch.equal(loaded.act(obs, noise=noise), policy.act(obs, noise=noise))
    assert make_steered(loaded, hidden=(8,)) is loaded
    with pytest.raises(ConfigError, match=r"base: is steered with \{'hidden': \[8\], 'bound': 1.5\}"):
        make_steered(loaded)


def test_the_chain_may_have_fewer_steps():
    policy = make_steered(base_of("ddpm"), sampling={"sampling_steps": 2})
    assert len(policy.times) == 2 and policy.config["policy"]["sampling_steps"] == 2


def test_bases_that_cannot_be_steered_are_refused():
    with pytest.raises(SpecError, match="PointPolicy"):
        make_steered(PointPolicy())
    with pytest.raises(ConfigError, match=r"base: 2 of its \d+ denoising steps are fine-tuned, and policy=steered"):
        make_steered(finetuned(base_of(), finetuned_steps=2))
    remembering = base_of()
    remembering.memory = object()  # type: ignore[assignment]
    with pytest.raises(SpecError, match="retrieval memory"):
        make_steered(remembering)
    with pytest.raises(ConfigError, match=r"policy\.sampling: \['hidden'\]"):
        make_steered(base_of(), sampling={"hidden": 3})
    with pytest.raises(ConfigError, match=r"policy\.policy: expected a frozen diffusion"):
        make_steered(base_of(), sampling={"noise_level": 0.5})
    with pytest.raises(SpecError, match="SteeredPolicy has not"):
        finetuned(make_steered(base_of()))


@pytest.mark.parametrize("inner", [{**NODES["flow"], "finetuned_steps": 2}, NODES["ddpm"], {"_target_": "zero_action"}])
def test_a_node_of_another_policy_is_refused(inner: dict[str, Any]):
    base = base_of()
    known = {"spec": base.spec, "normalizer": base.normalizer}
    if inner["_target_"] == "zero_action":
        inner = {"_target_": "gaussian", "network": {"_target_": "mlp", "_partial_": True, "width": 8}}
    with pytest.raises(ConfigError, match=r"policy\.policy: expected a frozen diffusion"):
        build({"_target_": "steered", "policy": inner}, "policy", **known)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    policy = make_steered(base_of())
    policy.config = {**policy.config, "policy": {"_target_": "no_such_policy"}}
    with pytest.raises(CheckpointError, match="no_such_policy"):
        load_policy(save_policy(policy, tmp_path / "steered"))


def test_another_sampler_than_that_of_a_steered_base_is_refused():
    policy = make_steered(base_of("ddpm"), sampling={"sampling_steps": 3})
    assert make_steered(policy, sampling={"sampling_steps": 3}) is make_steered(policy) is policy
    with pytest.raises(ConfigError, match=r"base: is steered with .*'sampling_steps': 3.*'sampling_steps': 2"):
        make_steered(policy, sampling={"sampling_steps": 2})
