"""Set the number of torch's threads."""

from __future__ import annotations

import torch

from robopolicy.core.errors import ConfigError

_MOST = 1024  # torch waits without end for more than the system gives


def set_threads(threads: int | None) -> None:
    """Set the number of torch's threads; None leaves torch's own choice.

    Raises:
        ConfigError: more threads than any machine has use for.
    """
    if threads is not None and threads > _MOST:
        raise ConfigError(f"threads: expected int from 1 to {_MOST}, found {threads}")
    if threads is not None:
        torch.set_num_threads(threads)
