"""Encode an observation, history included, as one vector: from states, pictures, point clouds and the task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Count, Fraction, Natural
from robopolicy.core.errors import SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import IMAGES, POINTS, TASK, Obs
from robopolicy.networks.mlp import Identity
from robopolicy.networks.points import PointEncoder, check_cloud, drop_points
from robopolicy.networks.task_conditioned import by_task
from robopolicy.networks.vision import ConvEncoder, random_shift


class ObservationEncoder(nn.Module):
    """Encodes *normalised* observations [B To ...] as cond [B C]; `out_dim` is C.

    Float keys are concatenated over keys and history and go through the state encoder. Each camera has its own
    encoder, applied frame by frame, and so has each point cloud. `task_index`, where the spec has it, selects a learned
    vector.

    Args:
        state_encoder: makes a module from the flattened size; identity when None.
        image_encoder: makes a module from a camera's shape (3, h, w); ConvEncoder when None.
        points_encoder: makes a module from a point cloud's shape (P, 3); PointEncoder when None.
        image_shift: pixels of random shift in training (0: none).
        point_dropout: share of a cloud's points that is dropped at random in training (0: none).
        task_dim: size of the task vector.
        task_weights: with several tasks, each has its own columns of the state encoder's input, see `by_task`.

    Raises:
        SpecError: a key that is neither float32, nor an image, nor the task; a point cloud of another shape.
    """

    def __init__(
        self,
        spec: PolicySpec,
        /,
        *,
        state_encoder: Callable[[int], nn.Module] | None = None,
        image_encoder: Callable[[tuple[int, ...]], nn.Module] | None = None,
        points_encoder: Callable[[tuple[int, ...]], nn.Module] | None = None,
        image_shift: Natural = 4,
        point_dropout: Fraction = 0.5,
        task_dim: Count = 16,
        task_weights: bool = True,
    ) -> None:
        super().__init__()
        keys = spec.observation
        self.cameras = tuple(k for k in keys if k.startswith(IMAGES))
        self.clouds = tuple(k for k in keys if k.startswith(POINTS))
        apart = {*self.cameras, *self.clouds}
        self.floats = tuple(k for k, f in keys.items() if f.dtype == "float32" and k not in apart)
        self.has_task = TASK in keys
        strange = sorted(set(keys) - {*apart, *self.floats, TASK})
        if strange or not keys:
            raise SpecError(
                f"observation keys must be float32, {IMAGES}<camera>, {POINTS}<camera> or {TASK}; "
                f"found {strange or 'none at all'}. Convert them to float32 in the dataset, or leave "
                "them out: robopolicy data import dataset=… 'rename={<key>: null}'."
            )
        self.image_shift, self.point_dropout = image_shift, point_dropout
        self.out_dim: int = 0
        self.task_inputs = len(spec.tasks) if task_weights and self.has_task and len(spec.tasks) > 1 else 0
        if self.floats:
            frame = sum(torch.Size(keys[k].shape).numel() for k in self.floats)
            state: Any = (state_encoder or Identity)(spec.n_obs_steps * frame * (1 + self.task_inputs))
            self.state, self.out_dim = state, state.out_dim
        images: Any = [(image_encoder or ConvEncoder)(tuple(keys[k].shape)) for k in self.cameras]
        self.images = nn.ModuleList(images)
        self.out_dim += spec.n_obs_steps * sum(encoder.out_dim for encoder in images)
        clouds: Any = [(points_encoder or PointEncoder)(check_cloud(k, keys[k])) for k in self.clouds]
        self.points = nn.ModuleList(clouds)
        self.out_dim += spec.n_obs_steps * sum(encoder.out_dim for encoder in clouds)
        if self.has_task:
            self.task = nn.Embedding(len(spec.tasks), task_dim)
            self.out_dim += task_dim

    def forward(self, obs: Obs, *, augment: bool = False) -> Tensor:
        """cond [B C] from normalised obs [B To ...]; `augment`: shift images, drop points (training only)."""
        parts = []
        if self.floats:
            state = side_by_side([obs[k].flatten(1) for k in self.floats])
            parts.append(self.state(by_task(state, obs[TASK][:, -1], self.task_inputs) if self.task_inputs else state))
        for key, encoder in zip(self.cameras, self.images, strict=True):
            image = obs[key]
            if augment and self.image_shift:
                image = random_shift(image, self.image_shift)
            parts.append(encoder(image.flatten(0, 1)).view(image.shape[0], -1))
        for key, encoder in zip(self.clouds, self.points, strict=True):
            cloud = drop_points(obs[key], self.point_dropout) if augment else obs[key]
            parts.append(encoder(cloud.flatten(0, 1)).view(len(cloud), -1))
        if self.has_task:
            parts.append(self.task(obs[TASK][:, -1]))
        return side_by_side(parts)


def side_by_side(parts: list[Tensor]) -> Tensor:
    """Concatenate tensors [B …] along dim 1; return a single tensor without a copy."""
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
