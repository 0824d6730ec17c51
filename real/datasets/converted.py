"""The outcome of a conversion, and the error of one episode."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from robopolicy.core.errors import DataError


class UnusableError(DataError):
    """An episode that cannot be made frames of; says why."""


class Converted(NamedTuple):
    """Count the converted recordings."""

    path: Path
    episodes: int
    frames: int
    interventions: int  # frames
    left_out: dict[str, str]  # file → why
