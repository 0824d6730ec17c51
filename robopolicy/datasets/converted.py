"""The outcome of a conversion, and the error of one episode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import DataError
from robopolicy.datasets.lerobot_writer import DatasetWriter


class UnusableError(DataError):
    """An episode that cannot be made frames of; says why."""


class Converted(NamedTuple):
    """Count the converted recordings."""

    path: Path
    episodes: int
    frames: int
    interventions: int  # frames
    left_out: dict[str, str]  # file → why


def add_episode(
    writer: DatasetWriter, obs: Mapping[str, NDArray[Any]], action: NDArray[np.float64], *, success: bool, **about: Any
) -> None:
    """Write an episode of T steps, which succeeds in its last step or not at all. `about`: see DatasetWriter."""
    done = np.zeros(len(action), dtype=bool)
    done[-1] = success
    writer.add_episode(
        obs=obs, action=action, reward=done.astype(np.float32), success=done, terminated=success, **about
    )
