"""Base actions of stored frames are those that the base would have been asked for online."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from robopolicy.buffers.relabeling import base_actions, read_frames
from robopolicy.core.errors import SpecError
from robopolicy.core.types import BASE_ACTION, STATE, TASK, Feature, Obs
from robopolicy.datasets.episodes import Episodes
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.policies.base import Policy
from tests.fakes import POINT_ACTION, PointEnv, PointPolicy


class Half(Policy):
    """Half of what the policy underneath does."""

    def __init__(self, base: Policy) -> None:
        super().__init__()
        self.base = base
        observation = {**base.spec.observation, BASE_ACTION: Feature((2,), names=POINT_ACTION.names)}
        self.spec = replace(base.spec, observation=observation, horizon=1, n_action_steps=1)
        self.noise_shape = ()

    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        return 0.5 * obs[BASE_ACTION][:, None]


def recorded(policy: Policy, *, frames: int) -> tuple[Episodes, Tensor]:
    """One unfinished episode of a policy, and the base actions [F Da] that it was shown."""
    env = wrap_for(policy, PointEnv(1))
    obs, seed = env.reset(), env.episode_seed.clone()
    states, actions, shown = [], [], []
    for _ in range(frames):
        states.append(obs[STATE][0, -1])
        shown.append(obs[BASE_ACTION][0])
        actions.append(policy.act(obs)[0, 0])
        step = env.step(actions[-1][None])
        assert not bool(step.ended.any())
        obs = step.obs
    none = torch.zeros(frames)
    episodes = Episodes(
        obs={STATE: torch.stack(states)}, action=torch.stack(actions), reward=none, terminated=none.bool(),
        success=none.bool(), starts=torch.tensor([0, frames]), seeds=seed, observation=env.spec.observation,
        action_spec=POINT_ACTION, dt=0.1, tasks=("go to the origin",),
    )  # fmt: skip
    return episodes, torch.stack(shown)


def test_chunks_and_noise_are_replayed() -> None:
    policy = Half(PointPolicy(noise=0.01, gain=0.3))
    episodes, shown = recorded(policy, frames=7)
    assert policy.base is not None
    assert torch.equal(base_actions(episodes, policy.base), shown)


def test_a_base_that_has_a_base_itself() -> None:
    policy = Half(Half(PointPolicy(noise=0.01, gain=0.3)))
    episodes, shown = recorded(policy, frames=7)
    assert policy.base is not None
    assert torch.equal(base_actions(episodes, policy.base), shown)


class ByTask(PointPolicy):
    """A policy that identifies its tasks by number, and moves by that number."""

    def __init__(self, tasks: tuple[str, ...]) -> None:
        super().__init__(chunk=1)
        observation = {**self.spec.observation, TASK: Feature((), "int64")}
        self.spec = replace(self.spec, observation=observation, tasks=tasks)

    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        return 0.01 * obs[TASK][:, -1:, None].float().expand(-1, 2, 2)


def two_tasks(*tasks: str) -> Episodes:
    """Two episodes of three frames, each of another task."""
    observation = {STATE: Feature((4,)), TASK: Feature((), "int64")}
    none = torch.zeros(6)
    return Episodes(
        obs={STATE: torch.zeros(6, 4), TASK: torch.tensor([0, 0, 0, 1, 1, 1])}, action=torch.zeros(6, 2), reward=none,
        terminated=none.bool(), success=none.bool(), starts=torch.tensor([0, 3, 6]), seeds=torch.arange(2),
        observation=observation, action_spec=POINT_ACTION, dt=0.1, tasks=tasks,
    )  # fmt: skip


def test_on_a_base_the_tasks_of_a_dataset_are_numbered_as_the_policy_s() -> None:
    policy = Half(ByTask(("lift", "push", "pull")))
    frames = read_frames(two_tasks("push", "lift"), policy)
    assert frames[TASK].tolist() == [1, 1, 1, 0, 0, 0]
    torch.testing.assert_close(frames[BASE_ACTION][:, 0], torch.tensor([0.01] * 3 + [0.0] * 3))
    same = read_frames(two_tasks("lift", "push"), policy)
    assert same[TASK].tolist() == [0, 0, 0, 1, 1, 1]


def test_a_task_that_the_policy_does_not_know_is_refused_by_its_text() -> None:
    with pytest.raises(SpecError, match=r"the dataset has fold, and the policy knows lift; push"):
        read_frames(two_tasks("push", "fold"), Half(ByTask(("lift", "push"))))
