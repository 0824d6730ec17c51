"""Checks of single frames."""

from __future__ import annotations

import numpy as np

from robopolicy.datasets.frame_checks import ranges


def test_ranges() -> None:
    assert ranges(np.array([3])) == "frame 3" and ranges(np.array([1, 2, 3, 7])) == "frames 1–3, 7"
    assert ranges(np.arange(0, 20, 2)) == "frames 0, 2, 4, 6, 8, 10 …"
