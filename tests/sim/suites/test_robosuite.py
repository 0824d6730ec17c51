"""robosuite's Lift, Can and square nut: experts, one size of cube, a task without an expert."""

from __future__ import annotations

import pytest

pytest.importorskip("robosuite", reason="needs ./scripts/setup.sh suites")

import numpy as np
import torch

from robopolicy.cli.main import main
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import STATE
from robopolicy.sim.suites import robosuite
from tests.sim.played import success


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Lift", "Can", "NutAssemblySquare"])
def test_the_expert_succeeds_and_its_errors_make_it_fail(name):
    env = robosuite.make(name, 4)
    assert success(env, torch.arange(40, 44)) == 4
    assert success(env, torch.arange(40, 44), expert_noise=1.0) < 4


def test_every_cube_has_one_size_whoever_drew_numbers_before():
    sizes = []
    for seed in (0, 1):
        np.random.seed(seed)  # noqa: NPY002  robosuite's generator
        env = robosuite.RobosuiteEnv("Lift")
        sizes.append(env.inner.cube.size)
        env.close()
    assert np.array_equal(*sizes)


def test_the_fingers_command_does_not_outlive_an_episode():
    """Closed at the end of one episode, they begin the next as in a fresh env."""
    used, fresh = robosuite.RobosuiteEnv("Lift"), robosuite.RobosuiteEnv("Lift")
    close = np.array([0, 0, 0, 0, 0, 0, 1.0])
    used.reset(seed=1)
    for _ in range(8):
        used.step(close)
    still = np.zeros(7)
    a, b = (env.reset(seed=2)[0] for env in (used, fresh))
    assert np.array_equal(a, b)
    for _ in range(3):
        a, b = (env.step(still)[0] for env in (used, fresh))
    assert np.array_equal(a, b)


def test_what_there_is_not_is_named(tmp_path, capsys):
    with pytest.raises(ConfigError, match=r"no such task.*'Lift'"):
        robosuite.make("Lft", 1)
    task = ["task=robosuite", "task.name=NutAssemblyRound"]
    assert main(["demos", *task, f"out={tmp_path}/data", "episodes=1", "num_envs=1"]) == 1
    assert "robosuite/NutAssemblyRound: has no scripted expert" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["Stack", "Wipe", "PickPlaceSingle"])
def test_tasks_of_other_objects_name_their_numbers(name):
    env = robosuite.make(name, 1, relative=True)
    names, state = env.spec.observation[STATE].names, env.reset(torch.tensor([1]))[STATE]
    assert len(set(names)) == len(names) == state.shape[1]
    if name == "Stack":
        at = {n: float(state[0, i]) for i, n in enumerate(names)}
        assert at["tool_to_cubeA_x"] == pytest.approx(at["cubeA_x"] - at["tool_x"], abs=1e-5)
    assert env.spec.action.dim == (6 if name == "Wipe" else 7)
    assert float(env.render(0).float().std()) > 10
    env.close()


def test_the_suites_own_name_of_the_can_is_taken():
    assert robosuite.make("PickPlaceCan", 1).spec.id == "robosuite/Can"


def test_the_nut_is_observed_as_robomimic_does():
    env = robosuite.make("NutAssemblySquare", 1)
    assert env.reset(torch.tensor([1]))[STATE].shape == (1, 23), "tool 3 + 4, fingers 2, nut 14"
    assert env.spec.horizon == 400 and robosuite.make("Can", 1, horizon=50).spec.horizon == 50


@pytest.mark.parametrize("name", ["NutAssemblySquare", "NutAssemblyRound"])
def test_the_peg_is_seen_from_the_nut(name):
    """Relative numbers alone say where it goes: robomimic's do not, as the peg stands still."""
    env = robosuite.make(name, 1, relative=True)
    names, state = env.spec.observation[STATE].names, env.reset(torch.tensor([1]))[STATE]
    assert len(set(names)) == len(names) == state.shape[1] == 37
    at = {n: float(state[0, i]) for i, n in enumerate(names)}
    peg = [at[f"object_{axis}"] + at[f"object_to_peg_{axis}"] for axis in "xyz"]
    assert peg == pytest.approx([0.23, 0.1 if name == "NutAssemblySquare" else -0.1, 0.85], abs=1e-5)
    env.close()
