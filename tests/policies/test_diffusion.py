from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler
from torch import Tensor

from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.core.types import STATE
from robopolicy.networks.denoiser import Denoiser
from robopolicy.policies.diffusion import DiffusionPolicy, noise_schedule, step_table, trailing
from tests.toy import policy, random_episodes

DATA = random_episodes()


def make(**options: Any) -> DiffusionPolicy:
    return policy(DiffusionPolicy, DATA, **options)


def cosine_alpha_bar(steps: int) -> list[float]:
    """Nichol & Dhariwal 2021, eq. 17, each β capped at 0.999, multiplied up in Python floats."""

    def f(t: float) -> float:
        return math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2

    product, out = 1.0, []
    for i in range(steps):
        product *= 1.0 - min(1.0 - f((i + 1) / steps) / f(i / steps), 0.999)
        out.append(product)
    return out


@pytest.mark.parametrize("steps", [5, 10, 100])
def test_cosine_schedule_in_closed_form(steps: int):
    torch.testing.assert_close(make(denoising_steps=steps).alpha_bar, torch.tensor(cosine_alpha_bar(steps)))


def test_two_steps_by_hand():
    # f(0) = cos²(0.012467) = 0.999845, f(½) = cos²(0.791637) = 0.493768, f(1) = 0, so the second β is capped at 0.999.
    torch.testing.assert_close(
        make(denoising_steps=2).alpha_bar, torch.tensor([0.493844, 0.000493844]), rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("schedule", ["squaredcos_cap_v2", "linear", "scaled_linear"])
def test_schedules_and_steps_are_those_of_diffusers(schedule: Any):
    for steps in (1, 7, 10, 100, 1000):
        theirs = DDPMScheduler(steps, beta_schedule=schedule, timestep_spacing="trailing")
        assert torch.equal(noise_schedule(schedule, steps), theirs.alphas_cumprod)
        for count in range(1, min(steps, 100) + 1):
            theirs.set_timesteps(count)  # rounding gives some counts one more, of no level
            assert torch.equal(trailing(steps, count), theirs.timesteps[:count])


def test_ddpm_table_is_the_posterior():
    """Ho et al. 2020, eq. 7: mean √ᾱ₋β/(1−ᾱ)·x₀ + √α(1−ᾱ₋)/(1−ᾱ)·x, variance (1−ᾱ₋)/(1−ᾱ)·β."""
    a = cosine_alpha_bar(10)
    for i, (from_x, from_prediction, c0, c1, std) in enumerate(make(prediction="epsilon").steps[..., 0, 0].T.tolist()):
        now, before = a[9 - i], a[8 - i] if i < 9 else 1.0
        beta = 1.0 - now / before
        assert from_x == pytest.approx(now**-0.5, rel=1e-4)
        assert from_prediction == pytest.approx(-math.sqrt((1 - now) / now), rel=1e-4)
        assert c0 == pytest.approx(math.sqrt(before) * beta / (1 - now), rel=1e-4)
        assert c1 == pytest.approx(math.sqrt(now / before) * (1 - before) / (1 - now), rel=1e-4, abs=1e-6)
        assert std == pytest.approx(math.sqrt((1 - before) / (1 - now) * beta), rel=1e-4)


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("count", [10, 5, 2, 1])
@pytest.mark.parametrize("sampler", ["ddpm", "ddim"])
def test_sampling_equals_diffusers_step_by_step(sampler: str, count: int, prediction: str):
    options = {"prediction": prediction, "sampler": sampler, "sampling_steps": count}
    ours = make(**options).double()
    table = step_table(ours.alpha_bar, ours.times.mul(10).round().long(), prediction=prediction, eta=sampler == "ddpm")
    ours.steps = table.double()[:, :, None, None]
    kind = DDPMScheduler if sampler == "ddpm" else DDIMScheduler
    theirs = kind(10, beta_schedule="squaredcos_cap_v2", prediction_type=prediction, timestep_spacing="trailing")
    theirs.set_timesteps(count)
    assert theirs.timesteps.tolist() == ours.times.mul(10).round().long().tolist()
    cond = ours.encode({STATE: torch.randn(6, 1, 3, dtype=torch.float64)})
    noise = torch.randn(6, *ours.noise_shape, dtype=torch.float64)
    x = noise[:, 0] if sampler == "ddpm" else noise
    with torch.no_grad():
        for i, k in enumerate(theirs.timesteps):
            output = ours.network(x, torch.full((6,), int(k) / 10, dtype=torch.float64), cond)
            want = expected_step(theirs, output, k, x, noise[:, i + 1] if sampler == "ddpm" else None)
            mean, std = ours.mean_std(x, output, i)
            got = mean if sampler == "ddim" else mean + std * noise[:, i + 1]
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
            x = want
        torch.testing.assert_close(ours.sample(cond, noise=noise), x, rtol=1e-4, atol=1e-4)


def expected_step(scheduler: Any, output: Tensor, k: Tensor, x: Tensor, noise: Tensor | None) -> Tensor:
    """diffusers' own `step`. DDPM's draws its noise itself: take the mean by running it twice with opposite noise."""
    if noise is None:
        return scheduler.step(output, k, x, use_clipped_model_output=True).prev_sample
    pair = []
    for sign in (1.0, -1.0):
        module = __import__("diffusers.schedulers.scheduling_ddpm", fromlist=["randn_tensor"])
        original, module.randn_tensor = module.randn_tensor, lambda *_, s=sign, **__: s * noise
        pair.append(scheduler.step(output, k, x).prev_sample)
        module.randn_tensor = original
    assert (k > 0) == (not torch.equal(*pair)), "the last step, and only that one, is without noise"
    return pair[0]


class Oracle(Denoiser):
    """Predicts exactly what leads to `target` [H Da], given the schedule."""

    def __init__(self, target: Tensor, alpha_bar: Tensor, prediction: str) -> None:
        torch.nn.Module.__init__(self)
        self.target, self.alpha_bar, self.prediction = target, alpha_bar, prediction

    def embed_time(self, t: Tensor) -> Tensor:
        return self.alpha_bar[(t * len(self.alpha_bar)).round().long(), None]

    def embed_cond(self, cond: Tensor) -> Tensor:
        return cond.new_zeros(len(cond), 1)

    def denoise(self, x: Tensor, embedding: Tensor) -> Tensor:
        signal, spread = embedding[:, :, None].sqrt(), (1 - embedding[:, :, None]).sqrt()
        epsilon = (x - signal * self.target) / spread
        velocity = signal * epsilon - spread * self.target
        return {"epsilon": epsilon, "sample": self.target.expand_as(x), "v_prediction": velocity}[self.prediction]


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize(("sampler", "count"), [("ddpm", 10), ("ddpm", 3), ("ddim", 10), ("ddim", 4), ("ddim", 1)])
def test_a_perfect_network_is_led_to_its_target(sampler: str, count: int, prediction: str):
    ours = make(prediction=prediction, sampler=sampler, sampling_steps=count)
    target = torch.rand(4, 2) * 1.8 - 0.9
    ours.network = Oracle(target, ours.alpha_bar, prediction)
    sample = ours.sample(torch.zeros(5, 3))
    torch.testing.assert_close(sample, target.expand(5, 4, 2), rtol=0, atol=2e-3)


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_training_target_is_what_a_perfect_network_says(prediction: str):
    ours = make(prediction=prediction)
    action = torch.rand(20, 4, 2) * 2 - 1
    x, t, target = ours.corrupt(action)
    assert sorted((t * 10).round().long().tolist()) == sorted(list(range(10)) * 2), "steps are balanced"
    for i in range(20):
        said = Oracle(action[i], ours.alpha_bar, prediction)(x[i : i + 1], t[i : i + 1], torch.zeros(1, 3))
        torch.testing.assert_close(target[i : i + 1], said, rtol=1e-3, atol=1e-2 if t[i] > 0.85 else 1e-4)


def test_latents_are_never_clamped_but_the_prediction_is():
    ours = make(prediction="epsilon")
    x = 50.0 * torch.ones(1, 4, 2)
    mean, std = ours.mean_std(x, torch.zeros_like(x), 5)
    _, _, c0, c1, want_std = ours.steps[:, 5, 0, 0]
    torch.testing.assert_close(mean, torch.full_like(mean, float(c0 * 1.0 + c1 * 50.0)))
    assert float(std) == float(want_std)
    beyond = ours.sample(torch.zeros(1, 3), noise=30.0 * torch.ones(1, *ours.noise_shape))
    assert bool(beyond.isfinite().all())


def test_mean_and_deviation_per_row():
    ours = make()
    x, prediction, index = torch.randn(10, 4, 2), torch.randn(10, 4, 2), torch.randperm(10)
    mean, std = ours.mean_std(x, prediction, index)
    for row in range(10):
        one, one_std = ours.mean_std(x[row], prediction[row], int(index[row]))
        torch.testing.assert_close(mean[row], one)
        torch.testing.assert_close(std[row], one_std)


def test_noise_shapes():
    assert make().noise_shape == (11, 4, 2)
    assert make(sampling_steps=5).noise_shape == (6, 4, 2)
    assert make(sampler="ddim", sampling_steps=5).noise_shape == (4, 2)
    with pytest.raises(ValueError, match=r"\(1, 11, 4, 2\), found \(1, 4, 2\)"):
        make().sample(torch.zeros(1, 3), noise=torch.zeros(1, 4, 2))


@pytest.mark.parametrize("count", [0, 11])
def test_impossible_sampling_steps(count: int):
    with pytest.raises(ConfigError, match="between 1 and denoising_steps=10"):
        make(sampling_steps=count)


@pytest.mark.parametrize("steps", [15, 30, 50, 100])
def test_every_count_of_sampling_steps_has_as_many_levels(steps: int):
    for count in range(1, steps + 1):
        made = make(denoising_steps=steps, sampling_steps=count)
        times = (made.times * steps).round()
        assert len(times) == count and times[0] == steps - 1 and times[-1] >= 0 and (times.diff() < 0).all()
        assert made.steps.isfinite().all() and made.noise_shape[0] == count + 1


def test_a_schedule_that_leaves_a_signal_is_said(caplog: pytest.LogCaptureFixture):
    make()
    make(schedule="linear", denoising_steps=1000)
    assert not caplog.records
    make(schedule="linear")
    assert "schedule=linear: after 10 denoising_steps ᾱ is 0.9" in caplog.text


def test_eta_is_of_ddim(caplog: pytest.LogCaptureFixture):
    make(eta=0.5)
    assert "eta=0.5: only sampler=ddim reads it" in caplog.text
    assert make(sampler="ddim", eta=0.5).noise_shape == (11, 4, 2)


def test_another_schedule_refuses_the_weights():
    linear = make(schedule="linear")
    with pytest.raises(CheckpointError, match="another noise schedule"):
        linear.load_state_dict(make().state_dict())
    make(sampler="ddim", sampling_steps=5).load_state_dict(make().state_dict())  # sampling is free
