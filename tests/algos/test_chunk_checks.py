"""Bad input of chunk learners: each fault is logged once, with the key to change, and sound input is not."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from robopolicy.algos.chunk_checks import ChunkChecks
from robopolicy.buffers.chunk_replay_buffer import ChunkBatch
from robopolicy.policies.steered import make_steered
from tests.algos.test_chunk_critic import KINDS, batch_of, make, policy_of
from tests.algos.test_dppo import base
from tests.policies.test_steered import base_of

SPREAD_Q = torch.linspace(-1.0, 1.0, 16).expand(3, 16)  # [E B] heads that agree


def sound(**changed: Any) -> ChunkBatch:
    batch = batch_of(policy_of())
    return batch._replace(**{"reward": torch.linspace(0.0, 1.0, 16), **changed})


def said(
    caplog: pytest.LogCaptureFixture, checks: ChunkChecks, batch: ChunkBatch, q: torch.Tensor, n: int = 100
) -> Any:
    caplog.clear()
    for _ in range(n):
        checks.see(batch, q)
        checks.warn()
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_sound_input_is_not_warned_of(caplog: pytest.LogCaptureFixture):
    assert said(caplog, ChunkChecks(policy_of()), sound(), SPREAD_Q) == []


FAULTS = {
    "replay": (sound(reward=torch.zeros(16)), SPREAD_Q),
    "critic/disagreement": (sound(), torch.tensor([[-1.0], [0.0], [1.0]]).expand(3, 16)),
    "n_action_steps": (sound(keep=torch.arange(4).expand(16, 4) < 2), SPREAD_Q),
}


@pytest.mark.parametrize("key", FAULTS)
def test_a_fault_is_named_once_and_not_at_once(caplog: pytest.LogCaptureFixture, key: str):
    checks = ChunkChecks(policy_of())
    assert said(caplog, checks, *FAULTS[key], n=99) == [], "a few batches may look like that by chance"
    (line,) = said(caplog, checks, *FAULTS[key], n=50)
    assert line.startswith(key)


def test_an_episode_that_terminates_is_no_replay_without_success(caplog: pytest.LogCaptureFixture):
    over = sound(reward=torch.zeros(16), discount=torch.zeros(16))
    assert said(caplog, ChunkChecks(policy_of()), over, SPREAD_Q) == []


def test_heads_that_come_to_agree_are_forgiven(caplog: pytest.LogCaptureFixture):
    checks = ChunkChecks(policy_of())
    for _ in range(100):  # while the critic learns alone, nothing is said
        checks.see(*FAULTS["critic/disagreement"])
    for _ in range(100):
        checks.see(sound(), SPREAD_Q)
    assert said(caplog, checks, sound(), SPREAD_Q, n=1) == []


@pytest.mark.parametrize("kind", KINDS)
def test_learners_look_at_their_batches(caplog: pytest.LogCaptureFixture, kind: Any):
    algo = make(kind, policy_delay=1)
    batch = sound(reward=torch.zeros(16))
    for _ in range(100):
        algo.update(batch, learned_steps=None)
    assert not caplog.records
    for _ in range(2):
        algo.update(batch, learned_steps=0)
    assert [r.getMessage()[:6] for r in caplog.records] == ["replay"]


@pytest.mark.parametrize(("made", "options", "lines"), [
    ("flow", {"sampling_steps": 1}, 1), ("flow", {"sampling_steps": 2}, 0), ("flow_sde", {"sampling_steps": 1}, 0),
    ("still", {"sampling_steps": 1}, 1), ("ddpm", {"denoising_steps": 1}, 0),
])  # fmt: skip
def test_one_step_without_noise_explores_nothing(
    caplog: pytest.LogCaptureFixture, made: str, options: dict[str, int], lines: int
):
    ChunkChecks(base(made, finetuned_steps=1, **options))
    assert [r.getMessage().split(":")[0] for r in caplog.records] == ["policy.sampling.sampling_steps"] * lines


@pytest.mark.parametrize(("made", "names", "not_names"), [
    (lambda: base("flow", finetuned_steps=1, sampling_steps=1), "noise_level: 0.5", "sampler"),
    (lambda: base("still", finetuned_steps=1, sampling_steps=1), "sampler: ddim, eta: 1.0", "noise_level"),
    (lambda: make_steered(base_of("flow", sampling_steps=1)), "sampling_steps: 4", "noise_level"),
], ids=["flow", "ddim", "steered"])  # fmt: skip
def test_the_remedy_of_one_step_is_one_that_the_policy_takes(
    caplog: pytest.LogCaptureFixture, made: Any, names: str, not_names: str
):
    ChunkChecks(made())
    (line,) = [r.getMessage() for r in caplog.records]
    advice = line.split("policy.sampling=")[1]
    assert names in advice and not_names not in advice
