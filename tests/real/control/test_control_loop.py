"""The control loop on a fake clock: which plan is executed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.real.deploy.simulated_arm import SimulatedArm
from tests.real.control.test_robots import WIDE, Drive
from tests.real.planning.test_chunking import Notes

TICK = 170  # of the stall: in the middle of a chunk


def executed(stall: int) -> tuple[list[int], int]:
    """The plan that each control step executed, counted from 1, and the number of steps before a stall of so many
    ticks, in which neither loop nor arm ran."""
    env = sim.make("reach", 1, joint_noise=0.0, horizon=60)
    policy, notes, plans, before = Drive(env, [0.0] * 5), Notes(), 0, 0

    def act(obs, *, noise=None, deterministic=False):
        nonlocal plans
        plans += 1
        return torch.tensor([1e-5 * plans, 0.0, 0.0, 0.0, 0.0]).expand(1, policy.spec.horizon, -1).clone()

    policy.act = act
    it = SimulatedArm(env, policy, settings=WIDE)
    it.loop.plans.journal, it.loop.buffer.blend = notes, 0
    it.begin(1)
    for tick in range(300):
        it.loop.tick()
        it.arm.advance()
        it.time += it.dt
        if tick == TICK:
            before = len(notes.actions)
            it.time += stall * it.dt
    assert it.loop.counts["missed"] == stall and it.arm.aborted == ""
    return [0 if a is None else round(a[0] / 1e-5) for a in notes.actions], before


@pytest.mark.parametrize(("stall", "replanned"), [(0, False), (45, False), (60, True), (400, True)])
def test_a_plan_from_before_a_long_stall_is_dropped(stall, replanned):
    """A chunk bridges four control steps, which are 50 ticks: an action planned longer ago is not executed."""
    plans, before = executed(stall)
    assert plans[before - 1] == plans[before - 2], "the stall is in the middle of a chunk"
    assert plans[before] == plans[before - 1] + replanned and np.diff(plans).min() >= 0
