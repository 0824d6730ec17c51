"""Encode point clouds [B P 3] as vectors [B F], and thin them out in training."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Count
from robopolicy.core.errors import SpecError
from robopolicy.core.rng import draw_rows
from robopolicy.core.types import Feature


class PointEncoder(nn.Module):
    """Applies one MLP to each point, takes the maximum over points, and projects it (DP3: Ze et al. 2024).

    The order of points does not matter, and repeated points change nothing.

    Args:
        shape: (P, 3) of a cloud. dims: widths of the MLP. out_dim: F.
    """

    def __init__(self, shape: tuple[int, ...], *, dims: tuple[Count, ...] = (32, 64, 128), out_dim: Count = 64) -> None:
        super().__init__()
        self.out_dim = out_dim
        layers: list[nn.Module] = []
        for a, b in pairwise((shape[-1], *dims)):
            layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU()]
        self.net = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(dims[-1], out_dim), nn.LayerNorm(out_dim))

    def forward(self, points: Tensor) -> Tensor:
        return self.head(self.net(points).amax(1))


def drop_points(points: Tensor, share: float) -> Tensor:
    """Drop a random `share` of the points of each sample of [B To P 3], the same ones in all its frames.

    At least one point stays. Training then costs less, and the policy relies on no single point.
    """
    batch, frames, count, _ = points.shape
    kept = max(1, round(count * (1.0 - share)))
    if kept == count:
        return points
    order = draw_rows(lambda rows: torch.rand(rows, count, device=points.device), batch).topk(kept, dim=1).indices
    return points.gather(2, order[:, None, :, None].expand(batch, frames, kept, 3))


def check_cloud(key: str, feature: Feature) -> tuple[int, ...]:
    """Return the shape (P, 3) of a point cloud.

    Raises:
        SpecError: another shape or dtype.
    """
    if feature.dtype != "float32" or len(feature.shape) != 2 or feature.shape[1] != 3 or not feature.shape[0]:
        raise SpecError(
            f"{key}: a point cloud must be float32 (P, 3) in m, found {feature.dtype} {tuple(feature.shape)}. "
            "Correct the dataset, or give this key another name."
        )
    return tuple(feature.shape)
