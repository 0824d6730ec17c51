"""What is said of a dataset that training reads."""

from __future__ import annotations

from dataclasses import replace

import torch

from robopolicy.core.rng import episode_seeds
from robopolicy.datasets.remarks import evaluation_starts
from tests.evaluation.test_off_policy_evaluation import one_chunk


def test_episodes_that_begin_where_policies_are_evaluated_are_named() -> None:
    episodes = one_chunk(10)
    assert evaluation_starts(episodes, "dataset=a") == ""
    assert evaluation_starts(replace(episodes, seeds=episode_seeds("demonstrations", 0, 10)), "dataset=a") == ""
    seeds = torch.cat([episode_seeds("test", 0, 4), episode_seeds("train", 0, 6)])
    assert evaluation_starts(replace(episodes, seeds=seeds), "dataset=a") == (
        "dataset=a: 4 of 10 episodes begin at test starts, where evaluation would meet them again: there take "
        "split=validation"
    )
    seeds = episode_seeds("validation", 0, 10)
    assert evaluation_starts(replace(episodes, seeds=seeds), "dataset=a").endswith("there take split=test")
