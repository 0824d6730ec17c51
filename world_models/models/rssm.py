"""Recurrent state-space model of images and states (RSSM, DreamerV2/V3: Hafner et al. 2021, 2023).

h is the deterministic recurrent state. z holds Z categorical variables: a prior predicts them from h, a posterior reads
the frame. A latent is [h, z, s]. The state s is exact where a frame is observed and then moves by predicted changes:
a state decoded from z at every step would be blurred by more than it moves in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robopolicy.config.schema import Count, Fraction, NonNegative, Positive
from robopolicy.core.types import IMAGES, STATE, TASK, EnvSpec, Feature, Metrics, Obs
from robopolicy.datasets.episodes import Episodes
from robopolicy.networks.mlp import MLP
from robopolicy.networks.precision import Precision, computing
from robopolicy.world_models.models.categoricals import balanced, drawn, keyed, likeliest, mixed, straight_through
from robopolicy.world_models.models.disagreement_ensemble import DisagreementEnsemble, disagreement
from robopolicy.world_models.models.dynamics import History, Imagined, StateDynamics, by_blocks
from robopolicy.world_models.models.image_codec import CameraCodecs, ImageCodec
from robopolicy.world_models.models.recurrent_cell import RecurrentCell, Track
from robopolicy.world_models.models.state_transform import ROWS, StateTransform, check_sizes, hyperbolic, round_up


class RSSM(StateDynamics):
    """h [U] of a recurrent cell, z of Z × K classes, and the state [Ds].

    Args:
        units: U. variables, classes: Z and K.
        width: of all hidden layers. depth: channels of the first layer of a picture's encoder.
        unroll: L steps of a training sequence; nothing is carried over from one to another.
        memory: frames of history that a latent is computed from.
        disagreement_heads: one-step predictors of the next z; their disagreement is the uncertainty.
        kl: weight of KL(posterior ‖ prior). balance: share of its gradient for the prior. free_nats: KL without loss.
            uniform: share of a uniform distribution mixed into every categorical.
        picture: weight of an image's squared error, in its deviations, against the state's −log p.
        min_spread: floor of the state's spread, in deviations of a step. periods, fine: see StateTransform.
        block: rows stepped at once. Batches are padded to it, so that a row's bits do not depend on the others.
        precision: of the networks; latents, states and losses are float32.

    Raises:
        ConfigError: a size that is no multiple of ROWS. SpecError: image sides, see ImageCodec.
    """

    heads = 1

    def __init__(
        self,
        spec: EnvSpec,
        *,
        units: Count = 256,
        variables: Count = 16,
        classes: Count = 16,
        width: Count = 256,
        depth: Count = 16,
        unroll: Count = 16,
        memory: Count = 4,
        disagreement_heads: Count = 5,
        kl: Positive = 1.0,
        balance: Fraction = 0.8,
        free_nats: NonNegative = 1.0,
        uniform: Fraction = 0.01,
        picture: Positive = 0.1,
        min_spread: Positive = 0.05,
        periods: dict[str, Positive] | None = None,
        fine: Positive = 8.0,
        block: Count = 128,
        precision: Precision = "float32",
    ) -> None:
        super().__init__()
        stochastic = variables * classes
        check_sizes({"units": units, "width": width, "depth": depth, "block": block, "variables·classes": stochastic})
        self.spec, self.unroll, self.memory, self.block = spec, unroll, memory, block
        self.units, self.variables, self.classes = units, variables, classes
        self.kl, self.balance, self.free_nats, self.uniform = kl, balance, free_nats, uniform
        self.picture, self.min_spread, self.precision = picture, min_spread, precision
        self.state_transform = StateTransform(spec.observation[STATE], spec.action, periods=periods, fine=fine)
        size, in_dim = self.state_transform.size, self.state_transform.in_dim
        self.latent_dim = units + stochastic + size
        self.feature_dim = units + stochastic + self.state_transform.feature_dim
        self.pictures = CameraCodecs(spec, feature_dim=self.feature_dim, depth=depth, out_dim=width)
        self.cameras = tuple(self.pictures.cameras)
        seen = units + self.state_transform.feature_dim + width * len(self.cameras)
        self.cell = RecurrentCell(stochastic + in_dim, units, width=width)
        self.prior = MLP(units, stochastic, width=width, depth=1, norm=True)
        self.posterior = MLP(seen, stochastic, width=width, depth=1, norm=True)
        self.move = MLP(units + stochastic + in_dim, round_up(size), width=width, depth=2, norm=True)
        self.lean = nn.Linear(in_dim, round_up(size), bias=False)
        self.log_spread = nn.Parameter(torch.zeros(size))
        inputs = units + stochastic + in_dim
        self.disagreement_ensemble = DisagreementEnsemble(disagreement_heads, inputs, stochastic, width=width)
        with torch.no_grad():
            for parameter in (*self.move[-1].parameters(), self.lean.weight):  # at first, nothing moves
                parameter.mul_(0.1)

    @classmethod
    def reads(cls, offered: Mapping[str, Feature]) -> dict[str, Feature]:
        return {k: f for k, f in offered.items() if k in (STATE, TASK) or k.startswith(IMAGES)}

    def state(self, latent: Tensor) -> Tensor:
        return latent[..., -self.state_transform.size :]

    def fit(self, episodes: Episodes) -> None:
        super().fit(episodes)
        self.pictures.fit(episodes.obs)

    @torch.no_grad()
    def encode(self, history: History) -> Tensor:
        keys = (STATE, *self.cameras)

        def block(action: Tensor, fresh: Tensor, *frames: Tensor) -> tuple[Tensor]:
            obs = dict(zip(keys, frames, strict=True))
            track = self._track(self._seen(obs), obs[STATE], action, fresh, sample=likeliest, follow=False)
            return (torch.cat([track.h, track.z, obs[STATE]], dim=-1),)

        return by_blocks(block, history.action, history.fresh, *(history.obs[k] for k in keys), block=ROWS)[0]

    @torch.no_grad()
    def decode(self, latent: Tensor, keys: Collection[str]) -> Obs:
        obs = super().decode(latent, [k for k in keys if k not in self.cameras])
        for key in (k for k in keys if k in self.cameras):
            (obs[key],) = by_blocks(partial(self._shown, self.pictures.codec(key)), latent, block=self.block)
        return {k: obs[k] for k in keys}

    def _shown(self, camera: ImageCodec, latent: Tensor) -> tuple[Tensor]:
        return (camera.picture(self._through(camera.decode, self.features(latent))),)

    def features(self, latent: Tensor) -> Tensor:
        return torch.cat([latent[..., : -self.state_transform.size], super().features(latent)], dim=-1)

    def mixed(self, latent: Tensor, other: Tensor, swap: Tensor) -> Tensor:
        """h as a whole, z by its variables, the state by its numbers."""
        parts = [self.units, self.variables * self.classes, self.state_transform.size]
        h, z, state = swap.split(parts, dim=-1)
        z = z[..., : self.variables].repeat_interleave(self.classes, dim=-1)
        whole = torch.where(torch.cat([h[..., :1].expand_as(h), z, state], dim=-1), other, latent)
        known = whole[..., : -self.state_transform.size]
        return torch.cat([known, self.state_transform.derive(self.state(whole))], dim=-1)

    @torch.no_grad()
    def step(self, latent: Tensor, action: Tensor, *, episode: Tensor, draw: Tensor | None) -> Imagined:
        draw = torch.full_like(episode, torch.nan) if draw is None else draw
        return Imagined(*by_blocks(self._step_block, latent, action, keyed(draw, self.variables), block=self.block))

    def _step_block(self, latent: Tensor, action: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        h, z, state = latent.split([self.units, self.variables * self.classes, self.state_transform.size], dim=-1)
        inputs = self.state_transform.inputs(state, action)
        uncertainty = disagreement(self._predict_members(torch.cat([h, z, inputs], dim=-1)))
        h = self.cell(h, z, inputs, self._through)
        log_p = self._odds(self._through(self.prior, h))
        z = torch.where(unit.isnan()[..., None], likeliest(log_p), drawn(log_p, unit)).flatten(1)
        state = self.state_transform.advance(state, self._change(h, z, inputs))
        return torch.cat([h, z, state], dim=-1), uncertainty

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Return −log p of the frames under the posterior, KL to the prior, and the disagreement ensemble's loss.

        Of every term the mean over the frames that exist; each is a sum over pixels, numbers or variables.
        """
        obs = {k: batch[k][0] for k in (STATE, *self.cameras)}
        valid = batch["valid"][0]  # [B L]
        action = F.pad(batch["action"][0], (0, 0, 0, 1))
        there = torch.cat([torch.ones_like(valid[:, :1]), valid], dim=1)  # [B S]
        fresh = torch.zeros_like(there)
        units = self.pictures.units(obs)
        track = self._track(self._seen(obs, units), obs[STATE], action, fresh, sample=straight_through, follow=True)
        divergence, kl = balanced(track.posterior, track.prior, balance=self.balance, free=self.free_nats)
        terms = {"kl_loss": (self.kl * divergence, there), "state": (self._missed(track, obs[STATE]), valid)}
        known = torch.cat([track.h, track.z, self.state_transform.features(track.state.detach())], dim=-1)[there]
        shown = self.pictures.losses(known, units, there, weight=self.picture, through=self._through)
        terms |= {name: (term, there) for name, term in shown.items()}
        inputs = self.state_transform.inputs(track.state, action)[:, :-1]
        guessed = self._predict_members(torch.cat([track.h[:, :-1], track.z[:, :-1], inputs], dim=-1).detach())
        entropy = -(track.posterior[:, 1:].detach().exp() * guessed).sum((-2, -1)).mean(0)
        terms["disagreement"] = (entropy, valid)
        for name, (term, mask) in terms.items():
            assert term.shape == mask.shape, f"{name}: loss {tuple(term.shape)} of frames {tuple(mask.shape)}"
        means = {n: torch.where(m, term, 0.0).sum() / m.sum().clamp_min(1) for n, (term, m) in terms.items()}
        loss = torch.stack(list(means.values())).sum()
        nats = torch.where(there, kl, 0.0).sum() / there.sum()
        return loss, {"kl": float(nats), **{n: float(v.detach()) for n, v in means.items() if n != "kl_loss"}}

    def _track(
        self, seen: Tensor, state: Tensor, action: Tensor, fresh: Tensor, *, sample: Callable[[Tensor], Tensor],
        follow: bool,
    ) -> Track:  # fmt: skip
        """Follow sequences of the posterior's inputs [B S …]; `follow` imagines the state between fresh frames.

        Fresh frames, and the first one, begin with h, z and action 0.
        """
        h, z = seen.new_zeros(len(seen), self.units), seen.new_zeros(len(seen), self.variables * self.classes)
        at, rows = state[:, 0], []
        for t in range(seen.shape[1]):
            begins = fresh[:, t, None] if t else torch.ones_like(fresh[:, :1])
            inputs = torch.where(begins, 0.0, self.state_transform.inputs(at, action[:, t - 1]))
            h = self.cell(torch.where(begins, 0.0, h), torch.where(begins, 0.0, z), inputs, self._through)
            odds = self._odds(self._through(self.posterior, torch.cat([h, seen[:, t]], dim=-1)))
            z = sample(odds).flatten(1)
            change = torch.zeros_like(at)
            if follow:
                change = torch.where(begins, 0.0, self._change(h, z, inputs))
            at = torch.where(begins, state[:, t], self.state_transform.advance(at, change)) if follow else state[:, t]
            rows.append((h, z, at, change, odds))
        h_all, z_all, states, changes, posterior = (torch.stack(x, dim=1) for x in zip(*rows, strict=True))
        return Track(h_all, z_all, states, changes, self._odds(self._through(self.prior, h_all)), posterior)

    def _seen(self, obs: Obs, units: dict[str, Tensor] | None = None) -> Tensor:
        """Return the posterior's inputs [B S …] of frames [B S ...]."""
        units = self.pictures.units(obs) if units is None else units
        return torch.cat(
            [self.state_transform.features(obs[STATE]), *self.pictures.encode(units, self._through)], dim=-1
        )

    def _through(self, network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        with computing(self.precision, x.device):
            return network(x).float()

    def _odds(self, logits: Tensor) -> Tensor:
        return mixed(logits.unflatten(-1, (self.variables, self.classes)), self.uniform)

    def _predict_members(self, x: Tensor) -> Tensor:
        """Log probabilities [E ... Z K] of the next z as each member predicts them from x [... F]."""
        return self._odds(self._through(self.disagreement_ensemble, x.flatten(0, -2)).unflatten(1, x.shape[:-1]))

    def _change(self, h: Tensor, z: Tensor, inputs: Tensor) -> Tensor:
        """Predicted change of the state [B Ds] in deviations of a step: a linear part and a network."""
        moved: Tensor = self.lean(inputs) + self._through(self.move, torch.cat([h, z, inputs], dim=-1))
        return moved[..., : self.state_transform.size]

    def _missed(self, track: Track, state: Tensor) -> Tensor:
        """Return −log p [B L] of the states, hyperbolic (see PhaseEnsemble), each from the one imagined before it."""
        spread = self.min_spread + self.log_spread.exp()
        difference = self.state_transform.difference(track.state[:, :-1], state[:, 1:])
        return (hyperbolic(difference - track.change[:, 1:], spread) * self.state_transform.predicted).sum(-1)
