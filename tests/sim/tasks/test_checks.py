"""A task of one's own that hands out something else than it should is refused by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.core.errors import ConfigError, SpecError
from tests.sim.tasks.own_task import Stand, make


@pytest.mark.parametrize("method", ["success", "failure"])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize(
    "value",
    [
        lambda up: up,  # a number is true, and so is NaN
        lambda up: up * np.nan,
        lambda up: (up < 0.5)[:, None],
        lambda up: (up < 0.5).any(),  # of all envs at once
        lambda up: bool((up < 0.5).any()),
        lambda up: (up < 0.5).tolist(),
    ],
    ids=["number", "NaN", "column", "one for all", "bool", "list"],
)
def test_an_outcome_is_true_or_false_for_each_env(method, num_envs, value):
    with pytest.raises(ConfigError, match=f"stand: {method}: "):
        make(num_envs, **{method: lambda self, at, scene: value(at.up(scene))})


@pytest.mark.parametrize("value", [lambda up: up[:, None], lambda up: up.mean(), lambda up: up > 0.5])
def test_a_dense_reward_is_a_number_for_each_env(value):
    with pytest.raises(ConfigError, match="stand: dense: "):
        make(reward="dense", dense=lambda self, at, scene: value(at.up(scene)))


@pytest.mark.parametrize("index", [np.ones(3), np.full(3, 2), np.full(3, -1), np.zeros((3, 1), np.int64)])
def test_an_instruction_is_one_of_the_tasks(index):
    with pytest.raises(ConfigError, match="stand: task_index: "):
        make(instructions=("a", "b"), task_index=lambda self, scene: index)


def test_the_task_itself_is_taken():
    make(1), make(reward="shaped", dense=lambda self, at, scene: at.up(scene), failure=lambda self, at, scene: None)


@pytest.mark.parametrize("said", ["leave the block alone", (), ("",), ["leave the block alone"], (1,)])
def test_instructions_are_a_tuple_of_texts(said):
    with pytest.raises(ConfigError, match="stand: instructions: "):
        make(instructions=said)


@pytest.mark.parametrize("name", ["yaw", "tcp", "gripper", "lag"])
def test_the_arms_part_of_the_state_stays_the_arms(name):
    with pytest.raises(ConfigError, match=f"stand: observe: '{name}' is a part of the arm's state"):
        make(observe=lambda self, at, scene: {"block": at.pos(scene), name: at.yaw(scene)})


@pytest.mark.parametrize("value", [1.0, [1.0, 2.0, 3.0], np.ones(()), np.ones(2), np.ones((3, 1, 1)), None])
def test_a_part_of_the_state_is_a_row_for_each_env(value):
    with pytest.raises(ConfigError, match="stand: observe: 'size'"):
        make(observe=lambda self, at, scene: {"block": at.pos(scene), "size": value})


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("factor", [np.nan, np.inf, 1e300])
def test_a_state_of_no_numbers_is_refused_at_the_start(factor):
    env = make(observe=lambda self, at, scene: {"block": at.pos(scene) * factor})
    with pytest.raises(SpecError, match="stand: observation 'block_x': "):
        env.reset()


def test_a_state_of_no_numbers_is_refused_later():
    poison = [1.0]
    env = make(observe=lambda self, at, scene: {"block": at.pos(scene) * poison[0]})
    env.reset()
    env.step(torch.zeros(3, 5))
    poison[0] = np.nan
    with pytest.raises(SpecError, match="stand: observation 'block_x': "):
        env.step(torch.zeros(3, 5))


def test_a_start_that_is_no_place_is_refused():
    env = make(reset=lambda self, at, draw, qpos, extra: at.place(qpos, draw["x"] * np.nan, draw["y"], 0.06))
    with pytest.raises(SpecError, match="stand: observation 'block_x': "):
        env.reset()


@pytest.mark.parametrize("name", ["joint1", "randomize_mass"])
def test_a_drawn_number_has_a_name_of_its_own(name):
    with pytest.raises(ConfigError, match=f"stand: ranges: '{name}' is drawn for every task"):
        make(ranges={"x": (0.5, 0.5), "y": (0.0, 0.0), name: (0.5, 0.6)}, randomization={"mass": (0.5, 2.0)})


@pytest.mark.parametrize("ends", [0.5, (0.5,), (0.4, 0.5, 0.6), None])
def test_a_range_is_two_numbers(ends):
    with pytest.raises(ConfigError, match="stand: ranges: 'x': expected"):
        make(ranges={"x": ends, "y": (0.0, 0.0)})


def test_a_task_without_an_expert_says_so():
    with pytest.raises(ConfigError, match=r"stand: has no scripted expert.*Set `expert` of Own, or train on"):
        sim.make_expert(make(1))


def test_a_parameter_that_would_have_no_effect_is_refused():
    class Plain(Stand):  # the parent's __init__ sets 120
        horizon: int = 3

    for task in (Plain(), dataclass(frozen=True)(type("Untyped", (Stand,), {"horizon": 3}))()):
        with pytest.raises(ConfigError, match=rf"stand: {type(task).__name__}\.horizon has no effect.*@dataclass"):
            sim.make(task, 1)

    @dataclass(frozen=True)
    class Typed(Stand):
        horizon: int = 3

    assert sim.make(Typed(), 1).spec.horizon == 3
