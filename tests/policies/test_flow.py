from __future__ import annotations

import pytest
import torch
from torch import Tensor

from robopolicy.core.errors import ConfigError
from robopolicy.networks.denoiser import Denoiser
from robopolicy.policies.flow import FlowPolicy
from tests.toy import policy, random_episodes

DATA = random_episodes()


class Straight(Denoiser):
    """The exact velocity towards a single `target` [H Da]: (target − x) / (1 − t)."""

    def __init__(self, target: Tensor) -> None:
        torch.nn.Module.__init__(self)
        self.target, self.times = target, []

    def embed_time(self, t: Tensor) -> Tensor:
        self.times.append(t.tolist())
        return t[:, None]

    def embed_cond(self, cond: Tensor) -> Tensor:
        return cond.new_zeros(len(cond), 1)

    def denoise(self, x: Tensor, embedding: Tensor) -> Tensor:
        return (self.target - x) / (1.0 - embedding[:, :, None])


@pytest.mark.parametrize("count", [1, 3, 10])
def test_euler_follows_a_straight_line_exactly(count: int):
    flow = policy(FlowPolicy, DATA, sampling_steps=count)
    target = torch.randn(4, 2)
    flow.network = Straight(target)
    torch.testing.assert_close(flow.sample(torch.zeros(5, 3)), target.expand(5, 4, 2), rtol=0, atol=1e-5)
    assert flow.network.times == [pytest.approx([i / count for i in range(count)])]


class Ends(Straight):
    """The exact end of the line."""

    def denoise(self, x: Tensor, embedding: Tensor) -> Tensor:
        return self.target.expand_as(x)


@pytest.mark.parametrize(("count", "level"), [(1, 0.0), (4, 0.0), (4, 0.5)])
def test_by_the_action_it_samples_and_corrects_as_by_the_velocity(count: int, level: float):
    by_action, by_velocity = (
        policy(FlowPolicy, DATA, sampling_steps=count, noise_level=level, prediction=p) for p in ("sample", "velocity")
    )
    target = torch.randn(4, 2)
    by_action.network, by_velocity.network = Ends(target), Straight(target)
    noise, cond = torch.randn(5, *by_action.noise_shape), torch.zeros(5, 3)
    torch.testing.assert_close(by_action.sample(cond, noise=noise), by_velocity.sample(cond, noise=noise))
    x, k = torch.randn(5, 4, 2), count - 1
    velocity = (target - x) / (1.0 - k / count)
    target = target.expand_as(x)
    torch.testing.assert_close(by_action.clean(x, target, k), by_velocity.clean(x, velocity, k))
    for found, wanted in zip(by_action.toward(x, target, k), by_velocity.toward(x, target, k), strict=True):
        torch.testing.assert_close(found, wanted)


def test_by_the_action_the_target_is_the_action_and_one_step_does_not_look_at_the_noise():
    flow = policy(FlowPolicy, DATA, sampling_steps=1, prediction="sample")
    action, noise = torch.randn(3, 4, 2), torch.randn(3, 4, 2)
    assert torch.equal(flow.corrupt(action)[2], action)
    assert torch.equal(flow.noised(action, noise, torch.zeros(3, dtype=torch.int64))[1], action)
    assert torch.equal(flow.mean_std(noise, action, 0)[0], action)


def test_training_points_lie_on_the_line_and_share_sampling_s_time():
    """At t the target is the velocity that sampling would need there: (action − x_t) / (1 − t)."""
    flow = policy(FlowPolicy, DATA)
    action = torch.randn(200, 4, 2)
    x, t, velocity = flow.corrupt(action)
    torch.testing.assert_close(x + (1.0 - t)[:, None, None] * velocity, action, rtol=0, atol=1e-5)
    start = x - t[:, None, None] * velocity  # at t = 0: pure noise, independent of the action
    assert float(start.mean()) == pytest.approx(0.0, abs=0.1)
    assert float(start.std()) == pytest.approx(1.0, abs=0.1)
    assert abs(float((start * action).mean())) < 0.1


def test_time_distributions():
    uniform, beta = (policy(FlowPolicy, DATA, time_distribution=d) for d in ("uniform", "beta"))
    action = torch.zeros(10_000, 4, 2)
    t = uniform.corrupt(action)[1]
    assert float(t.mean()) == pytest.approx(0.5, abs=0.001)
    assert 0.0 <= float(t.min()) < 0.001
    assert 0.999 < float(t.max()) < 1.0
    t = beta.corrupt(action)[1]  # 1 − t ~ Beta(1.5, 1): mean 0.6, P(1 − t < ½) = ½^1.5
    assert float(t.mean()) == pytest.approx(0.4, abs=0.001)
    assert float((t > 0.5).float().mean()) == pytest.approx(0.5**1.5, abs=0.001)
    assert float(t.min()) >= 0.0
    assert float(t.max()) < 1.0


def test_no_sampling_steps():
    with pytest.raises(ConfigError, match="at least 1"):
        policy(FlowPolicy, DATA, sampling_steps=0)
