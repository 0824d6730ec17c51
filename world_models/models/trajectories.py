"""Trajectories: a diffusion model of whole windows of recorded behaviour (Janner et al. 2022; Jackson et al. 2024).

Every window begins in a real state, which the network is told, so a synthetic one can be checked against the truth from
there. Time is denoised all at once: no step is fed the error of the one before, as in a rollout of a one-step model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from torch import Tensor

from robopolicy.config.instantiate import build
from robopolicy.config.schema import Count, Positive, plain
from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Metrics
from robopolicy.core.untrusted import refusing
from robopolicy.networks.denoiser import Denoiser, stratified
from robopolicy.policies.diffusion import Prediction, step_table
from robopolicy.world_models.models.model_files import ModelFiles
from robopolicy.world_models.models.windows import Tokens, Window

FILES = ModelFiles(
    "trajectory model", algo="trajectories", name="trajectories", folder="trajectories", nodes="node", format=2
)
_CLIP = 10.0  # of a denoised token, in deviations; nothing in the data lies far beyond

# States acted in [B L Ds] and their normalised actions [B L Da], as they are denoised so far, and the variance that
# is left in them → the actions to go on with.
Guide = Callable[[Tensor, Tensor, float], Tensor]


def unguided(state: Tensor, action: Tensor, variance: float) -> Tensor:
    """Behaviour as it was recorded."""
    return action


class Trajectories(Tokens):
    """p(window | its first state), denoised in K steps of DDPM. `report` is empty until the training has ended.

    Args:
        spec: features and rate of the data.
        network: makes the Denoiser from `horizon` L, `action_dim` (size of a token) and `cond_dim`.
        length: L. denoising_steps: K. prediction: see DiffusionPolicy.
        periods, fine: see StateTransform.
        node: from which `load_trajectories` rebuilds it.
    """

    alpha_bar: Tensor
    times: Tensor
    steps: Tensor
    folder = FILES.folder

    def __init__(
        self,
        spec: PolicySpec,
        *,
        network: Callable[..., Denoiser],
        length: Count = 12,
        denoising_steps: Count = 32,
        prediction: Prediction = "v_prediction",
        periods: dict[str, Positive] | None = None,
        fine: Positive = 8.0,
        node: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(spec, length=length, periods=periods, fine=fine)
        self.prediction, self.node = prediction, node
        self.network = network(horizon=length, action_dim=self.token_dim, cond_dim=self.state_transform.feature_dim)
        scheduler = DDPMScheduler(denoising_steps, beta_schedule="squaredcos_cap_v2", timestep_spacing="trailing")
        scheduler.set_timesteps(denoising_steps)
        self.register_buffer("alpha_bar", scheduler.alphas_cumprod)  # [K] from the least noisy step to the noisiest
        self.register_buffer("times", scheduler.timesteps / denoising_steps, persistent=False)
        table = step_table(self.alpha_bar, scheduler.timesteps, prediction=prediction, eta=1.0)
        self.register_buffer("steps", table[:, :, None, None], persistent=False)  # [5 K 1 1]
        self.noise_shape = (denoising_steps + 1, length, self.token_dim)

    # -- training ----------------------------------------------------------------------------------------------------
    def loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Mean squared error of the network's prediction over all modelled numbers of the windows in `batch`."""
        window = Window(*(batch[name] for name in Window._fields))
        step = (stratified(len(window.state), self.ways.device) * len(self.alpha_bar)).long()
        tokens = self.encode(window)
        return self.errors(tokens, window.state[:, 0], step, torch.randn_like(tokens))[0].mean(), {}

    def errors(self, tokens: Tensor, first: Tensor, step: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return squared errors [B] per modelled number of tokens [B L C], and those [B] of predicting 0.

        `noise` is that of denoising steps [B]; step 0 is the least noisy.
        """
        signal, spread = (x.sqrt()[:, None, None] for x in (self.alpha_bar[step], 1.0 - self.alpha_bar[step]))
        noise = noise * self.counts
        target = {"epsilon": noise, "sample": tokens, "v_prediction": signal * noise - spread * tokens}[self.prediction]
        x = signal * tokens + spread * noise
        predicted = self.network(x, step / len(self.alpha_bar), self.state_transform.features(first))
        return self._per_number(predicted - target), self._per_number(target)

    def _per_number(self, error: Tensor) -> Tensor:
        """Return the mean square [B] of [B L C] over the modelled numbers."""
        return (error.square() * self.counts).mean(1).sum(-1) / self.counts.sum()

    # -- sampling ----------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def sample(self, first: Tensor, *, noise: Tensor, guide: Guide = unguided) -> Window:
        """Windows that begin in `first` [B Ds], from standard normal noise [B K+1 L C].

        Of every denoised window `guide` moves the actions. Its states follow by the linear model at once, and in what
        is left of them, as the flags do, in the steps after that.
        """
        noise = noise * self.counts
        cond, times = self.network.embed_cond(self.state_transform.features(first)), self.network.embed_time(self.times)
        x = noise[:, 0]
        for i, time in enumerate(times):
            from_x, from_prediction, c0, c1, std = self.steps[:, i]
            clean = from_x * x + from_prediction * self.network.denoise(x, cond + time)
            variance = float(1.0 - self.alpha_bar[-1 - i])
            clean = self.steer(clean.clamp(-_CLIP, _CLIP) * self.counts, first, guide, variance)
            x = c0 * clean + c1 * x + std * noise[:, i + 1]
        return self.decode(x, first)

    def steer(self, clean: Tensor, first: Tensor, guide: Guide, variance: float) -> Tensor:
        """Denoised tokens [B L C], their actions moved by `guide`; `variance` of a number of unit deviation: 1 − ᾱ."""
        state = self.decode(clean, first).state[:, :-1]
        action = guide(state, clean[..., : self.action_dim], variance)
        return torch.cat([action, clean[..., self.action_dim :]], dim=-1)

    # -- on disk -----------------------------------------------------------------------------------------------------
    def write(self, folder: Path) -> None:
        """Fill an empty folder."""
        FILES.write(folder, self, nodes=self.node, spec=self.spec.to_json())


def make_trajectories(spec: PolicySpec, node: dict[str, Any]) -> Trajectories:
    """Build an untrained model.

    Raises:
        ConfigError: the node is of something else.
    """
    made = build(node, "world_model", spec=spec, node=plain(node))
    if not isinstance(made, Trajectories):
        raise ConfigError(f"world_model: built a {type(made).__name__}, expected world_model=trajectories")
    return made


def load_trajectories(path: Path | str) -> Trajectories:
    """Rebuild a trained model from its run directory, and load its weights strictly.

    Raises:
        CheckpointError: missing, damaged, of a newer format, not trained to its end, no better than saying nothing.
    """
    folder = FILES.find(path)
    model = FILES.load(folder, PolicySpec.from_data, make_trajectories)
    with refusing(f"{folder}/report.json: denoising"):
        held_out, nothing = (float(model.report["denoising"][k]) for k in ("held_out", "nothing"))
    if not held_out < nothing:
        raise CheckpointError(
            f"{folder}: held-out denoising error {held_out:.3g}, predicting nothing gives {nothing:.3g}: it has "
            "learned nothing. Train it longer, or on more data."
        )
    return model
