"""Check sizes of networks that depend on one another."""

from __future__ import annotations

import math
from collections.abc import Sequence

from robopolicy.core.errors import SizeError


def check_multiple(key: str, value: int, of: int, because: str = "") -> None:
    """Raise SizeError unless `value` is a multiple of `of`.

    Args:
        because: names the other number, e.g. "heads".
    """
    if value % of:
        near = [n for n in (value // of * of, -(-value // of) * of) if n]
        name = f"{because}={of}" if because else f"{of}"
        raise SizeError(
            f"{key}: expected a multiple of {name}, found {value}. Set it to {' or '.join(map(str, near))}."
        )


def check_channels(dims: Sequence[int], groups: int, because: str = "") -> None:
    """Raise SizeError unless there are `dims`, and GroupNorm can divide each into `groups`."""
    if not dims:
        raise SizeError("dims: expected one number or more, found none. Name the channels of each layer.")
    for number, dim in enumerate(dims):
        check_multiple(f"dims[{number}]", dim, groups, because)


def check_odd(key: str, value: int) -> None:
    """Raise SizeError unless `value` is odd."""
    if not value % 2:
        raise SizeError(f"{key}: expected an odd number, found {value}. Set it to {value - 1} or {value + 1}.")


def check_patch(patch: int, height: int, breadth: int) -> None:
    """Raise SizeError unless square patches of `patch` pixels tile a picture."""
    if height % patch or breadth % patch:
        common = math.gcd(height, breadth)
        fits = sorted((n for n in range(1, common + 1) if not common % n), key=lambda n: abs(n - patch))[:2]
        raise SizeError(
            f"patch: expected a divisor of the picture's sides {height}×{breadth}, found {patch}. Set it to "
            f"{' or '.join(str(n) for n in sorted(fits))}, or change the size of the pictures."
        )
