"""GRPO: envs that start alike, advantages by comparison, and that it learns without a critic."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from robopolicy.algos.grpo import GRPO, Groups
from robopolicy.algos.returns import executed_steps, group_advantage
from robopolicy.buffers.collector import Rollout
from robopolicy.core.errors import ConfigError, RobopolicyError, SpecError
from robopolicy.core.types import STATE, Step
from robopolicy.envs.grouped_env import GroupedEnv
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.envs.wrappers import HistoryEnv
from robopolicy.training.on_policy import on_policy
from tests.algos.test_dppo import CLIPS, every_row, slow_base, success, weights
from tests.algos.test_dppo import make as dppo
from tests.fakes import MemoryCheckpoints, NoTracker, PointEnv, keep_batches


def make(kind: str = "flow", *, source: Any = None, **options: Any) -> GRPO:
    policy = dppo(kind, source=source).policy
    settings = {"group_size": 4, "minibatch": 64, "epochs": 2, "actor_lr": 1e-4, "lr_schedule": "constant", **CLIPS}
    return GRPO(policy, **{**settings, **options})


class NearerPoint(PointEnv):
    """A step is worth as much as it came nearer, so that no two episodes fare alike."""

    def step(self, action: torch.Tensor) -> Step:
        before = self.position.norm(dim=1)
        step = super().step(action)
        return step._replace(reward=before - step.next_obs[STATE][:, :2].norm(dim=1))


def train(algo: GRPO, *, num_envs: int = 8, point: type[PointEnv] = NearerPoint, checkpoints: Any = None, **options):
    checkpoints, tracker = checkpoints or MemoryCheckpoints(), NoTracker()
    settings = dict(total_steps=8 * 12 * 3, rollout_steps=None, evaluate=None)
    env = wrap_for(algo.policy, GroupedEnv(point(num_envs), 4))
    on_policy(algo=algo, env=env, tracker=tracker, checkpointer=checkpoints, **{**settings, **options})
    return tracker, checkpoints


# ---- advantages ----------------------------------------------------------------------------------------------------


def test_advantages_by_hand():
    total = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.3, 0.3, 0.3, 0.3, 2.0, 5.0, 4.0, 9.0])
    every = torch.ones(12, dtype=torch.bool)
    want = [1.7320508, -0.5773503, -0.5773503, -0.5773503, 0, 0, 0, 0, -3 / 6.5**0.5, 0, -1 / 6.5**0.5, 4 / 6.5**0.5]
    assert group_advantage(total, every, 4).tolist() == pytest.approx(want, abs=1e-6)
    some = every.clone()
    some[3], some[8], some[9], some[10] = False, False, False, False  # a mean of three; nobody to compare with
    found = group_advantage(total, some, 4).tolist()
    assert found == pytest.approx([2**0.5, -(0.5**0.5), -(0.5**0.5), 0, 0, 0, 0, 0, 0, 0, 0, 0], abs=1e-6)


def rollout(**changes: Any) -> Rollout:
    """Two envs, chunks of two steps, twice two groups' worth of episodes of at most four steps."""
    no = torch.zeros(8, 2, dtype=torch.bool)
    rows = {
        "planned": torch.tensor([[1, 1], [0, 0], [1, 1], [1, 0], [1, 1], [0, 0], [1, 1], [0, 0]]).bool(),
        "reward": torch.zeros(8, 2),
        "terminated": no.clone(),
        "truncated": no.clone(),
        "valid": ~no,
    }
    rows["reward"][2, 0] = rows["reward"][6, 1] = 1.0
    rows["terminated"][2, 0] = True  # in the middle of its second chunk; it waits for one step
    rows["truncated"][3], rows["valid"][3, 0] = True, False
    rows["reward"][3, 0] = 7.0  # of an episode that nobody asked for
    rows["truncated"][7] = True
    rows |= changes
    empty: dict[str, Any] = {"record": {}, "final_obs": {}, "last_obs": {}, "success": [], "steps": 0, "info": {}}
    return Rollout(**{**empty, "elapsed": [], **rows})


def test_scores_of_chunks_by_hand():
    advantages = Groups(2).estimate(rollout(), torch.zeros(1), lambda obs: torch.zeros(0), 2)
    assert advantages.keep.tolist() == [True] * 4 + [False] + [True] * 4, "the chunk of the waiting env is left out"
    assert advantages.advantage.tolist() == pytest.approx([1, -1, 1, -1, -1, 1, -1, 1])
    assert advantages.weight.tolist() == [[0.5, 0.5], [0.5, 0.5], [1.0, 0.0], *[[0.5, 0.5]] * 5]
    fault = rollout().valid
    fault[5, 0] = False  # the other one has nobody left to be compared with
    advantages = Groups(2).estimate(rollout(valid=fault), torch.zeros(1), lambda obs: torch.zeros(0), 2)
    assert advantages.keep.tolist() == [True] * 4 + [False, False, True, False, True]
    assert advantages.advantage.tolist() == pytest.approx([1, -1, 1, -1, 0, 0])


def test_executed_steps_end_with_the_episode():
    found = rollout()
    steps = executed_steps(found.planned, found.terminated | found.truncated)
    assert steps.tolist() == [2, 2, 1, 2, 1, 2, 2, 2, 2]


def test_a_rollout_that_cannot_be_compared_is_refused():
    cut = rollout()
    cut.truncated[7, 1] = False
    with pytest.raises(ConfigError, match=r"rollout_steps=8: the rollout cuts 1 of 2 episodes"):
        Groups(2).estimate(cut, torch.zeros(1), lambda obs: torch.zeros(0), 2)
    with pytest.raises(ConfigError, match="group_size=3 does not divide num_envs=2"):
        Groups(3).estimate(rollout(), torch.zeros(1), lambda obs: torch.zeros(0), 2)
    nothing = torch.zeros(8, 2, dtype=torch.bool)
    with pytest.raises(RobopolicyError, match="physics failed in every episode"):
        Groups(2).estimate(rollout(valid=nothing), torch.zeros(1), lambda obs: torch.zeros(0), 2)
    with pytest.raises(ConfigError, match="expected ≥ 2, found 1"):
        make(group_size=1)


# ---- envs that start alike -----------------------------------------------------------------------------------------


def test_groups_start_alike_wait_for_one_another_and_go_on_with_new_starts():
    env = GroupedEnv(PointEnv(6, horizon=4), 3, seed=5)
    obs = env.reset()
    starts = [obs[STATE][:, :2].clone()]
    assert len(env.episode_seed.unique()) == 6, "or all of a group would draw the same noise"
    for t in range(1, 9):
        if t == 2:
            env.env.position[0] = 0.01  # env 0 arrives
        step = env.step(torch.zeros(6, 2))
        if t < 4:
            assert step.terminated.tolist() == [t == 2, *[False] * 5] and not bool(step.truncated.any())
            assert step.valid[0] == (t < 3) and step.steps.tolist() == [int(t < 3), *[1] * 5]
            assert float(step.reward[0]) == float(t == 2) and step.success[0] == (t == 2)
        if t in (4, 8):
            assert step.truncated.all() and step.steps.tolist() == [int(t == 8), *[1] * 5], "env 0 waited, then not"
            assert not torch.equal(step.obs[STATE], step.next_obs[STATE])
            starts.append(step.obs[STATE][:, :2].clone())
    for start in starts:
        assert torch.equal(start[:1].expand(3, 2), start[:3]) and torch.equal(start[3:4].expand(3, 2), start[3:])
    assert len(torch.cat(starts).unique(dim=0)) == 6, "each group and each round has a start of its own"


def test_grouped_envs_resume():
    env = GroupedEnv(PointEnv(4, horizon=3), 2)
    env.reset()
    env.step(torch.zeros(4, 2))
    state, other = copy.deepcopy(env.state_dict()), GroupedEnv(PointEnv(4, horizon=3), 2)
    other.load_state_dict(state)
    for _ in range(5):
        mine, theirs = env.step(torch.full((4, 2), 0.05)), other.step(torch.full((4, 2), 0.05))
        assert torch.equal(mine.obs[STATE], theirs.obs[STATE]) and torch.equal(mine.truncated, theirs.truncated)
        assert torch.equal(env.episode_seed, other.episode_seed)


def test_groups_that_do_not_come_out_even_are_refused():
    with pytest.raises(ConfigError, match="group_size=3: num_envs=8 envs do not make up whole groups"):
        GroupedEnv(PointEnv(8), 3)
    with pytest.raises(ConfigError, match="group_size=1"):
        GroupedEnv(PointEnv(8), 1)
    with pytest.raises(SpecError, match="single frames"):
        GroupedEnv(HistoryEnv(PointEnv(8), 1), 2)
    endless = PointEnv(2)
    env = GroupedEnv(endless, 2)
    env.reset()
    env.clock = 11
    with pytest.raises(SpecError, match="2 episodes go on after 12 steps"):
        env.step(torch.zeros(2, 2))


# ---- the update ----------------------------------------------------------------------------------------------------


def test_ratio_is_one_in_the_first_minibatch_and_only_the_copy_learns():
    algo, fresh = make(), make()
    frozen = {k: v.clone() for k, v in algo.policy.state_dict().items() if not k.startswith("finetuned.")}
    seen = keep_batches(algo)
    tracker, _ = train(algo)
    assert algo.learner.estimator.state_dict() == {}, "no critic"
    loss, stats = fresh.loss(seen[0], every_row(seen[0]))
    assert float(stats[2]) < 1e-4 and bool(loss.isfinite())
    assert all(torch.equal(v, algo.policy.state_dict()[k]) for k, v in frozen.items())
    assert not torch.equal(weights(fresh.policy.finetuned), weights(algo.policy.finetuned))
    logged = tracker.rows[0][1]
    assert logged["train/informative"] == 1.0 and "train/critic_loss" not in logged


def test_groups_that_fare_alike_move_nothing():
    algo = make("ddpm")
    before = weights(algo.policy.finetuned)
    for p in algo.policy.finetuned_parameters():
        torch.nn.init.zeros_(p.data)  # nobody arrives in so short a time
    still = weights(algo.policy.finetuned)
    env = wrap_for(algo.policy, GroupedEnv(PointEnv(8, horizon=1), 4))
    on_policy(algo=algo, env=env, tracker=NoTracker(), checkpointer=MemoryCheckpoints(), total_steps=16,
              rollout_steps=None, evaluate=None)  # fmt: skip
    assert torch.equal(still, weights(algo.policy.finetuned)) and not torch.equal(before, still)


def test_resume_gives_the_same_run_bit_for_bit():
    options = dict(total_steps=8 * 12 * 4, save_every=1)
    algo, other, half = make(), make(seed=9), MemoryCheckpoints()
    _, whole = train(algo, **options)
    middle = sorted(whole.saved)[2]
    half.saved[middle] = whole.saved[middle]
    train(other, checkpoints=half, **options)
    assert torch.equal(weights(algo.policy), weights(other.policy))


@pytest.mark.learning
def test_it_improves_a_slow_base_without_a_critic():
    algo = make(source=slow_base("flow"), actor_lr=1e-3, clip=0.05, clip_first=0.02, epochs=6, minibatch=512)
    before = success(algo.policy)
    train(algo, num_envs=64, total_steps=64 * 12 * 25, point=PointEnv)
    after = success(algo.policy)
    assert before < 0.6 and after > before + 0.25, (before, after)
