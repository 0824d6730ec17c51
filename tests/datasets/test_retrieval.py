"""The memory: what is nearest, by hand; and what it is on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from robopolicy.core.errors import CheckpointError
from robopolicy.datasets import retrieval
from robopolicy.datasets.retrieval import Memory

INF = float("inf")


def filled() -> Memory:
    """Three demonstrations along a line of keys (x, 0): of "a" at x = 0 1 2 and at x = 4 5, of "b" at x = 0 1."""
    memory = Memory(key_dim=2, horizon=1, action_dim=1)
    x = torch.tensor([0.0, 1.0, 2.0, 4.0, 5.0, 0.0, 1.0])
    memory.fill(
        torch.stack([x, torch.zeros(7)], dim=1), torch.arange(7.0).view(7, 1, 1), torch.tensor([0, 0, 0, 0, 0, 1, 1]),
        starts=torch.tensor([0, 3, 5, 7]), seed=torch.tensor([30, 10, 20]), tasks=("a", "b"),
    )  # fmt: skip
    return memory


def test_one_frame_of_each_demonstration_the_nearest_first():
    memory = filled()
    key = torch.tensor([[3.5, 0.0], [1.0, 2.0], [1.0, 0.0], [9.0, 9.0]])
    found = memory.nearest(key, torch.tensor([0, 0, 1, -1]), 3)
    assert found.frame[:, :2].tolist() == [[3, 2], [1, 3], [6, 0], [0, 0]]
    half = 0.5**0.5  # the root mean square over two elements
    expected = [[0.5 * half, 1.5 * half, INF], [2.0 * half, 13**0.5 * half, INF], [0.0, INF, INF], [INF] * 3]
    torch.testing.assert_close(found.distance, torch.tensor(expected))


def test_what_is_not_allowed_is_not_found():
    allowed = torch.tensor([[False, True, True], [False, False, True]])
    found = filled().nearest(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]), 2, allowed=allowed)
    assert int(found.frame[0, 0]) == 3 and found.distance.isfinite().tolist() == [[True, False], [False, False]]


def random() -> tuple[Memory, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    memory, task = Memory(5, 2, 1), torch.tensor([0, 1, 0, 2, 0]).repeat_interleave(torch.tensor([4, 7, 1, 5, 3]))
    starts = torch.tensor([0, 4, 11, 12, 17, 20])
    memory.fill(torch.randn(20, 5, generator=generator), torch.zeros(20, 2, 1), task, starts=starts,
                seed=torch.arange(5), tasks=("a", "b", "c"))  # fmt: skip
    return memory, torch.randn(30, 5, generator=generator), torch.arange(30) % 3


def test_it_is_exact_and_does_not_depend_on_what_else_is_asked(monkeypatch: pytest.MonkeyPatch):
    memory, key, task = random()
    together = memory.nearest(key, task, 2)
    for i in range(len(key)):  # the oracle: a loop
        best = []
        for d in range(5):
            frames = [f for f in set(memory.table[d].tolist()) if memory.task[f] == task[i]]
            gaps = [(float((key[i] - memory.key[f]).square().mean().sqrt()), f) for f in frames]
            best += [min(gaps)] if gaps else []
        best = sorted(best)[:2]
        assert together.frame[i, : len(best)].tolist() == [f for _, f in best]
        assert together.distance[i, : len(best)].tolist() == pytest.approx([d for d, _ in best])
    monkeypatch.setattr(retrieval, "_AT_ONCE", 1)  # one query at a time
    alone = memory.nearest(key, task, 2)
    assert torch.equal(together.frame, alone.frame) and torch.equal(together.distance, alone.distance)


def test_equally_near_demonstrations_come_in_their_order():
    memory = filled()
    memory.key[:] = 0.0
    assert memory.nearest(torch.ones(1, 2), torch.tensor([0]), 2).frame.tolist() == [[0, 3]]


def test_an_instruction_is_known_where_something_shows_it():
    memory = filled()
    memory.tasks = ("a", "b", "never shown")
    assert memory.numbers(("b", "A", "never shown", "a")).tolist() == [1, -1, -1, 0]
    memory.clear()
    assert len(memory) == 0 and memory.numbers(("a",)).tolist() == [-1]
    assert memory.nearest(torch.zeros(2, 2), torch.tensor([-1, -1]), 3).distance.isinf().all()


def test_it_is_no_weight_and_comes_back_from_disk(tmp_path: Path):
    memory, other = filled(), Memory(2, 1, 1)
    assert memory.state_dict() == {}
    memory.write(tmp_path)
    other.read(tmp_path)
    assert other.tasks == memory.tasks and other.digest() == memory.digest()
    other.chunk = other.chunk + 1.0
    assert other.digest() != memory.digest()
    with pytest.raises(CheckpointError, match=r"'key'"):
        Memory(3, 1, 1).read(tmp_path)
    (tmp_path / "memory.json").write_text(json.dumps([]))
    with pytest.raises(CheckpointError, match=r"memory\.json"):
        other.read(tmp_path)
