from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from robopolicy.core.errors import SpecError, WorkerError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import STATE, TASK
from robopolicy.envs.chunk_executor import ChunkExecutor
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.evaluation.rollout import evaluate
from tests.evaluation.points import (
    DeafPoint,
    DivergingPoint,
    EndlessPoint,
    FilmedPoint,
    LosingPoint,
    NothingAdded,
    PassingPoint,
    outcomes,
)
from tests.fakes import PointEnv, PointPolicy

E = 24
SEEDS = episode_seeds("test", 0, E)


def noisy(**options):
    return PointPolicy(noise=0.075, **options)


@pytest.mark.parametrize("n", [1, 3, 8, E, E + 5])
@pytest.mark.parametrize("make", [PointEnv, DivergingPoint, PassingPoint])
def test_rows_do_not_depend_on_n(n, make):
    one = evaluate(noisy(n_obs_steps=2), make(5), SEEDS, policy_id="p")
    assert outcomes(evaluate(noisy(n_obs_steps=2), make(n), SEEDS, policy_id="p")) == outcomes(one)
    assert one.seeds == SEEDS.tolist()
    assert 0 < sum(one.successes()) < E  # otherwise this shows nothing


def test_rows_do_not_depend_on_the_neighbours():
    some = evaluate(noisy(), PointEnv(4), SEEDS[10:20])
    assert outcomes(some) == outcomes(evaluate(noisy(), PointEnv(4), SEEDS))[10:20]


def test_every_row_is_what_a_lone_episode_gives():
    rows = evaluate(noisy(), PointEnv(8), SEEDS[:10], policy_id="p")
    for seed, row in zip(SEEDS[:10], rows.frame.to_dict("records"), strict=True):
        env = PointEnv(1)
        policy = noisy()
        wrapped, executor = wrap_for(policy, env), ChunkExecutor(policy, 1)
        obs, length = wrapped.reset(seed[None]), 0
        while True:
            step = wrapped.step(executor.next_action(obs, seed[None]))
            obs, length = step.obs, length + 1
            if step.ended[0]:
                break
        success = bool(step.success[0])
        expected = {
            "seed": int(seed), "length": length, "success_once": success, "success_at_end": success, "env": "point",
            "digest": "point-1", "task": "go to the origin", "return": float(success), "policy": "p",
            "ended_by": "success" if success else "truncated", "deterministic": False,
        }  # fmt: skip
        assert {k: row[k] for k in expected} == expected


def first_to_finish(policy, env, count):
    """The usual way to evaluate, and why it is wrong: the first `count` episodes that end, whichever those are."""
    wrapped, executor = wrap_for(policy, env), ChunkExecutor(policy, env.num_envs)
    obs, done = wrapped.reset(episode_seeds("test", 0, 4 * count)), []
    while len(done) < count:
        step = wrapped.step(executor.next_action(obs, wrapped.episode_seed))
        obs = step.obs
        executor.reset(step.ended)
        done += step.success[step.ended].tolist()
    return sum(done[:count]) / count


def test_short_successes_are_not_favoured():
    seeds = episode_seeds("test", 0, 120)
    truth = evaluate(noisy(), PointEnv(2), seeds).success_rate().value
    assert evaluate(noisy(), PointEnv(100), seeds).success_rate().value == truth
    assert first_to_finish(noisy(), PointEnv(100), 120) > truth + 0.05


def test_a_residual_that_adds_nothing_gives_the_rows_of_its_base():
    base = noisy(n_obs_steps=2)
    alone = evaluate(base, PointEnv(6), SEEDS)
    assert outcomes(evaluate(NothingAdded(base), PointEnv(4), SEEDS)) == outcomes(alone)


def test_diverged_episodes_are_counted_and_fail():
    rows = evaluate(PointPolicy(gain=2.0), DivergingPoint(4), SEEDS)
    diverged = rows.frame[rows.frame["ended_by"] == "diverged"]
    assert rows.diverged == len(diverged) > 0
    assert set(diverged["seed"]) <= {s for s in SEEDS.tolist() if s % 3 == 0}
    assert not diverged["success_once"].any()  # though the env claimed success
    assert rows.frame["return"].notna().all()
    assert len(rows) == E
    assert f"{rows.diverged} diverged" in rows.summary()


@pytest.mark.parametrize("n", [1, 5, E + 5])
def test_lost_episodes_run_again(n):
    expected = outcomes(evaluate(noisy(), PointEnv(5), SEEDS))
    env = LosingPoint(n, times=2)
    assert outcomes(evaluate(noisy(), env, SEEDS)) == expected
    assert {seed for seed in SEEDS.tolist() if env.losses[seed]} == {s for s in SEEDS.tolist() if s % 3 == 0} != set()


def test_an_episode_that_is_always_lost_ends_the_evaluation():
    with pytest.raises(WorkerError, match="in each of 3 trials of the episode of seed"):
        evaluate(noisy(), LosingPoint(5, times=3), SEEDS)


def test_success_once_is_not_success_at_end():
    class Drifts(PointPolicy):
        def act(self, obs, *, noise=None, deterministic=False):  # to the goal for six steps, then away
            toward = -0.5 * obs[STATE][:, -1, :2]
            away = torch.full_like(toward, 0.1)
            return torch.where(obs[STATE][:, -1, 3:] < 6, toward, away)[:, None]

    policy = Drifts(chunk=1)
    rows = evaluate(policy, PassingPoint(3), SEEDS)
    assert rows.success_rate().value > 0.5
    assert rows.success_rate("success_at_end").value == 0.0
    assert set(rows.frame["ended_by"]) == {"truncated"}
    assert set(rows.frame["length"]) == {12}


def test_watch_sees_every_step_of_every_episode_once():
    seen: list[tuple[int, int]] = []
    rows = evaluate(noisy(), FilmedPoint(7), SEEDS[:9], watch=lambda env, running: seen.extend(r[1:] for r in running))
    lengths = dict(zip(rows.seeds, rows.frame["length"], strict=True))
    assert sorted(seen) == sorted((s, t) for s, length in lengths.items() for t in range(length))


def test_progress_reaches_the_end():
    calls: list[tuple[int, int, float]] = []
    rows = evaluate(noisy(), PointEnv(4), SEEDS, progress=lambda *call: calls.append(call))
    assert calls[-1] == (E, E, rows.success_rate().value)
    assert [c[0] for c in calls] == sorted(c[0] for c in calls)


def test_policy_mode_is_restored():
    policy = noisy().train()
    modes = []
    evaluate(policy, PointEnv(2), SEEDS[:2], watch=lambda env, running: modes.append(policy.training))
    assert policy.training and not any(modes)


def test_task_names_come_from_the_index():
    class TwoTasks(PointEnv):
        def __init__(self, num_envs):
            super().__init__(num_envs)
            self.spec = replace(self.spec, tasks=("left", "right"))

        def _obs(self):
            return {**super()._obs(), TASK: self.episode_seed % 2}

    rows = evaluate(PointPolicy(), TwoTasks(3), SEEDS)
    assert rows.frame["task"].tolist() == [("left", "right")[s % 2] for s in SEEDS.tolist()]


def test_no_seeds_give_no_rows():
    rows = evaluate(noisy(), PointEnv(2), SEEDS[:0])
    assert len(rows) == 0 and rows.split == "none" and rows.success_rate().low == 0.0
    assert rows.summary() == "no episodes"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (DeafPoint(2), "24 of 24 episode seeds were never handed out"),
        (EndlessPoint(2), "took 12 steps without ending"),
    ],
)
@pytest.mark.timeout(20)
def test_envs_that_break_the_contract_are_named(env, message):
    with pytest.raises(SpecError, match=message):
        evaluate(PointPolicy(gain=0.0), env, SEEDS)


def test_repeated_seeds_are_refused():
    with pytest.raises(SpecError, match="must all differ, 2 do"):
        evaluate(noisy(), PointEnv(2), SEEDS[[0, 1, 0]])


def test_looking_leaves_training_modes_as_they_were():
    policy, base = noisy(), noisy()
    policy.train().register_module("frozen", base.eval())
    evaluate(policy, PointEnv(4), SEEDS[:4])
    assert policy.training and not base.training
