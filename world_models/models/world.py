"""World model: dynamics, success classifier and a bound on uncertainty, stored in one directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from robopolicy.config.instantiate import build
from robopolicy.config.registry import resolve
from robopolicy.core.errors import CheckpointError, ConfigError, SpecError
from robopolicy.core.specs import EnvFile
from robopolicy.core.types import EnvSpec, Feature, Metrics
from robopolicy.core.untrusted import checked
from robopolicy.world_models.models.dynamics import Dynamics, History
from robopolicy.world_models.models.model_files import ModelFiles, ReportedModel
from robopolicy.world_models.models.success import SuccessClassifier

FILES = ModelFiles("world model", algo="world_model", name="world", folder="model", nodes="nodes", format=4)
find_world = FILES.find


class World(ReportedModel):
    """Learned model of an environment. `report` holds its quality; it is empty until the end of training.

    Args:
        spec: the env that is modelled, as its data describes it.
        nodes: {"world_model": …, "success": …}, from which `load_world` rebuilds it.
    """

    bound: Tensor
    folder = FILES.folder

    def __init__(
        self, spec: EnvSpec, dynamics: Dynamics, success: SuccessClassifier, *, nodes: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.spec, self.dynamics, self.success = spec, dynamics, success
        self.nodes = nodes
        self.register_buffer("bound", torch.tensor(torch.nan))  # on `Imagined.uncertainty`; NaN until calibrated

    def score(self, latents: Tensor, after: Tensor) -> Tensor:
        """Return scores [B] of windows of latents [B W C] and the next latents [B C]."""
        score: Tensor = self.success(self.success_features(latents, after))
        return score

    @torch.no_grad()
    def after(self, latents: Tensor, action: Tensor) -> Tensor:
        """Return the likeliest latents [B C] after action [B Da] from the last of [B W C]."""
        member = torch.zeros(len(latents), device=latents.device)
        return self.dynamics.step(latents[:, -1], action, episode=member, draw=None).latent

    def success_features(self, latents: Tensor, after: Tensor) -> Tensor:
        """Return the inputs [B W+1 F] of the success classifier."""
        return self.dynamics.features(torch.cat([latents, after[:, None]], dim=1))

    @property
    def memory(self) -> int:
        """S: frames of history for the last `success.window` latents."""
        return self.success.window + self.dynamics.memory - 1

    def windows(self, history: History) -> Tensor:
        """Return the last latents [B W C] of histories [B S ...], for the success classifier."""
        return self.dynamics.encode(history)[:, -self.success.window :]

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Both losses, which share no weights, so one optimiser serves both."""
        loss, metrics = self.dynamics.loss(batch)
        history, label = batch["success_history"], batch["label"]
        windows = self.windows(history)
        after = self.after(windows, history.action[:, -1])
        mixed = self._mixed(torch.cat([windows, after[:, None]], dim=1), label, int(batch["mixing"]))
        other, more = self.success.loss(self.success_features(windows, after), label, self.dynamics.features(mixed))
        return loss + other, {**metrics, **more}

    def _mixed(self, latents: Tensor, label: Tensor, seed: int) -> Tensor:
        """Return the successes of [P W+1 C], each with a uniform share of its numbers from a window without success."""
        good, other = latents[label > 0.5], latents[label <= 0.5]
        if not len(other):
            return good[:0]
        draws = torch.Generator().manual_seed(seed)
        rows = torch.randint(len(other), (len(good),), generator=draws)
        share = torch.rand((len(good), 1, 1), generator=draws)
        swap = torch.rand((len(good), 1, latents.shape[-1]), generator=draws) < share
        return self.dynamics.mixed(good, other[rows], swap.expand(good.shape).to(good.device))

    def write(self, folder: Path) -> None:
        """Fill an empty folder."""
        FILES.write(folder, self, nodes=self.nodes, spec=json.dumps(asdict(self.spec), indent=1))


def make_world(spec: EnvSpec, nodes: dict[str, Any]) -> World:
    """Build an untrained world.

    Raises:
        ConfigError: a node is of something else.
    """
    dynamics = build(nodes["world_model"], "world_model", spec=spec)
    if not isinstance(dynamics, Dynamics):
        raise ConfigError(f"world_model: built a {type(dynamics).__name__}, expected a Dynamics")
    success = build(nodes["success"], "success", feature_dim=dynamics.feature_dim)
    return World(spec, dynamics, success, nodes=nodes)


def features_read(node: dict[str, Any], offered: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return those of the offered features that the dynamics of a node would model."""
    reads: Callable[..., dict[str, Feature]] = getattr(resolve(node, "world_model"), "reads", Dynamics.reads)
    return reads(offered)


def load_world(path: Path | str, *, which: Literal["latest", "best"] = "latest") -> World:
    """Rebuild a trained world and load its weights strictly.

    Raises:
        CheckpointError: missing, damaged, of a newer format, not trained to its end, weights that are not finite.
    """
    return FILES.load(find_world(path, which=which), read_spec, make_world)


def read_spec(data: dict[str, Any]) -> EnvSpec:
    """Inverse of `asdict`: lists are tuples again.

    Raises:
        CheckpointError: a field is missing or unknown, or holds what it cannot.
    """
    try:
        return checked(EnvFile, data, "spec.json").spec()
    except SpecError as error:
        raise CheckpointError(f"spec.json does not describe an environment: {error}") from error
