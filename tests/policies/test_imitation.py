"""What every imitation policy keeps to: interface, noise, saving, and learning."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from robopolicy.algos.bc import BC
from robopolicy.config.plan import plan_call
from robopolicy.config.registry import resolve
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.types import STATE, TASK, Feature
from robopolicy.networks.mlp import MLP, ResidualMLP
from robopolicy.networks.transformer import Transformer
from robopolicy.networks.unet1d import UNet1d
from robopolicy.policies.base import Policy
from robopolicy.policies.diffusion import DiffusionPolicy
from robopolicy.policies.flow import FlowPolicy
from robopolicy.policies.gaussian import GaussianPolicy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.policies.residual import ResidualPolicy
from robopolicy.policies.steered import make_steered
from robopolicy.training.offline import offline
from tests.fakes import MemoryCheckpoints, NoTracker, PointPolicy
from tests.policies.test_steered import base_of
from tests.toy import ACTION, OBSERVATION, policy, random_episodes, spec, two_modes

DATA = random_episodes()
SMALL_MLP = partial(MLP, width=64, depth=2)
POLICIES: dict[str, tuple[type[Policy], dict[str, Any]]] = {
    "ddpm": (DiffusionPolicy, {}),
    "ddim": (DiffusionPolicy, {"sampler": "ddim", "sampling_steps": 5}),
    "v_prediction": (DiffusionPolicy, {"prediction": "v_prediction"}),
    "unet1d": (DiffusionPolicy, {"network": partial(UNet1d, dims=(16, 32), time_dim=16)}),
    "transformer": (FlowPolicy, {"network": partial(Transformer, width=32, depth=1, time_dim=16)}),
    "flow": (FlowPolicy, {}),
    "gaussian": (GaussianPolicy, {"network": SMALL_MLP}),
}
every = pytest.mark.parametrize("name", POLICIES)


def make(name: str, seed: int = 0, data: Any = DATA) -> Policy:
    kind, options = POLICIES[name]
    return policy(kind, data, seed=seed, **options)


def batch(size: int = 16) -> dict[str, Tensor]:
    frames = torch.arange(size)
    action, pad = DATA.chunk(frames, 4)
    return {**DATA.history(frames, 1), "action": action, "action_is_pad": pad}


@every
def test_act_is_a_function_of_observation_and_noise(name: str):
    ours = make(name)
    obs, noise = {STATE: torch.randn(6, 1, 3)}, torch.randn(6, *ours.noise_shape)
    chunk = ours.act(obs, noise=noise)
    assert chunk.shape == (6, 4, 2)
    assert not chunk.requires_grad
    torch.manual_seed(1)
    assert torch.equal(ours.act(obs, noise=noise), chunk)
    assert torch.equal(ours.train().act({**obs, "other": torch.zeros(6)}, noise=noise), chunk)
    rows = torch.tensor([4, 1])
    alone = ours.act({STATE: obs[STATE][rows]}, noise=noise[rows])
    torch.testing.assert_close(alone, chunk[rows], rtol=1e-4, atol=1e-6)
    with torch.no_grad():  # away from zero initialisations and from predictions that the bound on x̂₀ swallows
        for p in ours.network.parameters():
            p.add_(0.3 * torch.randn_like(p))
    chunk = ours.act(obs, noise=noise)
    assert not torch.equal(ours.act(obs, noise=noise + 0.1), chunk)
    assert not torch.equal(ours.act({STATE: obs[STATE] + 0.5}, noise=noise), chunk)


@every
def test_noise_is_drawn_where_none_is_given(name: str):
    ours, obs = make(name), {STATE: torch.randn(6, 1, 3)}
    torch.manual_seed(5)
    noise = torch.randn(6, *ours.noise_shape)
    torch.manual_seed(5)
    assert torch.equal(ours.act(obs), ours.act(obs, noise=noise))
    assert not torch.equal(ours.act(obs), ours.act(obs))


@every
def test_deterministic_means_no_noise_at_all(name: str):
    ours, obs = make(name), {STATE: torch.randn(6, 1, 3)}
    chunk = ours.act(obs, noise=torch.randn(6, *ours.noise_shape), deterministic=True)
    torch.testing.assert_close(chunk, ours.act(obs, noise=torch.zeros(6, *ours.noise_shape)))
    assert torch.equal(chunk, ours.act(obs, deterministic=True))


@every
def test_actions_are_physical_and_within_the_demonstrated_range(name: str):
    """The normaliser's range is the limits here, 2 cm; unscaled network outputs would be 50 times as large."""
    chunk = make(name).act({STATE: torch.randn(100, 1, 3)})
    bound = 0.2 if POLICIES[name][0] is FlowPolicy else 0.0201 if name != "gaussian" else 0.1
    assert 1e-4 < float(chunk.abs().max()) < bound


@every
def test_padding_carries_no_loss(name: str):
    """Where the network has no say (it is made to answer zero), the loss must not see padded actions."""

    def loss(change: float) -> float:
        ours = make(name)
        if isinstance(ours, GaussianPolicy):
            ours.network.forward = lambda cond: torch.zeros(len(cond), 8)
        else:
            ours.network.forward = lambda x, t, cond: torch.zeros_like(x)
        data = batch()
        data["action_is_pad"] = torch.zeros(16, 4, dtype=torch.bool)
        data["action_is_pad"][:, 2:] = True
        data["action"][:, 2:] += change
        torch.manual_seed(0)
        return ours.loss(data)[0].item()

    assert loss(0.0) == loss(0.01)
    ours = make(name)
    everything = batch()
    everything["action"] += 0.01
    torch.manual_seed(0)
    changed = ours.loss(everything)[0].item()
    torch.manual_seed(0)
    assert changed != ours.loss(batch())[0].item()


@every
def test_gradients_reach_every_parameter(name: str):
    ours = make(name)
    with torch.no_grad():
        for p in ours.parameters():
            p.add_(0.05 * torch.randn_like(p))
    loss, metrics = ours.loss(batch())
    loss.backward()
    assert loss.ndim == 0
    assert all(isinstance(v, float) for v in metrics.values())
    missing = [n for n, p in ours.named_parameters() if p.grad is None or float(p.grad.abs().sum()) == 0.0]
    assert missing == []


@every
def test_saved_and_loaded_is_the_same_policy(name: str):
    one, other = make(name, seed=0), make(name, seed=1, data=random_episodes(seed=3))
    obs, noise = {STATE: torch.randn(6, 1, 3)}, torch.randn(6, *one.noise_shape)
    assert not torch.equal(one.act(obs, noise=noise), other.act(obs, noise=noise))
    other.load_state_dict(load(save(one.state_dict())))
    assert torch.equal(one.act(obs, noise=noise), other.act(obs, noise=noise))
    assert torch.equal(copy.deepcopy(one).act(obs, noise=noise), one.act(obs, noise=noise))


def test_more_noise_samples_per_observation_encode_once():
    ours = policy(DiffusionPolicy, DATA, noise_samples=5)
    seen = []
    ours.encoder.register_forward_hook(lambda _, __, cond: seen.append(len(cond)))
    ours.network.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    loss, _ = ours.loss(batch())
    assert seen == [16, 80]
    assert bool(loss.isfinite())


@pytest.mark.parametrize("kind", [DiffusionPolicy, FlowPolicy])
def test_chunks_of_one_observation_are_noised_to_all_degrees(kind: type[Policy]):
    ours, seen = policy(kind, DATA, noise_samples=5), []
    ours.network.register_forward_hook(lambda _, inputs, __: seen.append(inputs[1].view(16, 5)))
    ours.loss(batch())
    low, high = seen[0].aminmax(dim=1)
    assert float((high - low).min()) > 0.6, "neighbours in the batch have neighbouring times"
    assert float(seen[0].mean()) == pytest.approx(0.5, abs=0.06)


def test_a_gaussian_begins_with_the_deviation_it_is_given():
    obs, noise = {STATE: torch.randn(1, 1, 3)}, torch.ones(1, 4, 2)
    for given in (0.1, 0.37):
        ours = policy(GaussianPolicy, DATA, network=SMALL_MLP, initial_std=given, min_std=0.01)
        moved = ours.normalizer.normalize("action", ours.act(obs, noise=noise))
        still = ours.normalizer.normalize("action", ours.act(obs, deterministic=True))
        torch.testing.assert_close(moved - still, torch.full_like(still, given + 0.01))


@pytest.mark.parametrize("kind", [DiffusionPolicy, FlowPolicy, GaussianPolicy])
def test_cameras_and_tasks(kind: type[Policy]):
    camera = "observation.images.front"
    features = {STATE: Feature((3,)), camera: Feature((3, 32, 32), "uint8"), TASK: Feature((), "int64")}
    normalizer = Normalizer(features, ACTION).fit(DATA)
    options = {"network": SMALL_MLP} if kind is GaussianPolicy else {"network": UNet1d}
    ours = kind(spec(observation=features, n_obs_steps=2, tasks=("a", "b")), normalizer, **options)
    image = torch.randint(0, 256, (4, 2, 3, 32, 32), dtype=torch.uint8)
    obs = {STATE: torch.randn(4, 2, 3), camera: image, TASK: torch.tensor([[0, 0], [1, 1], [0, 0], [1, 1]])}
    noise = torch.randn(4, *ours.noise_shape)
    chunk = ours.train().act(obs, noise=noise)
    assert torch.equal(chunk, ours.act(obs, noise=noise)), "acting never augments"
    assert not torch.equal(chunk, ours.act({**obs, camera: 255 - image}, noise=noise))
    assert not torch.equal(chunk, ours.act({**obs, TASK: 1 - obs[TASK]}, noise=noise))
    action, pad = DATA.chunk(torch.arange(4), 4)
    ours.loss({**obs, "action": action, "action_is_pad": pad})[0].backward()
    assert all(p.grad is not None for p in ours.encoder.parameters())


def train(name: str, steps: int) -> Policy:
    data = two_modes(frames=4_000)
    kind, options = POLICIES[name]
    network = SMALL_MLP if name == "gaussian" else partial(ResidualMLP, width=128, time_dim=16)
    algo = BC(policy(kind, data, **{**options, "network": network}), steps=steps, lr=2e-3, ema_decay=0.99)
    offline(
        algo=algo, episodes=data, steps=steps, batch_size=256, seed=0, tracker=NoTracker(),
        checkpointer=MemoryCheckpoints(), save_every=0,
    )  # fmt: skip
    return algo.policy


@pytest.mark.parametrize("name", ["ddpm", "flow", "gaussian"])
def test_learning_keeps_both_modes_and_the_condition(name: str):
    """Left or right at random: diffusion and flow choose one side for the whole chunk, a Gaussian averages."""
    learned = train(name, steps=1_000)
    torch.manual_seed(0)
    state = torch.randn(500, 1, 3)
    chunk = learned.act({STATE: state}, deterministic=name == "gaussian") * 100.0  # cm
    side, along = chunk[..., 1], chunk[..., 0]
    error = (along - state[:, :, 0].tanh()).abs().mean()
    assert float(error) < 0.1, "x follows the state"
    if name == "gaussian":
        assert float(side.abs().mean()) < 0.3, "the average of left and right is straight into the obstacle"
        return
    near = (side.abs() - 1.0).abs() < 0.35
    assert float(near.float().mean()) > 0.9, "samples lie at the modes, not between them"
    if name == "ddpm":
        five_steps = DiffusionPolicy(
            learned.spec, learned.normalizer, network=lambda **_: learned.network, sampler="ddim", sampling_steps=5
        )
        coarse = five_steps.act({STATE: state})[..., 1] * 100.0
        assert float(((coarse.abs() - 1.0).abs() < 0.35).float().mean()) > 0.75, "DDIM samples the same weights"
    one_side = (side > 0).all(1) | (side < 0).all(1)
    assert float(one_side.float().mean()) > 0.9, "a chunk does not change its mind"
    right = float((side.mean(1) > 0).float().mean())
    assert 0.3 < right < 0.7, "both modes are kept"


def test_flow_learns_a_two_dimensional_distribution():
    """A ring sector in the plane: moments and support of samples against those of the data."""
    generator = torch.Generator().manual_seed(0)
    angle = 3.1416 * torch.rand(4_000, generator=generator)
    radius = 0.01 + 0.001 * torch.randn(4_000, generator=generator)
    action = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    data = random_episodes(frames=4_000)
    data = data.__class__(**{**vars(data), "action": action})
    algo = BC(policy(FlowPolicy, data, horizon=1), steps=1_200, lr=2e-3, ema_decay=0.99)
    offline(
        algo=algo, episodes=data, steps=1_200, batch_size=512, seed=0, tracker=NoTracker(),
        checkpointer=MemoryCheckpoints(), save_every=0,
    )  # fmt: skip
    torch.manual_seed(0)
    sample = algo.policy.act({STATE: torch.randn(4_000, 1, 3)})[:, 0]
    torch.testing.assert_close(sample.mean(0), action.mean(0), rtol=0, atol=8e-4)
    torch.testing.assert_close(sample.std(0), action.std(0), rtol=0.15, atol=0)
    length = sample.norm(dim=1)
    assert float(((length > 0.007) & (length < 0.013)).float().mean()) > 0.9, "on the ring, not inside it"
    assert float((sample[:, 1] > -0.002).float().mean()) > 0.95, "the lower half stays empty"


def test_a_part_of_a_policy_has_a_weight_decay_of_its_own() -> None:
    """Without a gradient a step scales matrices by 1 − lr · decay, and biases not at all."""

    class Still(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)

        def loss(self, batch: Any) -> tuple[Tensor, dict[str, float]]:
            return 0.0 * sum(p.sum() for p in self.parameters()), {}

    still = Still()
    before = {k: v.detach().clone() for k, v in still.named_parameters()}
    BC(still, steps=10, lr=0.1, warmup=0, weight_decay=0.5, part_decay={"two": 2.0}).update({})  # type: ignore[arg-type]
    kept = {k: float((v.detach() / before[k]).mean()) for k, v in still.named_parameters()}
    assert kept == pytest.approx({"one.weight": 0.95, "one.bias": 1.0, "two.weight": 0.8, "two.bias": 1.0})


@every
def test_a_picture_that_is_already_scaled_is_refused(name: str) -> None:
    """Taken as uint8 it would be black."""
    kind, options = POLICIES[name]
    camera = "observation.images.front"
    seeing = spec(observation={**OBSERVATION, camera: Feature((3, 16, 16), "uint8")})
    options = {"network": partial(ResidualMLP, width=64, time_dim=16), **options}
    made = kind(seeing, Normalizer.from_limits(seeing.observation, seeing.action), **options)
    obs = {STATE: torch.zeros(2, 1, 3), camera: torch.full((2, 1, 3, 16, 16), 255, dtype=torch.uint8)}
    assert made.act(obs).shape == (2, 4, 2)
    with pytest.raises(SpecError, match=r"expected uint8 from 0 to 255, found torch.float32 from 1 to 1"):
        made.act({**obs, camera: obs[camera] / 255})


def test_parts_with_a_weight_decay_of_their_own_are_known_and_do_not_overlap() -> None:
    ours = make("flow")
    with pytest.raises(ConfigError, match=r"algo\.part_decay\.netwrok: .*Did you mean 'network'"):
        BC(ours, steps=1, part_decay={"netwrok": 0.1})
    with pytest.raises(ConfigError, match=r"algo\.part_decay\.network\.out: .*lies in network"):
        BC(ours, steps=1, part_decay={"network": 0.1, "network.out": 0.2})


def test_what_is_not_trained_by_imitation_is_refused_by_name() -> None:
    point, limits = PointPolicy(), Normalizer.from_limits(PointPolicy().spec.observation, PointPolicy().spec.action)
    residual = ResidualPolicy(point.spec, limits, point, hidden=(8,))
    for other, reason in (
        (residual, "ResidualPolicy, which corrects a base"),
        (make_steered(base_of()), "SteeredPolicy, which has no imitation loss"),
        (policy(FlowPolicy, DATA, finetuned_steps=1), "FlowPolicy, which has a fine-tuned copy"),
    ):
        with pytest.raises(ConfigError, match=f"policy: .*found a {reason}"):
            BC(other, steps=1)


@pytest.mark.parametrize(("algo", "key", "value", "expected"), [
    ("bc", "betas", [0.9, 1.0], "float from 0 to below 1"), ("residual", "average", 0.0, "float above 0"),
    ("ogpo", "tau", 0.0, "float above 0"),
])  # fmt: skip
def test_rates_that_learn_nothing_are_refused(algo: str, key: str, value: Any, expected: str) -> None:
    _, found = plan_call(resolve({"_target_": algo}, "algo"), {key: value}, "algo", None)
    assert len(found) == 1 and found[0].startswith(f"algo.{key}: expected ") and expected in found[0]


def test_the_average_has_the_statistics_of_batch_normalisation():
    """A policy of one's own may normalise batches; with the initial statistics its average would act on nonsense."""
    layers = (nn.Linear(3, 8), nn.BatchNorm1d(8), nn.SiLU(), nn.Linear(8, 8))
    algo = BC(policy(GaussianPolicy, DATA, network=lambda *_: nn.Sequential(*layers)), steps=4, warmup=0)
    for _ in range(4):
        algo.update(batch())
    learned, acting = (dict(p.network[1].named_buffers()) for p in (algo.model, algo.policy))
    assert int(acting["num_batches_tracked"]) == 4
    for name, value in learned.items():
        assert torch.equal(acting[name], value), name
