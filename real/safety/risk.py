"""A learned critic of risk, which may only slow the arm down.

It guesses how likely the limits are to step in soon, from what the arm does and where it is sent, every tick, faster
than any policy (Bresa, arXiv 2503.21989, has such a critic beside a policy). High risk lowers the pace at which
commands are *proposed*; what is published is certified by the limits as ever. So a critic that is wrong, or whose
numbers are none, costs time and nothing else. `scripts/train_risk.py` trains one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real.safety.errors import SafetyError
from real.safety.profile import Profile

Array = NDArray[np.float64]

FORMAT = 1
GAP = 0.2  # rad: targets farther away look alike


def features(c: Array, target: Array, profile: Profile, dt: float) -> Array:
    """[… 3n] in about −1 … 1: where in their ranges the joints are, how fast they go, and where they are sent.

    `c` [… H n] rad: what was commanded, newest last; `target` [… n] rad.
    """
    q, v = c[..., -1, :], (c[..., -1, :] - c[..., -2, :]) / dt
    place = 2 * (q - profile.low) / (profile.high - profile.low) - 1
    return np.concatenate([place, v / profile.velocity, np.tanh((target - q) / GAP)], axis=-1)


@dataclass(frozen=True, eq=False)
class RiskCritic:
    """Of one arm under one profile.

    Args:
        layers: (weights [in out], biases [out]) of a network with tanh between and one output, the logit of the risk.
        low, high: risk up to which the pace is full, and from which on it is `floor`.
        floor: fraction of the joints' velocity limits.
    """

    profile: Profile
    dt: float  # s between ticks
    layers: tuple[tuple[Array, Array], ...]
    low: float = 0.2
    high: float = 0.8
    floor: float = 0.2

    def __post_init__(self) -> None:
        if not 0.0 <= self.low < self.high <= 1.0 or not 0.0 < self.floor <= 1.0:
            raise SafetyError(
                f"risk: expected 0 ≤ low < high ≤ 1 and 0 < floor ≤ 1, found {self.low}, {self.high}, {self.floor}"
            )

    def risk(self, c: Array, target: Array) -> float:
        """0 … 1, for history `c` [H n] and `target` [n] rad."""
        return float(1 / (1 + np.exp(-self.logits(features(c, target, self.profile, self.dt)))))

    def logits(self, x: Array) -> Array:
        """[…] of the risk, for features `x` [… 3n]."""
        for i, (weight, bias) in enumerate(self.layers):
            x = (np.tanh(x) if i else x) @ weight + bias
        return x[..., 0]

    def pace(self, c: Array, target: Array) -> float:
        """Fraction of the joints' velocity limits to propose with: `floor` … 1, whatever the network says."""
        try:
            with np.errstate(all="ignore"):
                risk = self.risk(c, target)
        except (ValueError, IndexError, FloatingPointError, TypeError):
            return self.floor
        if not risk <= self.high:  # NaN too
            return self.floor
        return 1.0 - (1.0 - self.floor) * max(0.0, risk - self.low) / (self.high - self.low)

    def save(self, path: Path | str) -> None:
        arrays = {f"{k}{i}": a for i, layer in enumerate(self.layers) for k, a in zip("wb", layer, strict=True)}
        about = {"format": FORMAT, "robot": self.profile.robot, "dt": self.dt}
        np.savez(path, **{k: np.array(v) for k, v in about.items()}, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path | str, profile: Profile, dt: float) -> RiskCritic:
        """The critic that `save` wrote, for the same robot and tick.

        Raises:
            SafetyError: not a critic, of another format, robot or tick, or of numbers that are none.
        """
        try:
            with np.load(path, allow_pickle=False) as data:
                found = {k: data[k] for k in data.files}
            about = {k: found.pop(k).item() for k in ("format", "robot", "dt")}
            layers = tuple((found[f"w{i}"], found[f"b{i}"]) for i in range(len(found) // 2))
        except (OSError, ValueError, KeyError) as error:
            raise SafetyError(
                f"{Path(path).name}: not a risk critic ({error}); scripts/train_risk.py writes one"
            ) from error
        expected = {"format": FORMAT, "robot": profile.robot, "dt": dt}
        if about != expected:
            raise SafetyError(f"{Path(path).name}: expected a critic of {expected}, found {about}")
        sizes = [w.shape for w, _ in layers]
        fits = [s[0] for s in sizes] == [3 * len(profile.joints), *(s[1] for s in sizes[:-1])] and sizes[-1][1] == 1
        if not fits or not all(np.isfinite(a).all() for layer in layers for a in layer):
            raise SafetyError(f"{Path(path).name}: layers {sizes} of numbers that do not fit {profile.robot}")
        return cls(profile, dt, layers)
