"""Small data whose answer is known, for tests that train."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import STATE, ActionSpec, Feature
from robopolicy.datasets.episodes import Episodes
from robopolicy.networks.mlp import ResidualMLP
from robopolicy.policies.base import DenoisingPolicy, Policy
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.flow import FlowPolicy
from robopolicy.policies.normalizer import ACTION as ACTION_KEY
from robopolicy.policies.normalizer import Normalizer

ACTION = ActionSpec(
    names=("x", "y"), units=("m", "m"), low=(-0.02, -0.02), high=(0.02, 0.02), frame="base", tcp="tool",
    rotation="none", reference="commanded", gripper=None, gripper_meaning="",
)  # fmt: skip
OBSERVATION = {STATE: Feature((3,))}


def spec(*, horizon: int = 4, n_obs_steps: int = 1, **changes: object) -> PolicySpec:
    fields = {
        "observation": OBSERVATION, "action": ACTION, "dt": 0.05, "n_obs_steps": n_obs_steps, "horizon": horizon,
        "n_action_steps": horizon, "tasks": ("toy",),
    }  # fmt: skip
    return PolicySpec(**{**fields, **changes})


def episodes(state: Tensor, action: Tensor, *, length: int = 20) -> Episodes:
    """Episodes of `length` frames each from state [F 3] and action [F 2]."""
    frames = len(state)
    zero = torch.zeros(frames)
    return Episodes(
        obs={STATE: state}, action=action, reward=zero, terminated=zero.bool(), success=zero.bool(),
        starts=torch.arange(0, frames + 1, length), seeds=torch.arange(frames // length), observation=OBSERVATION,
        action_spec=ACTION, dt=0.05, tasks=("toy",),
    )  # fmt: skip


def random_episodes(*, frames: int = 200, seed: int = 0) -> Episodes:
    generator = torch.Generator().manual_seed(seed)
    state = torch.randn(frames, 3, generator=generator)
    return episodes(state, 0.02 * (2.0 * torch.rand(frames, 2, generator=generator) - 1.0))


def two_modes(*, frames: int = 2_000, seed: int = 0) -> Episodes:
    """Pass an obstacle left or right: y = ±1 cm, x = 1 cm · tanh(state[0]), both for a whole episode of 5 frames."""
    generator = torch.Generator().manual_seed(seed)
    state = torch.randn(frames // 5, 3, generator=generator).repeat_interleave(5, dim=0)
    side = torch.randint(0, 2, (frames // 5,), generator=generator).repeat_interleave(5) * 2.0 - 1.0
    return episodes(state, torch.stack([0.01 * state[:, 0].tanh(), 0.01 * side], dim=1), length=5)


def policy(kind: type[Policy], data: Episodes, *, seed: int = 0, horizon: int = 4, **options: object) -> Policy:
    """A small policy of `kind` for `data`, the same for the same seed."""
    torch.manual_seed(seed)
    normalizer = Normalizer(OBSERVATION, ACTION).fit(data)
    options.setdefault("network", partial(ResidualMLP, width=64, time_dim=16))
    return kind(spec(horizon=horizon), normalizer, **options)


class TwoSides(nn.Module):
    """What a perfectly trained denoiser says where chunks lie around +side or −side [H Da], each as often, ± `std`."""

    def __init__(self, side: Tensor, std: float) -> None:
        super().__init__()
        self.side, self.std = side, std
        self.policy: list[ChunkDenoiser] = []  # not a submodule

    def embed_cond(self, cond: Tensor) -> Tensor:
        return cond.new_zeros(len(cond), 1)

    def embed_time(self, t: Tensor) -> Tensor:
        return t[:, None]

    def denoise(self, x: Tensor, embedding: Tensor) -> Tensor:
        times = self.policy[0].times
        index = int((times - embedding[0, 0]).abs().argmin())
        signal, spread = self.policy[0].level(index)
        total = (signal * self.std) ** 2 + spread**2
        centre = torch.tanh(signal / total * (x * self.side).sum((1, 2), keepdim=True)) * self.side
        clean = centre + signal * self.std**2 / total * (x - signal * centre)
        return (clean - x) / spread if isinstance(self.policy[0], FlowPolicy) else clean


def two_sides(
    kind: type[ChunkDenoiser],
    spec: PolicySpec,
    *,
    height: float = 0.8,
    std: float = 0.05,
    reach: float = 1.0,
    **options: object,
) -> DenoisingPolicy:
    """A policy that passes an obstacle left or right, whatever it sees: y = ±height at all steps, normalised,
    where ±1 is `reach` of the limits."""
    side = torch.zeros(spec.horizon, spec.action.dim)
    side[:, 1] = height
    network = TwoSides(side, std)
    normalizer = Normalizer.from_limits(spec.observation, spec.action)
    affine = normalizer.affine[ACTION_KEY]
    affine.set(affine.shift, reach * affine.scale)
    if kind is not FlowPolicy:
        options = {"prediction": "sample", **options}
    made = kind(spec, normalizer, network=lambda **sizes: network, **options)
    network.policy.append(made)
    return made.eval()
