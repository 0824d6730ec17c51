"""rng.py: keyed uniform numbers lie strictly between 0 and 1, and global generators are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import episode_seeds, kept_generators, keyed_uniform, philox

LARGEST = ((39_075, 3), (2_871_038, 2))  # (seed, which number): the upper 24 bits of the word are all set


def words(seeds: torch.Tensor) -> torch.Tensor:
    zero = torch.zeros_like(seeds)
    return philox((zero, zero, zero, zero), (seeds & 0xFFFFFFFF, (seeds >> 32) & 0xFFFFFFFF))


def test_the_largest_word_gives_a_number_below_one() -> None:
    """2^24 - 0.5 rounds to 2^24 in float32, which gave 1.0 and an index behind the last row."""
    seeds = torch.tensor([seed for seed, _ in LARGEST])
    place = torch.tensor([i for _, i in LARGEST])[:, None]
    assert bool((words(seeds).gather(1, place) >> 8 == 2**24 - 1).all()), "the case is found no more: search again"
    unit = keyed_uniform(seeds, torch.zeros_like(seeds), (4,)).gather(1, place)
    assert bool((unit < 1.0).all())
    for count in (1, 2, 3, 5, 7, 1000, 2**20 + 1, 2**24):
        assert bool(((unit * count).long() < count).all()), count


def test_all_other_numbers_stay_as_they_were() -> None:
    seeds = torch.arange(200_000)
    word = words(seeds) >> 8
    formula = (word.to(torch.float32) + 0.5) * 2.0**-24
    unit = keyed_uniform(seeds, torch.zeros_like(seeds), (4,))
    assert torch.equal(unit[word < 2**24 - 1], formula[word < 2**24 - 1])
    assert int((word == 2**24 - 1).sum()) == 1 and bool((unit > 0.0).all())


def test_generators_of_other_gpus_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[torch.device]] = []

    @contextmanager
    def fork_rng(devices: list[torch.device] | None = None) -> Iterator[None]:
        assert devices is not None, "all GPUs are initialised then, with a warning"
        asked.append(devices)
        yield

    module = torch.nn.Linear(1, 1)
    before = torch.get_rng_state()
    with kept_generators(module, torch.device("cpu")):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    with kept_generators(module, torch.device("cpu")), kept_generators(module, torch.device("cuda", 1)):
        pass
    assert asked == [[], [torch.device("cuda", 1)]]


@pytest.mark.parametrize(("seed", "count"), [(2**63, 1), (-(2**63) - 1, 1), ("a", 1), (0, -1)])
def test_seeds_and_counts_that_cannot_be_are_named(seed: int, count: int) -> None:
    with pytest.raises(ConfigError, match=r"seed: expected an int|episodes: expected 0 or more"):
        episode_seeds("test", seed, count)
    for same in (np.int64(3), torch.tensor(3)):
        assert torch.equal(episode_seeds("train", same, 2), episode_seeds("train", 3, 2))
    assert len(episode_seeds("test", 2**63 - 1, 2)) == 2 and not len(episode_seeds("test", 0, 0))
