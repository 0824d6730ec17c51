"""Guard the imports of a suite: a missing package is named with the command that installs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from robopolicy.utils import suite_packages


@contextlib.contextmanager
def needs(suite: str) -> Iterator[None]:
    """
    Args:
        suite: a key of `robopolicy.utils.suite_packages.PACKAGES`.

    Raises:
        ConfigError: it is not installed, does not fit what is beside it, or does not load.
    """
    suite_packages.require(suite)
    try:
        yield
    except Exception as error:  # any error of another version at import
        raise suite_packages.broken(suite, error) from error
