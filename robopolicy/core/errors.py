"""Define the errors that users see. Each message names the key, the expected and the found value, and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RobopolicyError(Exception):
    """Base class; the command line prints these without a traceback."""


class ConfigError(RobopolicyError):
    """A config key or value that cannot be used."""


class SizeError(ConfigError):
    """A size that does not fit the others of its constructor. Its message begins with the constructor's keyword."""


class UsageError(ConfigError):
    """A command line that cannot be carried out; exit code 2."""


class SpecError(RobopolicyError):
    """Environment, policy and data do not fit together."""


class DataError(RobopolicyError):
    """A dataset that cannot be trained on as it is."""


class CheckpointError(RobopolicyError):
    """A checkpoint that is missing, damaged, unsafe or of another format."""


class RankError(RobopolicyError):
    """A process of a training by torchrun is missing, or works with another config or code."""


class WorkerError(RobopolicyError):
    """A worker process that cannot go on: its call failed, it dies again and again, or it runs other code."""


class WorkerLost(WorkerError):
    """A worker process that died or did not answer, and was started again."""


class TrackerError(RobopolicyError):
    """wandb or TensorBoard cannot start in the mode that was asked for."""


def closest(name: str, known: Iterable[str], n: int = 3) -> str:
    """Return a sentence with the known names closest to `name`, for the end of an error message."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=n, cutoff=0.5)
    if near:
        return f"Did you mean {' or '.join(repr(k) for k in near)}?"
    return f"Known: {', '.join(known) or '(none)'}."
