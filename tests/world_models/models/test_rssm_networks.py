"""Disagreement of an ensemble, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robopolicy.world_models.models.rssm_networks import disagreement
from tests.world_models.models.test_categoricals import log


def test_uncertainty_counts_disagreement_and_not_shared_randomness() -> None:
    sure = torch.stack([log(1 - 1e-6, 1e-6), log(1e-6, 1 - 1e-6)])[:, :, 0]  # [E B K]
    even = log(0.5, 0.5)[:, 0].expand(2, 1, 2)
    assert float(disagreement(sure[:, :, None])) == pytest.approx(math.log(2), abs=1e-4)
    assert float(disagreement(even[:, :, None])) == pytest.approx(0.0, abs=1e-6)
    both = torch.stack([sure, even], dim=2)  # [E B Z K]
    assert float(disagreement(both)) == pytest.approx(math.log(2) / 2, abs=1e-4), "a mean over the variables"
