from __future__ import annotations

import pytest
import torch

from robopolicy.core.errors import ConfigError
from robopolicy.utils.threads import set_threads


def test_more_threads_than_a_machine_gives_are_refused() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ConfigError, match="threads: expected int from 1 to 1024, found 100000"):
        set_threads(100_000)
    set_threads(None)
    assert torch.get_num_threads() == before
