"""Which number is which joint. Messages name their joints, and no two drivers agree on an order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from robopolicy.core.errors import closest
from robopolicy.real.safety.array_ops import Array, Ints
from robopolicy.real.safety.errors import SafetyError

SHOWN, LONGEST = 16, 80  # names of others that an error shows, and characters of each: a message may hold any number


class JointOrder:
    """Brings named values into the order of the limits.

    Args:
        joints: names in the order of the profile.
        extra: names that may come along and are left out, e.g. a gripper's; None: any others.
        what: the values are called so in messages.
    """

    def __init__(self, joints: Sequence[str], *, extra: Sequence[str] | None = (), what: str = "joints") -> None:
        self.joints, self.what = tuple(joints), what
        self.extra = None if extra is None else frozenset(extra)
        self._names: tuple[str, ...] | None = None
        self._where: Ints = np.zeros(0, dtype=np.int64)

    def arrange(self, names: Sequence[str], values: ArrayLike) -> Array:
        """Arrange `values` [m] of `names` [m] as [n] in our order.

        Raises:
            SafetyError: a joint is missing, comes twice or is not one of ours, or names and values do not match.
        """
        found = np.asarray(values, dtype=np.float64)
        if found.shape != (len(names),):
            raise SafetyError(f"{self.what}: {len(names)} names come with values of shape {found.shape}")
        if tuple(names) != self._names:  # a driver keeps its order: look once
            self._where = self._index(tuple(names))
            self._names = tuple(names)
        return found[self._where]

    def _index(self, names: tuple[str, ...]) -> Ints:
        others = [n for n in names if n not in self.joints]
        foreign = [] if self.extra is None else [n for n in others if n not in self.extra]
        known = names if self.extra is not None else [n for n in names if n in self.joints]
        problems = [f"{n[:LONGEST]!r} comes {k} times" for n, k in Counter(known).items() if k > 1][:SHOWN]
        problems += [f"{n!r} is missing" for n in self.joints if n not in names]
        if self.extra is None and any(n not in names for n in self.joints) and others:
            problems.append(f"beside them came {[n[:LONGEST] for n in others[:SHOWN]]}")
        shown = [n[:LONGEST] for n in foreign[:SHOWN]]
        problems += [f"{n!r} is not one of them. {closest(n, self.joints)}" for n in shown]
        problems += [f"{len(foreign) - SHOWN} further names are not"] if len(foreign) > SHOWN else []
        if problems:
            raise SafetyError(f"{self.what}: expected {list(self.joints)}: {'; '.join(problems)}")
        return np.array([names.index(n) for n in self.joints], dtype=np.int64)
