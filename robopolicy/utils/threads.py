"""Set the number of torch's threads."""

from __future__ import annotations

import torch


def set_threads(threads: int | None) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
