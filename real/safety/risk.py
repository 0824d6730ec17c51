"""A learned critic of risk, which may only slow the arm down.

It guesses how likely the limits are to step in soon, from what the arm does and where it is sent, every tick, faster
than any policy (Bresa, arXiv 2503.21989, has such a critic beside a policy). High risk lowers the pace at which
commands are searched; the limits certify every published command all the same. So a critic that is wrong, or
returns NaN, costs time alone. `scripts/train_risk.py` trains one.
"""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robopolicy.core.untrusted import read_bytes, refusing
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.errors import SafetyError
from robopolicy.real.safety.profile import Profile

FORMAT = 1
LARGEST, MOST = 2**26, 64  # bytes of an array of a file, and how many of them
GAP = 0.2  # rad: targets farther away look alike


def features(c: Array, target: Array, profile: Profile, dt: float) -> Array:
    """Return [… 3n] in about −1 … 1: where in their ranges the joints are, how fast they go, and where they are sent.

    `c` [… H n] rad: past commands, newest last; `target` [… n] rad.
    """
    q, v = c[..., -1, :], (c[..., -1, :] - c[..., -2, :]) / dt
    place = 2 * (q - profile.low) / (profile.high - profile.low) - 1
    return np.concatenate([place, v / profile.velocity, np.tanh((target - q) / GAP)], axis=-1)


@dataclass(frozen=True, eq=False)
class RiskCritic:
    """Estimate the risk of one arm under one profile.

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
        """Return […] of the risk, for features `x` [… 3n]."""
        for i, (weight, bias) in enumerate(self.layers):
            x = (np.tanh(x) if i else x) @ weight + bias
        return x[..., 0]

    def pace(self, c: Array, target: Array) -> float:
        """Return the fraction of the joints' velocity limits for the search, `floor` … 1."""
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
        """Load the critic that `save` wrote, for the same robot and tick.

        Raises:
            SafetyError: not a critic, of another format, robot or tick, or of numbers that are none.
        """
        with refusing(f"{Path(path).name}: not a risk critic; scripts/train_risk.py writes one", SafetyError):
            found = _arrays(read_bytes(Path(path), error=SafetyError))
            about = {k: found.pop(k).item() for k in ("format", "robot", "dt")}
            layers = tuple((found[f"w{i}"], found[f"b{i}"]) for i in range(len(found) // 2))
        expected = {"format": FORMAT, "robot": profile.robot, "dt": dt}
        if about != expected:
            raise SafetyError(f"{Path(path).name}: expected a critic of {expected}, found {about}")
        critic = cls(profile, dt, layers)
        critic.check(Path(path).name)
        return critic

    def check(self, where: str) -> None:
        """Raise SafetyError where the layers do not fit a network for this arm, or hold NaN."""
        sizes = [(w.shape, b.shape) for w, b in self.layers]
        wide = 3 * len(self.profile.joints)
        for weight, bias in self.layers:
            fits = weight.ndim == 2 and weight.shape[0] == wide and bias.shape == weight.shape[1:]
            if not fits or not all(a.dtype.kind == "f" and np.isfinite(a).all() for a in (weight, bias)):
                raise SafetyError(f"{where}: layers {sizes} of numbers that do not fit {self.profile.robot}")
            wide = weight.shape[1]
        if wide != 1 or not self.layers:
            raise SafetyError(f"{where}: layers {sizes} of numbers that do not fit {self.profile.robot}")


def _arrays(data: bytes) -> dict[str, Array]:
    """Read the arrays of an .npz file. Their stated sizes are checked against the file before allocation."""
    found: dict[str, Array] = {}
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        for about in packed.infolist():
            if about.file_size > LARGEST or len(found) >= MOST or not about.filename.endswith(".npy"):
                raise ValueError(f"{about.filename!r}: {about.file_size} bytes; expected few small arrays")
            found[about.filename.removesuffix(".npy")] = _array(io.BytesIO(packed.read(about)), about.file_size)
    return found


def _array(content: io.BytesIO, size: int) -> Array:
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = read[np.lib.format.read_magic(content)](content)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != size - content.tell():
        raise ValueError(f"an array of {dtype} {shape} in {size} bytes")
    content.seek(0)
    return np.lib.format.read_array(content, allow_pickle=False)
