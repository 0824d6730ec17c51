"""Bring a network: make it a policy, train it by imitation, load it again and measure it."""

from __future__ import annotations

import sys

import torch

import robopolicy as rp
from robopolicy.config.registry import register
from robopolicy.core.specs import PolicySpec
from robopolicy.networks.encoders import ObservationEncoder
from robopolicy.networks.mlp import MLP
from robopolicy.policies.base import Policy
from robopolicy.policies.normalizer import Normalizer

SMALL = "--small" in sys.argv  # shows that it runs, and learns nothing


@register("policy", "regressor")  # the name in configs and checkpoints
class ChunkRegressor(Policy):
    """Regresses the whole chunk of actions by mean absolute error."""

    def __init__(self, spec: PolicySpec, normalizer: Normalizer, *, width: int = 256, depth: int = 3) -> None:
        super().__init__()
        self.spec, self.normalizer = spec, normalizer
        self.encoder = ObservationEncoder(spec)  # states and pictures of To frames to [B C]
        self.network = MLP(self.encoder.out_dim, spec.horizon * spec.action.dim, width=width, depth=depth)

    def forward(self, obs):
        """Return the chunk [B H Da] in normalised units for observations [B To ...] in physical ones."""
        cond = self.encoder(self.normalizer.observation(obs))
        return self.network(cond).view(-1, self.spec.horizon, self.spec.action.dim)

    @torch.no_grad()
    def act(self, obs, *, noise=None, deterministic=False):
        """Return the chunk [B H Da] in physical units."""
        return self.normalizer.unnormalize("action", self(obs))

    def loss(self, batch):
        """Return the loss of {key: [B To ...], "action": [B H Da], "action_is_pad": [B H]}, and metrics to log."""
        error = (self(batch) - self.normalizer.normalize("action", batch["action"])).abs().mean(-1)  # [B H]
        keep = ~batch["action_is_pad"]  # steps after the end of an episode do not count
        return (error * keep).sum() / keep.sum(), {}


rp.demos("data/reach", task="reach", episodes=4 if SMALL else 30, overwrite=True)
rp.train(
    "runs/mine", policy={"_target_": "regressor", "width": 128}, task="reach", dataset="data/reach", tracker="local",
    loop={"steps": 20 if SMALL else 1_000},
)  # fmt: skip
print(repr(rp.evaluate("runs/mine", episodes=10 if SMALL else 200)))
