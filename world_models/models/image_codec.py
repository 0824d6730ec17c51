"""Encode and decode images of a camera as differences to the mean image.

A robot's cameras stand still, so frames differ little. The codec takes the mean image from the data, and encodes and
decodes the difference to it in units of its deviation. Small convolutions encode. Imagination decodes at every step and
encodes only at the beginning of an episode, so the decoder must be cheap: it draws squares of 4 × 4 pixels by matrix
products alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from robopolicy.core.errors import SpecError
from robopolicy.core.types import IMAGES, EnvSpec, Obs

_SMALLEST = 4  # pixels of a side that are left when no more are halved
_SQUARE = 4  # pixels of a side of the decoder's squares
_AT_ONCE = 1024  # pictures that are floats at the same time
Through = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]


class ImageCodec(nn.Module):
    """Encoder and decoder of one camera.

    Args:
        shape: (3, h, w); sides of 4 · 2ⁿ pixels with the same n ≥ 1, e.g. 32 × 32 or 64 × 64.
        feature_dim: F, input size of the decoder. depth: channels of the first layer; each layer doubles them.
        out_dim: D, output size of the encoder, and size of the decoder's hidden layer.

    Raises:
        SpecError: an image of other sides.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, key: str, shape: tuple[int, ...], *, feature_dim: int, depth: int, out_dim: int) -> None:
        super().__init__()
        layers, sides = 0, tuple(shape[1:])
        while min(sides) > _SMALLEST and not any(n % 2 for n in sides):
            layers, sides = layers + 1, tuple(n // 2 for n in sides)
        if not layers or min(sides) != _SMALLEST:
            raise SpecError(
                f"{key!r}: the world model needs pictures whose shorter side is {_SMALLEST} times a power of two, and "
                f"the other one a multiple of the same power, found {shape[1]}×{shape[2]} (h×w). Record with "
                "task.image_size=[32,32] or [64,64], or leave the camera away: cameras=[…]."
            )
        channels = [depth * 2**i for i in range(layers)]
        size = channels[-1] * sides[0] * sides[1]
        down: list[nn.Module] = []
        for a, b in zip([shape[0], *channels], channels, strict=False):
            down += [nn.Conv2d(a, b, 4, stride=2, padding=1), nn.GroupNorm(1, b), nn.SiLU()]
        self.down = nn.Sequential(*down, nn.Flatten(), nn.Linear(size, out_dim))
        self.grid = (shape[1] // _SQUARE, shape[2] // _SQUARE)
        self.squares = nn.Sequential(
            nn.Linear(feature_dim, out_dim), nn.LayerNorm(out_dim), nn.SiLU(),
            nn.Linear(out_dim, 2 * depth * self.grid[0] * self.grid[1]), nn.SiLU(),
            nn.Unflatten(-1, (-1, 2 * depth)), nn.Linear(2 * depth, shape[0] * _SQUARE**2),
        )  # fmt: skip
        self.register_buffer("mean", torch.full(tuple(shape), torch.nan))  # from 0 to 1
        self.register_buffer("spread", torch.tensor(torch.nan))  # root mean square of differences to it

    def fit(self, pictures: Tensor) -> None:
        """Take mean and spread of uint8 [F 3 h w]."""
        parts = pictures.split(_AT_ONCE)
        total = torch.stack([part.double().sum(0) for part in parts]).sum(0)
        mean = (total / (255.0 * len(pictures))).float()
        square = sum(float((part / 255.0 - mean).square().sum()) for part in parts)
        self.mean.copy_(mean)
        self.spread.fill_(max(square / pictures.numel(), 1e-8) ** 0.5)

    def units(self, pictures: Tensor) -> Tensor:
        """Return uint8 [... 3 h w] as differences to the mean picture, in deviations."""
        return (pictures / 255.0 - self.mean) / self.spread

    def encode(self, units: Tensor) -> Tensor:
        """Return [B D] of [B 3 h w]."""
        encoded: Tensor = self.down(units)
        return encoded

    def decode(self, features: Tensor) -> Tensor:
        """Return [B 3 h w], differences to the mean picture in deviations, of [B F]."""
        drawn = self.squares(features).view(len(features), *self.grid, self.mean.shape[0], _SQUARE, _SQUARE)
        return drawn.permute(0, 3, 1, 4, 2, 5).reshape(len(features), *self.mean.shape)

    def picture(self, units: Tensor) -> Tensor:
        """Return uint8 pictures: inverse of `units`, within what a picture can show."""
        shown = torch.addcmul(255.0 * self.mean, units, 255.0 * self.spread)
        return shown.round_().clamp_(0.0, 255.0).to(torch.uint8)


class CameraCodecs(nn.ModuleDict):
    """Codecs of all cameras of `spec`, by the key of their images. Arguments: see ImageCodec."""

    def __init__(self, spec: EnvSpec, *, feature_dim: int, depth: int, out_dim: int) -> None:
        cameras = {k: f"camera_{i}" for i, k in enumerate(k for k in spec.observation if k.startswith(IMAGES))}
        super().__init__({
            name: ImageCodec(key, spec.observation[key].shape, feature_dim=feature_dim, depth=depth, out_dim=out_dim)
            for key, name in cameras.items()
        })  # fmt: skip
        self.cameras = cameras

    def codec(self, key: str) -> ImageCodec:
        """Return the codec of the images `key`."""
        codec = self[self.cameras[key]]
        assert isinstance(codec, ImageCodec)
        return codec

    def fit(self, obs: Obs) -> None:
        """Take mean and spread of every camera's images."""
        for key in self.cameras:
            self.codec(key).fit(obs[key])

    def units(self, obs: Obs) -> dict[str, Tensor]:
        """Return every camera's images as differences to the mean image, in deviations."""
        return {key: self.codec(key).units(obs[key]) for key in self.cameras}

    def encode(self, units: dict[str, Tensor], through: Through) -> list[Tensor]:
        """Encode units [B S 3 h w] of every camera into [B S D]; `through` applies a network in its precision."""
        return [
            through(self.codec(k).encode, units[k].flatten(0, 1)).unflatten(0, units[k].shape[:2]) for k in self.cameras
        ]

    def losses(
        self, features: Tensor, units: dict[str, Tensor], there: Tensor, *, weight: float, through: Through
    ) -> dict[str, Tensor]:
        """Return half the weighted squared errors [B S] of images decoded from `features`, the frames of `there`."""
        found = {}
        for key in self.cameras:
            shown = through(self.codec(key).decode, features)
            error = (shown - units[key][there]).square().sum((1, 2, 3))
            missed = torch.zeros(there.shape, device=error.device).masked_scatter(there, 0.5 * weight * error)
            found[f"picture.{key.removeprefix(IMAGES)}"] = missed
        return found
