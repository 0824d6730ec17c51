"""The schema of a limit profile's data, from a file of ours or from a recording of unknown origin.

Compiled loops index these arrays without looking at their ends: every length must fit before anything is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pydantic

from robopolicy.core.untrusted import checked
from robopolicy.real.safety.errors import SafetyError

MOST = 16  # joints
SHAPES = 64  # capsules

Number = Annotated[float, pydantic.Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
Positive = Annotated[float, pydantic.Field(gt=0.0, le=1e6, allow_inf_nan=False)]
Vector = tuple[Number, Number, Number]
Name = Annotated[str, pydantic.Field(min_length=1, max_length=256)]


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)  # further keys are notes


class _Range(_Model):
    range: tuple[tuple[Number, ...], tuple[Number, ...]]


class _Edge(_Range):
    offset: tuple[Number, ...]
    deceleration: tuple[Positive, ...]


class _Kinematics(_Model):
    offsets: tuple[Vector, ...]
    quarter_turns: tuple[Literal[-1, 0, 1], ...] | None = pydantic.Field(alias="turns", default=None)
    rpy: tuple[Vector, ...] | None = None  # rad, fixed axes, as URDF has them
    tcp: Vector
    length: Annotated[float, pydantic.Field(ge=0.05, le=10.0)] = 1.0  # m, as in `Profile.length`


class _Capsule(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    name: Name
    link: pydantic.NonNegativeInt
    start: Vector
    end: Vector
    radius: Annotated[float, pydantic.Field(gt=0.0, le=10.0)]
    scene: bool = True


class _Data(_Model):
    robot: Name
    title: str = ""
    joints: tuple[Name, ...] = pydantic.Field(min_length=1, max_length=MOST)
    position: dict[str, _Range] = pydantic.Field(min_length=1, max_length=MOST)
    position_dependent_velocity: _Edge | None = None
    velocity: tuple[Positive, ...]
    acceleration: tuple[Positive, ...]
    jerk: tuple[Positive, ...]
    torque: tuple[Positive, ...]
    torque_rate: tuple[Positive, ...]
    home: tuple[Number, ...]  # rad; the pose of the computations before the first state
    kinematics: _Kinematics
    capsules: tuple[_Capsule, ...] = pydantic.Field(min_length=1, max_length=SHAPES)
    pairs: tuple[tuple[Name, Name], ...]

    @pydantic.model_validator(mode="after")
    def _fits(self) -> _Data:
        n, k = len(self.joints), self.kinematics
        ranges = {f"position.{name}": r for name, r in self.position.items()}
        if (edge := self.position_dependent_velocity) is not None:
            ranges["position_dependent_velocity"] = edge
        sized: dict[str, Any] = {name: getattr(self, name) for name in _BY_JOINT}
        sized |= {f"{name}.range": row for name, r in ranges.items() for row in r.range}
        sized |= {} if edge is None else {"offset": edge.offset, "deceleration": edge.deceleration}
        if (k.quarter_turns is None) == (k.rpy is None):
            given = "neither" if k.rpy is None else "both"
            raise ValueError(f"kinematics: expected `turns` or `rpy`, the rotation before each joint, found {given}")
        sized |= {"kinematics.offsets": k.offsets}
        sized |= {"kinematics.turns": k.quarter_turns} if k.rpy is None else {"kinematics.rpy": k.rpy}
        if wrong := [name for name, values in sized.items() if len(values) != n]:
            raise ValueError(f"{wrong[0]}: expected one entry a joint, {n}, found {len(sized[wrong[0]])}")
        if wrong := [name for name, r in ranges.items() if not all(a < b for a, b in zip(*r.range, strict=True))]:
            raise ValueError(f"{wrong[0]}.range: low must be below high")
        left = common([r.range for r in self.position.values()])
        if wrong := [joint for joint, (a, b) in zip(self.joints, left, strict=True) if not a < b]:
            raise ValueError(f"position: the ranges of {wrong[0]} have nothing in common")
        names = [c.name for c in self.capsules]
        if len(set(self.joints)) < n or len(set(names)) < len(names):
            raise ValueError("joints, capsules: a name is there twice")
        if far := [c.name for c in self.capsules if c.link > n]:
            raise ValueError(f"capsules: {far[0]!r} is of a link beyond the last, {n}")
        if strange := [name for pair in self.pairs for name in pair if name not in names]:
            raise ValueError(f"pairs: there is no capsule {strange[0]!r}")
        return self


def common(ranges: Sequence[Sequence[Sequence[float]]]) -> list[tuple[float, float]]:
    """Return low and high by joint that are left of `ranges`, each rows of low and high."""
    low, high = (zip(*(r[k] for r in ranges), strict=True) for k in (0, 1))
    return [(max(a), min(b)) for a, b in zip(low, high, strict=True)]


_BY_JOINT = ("velocity", "acceleration", "jerk", "torque", "torque_rate", "home")


def check_data(data: Any, where: str) -> None:
    """Raise SafetyError, which names the key, where `data` is not that of a profile."""
    checked(_Data, data, where, error=SafetyError)
