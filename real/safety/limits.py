"""The interface of a limit: linear inequalities to search by, and the margin of a path to decide by.

mink's habit (small values that return inequalities), with one difference: inequalities only guide the search. A limit
holds when its margin over the whole path, stop included, is not negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from robopolicy.real.safety.array_ops import Array, Bool
from robopolicy.real.safety.path import Here, Inequalities, Path


class Limit(Protocol):
    """A limit of one kind."""

    @property
    def name(self) -> str: ...

    def margin(self, path: Path) -> Array:
        """Return [N] in the limit's unit: ≥ 0 where it is certainly kept from the command to the end of its stop."""
        ...

    def rows(self, here: Here) -> Inequalities | None:
        """Linear inequalities near `here`, or None where it is far away or a box."""
        ...


def broken(limits: Sequence[Limit], path: Path) -> Bool:
    """Return [N L]: which limits are not certain to be kept on `path`."""
    failed = np.zeros((len(path.c), len(limits)), dtype=bool)
    for i, limit in enumerate(limits):
        margin = limit.margin(path)
        if len(margin) == 1:  # the one arm of a fast loop; comparisons of floats are cheap
            if not margin[0] >= 0:  # NaN fails
                failed[0, i] = True
                break  # one reason is enough
            continue
        failed[:, i] = ~(margin >= 0)
        if failed[:, i].all():
            break
    return failed
