"""Base actions of stored frames are those that the base would have been asked for online."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from robopolicy.buffers.relabeling import base_actions
from robopolicy.core.types import BASE_ACTION, STATE, Feature, Obs
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
