"""Compute angles of a tool that points down, from quaternions w x y z [N 4]; batched, rad."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def yaw(q: Tensor) -> Tensor:
    """Return [N], the angle about z of the body's x axis, seen from above."""
    w, x, y, z = q.unbind(1)
    return torch.atan2(2 * (x * y + w * z), 1 - 2 * (y * y + z * z))


def quarter(angle: Tensor) -> Tensor:
    """Return [N] in [−π/4, π/4): remainder of a turn with fourfold symmetry, as for a cube."""
    return torch.remainder(angle + math.pi / 4, math.pi / 2) - math.pi / 4


def half(angle: Tensor) -> Tensor:
    """Return [N] in [−π/2, π/2): remainder of a turn with twofold symmetry, as for a bar between two fingers."""
    return torch.remainder(angle + math.pi / 2, math.pi) - math.pi / 2


def face_to(q: Tensor, angle: float) -> Tensor:
    """Return [N] in [−π, π): the turn about z that is left to `angle`."""
    return torch.remainder(angle - yaw(q) + math.pi, 2 * math.pi) - math.pi


def down(q: Tensor) -> Tensor:
    """Return [N 3], the rotation vector (small angles) that would turn the body's z axis to the world's −z."""
    w, x, y, z = q.unbind(1)
    axis = torch.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)], dim=1)
    below = torch.tensor([0.0, 0.0, -1.0], dtype=q.dtype).expand_as(axis)
    return torch.linalg.cross(axis, below)


def frame(q: Tensor) -> Tensor:
    """Return [N 3 3], whose columns are the body's axes x, y, z."""
    w, x, y, z = q.unbind(1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)
