"""Encode images [B 3 h w] in [-1, 1] as vectors [B F] or tokens, by small networks trained from scratch.

Token towers also return an `outline` [B outline_dim] of their tokens [B n width], for networks without attention.

Towers with GroupNorm call `contiguous` first. Shifted images are channels-last in memory, where GroupNorm takes up to
ten times as long on a CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Count, Natural
from robopolicy.core.rng import draw_rows
from robopolicy.networks.sizes import check_channels, check_patch
from robopolicy.networks.transformer import Attention, feed_forward

_GROUPS = 8  # of GroupNorm


class ConvEncoder(nn.Module):
    """Strided convolutions, then spatial softmax: where each feature is, and how strong (Levine et al. 2016).

    Args:
        shape: (3, h, w) in pixels. dims: channels; the first three layers halve the resolution.
        out_dim: F.
    """

    def __init__(
        self, shape: tuple[int, ...], *, dims: tuple[Count, ...] = (32, 64, 64, 64), out_dim: Count = 64
    ) -> None:
        super().__init__()
        self.out_dim = out_dim
        self.net = convolutions(shape[0], dims, dims[-1], halved=3)
        self.head = nn.Sequential(nn.Linear(3 * dims[-1], out_dim), nn.LayerNorm(out_dim))

    def forward(self, image: Tensor) -> Tensor:
        maps = self.net(image.contiguous())  # [B C h/8 w/8]
        return self.head(torch.cat([keypoints(maps), maps.mean((2, 3))], dim=1))


class ViTEncoder(nn.Module):
    """A shallow vision transformer (one layer suffices for RL critics: ResFiT, Ankile et al. 2025).

    Args:
        shape: (3, h, w) in pixels, multiples of `patch`.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        patch: Count = 8,
        width: Count = 128,
        depth: Natural = 1,
        heads: Count = 4,
        out_dim: Count = 64,
    ) -> None:
        super().__init__()
        channels, height, breadth = shape
        check_patch(patch, height, breadth)
        self.out_dim = out_dim
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.position = nn.Parameter(0.02 * torch.randn(height * breadth // patch**2, width))
        self.blocks = nn.ModuleList(PlainBlock(width, heads) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, out_dim), nn.LayerNorm(out_dim))

    def forward(self, image: Tensor) -> Tensor:
        tokens = self.patches(image).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(tokens.mean(1))


class MeanOutline(nn.Module):
    """A tower whose outline is its mean token."""

    outline_dim: int

    def outline(self, tokens: Tensor) -> Tensor:
        return tokens.mean(1)


class ConvTokens(MeanOutline):
    """Encodes images by strided convolutions; each place of the map is a token [B n width].

    A convolutional stem helps small transformers to learn vision (Xiao et al. 2021).

    Args:
        shape: (3, h, w) in pixels. dims: channels; every layer halves the resolution.
    """

    def __init__(self, shape: tuple[int, ...], *, width: int, dims: tuple[Count, ...] = (32, 64, 128)) -> None:
        super().__init__()
        self.net = convolutions(shape[0], dims, width, halved=len(dims))
        height, breadth = (-(-side // 2 ** len(dims)) for side in shape[1:])  # each layer rounds up
        self.count, self.outline_dim = height * breadth, width  # n
        self.position = nn.Parameter(0.02 * torch.randn(self.count, width))

    def forward(self, image: Tensor) -> Tensor:
        return self.net(image.contiguous()).flatten(2).transpose(1, 2) + self.position


class PatchTokens(MeanOutline):
    """Encodes each patch of an image as a token [B n width], as in a vision transformer; the prefix has the blocks.

    Args:
        shape: (3, h, w) in pixels, multiples of `patch`.
    """

    def __init__(self, shape: tuple[int, ...], *, width: int, patch: Count = 8) -> None:
        super().__init__()
        check_patch(patch, *shape[1:])
        self.net = nn.Conv2d(shape[0], width, patch, stride=patch)
        self.count, self.outline_dim = shape[1] * shape[2] // patch**2, width  # n
        self.position = nn.Parameter(0.02 * torch.randn(self.count, width))

    def forward(self, image: Tensor) -> Tensor:
        return self.net(image).flatten(2).transpose(1, 2) + self.position


class KeypointTokens(nn.Module):
    """Encodes place and strength of n features as tokens [B n width] (spatial softmax, Levine et al. 2016).

    There are fewer tokens than places, and places have subpixel resolution.

    Args:
        shape: (3, h, w) in pixels. dims: channels; the first two layers halve the resolution.
        count: n, number of features.
    """

    def __init__(
        self, shape: tuple[int, ...], *, width: int, dims: tuple[Count, ...] = (16, 32, 32), count: Count = 32
    ) -> None:
        super().__init__()
        self.net = convolutions(shape[0], dims, count, halved=2)
        self.count, self.outline_dim = count, 3 * count  # n
        self.place = nn.Linear(3, width)
        self.feature = nn.Parameter(torch.randn(count, width))  # identifies the feature

    def forward(self, image: Tensor) -> Tensor:
        maps = self.net(image.contiguous()).float()  # [B n h/4 w/4]
        places = keypoints(maps).unflatten(1, (2, -1)).transpose(1, 2)  # [B n 2]
        strength = maps.flatten(2).amax(2).tanh()[..., None]
        with torch.autocast(image.device.type, enabled=False):  # bfloat16 would round a place to an eighth of a pixel
            return self.place(torch.cat([places, strength], dim=2)) + self.feature

    def outline(self, tokens: Tensor) -> Tensor:
        """Recover x, y and strength of every feature from its token, by the linear layer's pseudo-inverse."""
        with torch.autocast(tokens.device.type, enabled=False):
            placed = tokens.float() - self.feature - self.place.bias
            return (placed @ torch.linalg.pinv(self.place.weight).T).flatten(1)


class PlainBlock(nn.Module):
    """Pre-norm transformer block [B L width] → [B L width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads))
        self.feed = nn.Sequential(nn.LayerNorm(width), feed_forward(width, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.feed(x)


def convolutions(channels: int, dims: tuple[int, ...], out: int, *, halved: int) -> nn.Sequential:
    """Convolutions of 3×3 to `dims` channels, of which the first `halved` halve the resolution, and one of 1×1."""
    check_channels(dims, _GROUPS)
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(zip((channels, *dims), dims, strict=False)):
        layers += [nn.Conv2d(a, b, 3, stride=2 if i < halved else 1, padding=1), nn.GroupNorm(_GROUPS, b), nn.SiLU()]
    return nn.Sequential(*layers, nn.Conv2d(dims[-1], out, 1))


def keypoints(maps: Tensor) -> Tensor:
    """Compute the expected position of each channel under its spatial softmax: [B 2C], x then y, in [-1, 1]."""
    weight = maps.flatten(2).softmax(-1).view_as(maps)
    y = torch.linspace(-1.0, 1.0, maps.shape[2], device=maps.device)
    x = torch.linspace(-1.0, 1.0, maps.shape[3], device=maps.device)
    return torch.cat([(weight.sum(2) * x).sum(-1), (weight.sum(3) * y).sum(-1)], dim=1)


def random_shift(image: Tensor, pixels: int) -> Tensor:
    """Shift each sample of [B To 3 h w] by up to ±`pixels`, its edge repeated (DrQ, Yarats et al. 2021).

    All frames of one sample move together: the augmentation must not invent motion.
    """
    batch, _, _, height, width = image.shape
    offset = draw_rows(
        lambda rows: torch.randint(-pixels, pixels + 1, (2, rows, 1), device=image.device).transpose(0, 1), batch
    ).transpose(0, 1)
    rows = (torch.arange(height, device=image.device) + offset[0]).clamp_(0, height - 1)  # [B h]
    columns = (torch.arange(width, device=image.device) + offset[1]).clamp_(0, width - 1)  # [B w]
    sample = torch.arange(batch, device=image.device)[:, None, None]
    # Separated index tensors put their axes first: [B h w To 3].
    return image[sample, :, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 4, 1, 2)
