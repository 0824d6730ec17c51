"""V as an expectile of Q: by hand, in a chunk learner's targets and advantages, and saved with it."""

from __future__ import annotations

import pytest
import torch

from robopolicy.algos.aloe import ALOE
from robopolicy.algos.expectile_value import ExpectileValue
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.policies.base import SEEN
from tests.algos.test_chunk_critic import batch_of, make, say


@pytest.mark.parametrize("expectile", [0.5, 0.8])
def test_v_of_two_outcomes_is_the_expectile(expectile: float) -> None:
    torch.manual_seed(0)
    value = ExpectileValue(CriticEnsemble(2, heads=3, width=8), expectile=expectile, lr=1e-2)
    cond, q = torch.ones(10, 2), torch.arange(10) % 2  # half 0, half 1: τ(1 − v) = (1 − τ)v, so v = τ
    for _ in range(300):
        value.optim.zero_grad()
        value.loss(cond, q.float()).backward()
        value.optim.step()
    assert torch.allclose(value(cond), torch.full((10,), expectile), atol=0.02)


def test_the_loss_by_hand() -> None:
    value = ExpectileValue(CriticEnsemble(2, heads=2, width=8), expectile=0.8, lr=1e-2)
    say(value.network, 0.0, 1.0)
    # Q = 1, −1 against 0: (0.8·1 + 0.2·1) / 2; against 1: (0.8·0 + 0.2·4) / 2
    assert float(value.loss(torch.ones(2, 2), torch.tensor([1.0, -1.0]))) == pytest.approx(0.5 + 0.4)


def test_targets_and_advantages_read_v_and_no_sample_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    algo = make(ALOE, expectile=0.8)
    batch = batch_of(algo.policy)
    say(algo.value.network, 1.0, 2.0, 3.0)
    say(algo.critic, 5.0, 6.0, 7.0)
    monkeypatch.setattr(algo, "sample", None)
    assert torch.equal(algo.next_value(batch.next_obs[SEEN], None), torch.full((16,), 2.0))
    assert float(algo.update_critic(batch)["critic/target"]) == pytest.approx(0.5 + 0.9 * 2.0)
    say(algo.value.network, 1.0, 2.0, 3.0)
    say(algo.critic, 5.0, 6.0, 7.0)
    advantage = algo.advantage(batch.obs[SEEN], algo.executed(batch))
    assert torch.allclose(advantage, torch.full((16,), 6.0 - (2 / 3) ** 0.5 - 2.0))


def test_v_learns_from_the_target_s_q_and_is_saved() -> None:
    algo, again = make(ALOE, expectile=0.8), make(ALOE, expectile=0.8, seed=3)
    batch = batch_of(algo.policy)
    say(algo.target, 4.0, 4.0, 4.0)
    before = algo.value(batch.obs[SEEN])
    for _ in range(20):
        algo.update(batch, learned_steps=0)
    assert bool((algo.value(batch.obs[SEEN]) > before).all())
    again.load_state_dict(algo.state_dict())
    assert torch.equal(again.value(batch.obs[SEEN]), algo.value(batch.obs[SEEN]))
    assert algo.update(batch, learned_steps=1) == again.update(batch, learned_steps=1)
    assert "value" not in make(ALOE).state_dict()
