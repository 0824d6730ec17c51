"""Read elements of a state by name, differences of its places (`object-hand`), and both magnified (`object/0.01`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from robopolicy.core.errors import SpecError
from robopolicy.core.specs import state_columns
from robopolicy.core.types import Feature
from robopolicy.policies.normalizer import Affine

_AXES = ("x", "y", "z")
_CLIP = 10.0  # deviations, as of a Normalizer


class StateReading(nn.Module):
    """What a network reads of a state: elements, differences of places, then what is magnified, in network units.

    A difference `a-b` is the vector from place b to place a: of the elements `a_x` and `b_x`, and so on for the axes
    that both have. It has statistics of its own, since a step of 1 cm would vanish beside places that are 30 cm apart.

    `name/0.005` is an element, a pattern or a difference, divided by 0.005 of its units and clipped to [−1, 1]. So the
    last 5 mm before a hole fill the whole range.

    Args:
        feature: of the state, shape [Ds]. names: elements, patterns of them, or differences, magnified or not; None:
            all elements. where: the key to blame.

    Raises:
        SpecError: a name is neither an element, a pattern that matches one, nor a difference of two places; what
            follows a slash is no number from 1e-9 to 1e9.
    """

    columns: Tensor  # int64, elements that are read
    ends: Tensor  # int64 [2 Dd]: columns of a and of b
    affine: Affine | None  # of the differences; None where there are none
    near: Tensor  # int64 [2 Dm]: columns of what is magnified, and of what is taken from it
    factors: Tensor  # [2 Dm] of both: 1 / unit, and 0 where nothing is taken from it

    def __init__(self, feature: Feature, names: Sequence[str] | None, *, where: str) -> None:
        super().__init__()
        pairs: dict[tuple[int, int], None] = {}
        magnified = [] if names is None else [name for name in names if _is_magnified(feature, name)]
        rest = None if names is None else [name for name in names if name not in magnified]
        plain = None if rest is None else [name for name in rest if not _add_difference(feature, name, pairs, where)]
        columns = state_columns(feature, plain, where=where)
        self.register_buffer("columns", torch.tensor(columns, dtype=torch.int64), persistent=False)
        self.register_buffer("ends", torch.tensor(list(pairs), dtype=torch.int64).reshape(-1, 2).T, persistent=False)
        self.affine = Affine((len(pairs),)) if pairs else None
        near, factors = _magnified(feature, magnified, where)
        self.register_buffer("near", near, persistent=False)
        self.register_buffer("factors", factors, persistent=False)

    @property
    def dim(self) -> int:
        """Return the number of elements and differences, and of what is magnified."""
        return len(self.columns) + self.ends.shape[1] + self.near.shape[1]

    def fit(self, states: Tensor | None, scale: Tensor, *, min_std: float = 0.05) -> None:
        """Set mean and deviation of the differences.

        Args:
            states: [F Ds] of demonstrations, physical units; None: there are none, and the mean is taken as 0 and the
                deviation as that of two places that know nothing of one another.
            scale: [Ds] deviations of the elements, for that case.
            min_std: least deviation, as a share of the typical one.
        """
        if self.affine is None:
            return
        a, b = self.ends
        if states is None:
            self.affine.set(torch.tensor(0.0), (scale[a].square() + scale[b].square()).sqrt())
            return
        std, mean = torch.std_mean(states[:, a].double() - states[:, b].double(), dim=0, correction=0)
        varies = std > 1e-6 * std.max().clamp_min(1e-30)
        floor = min_std * std[varies].median() if bool(varies.any()) else torch.ones_like(std)
        self.affine.set(mean, std.maximum(floor))

    def forward(self, state: Tensor, normalized: Tensor) -> Tensor:
        """Return [... dim] of a state [... Ds] in physical units, and of the same in network units."""
        read = [normalized[..., self.columns]]
        if self.affine is not None:
            a, b = self.ends
            apart = (state[..., a] - state[..., b] - self.affine.shift) / self.affine.scale
            read.append(apart.clamp(-_CLIP, _CLIP))
        if self.near.shape[1]:
            a, b = self.near
            read.append((state[..., a] * self.factors[0] - state[..., b] * self.factors[1]).clamp(-1.0, 1.0))
        return read[0] if len(read) == 1 else torch.cat(read, dim=-1)


def _is_magnified(feature: Feature, name: str) -> bool:
    return "/" in name and not any(fnmatchcase(element, name) for element in feature.names or ())


def _magnified(feature: Feature, names: Sequence[str], where: str) -> tuple[Tensor, Tensor]:
    """Return the columns [2 Dm] of what is magnified, and its factors [2 Dm]."""
    columns, factors = list[tuple[int, int]](), list[tuple[float, float]]()
    for name in names:
        read, _, text = name.rpartition("/")
        try:
            unit = float(text)
        except ValueError:
            unit = math.nan
        if not 1e-9 <= unit <= 1e9:
            raise SpecError(f"{where}: {name!r}: expected 1e-9 to 1e9 after the slash, in units of {read}")
        pairs: dict[tuple[int, int], None] = {}
        if _add_difference(feature, read, pairs, where):
            columns, factors = [*columns, *pairs], [*factors, *((1 / unit, 1 / unit) for _ in pairs)]
        else:
            found = state_columns(feature, [read], where=where)
            columns, factors = [*columns, *((a, a) for a in found)], [*factors, *((1 / unit, 0.0) for _ in found)]
    return torch.tensor(columns, dtype=torch.int64).reshape(-1, 2).T, torch.tensor(factors).reshape(-1, 2).T


def _add_difference(feature: Feature, name: str, pairs: dict[tuple[int, int], None], where: str) -> bool:
    """Add the columns of a difference to `pairs`; False where `name` is no difference."""
    elements = feature.names or ()
    a, minus, b = name.partition("-")
    if not minus or any(fnmatchcase(element, name) for element in elements):
        return False
    found = [(f"{a}_{axis}", f"{b}_{axis}") for axis in _AXES]
    found = [pair for pair in found if pair[0] in elements and pair[1] in elements]
    if not found:
        raise SpecError(
            f"{where}: {name!r} is the difference of two places, and the state lacks one: expected "
            f"{a}_x and {b}_x among its elements. Its places are: {', '.join(places(elements)) or 'none'}."
        )
    pairs |= dict.fromkeys((elements.index(one), elements.index(other)) for one, other in found)
    return True


def places(names: Sequence[str]) -> list[str]:
    """Return the places that elements name, in their order: `hand` of hand_x, hand_y and hand_z."""
    stems = dict.fromkeys(name.rpartition("_")[0] for name in names if name.endswith(tuple(f"_{a}" for a in _AXES)))
    return [stem for stem in stems if all(f"{stem}_{axis}" in names for axis in _AXES)]
