"""Compute in bfloat16 and store in float32 (mixed precision, Micikevicius et al. 2018)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

Precision = Literal["float32", "bfloat16"]


def computing(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which layers on `device` compute in `precision`; weights and gradients stay float32.

    bfloat16 has float32's range, so losses need no scaling. The caller casts results to float32: sums, clips and
    comparisons need more than 8 bits of mantissa.
    """
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
