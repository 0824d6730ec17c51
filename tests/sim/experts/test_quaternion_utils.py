"""Angles by hand, and experts on observations made up for the purpose."""

from __future__ import annotations

import math

import pytest
import torch

from robopolicy.core.errors import ConfigError
from robopolicy.core.types import STATE, ActionSpec
from robopolicy.sim.experts.maniskill import CLOSED, OPEN, PickCube
from robopolicy.sim.experts.quaternion_utils import down, face_to, frame, half, quarter, yaw
from robopolicy.sim.experts.suites import ScriptedExpert


def tool(angle: float, tilt: float = 0.0) -> torch.Tensor:
    """[1 4] w x y z: pointing down, turned by `angle` about z, then by `tilt` about x."""
    c, s, ct, st = math.cos(angle / 2), math.sin(angle / 2), math.cos(tilt / 2), math.sin(tilt / 2)
    return torch.tensor([[-st * c, ct * c, ct * s, st * s]])  # (ct, st, 0, 0) · (0, c, s, 0)


def test_angles():
    assert yaw(tool(0.7)).item() == pytest.approx(0.7, abs=1e-6)
    assert yaw(torch.tensor([[math.cos(0.2), 0.0, 0.0, math.sin(0.2)]])).item() == pytest.approx(0.4, abs=1e-6)
    assert face_to(tool(3.0), -3.0).item() == pytest.approx(2 * math.pi - 6.0, abs=1e-5)
    assert quarter(torch.tensor([1.0, -1.0, 0.3])).tolist() == pytest.approx([1 - math.pi / 2, math.pi / 2 - 1, 0.3])
    assert half(torch.tensor([2.0, -2.0, 1.5])).tolist() == pytest.approx([2 - math.pi, math.pi - 2, 1.5])
    assert down(tool(0.7)).norm().item() == pytest.approx(0.0, abs=1e-6)


def test_the_axes_of_a_body_are_columns():
    """A tool that points down, turned by 0.7: its x axis turned with it, its y axis mirrored, its z axis down."""
    c, s = math.cos(0.7), math.sin(0.7)
    wanted = torch.tensor([[c, s, 0.0], [s, -c, 0.0], [0.0, 0.0, -1.0]])
    assert torch.allclose(frame(tool(0.7))[0], wanted, atol=1e-6)


def test_a_tilted_tool_is_turned_back():
    """The z axis of a tool tilted by 0.1 about x has to turn by -0.1 about x."""
    assert down(tool(0.5, 0.1))[0].tolist() == pytest.approx([-math.sin(0.1), 0.0, 0.0], abs=1e-6)


ACTION = ActionSpec(
    names=tuple("abcdefg"), units=("1",) * 7, low=(-1.0,) * 7, high=(1.0,) * 7, frame="base", tcp="t",
    rotation="rotvec", reference="measured", gripper=6, gripper_meaning="",
)  # fmt: skip


def asked(tcp: list[float], cube: list[float], *, held: float = 0.0, goal: tuple[float, ...] = (0.1, 0.0, 0.2)):
    """What the pick expert does: [7]."""
    parts = {"tcp": [*tcp, *tool(0.0)[0].tolist()], "cube": [*cube, 1.0, 0.0, 0.0, 0.0], "goal": goal, "held": [held]}
    at, values = {}, []
    for key, part in parts.items():
        at[key] = slice(len(values), len(values) + len(part))
        values += part
    return PickCube(at, ACTION, 1).plan({STATE: torch.tensor([values])})[0]


def test_the_pick_goes_over_the_cube_then_down_then_closes_then_carries():
    far = asked([0.0, 0.0, 0.1], [0.1, 0.0, 0.02])
    assert far[0] == 1.0 and far[1] == 0.0 and far[6] == OPEN and abs(far[2]) < 0.3
    over = asked([0.1, 0.0, 0.08], [0.1, 0.0, 0.02])
    assert over[2] == -1.0 and over[6] == OPEN
    assert asked([0.1, 0.0, 0.021], [0.1, 0.0, 0.02])[6] == CLOSED
    carried = asked([0.1, 0.0, 0.02], [0.1, 0.0, 0.02], held=1.0, goal=(0.1, 0.05, 0.02))
    assert carried[:3].tolist() == pytest.approx([0.0, 0.85, 0.0], abs=1e-5) and carried[6] == CLOSED


class Still(ScriptedExpert):
    def plan(self, obs):
        return torch.zeros(len(self.seed), 7)


def test_errors_are_keyed_by_episode_and_step_and_scale_with_expert_noise():
    def actions(seeds: list[int], expert_noise: float) -> torch.Tensor:
        expert = Still(ACTION, len(seeds), expert_noise=expert_noise)
        expert.reset(None, episode_seed=torch.tensor(seeds))
        return torch.stack([expert.act({}) for _ in range(100)])

    both, alone = actions([3, 4], 0.2), actions([4], 0.2)
    assert torch.equal(both[:, 1:], alone) and not torch.equal(both[:, 0], both[:, 1])
    assert float(actions([3], 0.0).abs().max()) == 0.0
    deviation = alone[:, 0].std(dim=0)
    assert torch.allclose(deviation, torch.full((7,), 0.2 * Still.noise), rtol=0.35)
    with pytest.raises(ConfigError, match=r"expert_noise must be in \[0, 1\]"):
        Still(ACTION, 1, expert_noise=1.5)
