"""The peg tasks' contacts are honest: what does not fit stays out, walls hold, only a peg held by friction slips."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.sim.env import SimEnv

CLEARANCE = {"peg": 0.4e-3, "peg_easy": 1e-3}  # m per side
GIVE = {"peg": 0.25e-3, "peg_easy": 0.5e-3}  # m that a wall may yield under all that the arm can press
DOWN = (0.0, 0.0, -1.0, 0.0, -1.0)  # clamped to the limits: as hard as the controller can
pytestmark = pytest.mark.parametrize("task", CLEARANCE)


def beside_hole(task: str, offset: float) -> SimEnv:
    """An env that goes on after success, its tip `offset` m along y beside the middle of the hole, and aligned."""
    still = {"range_slide": 0.0, "range_tilt": 0.0} if task == "peg" else {}
    env = sim.make(task, 1, threads=1, hold=1000, horizon=1000, joint_noise=0.0, range_yaw=0.0, **still)
    tip = env.task.tip(env.at, env._scene()).pos
    env.at.base.x.place(env.physics.qpos, tip[:, 0])
    env.at.y.place(env.physics.qpos, tip[:, 1] - offset)
    return env


def push(env: SimEnv, *action: float, steps: int) -> np.ndarray:
    """Repeat an action; where the tip was [steps 3] m from the middle of the hole's rim, down negative."""
    way = []
    for _ in range(steps):
        env.step(torch.tensor([action]))
        way.append((env.task.tip(env.at, env._scene()).pos - env.task._mouth(env.at, env._scene()))[0])
    return np.array(way)


def test_it_goes_into_the_hole_and_then_not_through_its_walls(task):
    env = beside_hole(task, 0.0)
    push(env, *DOWN, steps=25)
    assert env.task.success(env.at, env._scene()).all()
    for sideways in ((1.0, 0.0, 0.0, 0.0, -1.0), (0.0, 1.0, 0.0, 0.0, -1.0)):
        assert np.abs(push(env, *sideways, steps=15)[:, :2]).max() < 2 * CLEARANCE[task]


def test_beside_the_hole_it_stays_out_and_slips_only_where_friction_holds_it(task):
    env = beside_hole(task, 0.004)

    def grasp() -> np.ndarray:
        return np.linalg.norm((env.task.tip(env.at, env._scene()).pos - env._scene().tcp)[0])

    push(env, 0.0, 0.0, 0.0, 0.0, -1.0, steps=5)
    held = grasp()
    push(env, 0.0, 0.0, 0.001, 0.0, -1.0, steps=10)
    assert abs(grasp() - held) < 1e-3, "carried through the air it stays where it is"
    assert push(env, *DOWN, steps=40)[:, 2].min() > -GIVE[task], "the walls give way"
    assert (abs(grasp() - held) > 1e-3) == (task == "peg")


def test_the_hole_is_as_tight_as_stated(task):
    model = sim.make(task, 1).model
    peg, walls = model.geom("peg"), [model.geom(f"wall{i}") for i in range(4)]
    inner = [max(abs(w.pos[:2])) - w.size[abs(w.pos[:2]).argmax()] for w in walls]
    assert np.allclose(np.array(inner) - peg.size[0], CLEARANCE[task], atol=1e-9)
