"""A farm of envs answers as one process does, and a worker that dies loses its own running episodes alone."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
import torch

from robopolicy.core.errors import ConfigError, WorkerError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import STATE, EnvSpec
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.rollout import evaluate
from robopolicy.policies.base import Policy
from robopolicy.sim.gymnasium import farm
from robopolicy.sim.gymnasium.adapter import GymVecEnv
from robopolicy.sim.gymnasium.farm import Farm
from robopolicy.sim.suites.vector_env import vector_env
from tests.sim.gymnasium.walks import RAISES, Walk

SEEDS = episode_seeds("test", 0, 20)
N = 5  # envs: two in worker 0, three in worker 1, as NumPy rounds 2.5


def make(processes: int, num_envs: int = N, *, horizon: int = 7, broken: str = "") -> GymVecEnv:
    envs = vector_env(functools.partial(Walk, broken), "walk", num_envs, horizon=horizon, processes=processes)
    return GymVecEnv(envs, horizon=horizon)


class Walker(Policy):
    """Walks forwards, with noise; each row is computed alone, so that its bits depend on no other row."""

    noise_shape = (1, 1)

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.spec = PolicySpec(
            observation={STATE: spec.observation[STATE]}, action=spec.action, dt=spec.dt, n_obs_steps=1, horizon=1,
            n_action_steps=1, tasks=spec.tasks,
        )  # fmt: skip

    def act(self, obs, *, noise=None, deterministic=False):
        return 0.5 * noise - 0.1 * obs[STATE][:, -1:, 2:]


def kill(farm: Farm, k: int) -> None:
    """Kill worker `k` between two calls."""
    process = farm._workers._workers[k].process
    process.kill()
    process.join()


def outcomes(rows: EpisodeTable) -> str:
    return rows.frame.drop(columns="wall_s").to_csv()


@pytest.fixture(scope="module")
def pair():
    """The same envs in one process and in two."""
    one, many = make(0), make(2)
    yield one, many
    many.close()


def test_a_farm_evaluates_as_one_process_does(pair, caplog):
    one, many = pair
    assert one.spec == many.spec
    expected = outcomes(evaluate(Walker(one.spec), one, SEEDS))
    assert expected.count("success,") > 3 and expected.count("truncated,") > 3, "else this shows nothing"
    assert outcomes(evaluate(Walker(many.spec), many, SEEDS)) == expected
    assert many.lost_episodes == 0 and not caplog.records


def test_a_worker_that_dies_in_an_evaluation_costs_its_episodes_which_run_again(pair, caplog):
    one, many = pair
    before, moments = many.lost_episodes, iter(range(100))

    def watch(env, running):
        if next(moments) == 9:
            kill(many.env, 1)

    rows = evaluate(Walker(many.spec), many, SEEDS, watch=watch)
    assert outcomes(rows) == outcomes(evaluate(Walker(one.spec), one, SEEDS))
    assert many.lost_episodes - before == 3
    assert "env worker 1 of 2" in caplog.text and "exit code -9" in caplog.text and "3 running episodes" in caplog.text


def test_the_step_of_a_dead_worker_is_not_valid_and_the_others_go_on(pair):
    one, many = pair
    seeds, action = torch.arange(100, 120), torch.full((N, 1), 0.1)
    for env in pair:
        env.reset(seeds)
        before = env.step(action)
    kill(many.env, 0)
    step, other = many.step(action), one.step(action)
    assert step.valid.tolist() == [False, False, True, True, True]
    assert step.steps.tolist() == [0, 0, 1, 1, 1] and step.truncated[:2].all() and not step.terminated[:2].any()
    assert step.next_obs[STATE][:2].equal(before.obs[STATE][:2]) and not step.reward[:2].any()
    assert step.next_obs[STATE][2:].equal(other.next_obs[STATE][2:])
    assert step.obs[STATE][:2, 1].tolist() == [0, 0], "their next episodes have begun"
    assert many.step(action).valid.all()


def test_a_worker_that_dies_in_a_reset_of_some_loses_the_others(pair):
    farm = pair[1].env
    farm.reset(seed=list(range(N)))
    before = farm.step(np.zeros((N, 1), np.float32))[0]
    kill(farm, 1)
    chosen = np.array([False, False, True, False, False])
    obs, _ = farm.reset(seed=[None, None, 7, None, None], options={"reset_mask": chosen})
    assert obs[2].tolist()[:2] == [7, 0] and (obs[~chosen] == before[~chosen]).all()
    seen, _, terminated, truncated, _ = farm.step(np.zeros((N, 1), np.float32))
    assert farm.lost.tolist() == [False, False, False, True, True] and truncated[3:].all() and not terminated[3:].any()
    assert (seen[3:] == before[3:]).all() and seen[2, 1] == 1
    assert farm.render_env(2).max() == 1


def test_an_error_of_an_env_ends_the_farm_with_its_traceback():
    env = make(1, 1)
    env.reset(torch.arange(5))
    with pytest.raises(WorkerError, match=r"(?s)walk: env worker 0 of 1, process \d+ failed:.*a joint came off"):
        env.step(torch.full((1, 1), RAISES))
    assert not env.env._workers._workers, "its workers have ended"


def test_an_env_that_cannot_be_built_in_a_worker_is_named():
    with pytest.raises(WorkerError, match=r"(?s)env worker 0 of 1, process \d+ failed:.*not on this machine"):
        make(1, broken="raises")
    with pytest.raises(
        WorkerError, match=r"env worker 0 of 1, process \d+ died \(exit code 7; .*while it was started.*3 times"
    ):
        make(1, broken="dies")
    with pytest.raises(ConfigError, match=r"task\.processes: walk: env worker 0: its object cannot be sent"):
        vector_env(lambda: Walk(), "walk", 1, horizon=7, processes=1)


def test_a_worker_whose_envs_have_other_spaces_is_named(monkeypatch):
    class OtherVersions:
        """Workers whose second one has another version of the suite."""

        def __init__(self, makes, **_):
            self.held, self.closed = [make() for make in makes], False
            self.held[1].env.single_action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)

        def __len__(self):
            return len(self.held)

        def name(self, k):
            return f"env worker {k} on node{k}"

        def send(self, k, method):
            self.asked = method

        def answer(self, k):
            return getattr(self.held[k], self.asked)()

        def close(self):
            self.closed = True

    group = []
    monkeypatch.setattr(farm, "Workers", lambda *given, **how: group.append(OtherVersions(*given, **how)) or group[0])
    with pytest.raises(WorkerError, match=r"worker 1 on node1: its action space is Box\(-2.*worker 0.*same version"):
        make(2)
    assert group[0].closed


def test_episodes_that_begin_after_a_loss_are_not_reported_lost():
    env = make(2)
    env.reset(SEEDS[:N])
    kill(env.env, 0)
    with pytest.raises(WorkerError):
        env.render(0)
    env.reset(SEEDS[N : 2 * N])
    step = env.step(torch.ones(N, 1))
    assert step.valid.all() and not step.truncated.any()
    env.close()
