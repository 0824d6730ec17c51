"""Lay named groups of numbers out in `observation.state`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from robopolicy.sim.tasks.scene import Array, Scene


def arm_features(scene: Scene) -> dict[str, Array]:
    """Return the arm's part of `observation.state`, the same in every task (14 numbers)."""
    return {
        "tcp": scene.tcp,
        "yaw": scene.yaw,
        "tcp_vel": scene.tcp_vel,
        "yaw_rate": scene.yaw_rate,
        "opening": scene.opening,
        "gripper": scene.gripper,
        "lag": scene.lag,
    }


_AXES = {1: ("",), 2: ("_x", "_y"), 3: ("_x", "_y", "_z"), 4: ("_x", "_y", "_z", "_yaw")}


@dataclass(frozen=True)
class StateLayout:
    """Which slice of `observation.state` holds which named group."""

    slices: dict[str, slice] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, groups: Mapping[str, Array]) -> StateLayout:
        slices, names = dict[str, slice](), list[str]()
        for key, value in groups.items():
            width = 1 if value.ndim == 1 else value.shape[1]
            slices[key] = slice(len(names), len(names) + width)
            axes = _AXES.get(width, tuple(f"_{i}" for i in range(width)))
            names += [key + a for a in axes]
        return cls(slices=slices, names=tuple(names))

    @property
    def size(self) -> int:
        return len(self.names)

    def pack(self, groups: Mapping[str, Array], out: NDArray[np.float32]) -> None:
        """Write `groups` into `out` [M Ds]."""
        for key, where in self.slices.items():
            value = groups[key]
            out[:, where] = value if value.ndim == 2 else value[:, None]

    def unpack(self, state: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Views of `state` [B Ds] by name: [B] for single numbers, [B k] else."""
        return {k: state[:, w.start] if w.stop - w.start == 1 else state[:, w] for k, w in self.slices.items()}
