"""Vector envs of others: scripts/foreign_envs.py, and that its player sees what is taken for something else."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from robopolicy.core.errors import ConfigError
from robopolicy.sim.gymnasium.adapter import GymVecEnv, adapt
from scripts.foreign_envs import HORIZON, cases
from scripts.foreign_toy import Toy, play

CASES = dict(cases())


def test_every_case_has_a_name_of_its_own():
    assert len(CASES) == len(list(cases())) >= 200


@pytest.mark.parametrize("name", CASES)
def test_right_value_or_named_refusal(name):
    CASES[name]()


class Wrong(GymVecEnv):
    """Hands out one thing in place of another."""

    def __init__(self, toy: Toy, what: str) -> None:
        super().__init__(toy, horizon=HORIZON)
        self.what = what

    def step(self, action):
        step = super().step(action)
        changes = {
            "successor": {"next_obs": step.obs},
            "first": {"obs": step.next_obs},
            "lost success": {"success": torch.zeros_like(step.success)},
            "invented success": {"success": step.ended},
            "terminated": {"terminated": step.ended, "truncated": torch.zeros_like(step.ended)},
            "reward": {"reward": step.reward.roll(1)},
        }
        return step._replace(**changes[self.what])


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
@pytest.mark.parametrize("what", ["successor", "first", "lost success", "invented success", "terminated", "reward"])
def test_the_player_sees_every_mix_up(mode, what):
    toy = Toy(mode)
    with pytest.raises(AssertionError):
        play(Wrong(toy, what), toy)


def test_an_error_of_success_lists_what_info_has():
    env = adapt(Toy(mode="DISABLED", key="episode", says=lambda s, e: {"won": s, "length": s}), horizon=HORIZON)
    env.reset()
    with pytest.raises(ConfigError, match=r"episode\.won, episode\.length"):
        env.step(torch.zeros(3, 2))


def test_the_key_of_success_is_part_of_the_task():
    make = functools.partial(adapt, Toy(), horizon=HORIZON)
    assert make().spec.digest == make(success=None).spec.digest
    assert len({make(success=key).spec.digest for key in (None, "success", "terminated")}) == 3


def test_what_is_sent_in_a_reset_is_that_what_was_asked_for():
    """The check that an episode follows from its seed leaves the env with the episodes that were asked for."""
    toy = Toy("DISABLED")
    env = adapt(toy, horizon=HORIZON)
    first = env.reset(torch.arange(3))
    assert np.array_equal(first["observation.state"], toy.seen(toy.state))
    again = adapt(Toy("DISABLED"), horizon=HORIZON)
    again.reset(torch.arange(5, 8))
    assert torch.equal(again.reset(torch.arange(3))["observation.state"], first["observation.state"])
