"""DPPO with a supervised loss beside: the loss itself, what it reaches, what it holds, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from robopolicy.algos.co_dppo import CoDPPO
from robopolicy.algos.dppo import DPPO
from robopolicy.core.errors import CheckpointError, ConfigError, SpecError
from robopolicy.core.types import STATE
from robopolicy.datasets.episodes import Episodes
from robopolicy.policies.base import use_tasks
from tests.algos.test_dppo import CLIPS, PLAIN, batch_of, every_row, train, weights
from tests.algos.test_dppo import make as dppo
from tests.fakes import MemoryCheckpoints, PointPolicy
from tests.policies.test_vla import make as vla


def data(frames: int = 60) -> Episodes:
    """Always the same way, wherever the point is: nothing that coming to the origin would teach."""
    spec = PointPolicy().spec
    state = torch.randn(frames, 4, generator=torch.Generator().manual_seed(1))
    zero = torch.zeros(frames)
    return Episodes(
        obs={STATE: state}, action=torch.tensor([0.05, -0.05]).expand(frames, 2), reward=zero, terminated=zero.bool(),
        success=zero.bool(), starts=torch.arange(0, frames + 1, 20), seeds=torch.arange(frames // 20),
        observation=spec.observation, action_spec=spec.action, dt=spec.dt, tasks=spec.tasks,
    )  # fmt: skip


def make(kind: str = "flow", *, episodes: Episodes | None = None, **options: Any) -> CoDPPO:
    settings = dict(gamma=0.95, minibatch=64, epochs=2, data_batch=16, supervised=0.5, critic=linear, **PLAIN, **CLIPS)
    return CoDPPO(dppo(kind).policy, episodes or data(), **{**settings, **options})


def linear(size: int, out: int) -> torch.nn.Module:
    return torch.nn.Linear(size, out)


@pytest.mark.parametrize("kind", ["flow", "ddpm", "ddim"])
def test_imitation_at_the_finetuned_steps_is_that_of_the_network_by_hand(kind: str):
    policy = dppo(kind, steps=3).policy  # of five; the copy is still the network itself
    action, noise, cond = torch.rand(4, 4, 2), torch.randn(4, 4, 2), torch.randn(4, policy.cond_dim)
    keep, k = torch.ones(4, 4, dtype=torch.bool), torch.tensor([0, 1, 2, 1])
    keep[1, 2:] = False
    total, count = 0.0, 0
    for i in range(4):
        signal, spread = policy.level(2 + int(k[i]))
        x, time = signal * action[i] + spread * noise[i], policy.times[2 + k[i]]
        target = {"flow": action[i] - noise[i], "ddpm": noise[i], "ddim": action[i]}[kind]
        error = (policy.network(x[None], time[None], cond[i][None])[0] - target).square().mean(-1)
        total, count = total + float(error[keep[i]].sum()), count + int(keep[i].sum())
    found = policy.finetuned_loss(cond, action, keep, k=k, noise=noise)
    assert count == 14 and found.item() == pytest.approx(total / count, rel=1e-4)


def test_the_loss_is_dppo_s_and_the_weighted_imitation_of_the_next_batch():
    algo = make()
    batch = batch_of(algo)
    plain, _ = DPPO.loss(algo, batch, every_row(batch))
    want = [algo.imitation(n).item() for n in (0, 1)]
    found = [algo.loss(batch, every_row(batch))[0].item() - plain.item() for _ in range(2)]
    assert found == pytest.approx([0.5 * w for w in want], rel=1e-4) and want[0] != want[1]
    assert algo.imitation(0).item() == want[0], "a function of the batch's number"


def test_gradients_reach_the_copy_alone():
    algo = make()
    algo.imitation(0).backward()
    reached = {n for n, p in algo.policy.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert reached and all(n.startswith("finetuned.") for n in reached)


def test_where_the_env_teaches_nothing_the_data_do():
    algo, plain = make(actor_lr=1e-2, epochs=15), dppo("flow")
    for one in (algo, plain):
        batch = batch_of(one, 64)
        none = batch._replace(advantages=batch.advantages._replace(advantage=torch.zeros(64)))
        before, start = weights(one.policy.finetuned), algo.imitation(10_000).item()
        found = one.update(none, progress=0.0)
        assert ("imitation" in found) == (one is algo)
        assert torch.equal(before, weights(one.policy.finetuned)) == (one is plain)
        if one is algo:
            assert algo.imitation(10_000).item() < 0.8 * start


def test_resume_gives_the_same_run_bit_for_bit():
    options = dict(total_steps=8 * 12 * 2, save_every=96)
    algo, other, half = make(), make(), MemoryCheckpoints()
    _, _, whole = train(algo, **options)
    half.saved[96] = whole.saved[96]
    train(other, checkpoints=half, **options)
    assert torch.equal(weights(algo.policy), weights(other.policy)) and algo.drawn == other.drawn > 0


def test_data_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="data_batch=100: the dataset has only 60 frames"):
        make(data_batch=100)
    with pytest.raises(
        SpecError, match=r"do not fit(.|\n)*action.frame: the policy has 'world', the dataset has 'base'"
    ):
        make(episodes=replace(data(), action_spec=replace(data().action_spec, frame="base")))


def test_a_policy_that_reads_is_told_the_data_s_own_words_for_as_long_as_it_looks_at_them():
    policy = vla()
    before, ids = policy.spec.tasks, policy.encoder.text.ids.clone()
    with use_tasks(policy, ("halt", "go back")):
        assert policy.spec.tasks == ("halt", "go back") and not torch.equal(policy.encoder.text.ids[:2], ids[:2])
    assert policy.spec.tasks == before and torch.equal(policy.encoder.text.ids, ids)
    numbered = dppo("flow").policy
    spec = replace(
        numbered.spec, observation={**numbered.spec.observation, "task_index": vla().spec.observation["task_index"]}
    )
    numbered.spec = spec
    with pytest.raises(SpecError, match="by number"), use_tasks(numbered, ("halt",)):
        pass


def test_a_run_goes_on_with_its_own_data_alone():
    state = make().state_dict()
    with pytest.raises(CheckpointError, match=r"dataset: holds 80 frames, and the run began with 60"):
        make(episodes=data(80)).load_state_dict(state)
    del state["recorded"]
    make(episodes=data(80)).load_state_dict(state)  # an older checkpoint
