"""Denoising chains as processes: what was drawn is what is scored, by every sampler and for every split."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from robopolicy.core.errors import CheckpointError, ConfigError, RobopolicyError, SpecError
from robopolicy.core.types import STATE
from robopolicy.networks.denoiser import Denoiser
from robopolicy.networks.lora import adapt, plain_state
from robopolicy.networks.mlp import ResidualMLP
from robopolicy.networks.transformer import Transformer
from robopolicy.networks.unet1d import UNet1d
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.denoising_chain import ChainNoise, DenoisingChain, FloorNoise, LearnedNoise, gaussian_log_prob
from robopolicy.policies.diffusion import DiffusionPolicy
from robopolicy.policies.finetuning import finetuned, resampled
from robopolicy.policies.flow import FlowPolicy
from robopolicy.policies.gaussian import GaussianPolicy
from robopolicy.policies.lerobot.flow import ExpertOptions
from robopolicy.runs.checkpointer import load_policy, save_policy
from tests.toy import policy, random_episodes

DATA = random_episodes()
SAMPLERS: dict[str, tuple[type[ChunkDenoiser], dict[str, Any]]] = {
    "ddpm": (DiffusionPolicy, {"denoising_steps": 4}),
    "ddpm_sample": (DiffusionPolicy, {"denoising_steps": 4, "prediction": "sample"}),
    "ddpm_velocity": (DiffusionPolicy, {"denoising_steps": 4, "prediction": "v_prediction"}),
    "ddim": (DiffusionPolicy, {"denoising_steps": 20, "sampler": "ddim", "sampling_steps": 4}),
    "ddim_stochastic": (DiffusionPolicy, {"denoising_steps": 20, "sampler": "ddim", "eta": 1.0, "sampling_steps": 4}),
    "flow": (FlowPolicy, {"sampling_steps": 4}),
    "flow_sde": (FlowPolicy, {"sampling_steps": 4, "noise_level": 0.5}),
    "unet": (DiffusionPolicy, {"denoising_steps": 4, "network": partial(UNet1d, dims=(16, 32), time_dim=16)}),
}
every = pytest.mark.parametrize("name", SAMPLERS)
splits = pytest.mark.parametrize("steps", [1, 2, 4])


def make(name: str, steps: int, **options: Any) -> ChunkDenoiser:
    kind, fixed = SAMPLERS[name]
    made = policy(kind, DATA, finetuned_steps=steps, **{**fixed, **options})
    torch.manual_seed(1)
    with torch.no_grad():  # halves that differ, and outputs of ordinary size
        for p in (*made.network.parameters(), *made.finetuned.parameters()):
            p.add_(0.1 * torch.randn_like(p))
    return made


def noise_of(kind: type[ChainNoise], made: ChunkDenoiser) -> ChainNoise:
    noise = kind(cond_dim=made.cond_dim, action_dim=2, steps=made.finetuned_steps)
    for p in noise.parameters():
        torch.nn.init.normal_(p)
    return noise.to(made.times.dtype)


def draw(made: ChunkDenoiser, noise: ChainNoise, count: int = 6) -> tuple[Tensor, Tensor, DenoisingChain]:
    dtype = made.times.dtype
    cond = made.encode({STATE: torch.randn(count, 1, 3, dtype=dtype)})
    normal = torch.randn(count, *made.chain_noise_shape, dtype=dtype)
    return cond, normal, made.sample_chain(cond, noise=normal, spread=noise)


def scored(made: ChunkDenoiser, noise: ChainNoise, cond: Tensor, chain: DenoisingChain) -> Tensor:
    """[B K' Ta Da] log-probs of a chain, every step asked anew, in an order of its own."""
    count, steps = len(cond), made.finetuned_steps
    rows = torch.randperm(count * steps)
    chunk, k = rows // steps, rows % steps
    mean, own = made.transition(cond[chunk], chain.x[chunk, k], k)
    found = gaussian_log_prob(chain.x[chunk, k + 1], mean, noise.likelihood(own, k, cond[chunk]))
    out = torch.empty_like(found)
    out[rows] = found
    return out.view(count, steps, *found.shape[1:])


@pytest.mark.parametrize("kind", [FloorNoise, LearnedNoise])
@splits
@every
def test_ratio_is_one_before_learning(name: str, steps: int, kind: type[ChainNoise]):
    for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        made = make(name, steps).to(dtype)
        noise = noise_of(kind, made)
        with torch.no_grad():
            cond, _, chain = draw(made, noise)
            log_ratio = scored(made, noise, cond, chain).mean((-1, -2)) - chain.log_prob.mean((-1, -2))
        assert float((log_ratio.exp() - 1.0).abs().max()) < bound


@splits
@every
def test_what_was_drawn_is_what_is_kept(name: str, steps: int):
    """Twenty deviations out nothing is clamped: latent = mean + deviation · noise, with the Gaussian's density."""
    made = make(name, steps).double()
    noise = FloorNoise(floor=0.1)
    cond = made.encode({STATE: torch.randn(3, 1, 3, dtype=torch.float64)})
    normal = 20.0 * torch.ones(3, *made.chain_noise_shape, dtype=torch.float64)
    with torch.no_grad():
        chain = made.sample_chain(cond, noise=normal, spread=noise)
        for k in range(steps):
            at = torch.full((3,), k)
            mean, own = made.transition(cond, chain.x[:, k], at)
            std = own.clamp_min(0.1)
            torch.testing.assert_close(chain.x[:, k + 1], mean + 20.0 * std)
            want = -0.5 * 400.0 - torch.log(std.expand_as(mean)) - 0.5 * math.log(2 * math.pi)
            torch.testing.assert_close(chain.log_prob[:, k], want[:, : made.spec.n_action_steps])


@every
def test_a_loss_of_the_chunk_is_of_the_chunk_and_never_more_than_of_the_output(name: str):
    made = make(name, 4)
    action, noise, k = torch.randn(4, 4, 2), torch.randn(4, 4, 2), torch.arange(4)
    x, target = made.noised(action, noise, k)
    slope = (made.clean(x, target + 1.0, k) - made.clean(x, target, k)).abs()
    for wrong, error in ((0.0, 0.0), (0.3 / slope.clamp_max(1.0), 0.09)):
        made.prediction = lambda cond, x, k, off=wrong: target + off  # type: ignore[method-assign,misc]
        found = made.finetuned_loss(torch.zeros(4, 3), action, torch.ones(4, 4), k=k, noise=noise, of_chunk=True)
        assert float(found) == pytest.approx(error, abs=1e-3)


def test_log_prob_in_closed_form():
    x, mean, std = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.0]), torch.tensor([0.5, 4.0])
    want = torch.distributions.Normal(mean, std).log_prob(x)
    torch.testing.assert_close(gaussian_log_prob(x, mean, std), want)
    assert gaussian_log_prob(x, mean, std)[0].item() == pytest.approx(-0.5 - math.log(0.5) - 0.9189385332)


@splits
@every
def test_early_steps_are_the_frozen_network_s_and_late_ones_the_copy_s(name: str, steps: int):
    made = make(name, steps)
    cond = torch.zeros(2, made.cond_dim)
    asked: list[tuple[str, int]] = []
    for label, network in (("frozen", made.network), ("finetuned", made.finetuned)):
        network.denoise = lambda x, embedding, label=label, f=network.denoise: (asked.append(label), f(x, embedding))[1]
    made.sample(cond, noise=torch.randn(2, *made.noise_shape))
    assert asked == ["frozen"] * (4 - steps) + ["finetuned"] * steps
    asked.clear()
    made.sample_chain(cond, noise=torch.randn(2, *made.chain_noise_shape), spread=FloorNoise())
    assert asked == ["frozen"] * (4 - steps) + ["finetuned"] * steps


@pytest.mark.parametrize("name", ["ddpm", "ddim_stochastic", "flow_sde"])
def test_without_a_floor_a_chain_is_an_ordinary_sample(name: str):
    made = make(name, 2)
    cond, noise = torch.randn(3, made.cond_dim), torch.randn(3, *made.chain_noise_shape)
    with torch.no_grad():
        torch.testing.assert_close(
            made.sample_chain(cond, noise=noise, spread=FloorNoise(floor=0.0)).x[:, -1], made.sample(cond, noise=noise)
        )


def test_floors_are_of_deviations_and_may_differ_where_that_is_asked_for():
    made = make("ddpm", 4)
    cond, normal, same = draw(made, FloorNoise(floor=0.3))
    own = made.steps[4, :, 0, 0]
    k = torch.arange(4)
    assert FloorNoise(floor=0.3).sampling(own, k, cond).tolist() == own.clamp_min(0.3).tolist()
    apart = FloorNoise(floor=0.04, likelihood_floor=0.1)
    assert apart.sampling(own, k, cond)[-1].item() == pytest.approx(0.04)
    assert apart.likelihood(own, k, cond)[-1].item() == pytest.approx(0.1)
    assert torch.equal(same.x[:, 0], normal[:, 0])
    with pytest.raises(ConfigError, match="expected floor, likelihood_floor ≥ 0"):
        FloorNoise(floor=-0.1)


def test_learned_noise_stays_within_its_bounds_and_knows_step_and_observation():
    made = make("flow", 3)
    noise = LearnedNoise(cond_dim=made.cond_dim, action_dim=2, steps=3, low=0.05, high=0.2)
    zero, cond = torch.zeros(()), torch.randn(50, made.cond_dim)
    assert noise.sampling(zero, 1, cond).detach().flatten().tolist() == pytest.approx([0.1] * 100)
    for p in noise.parameters():
        torch.nn.init.normal_(p, std=3.0)
    std = torch.stack([noise.sampling(zero, k, cond) for k in range(3)]).detach()  # [K' 50 1 Da]
    assert 0.05 - 1e-6 <= float(std.min()) < 0.06 and 0.18 < float(std.max()) <= 0.2 + 1e-6
    assert float(std.std(0).max()) > 0 and float(std.std(1).max()) > 0


class Exact(Denoiser):
    """The velocity that carries noise to data N(0, s²): (t·s² − (1−t))/(t²s² + (1−t)²)·x."""

    def __init__(self, s: float) -> None:
        torch.nn.Module.__init__(self)
        self.s2 = s * s

    def embed_time(self, t: Tensor) -> Tensor:
        return t[:, None]

    def embed_cond(self, cond: Tensor) -> Tensor:
        return cond.new_zeros(len(cond), 1)

    def denoise(self, x: Tensor, embedding: Tensor) -> Tensor:
        t = embedding[:, :, None]
        return (t * self.s2 - (1 - t)) / (t.square() * self.s2 + (1 - t).square()) * x


@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
def test_the_stochastic_flow_arrives_at_the_same_distribution(level: float):
    flow = policy(FlowPolicy, DATA, sampling_steps=200, noise_level=level).double()
    flow.network = Exact(0.3)
    x = flow.sample(torch.zeros(4_000, 3, dtype=torch.float64))
    assert float(x.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(x.std()) == pytest.approx(0.3, rel=0.03)


# ---- the split -----------------------------------------------------------------------------------------------------


def base_of(name: str, **options: Any) -> ChunkDenoiser:
    kind, fixed = SAMPLERS[name]
    made = policy(kind, DATA, **{**fixed, **options})
    made.config = {
        "_target_": kind.__name__.removesuffix("Policy").lower(), **fixed, **options,
        "network": {"_target_": "residual_mlp", "_partial_": True, "width": 64, "time_dim": 16},
    }  # fmt: skip
    return made


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("name", ["ddpm", "ddim_stochastic", "flow"])
def test_before_training_the_finetuned_policy_is_its_base(name: str, rank: int):
    """To rounding: the times are embedded in two batches, not in one."""
    base = base_of(name)
    made = finetuned(base, finetuned_steps=3, lora_rank=rank)
    obs, noise = {STATE: torch.randn(5, 1, 3)}, torch.randn(5, *base.noise_shape)
    torch.testing.assert_close(made.act(obs, noise=noise), base.act(obs, noise=noise), rtol=0, atol=1e-7)
    assert all(torch.equal(v, made.state_dict()[k]) for k, v in base.state_dict().items())
    open_ = {n for n, p in made.named_parameters() if p.requires_grad}
    assert open_ and all(n.startswith("finetuned.") for n in open_)
    assert {id(p) for p in made.finetuned_parameters()} == {id(p) for n, p in made.named_parameters() if n in open_}


@pytest.mark.parametrize("rank", [0, 4])
def test_the_saved_policy_has_both_halves(tmp_path: Path, rank: int):
    made = finetuned(base_of("ddpm"), finetuned_steps=2, lora_rank=rank)
    with torch.no_grad():
        for p in made.finetuned_parameters():
            p.add_(0.3 * torch.randn_like(p))
    loaded = load_policy(save_policy(made, tmp_path / "policy"))
    assert isinstance(loaded, DiffusionPolicy) and loaded.finetuned_steps == 2
    obs, noise = {STATE: torch.randn(5, 1, 3)}, torch.randn(5, *made.noise_shape)
    assert torch.equal(loaded.act(obs, noise=noise), made.act(obs, noise=noise))
    assert not torch.allclose(loaded.act(obs, noise=noise), base_of("ddpm").act(obs, noise=noise), atol=1e-4)
    assert finetuned(loaded, finetuned_steps=2, lora_rank=rank) is loaded, "it goes on from itself"
    with pytest.raises(ConfigError, match=r"is fine-tuned with .* or give the base"):
        finetuned(loaded, finetuned_steps=3, lora_rank=rank)


def test_a_base_whose_weights_are_not_those_of_its_config_is_refused():
    base = base_of("ddpm")
    base.network.extra = torch.nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match=r"unknown \['network.extra.weight', 'network.extra.bias'\]"):
        finetuned(base, finetuned_steps=2)
    del base.network.extra
    base.network.out = torch.nn.Sequential()
    with pytest.raises(CheckpointError, match=r"missing \['network.out.1.weight', 'network.out.1.bias'\]"):
        finetuned(base, finetuned_steps=2)


def test_low_rank_changes_are_few_and_leave_the_weights_alone():
    full, low = (finetuned(base_of("ddpm"), finetuned_steps=2, lora_rank=rank) for rank in (0, 2))
    count = [sum(p.numel() for p in made.finetuned_parameters()) for made in (full, low)]
    assert count[1] < 0.2 * count[0]
    x, k = torch.randn(4, 4, 2), torch.tensor([0, 1, 0, 1])
    before = low.transition(torch.zeros(4, 3), x, k)[0]
    with torch.no_grad():
        for p in low.finetuned_parameters():
            p.add_(0.5)
    assert not torch.allclose(low.transition(torch.zeros(4, 3), x, k)[0], before)
    torch.testing.assert_close(low.transition(torch.zeros(4, 3), x, k, frozen=True)[0], before)


def test_the_sampler_may_be_changed_and_stays_changed(tmp_path: Path):
    made = finetuned(base_of("ddpm"), finetuned_steps=2, sampling={"sampler": "ddim", "eta": 0.5, "sampling_steps": 2})
    assert len(load_policy(save_policy(made, tmp_path / "policy")).times) == 2
    with pytest.raises(ConfigError, match=r"\['prediction'\] change more than the sampler"):
        finetuned(base_of("ddpm"), sampling={"prediction": "sample"})


def test_another_sampler_runs_the_same_weights():
    base, few = base_of("flow"), resampled(base_of("flow"), {"sampling_steps": 1})
    assert len(base.times) == 4 and len(few.times) == 1 and few.finetuned is None
    assert all(torch.equal(few.state_dict()[k], v) for k, v in base.state_dict().items())
    obs, noise = {STATE: torch.randn(5, 1, 3)}, torch.randn(5, *base.noise_shape)
    cond = base.encode(obs)
    line = noise + base.network(noise, torch.zeros(5), cond)  # one Euler step from pure noise to the end
    torch.testing.assert_close(few.sample(cond, noise=noise), line)
    same = resampled(base, {"sampling_steps": 4})
    assert torch.equal(same.act(obs, noise=noise), base.act(obs, noise=noise))


def test_eta_needs_a_sampler_that_reads_it():
    for change in (lambda s: resampled(base_of("ddpm"), s), lambda s: finetuned(base_of("ddpm"), sampling=s)):
        with pytest.raises(ConfigError, match=r"sampling: eta is an option of the sampler ddim, this one is ddpm"):
            change({"eta": 0.0, "sampling_steps": 2})
    assert resampled(base_of("ddpm"), {"eta": 0.0, "sampler": "ddim"}).noise_shape == (4, 2)


def test_options_of_lerobots_weights_are_for_lerobots_policies():
    for base in (base_of("flow"), policy(GaussianPolicy, DATA, network=partial(torch.nn.Linear))):
        with pytest.raises(ConfigError, match=r"policy.expert: says how a VLA of LeRobot keeps its weights"):
            finetuned(base, expert=ExpertOptions())


def test_another_sampler_stays_on_the_device():
    few = base_of("flow").to("meta").changed(sampling_steps=1)
    assert {t.device.type for t in (*few.parameters(), few.times, few.steps)} == {"meta"}


def test_no_sampler_is_put_where_none_fits():
    with pytest.raises(ConfigError, match=r"sampling: \['horizon'\] change more than the sampler of a FlowPolicy"):
        resampled(base_of("flow"), {"horizon": 3})
    with pytest.raises(ConfigError, match=r"\['eta'\] .* known: \['noise_level', 'sampling_steps'\]"):
        resampled(base_of("flow"), {"eta": 1.0})
    with pytest.raises(ConfigError, match=r"fine-tuned as it is, in 2 of 4 steps.* Set sampling=null"):
        resampled(make("flow", 2), {"sampling_steps": 1})
    with pytest.raises(SpecError, match=r"sampling: only .*, GaussianPolicy has not\)\. Leave sampling away"):
        resampled(policy(GaussianPolicy, DATA, network=partial(torch.nn.Linear)), {"sampling_steps": 1})


def test_what_cannot_be_tuned_is_refused():
    with pytest.raises(ConfigError, match=r"finetuned_steps \(K'\) must lie between 0 and the 4 steps.*found 5"):
        finetuned(base_of("ddpm"), finetuned_steps=5)
    with pytest.raises(ConfigError, match="at least 1"):
        finetuned(base_of("ddpm"), finetuned_steps=0)
    plain = policy(GaussianPolicy, DATA, network=partial(torch.nn.Linear))
    with pytest.raises(SpecError, match="GaussianPolicy has not"):
        finetuned(plain, sampling={"sampler": "ddim"})
    copied = finetuned(plain)
    assert isinstance(copied, GaussianPolicy) and copied.log_std is not plain.log_std
    with pytest.raises(RobopolicyError, match="not trained by imitation"):
        make("ddpm", 2).loss({})


@pytest.mark.parametrize("name", ["ddim", "flow", "ddpm"])
def test_a_deterministic_chain_has_no_likelihood(name: str):
    made = make(name, 3)
    dead = r"\[2\] of 3" if name == "ddpm" else r"\[0, 1, 2\] of 3"
    with pytest.raises(ConfigError, match=f"deterministic in fine-tuned steps {dead}.*floor"):
        made.check_noise(FloorNoise(floor=0.0))
    made.check_noise(FloorNoise(floor=0.01))
    if name != "ddpm":
        made.check_noise(noise_of(LearnedNoise, made))


def test_untouched_policies_have_no_second_network():
    made = policy(DiffusionPolicy, DATA, network=partial(ResidualMLP, width=16, time_dim=16))
    assert made.finetuned is None and made.finetuned_parameters() == []
    assert not [k for k in made.state_dict() if k.startswith("finetuned")]


@pytest.mark.parametrize("kind", [ResidualMLP, UNet1d, Transformer])
def test_every_weight_matrix_has_a_low_rank_change(kind: type[Denoiser]):
    network = adapt(kind(horizon=4, action_dim=2, cond_dim=3), 2)
    matrices = {
        plain_state(n) for n, p in network.named_parameters() if p.ndim > 1 and not n.endswith((".a", ".b", "position"))
    }
    changed = {plain_state(n) for n, _ in network.named_parameters() if n.endswith(".original")}
    assert matrices == changed
    assert all(p.requires_grad == n.endswith((".a", ".b")) for n, p in network.named_parameters())
