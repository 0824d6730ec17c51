"""Plans that begin later than they come, and the actions that are under way until then."""

from __future__ import annotations

import numpy as np
import pytest

from robopolicy import sim
from robopolicy.real.control.chunk_buffer import ChunkBuffer
from robopolicy.real.deploy.simulated_arm import SimulatedArm
from tests.real.control.test_robots import WIDE, Drive
from tests.real.planning.test_chunking import Notes


def test_the_actions_under_way_stay_until_the_new_chunk_begins():
    env = sim.make("reach", 1)
    spec = Drive(env, [0.0] * 5, steps=4).spec
    buffer, dt = ChunkBuffer(spec, shift=2, blend=0), spec.dt
    old, new = (np.full((4, spec.action.dim), value) for value in (1.0, 2.0))
    buffer.add(old, 0.0, 0.0, -2 * dt)  # due from 0 on
    buffer.pop(0.0)
    buffer.add(new, 0.0, 0.6 * dt, 0.0)  # due from two steps on
    found = [action if (action := buffer.pop(k * dt)) is None else action[0] for k in range(1, 7)]
    assert found == [1.0, 2.0, 2.0, 2.0, 2.0, None] and not buffer.late


@pytest.mark.parametrize("steps", [1, 4])
def test_no_control_step_is_without_action_where_plans_take_no_whole_steps(steps):
    env = sim.make("reach", 1, joint_noise=0.0, horizon=16)
    policy, notes = Drive(env, [0.001, 0.0, 0.0, 0.0, -1.0], steps=steps), Notes()
    it = SimulatedArm(env, policy, settings=WIDE, latency=policy.spec.dt)
    it.loop.early, it.loop.plans.journal, it.loop.plans.runner.latency = 0.02, notes, 1.2 * policy.spec.dt
    it.run(1)
    assert sum(action is None for action in notes.actions) <= 2, "the first plan takes so long"
