"""Our 64-bit episode seeds for generators that take 32 bits."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np

_LOW = 40  # bits of an episode's number within its split (robopolicy.core.rng.episode_seeds)


def seed32(seed: int) -> int:
    """Return a seed in [0, 2³²): the split in the upper two bits, the episode's number in the others.

    So the training, validation and test episodes of a suite stay disjoint; two episodes of one split coincide with a
    chance of 2⁻³⁰.
    """
    number = seed & ((1 << _LOW) - 1)
    return (((seed >> _LOW) & 3) << 30) | ((number ^ (number >> 30)) & ((1 << 30) - 1))


@contextlib.contextmanager
def global_random(seed: int) -> Iterator[None]:
    """Seed NumPy's and Python's global generators inside the block, and restore them after it."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002  theirs, not ours
    np.random.seed(seed32(seed))  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
