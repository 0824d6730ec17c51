"""Convert between physical units and network units. The normaliser is part of the policy and saved with it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robopolicy.core.errors import DataError, SpecError, closest
from robopolicy.core.types import BASE_ACTION, IMAGES, POINTS, ActionSpec, Feature, Obs
from robopolicy.datasets.episodes import Episodes

ACTION = "action"


class Affine(nn.Module):
    """y = (x − shift) / scale per element of the last axis; NaN until `set`, so that a missing call shows."""

    shift: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("shift", torch.full(shape, torch.nan))
        self.register_buffer("scale", torch.full(shape, torch.nan))

    def set(self, shift: Tensor, scale: Tensor) -> None:
        self.shift.copy_(shift)
        self.scale.copy_(scale)


class Normalizer(nn.Module):
    """Statistics per key: float observations to zero mean and unit deviation, actions to [-1, 1], images likewise.

    Point clouds have one mean [3] and one deviation for x, y and z, so that shapes keep their proportions.

    Near-constant dimensions are guarded by *relative* bounds, because an absolute one has no meaning across units
    (0.1 is vast in metres of a 2 cm step and nothing in encoder ticks):

    - observations: a deviation counts as at least `min_std` times the key's typical one (the median over the
      dimensions that vary). Where all are constant, it counts as 1. Normalised values are clamped to ±`clip`, so a
      dimension that the demonstrations hardly moved cannot saturate a network when deployment moves it.
    - actions: [-1, 1] is the demonstrated range widened by `margin` of its width on each side, at least `min_range`
      of the width between the spec's limits, then intersected with those limits. This margin is small: a dimension
      that was constant in the demonstrations (a closed gripper) hardly moves under exploration noise.

    Args:
        observation: features to normalise; integer keys (`task_index`) pass through.
        action: limits per dimension, physical units.
    """

    clip: Tensor  # []

    def __init__(self, observation: dict[str, Feature], action: ActionSpec, *, clip: float = 10.0) -> None:
        super().__init__()
        self.action_spec = action
        self.keys = tuple(k for k, f in observation.items() if f.dtype == "float32" and k != BASE_ACTION)
        self.images = tuple(k for k in observation if k.startswith(IMAGES))
        self.order = tuple(observation)
        self.plain = tuple(k for k in observation if k not in (*self.keys, *self.images, BASE_ACTION))
        shapes = {k: (3,) if k.startswith(POINTS) else tuple(observation[k].shape) for k in self.keys}
        shapes |= {ACTION: (action.dim,)}
        # Module names must not contain dots.
        self.names = {k: k.replace(".", "/") for k in shapes} | {BASE_ACTION: ACTION}
        self.affine = nn.ModuleDict({self.names[k]: Affine(shape) for k, shape in shapes.items()})
        self.register_buffer("clip", torch.tensor(float(clip)))

    @classmethod
    def from_limits(cls, observation: dict[str, Feature], action: ActionSpec) -> Normalizer:
        """Build one without data, for learning from scratch: observations unchanged, action limits as [-1, 1].

        Raises:
            SpecError: a limit is infinite.
        """
        self = cls(observation, action)
        low, high = torch.tensor([action.low, action.high])
        if not bool(torch.isfinite(high - low).all()):
            raise SpecError(
                f"action limits must be finite to normalise without demonstrations, found {action.low} to "
                f"{action.high} for {action.names}. Fit the normaliser to data or give limits."
            )
        for key in self.keys:
            self._affine(key).set(torch.tensor(0.0), torch.tensor(1.0))
        self._affine(ACTION).set((high + low) / 2, (high - low) / 2)
        self.clip.fill_(torch.finfo(self.clip.dtype).max)  # one unit is one of the observation's, e.g. a pixel
        return self

    @classmethod
    def of_base(cls, known: object, observation: dict[str, Feature], action: ActionSpec) -> Normalizer | None:
        """Copy the statistics of a base's normaliser `known`; None where it lacks one of the keys."""
        self = cls(observation, action)
        if not isinstance(known, Normalizer) or not set(self.keys) <= set(known.keys):
            return None
        for key in (*self.keys, ACTION):
            of_base = known._affine(key)
            self._affine(key).set(of_base.shift, of_base.scale)
        self.clip.copy_(known.clip)
        return self

    def fit(
        self, episodes: Episodes, *, min_std: float = 0.05, min_range: float = 0.01, margin: float = 0.05
    ) -> Normalizer:
        """Compute the statistics of all frames; see the class for the guards.

        Raises:
            DataError: a key is missing, or holds a non-finite number (the frame is named).
        """
        for key in self.keys:
            if key not in episodes.obs:
                raise DataError(f"dataset has no {key!r} to normalise. {closest(key, episodes.obs)}")
            x = _finite(key, episodes.obs[key])
            if key.startswith(POINTS):
                x = x.flatten(0, -2)  # [F·P 3]
                mean = x.mean(0)
                self._affine(key).set(mean, (x - mean).square().mean().sqrt().clamp_min(1e-6).expand(3))
                continue
            std, mean = torch.std_mean(x, dim=0, correction=0)
            varies = std > 1e-6 * std.max().clamp_min(1e-30)
            floor = min_std * std[varies].median() if bool(varies.any()) else torch.ones_like(std)
            self._affine(key).set(mean, std.maximum(floor))

        low, high = torch.tensor([self.action_spec.low, self.action_spec.high], dtype=torch.float64)
        x = _finite(ACTION, episodes.action).clamp(low, high)
        bottom, top = x.amin(0), x.amax(0)
        full = high - low
        full = torch.where(full.isfinite(), full, (top - bottom).median().clamp_min(1e-6))
        half = ((top - bottom) * (0.5 + margin)).maximum(0.5 * min_range * full)
        centre = (top + bottom) / 2
        bottom, top = (centre - half).maximum(low), (centre + half).minimum(high)
        self._affine(ACTION).set((top + bottom) / 2, (top - bottom) / 2)
        return self

    def normalize(self, key: str, x: Tensor) -> Tensor:
        """Convert `x` [... D] of `key` to network units; `base_action` uses the statistics of "action"."""
        if key in self.images:
            return x.to(self.clip.dtype) / 127.5 - 1.0
        affine = self._affine(key)
        y = (x - affine.shift) / affine.scale
        return y if key in (ACTION, BASE_ACTION) else y.clamp(-self.clip, self.clip)

    def unnormalize(self, key: str, y: Tensor) -> Tensor:
        """Convert `y` [... D] to physical units: the inverse of `normalize`, up to its clamping."""
        affine = self._affine(key)
        return torch.addcmul(affine.shift, y, affine.scale)

    def observation(self, obs: Obs) -> Obs:
        """Convert the constructor's observation keys, [B To ...] each, to network units; other keys are dropped."""
        return {k: obs[k] if k in self.plain else self.normalize(k, obs[k]) for k in self.order}

    def scale_of(self, key: str) -> Tensor:
        """Return the physical size of one network unit, [D] of a key."""
        return self._affine(key).scale

    def _affine(self, key: str) -> Affine:
        return self.affine[self.names[key]]  # type: ignore[return-value]


def _finite(key: str, x: Tensor) -> Tensor:
    x = x.to(torch.float64)
    bad = ~x.isfinite().flatten(1).all(1)
    if bool(bad.any()):
        raise DataError(
            f"{key!r} is not finite in {int(bad.sum())} of {len(x)} frames, first in frame {int(bad.nonzero()[0])}. "
            "Drop these episodes or record them again."
        )
    return x
