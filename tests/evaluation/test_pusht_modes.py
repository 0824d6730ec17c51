"""Push-T's modes: edges and their count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from robopolicy.sim.tasks.pusht import PushT
from scripts.pusht_modes import modes, nearest_edge


def test_the_nearest_edge_is_the_one_that_the_stick_stands_before():
    corners = PushT().tblock.corners
    middle = (corners + np.roll(corners, -1, axis=0)) / 2
    along = np.roll(corners, -1, axis=0) - corners  # counter-clockwise: outwards is to the right
    outwards = np.stack([along[:, 1], -along[:, 0]], axis=1) / np.linalg.norm(along, axis=1)[:, None]
    assert nearest_edge(middle + 0.005 * outwards).tolist() == list(range(8))


@pytest.mark.parametrize(
    ("edges", "expected"),
    [([3, 3, 3], 1.0), ([0, 1, 0, 1], 2.0), ([0, 0, 0, 1], np.exp(0.75 * np.log(4 / 3) + 0.25 * np.log(4))),
     ([2, -1, 5, -1], 2.0), ([-1, -1], 1.0)],
)  # fmt: skip
def test_modes_are_counted_by_their_entropy(edges, expected):
    assert modes(np.array(edges)) == pytest.approx(expected)
