"""What attacks have in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scripts.hostile.client import Client

HOUR = 3600.0
Attack = Callable[[Client, np.random.Generator], None]


def goes_on(c: Client, what: str) -> None:
    """Note it where the arm has stopped for `what`."""
    if not c.moves(0.8):
        c.log.stopped.append(what)
