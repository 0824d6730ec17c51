from __future__ import annotations

import pytest
import torch

# Small tensors: threads cost more than they bring, and tests may run side by side.
torch.set_num_threads(1)

COMPILES = "test_robots.py::test_an_arm_that_hears_nothing_plays_the_certified_stop"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a fresh clone numba compiles the limits for 20 s: in one worker first, or every worker would.

    Then the longest tests, so that no worker is left alone with them.
    """
    items.sort(key=lambda item: (not item.nodeid.endswith(COMPILES), item.path.name != "test_docs.py"))
