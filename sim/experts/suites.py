"""Base classes of the scripted experts of suites: a plan, and errors keyed by the episode."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import keyed_normal
from robopolicy.core.types import STATE, ActionSpec, Obs
from robopolicy.sim.experts.quaternion_utils import down

_STREAM = 7011  # expert noise
Target = tuple[Tensor, Tensor, Tensor]  # tool position [N 3] m, turn still to do about z [N] rad, gripper [N]


class ScriptedExpert:
    """Base class: subclasses define the action without errors, `plan`.

    Args:
        expert_noise: at x, every episode has a constant error and every step a noise of its own (both normal, per
            dimension), of x · `offset` and x · `noise` of half the action's range.
    """

    offset: ClassVar[float] = 0.3
    noise: ClassVar[float] = 0.5

    def __init__(self, action: ActionSpec, num_envs: int, *, expert_noise: float = 0.0) -> None:
        if not 0.0 <= expert_noise <= 1.0:
            raise ConfigError(f"expert_noise must be in [0, 1], found {expert_noise}")
        self.expert_noise = expert_noise
        self.low, self.high = torch.tensor(action.low), torch.tensor(action.high)
        self.seed = torch.zeros(num_envs, dtype=torch.int64)
        self.steps = torch.zeros(num_envs, dtype=torch.int64)

    def plan(self, obs: Obs) -> Tensor:
        """Return the action [N Da] without errors; values beyond the limits are clipped."""
        raise NotImplementedError

    def begin(self, rows: Tensor) -> None:
        """Forget the episodes of `rows` [N] bool, where `plan` remembers anything."""

    def reset(self, mask: Tensor | None, *, episode_seed: Tensor) -> None:
        """Begin new episodes where `mask` [N] is true (None: everywhere)."""
        rows = torch.ones(len(self.seed), dtype=torch.bool) if mask is None else mask
        self.seed, self.steps = torch.where(rows, episode_seed, self.seed), torch.where(rows, 0, self.steps)
        self.begin(rows)

    def act(self, obs: Obs) -> Tensor:
        """Return [N Da] action within the limits."""
        found = self.plan(obs).float().clamp(self.low, self.high)
        self.steps += 1
        size = (len(self.low),)
        offset = keyed_normal(self.seed, torch.zeros_like(self.seed), size, stream=_STREAM)
        noise = keyed_normal(self.seed, self.steps, size, stream=_STREAM)
        error = self.expert_noise * (self.offset * offset + self.noise * noise)
        return (found + error * (self.high - self.low) / 2).clamp(self.low, self.high)


def slices(sizes: Mapping[str, int]) -> dict[str, slice]:
    """Return the slice of each part of a vector, from the parts' sizes in order."""
    return {key: slice(end - sizes[key], end) for key, end in zip(sizes, accumulate(sizes.values()), strict=True)}


class ToolExpert(ScriptedExpert):
    """Base class: go straight on to the tool position and turn that subclasses define, with the tool pointing down.

    Args:
        at: name → its part of the state.
    """

    gain: ClassVar[float]  # 1/m: action per remaining way
    turn_gain: ClassVar[float]  # 1/rad

    def __init__(self, at: dict[str, slice], action: ActionSpec, num_envs: int, *, expert_noise: float = 0.0) -> None:
        super().__init__(action, num_envs, expert_noise=expert_noise)
        self.at = at

    def read(self, obs: Obs) -> dict[str, Tensor]:
        """Return the observation by name: "tool" [N 3], "quat" [N 4] w x y z, "object", "object_quat" and others."""
        return {name: obs[STATE][:, part] for name, part in self.at.items()}

    def target(self, f: dict[str, Tensor]) -> Target:
        """Return the target of an observation by name."""
        raise NotImplementedError

    def tilt(self, f: dict[str, Tensor]) -> Tensor:
        """Return the rotation vector [N 3] that is left to do, of which x and y are used: till the tool points down."""
        return down(f["quat"])

    def plan(self, obs: Obs) -> Tensor:
        f = self.read(obs)
        where, turn, gripper = self.target(f)
        move = self.gain * (where - f["tool"])
        move = move / move.abs().amax(1, keepdim=True).clamp(min=1.0)  # at full speed
        tilt = self.tilt(f)
        return torch.cat([move, self.turn_gain * tilt[:, :2], self.turn_gain * turn[:, None], gripper[:, None]], dim=1)


def over_and_down(
    f: dict[str, Tensor], turn: Tensor, *, clear: float, slack: tuple[float, float], near: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Return the tool position [N 3] above the object, then down on it like a funnel, and whether [N] it is there.

    Args:
        turn: [N] rad still to do.
        clear: m above the object until the tool is over it.
        slack: m and rad off at which the tool may be all the way down.
        near: m off, and m of height, within which it is there.
    """
    gap = f["object"] - f["tool"]
    off = gap[:, :2].norm(dim=1)
    wrong = 4 * (off - slack[0]) + 0.2 * (turn.abs() - slack[1]).clamp(min=0.0)
    where = f["object"].clone()
    where[:, 2] += wrong.clamp(0.0, clear)
    return where, (off < near[0]) & (gap[:, 2].abs() < near[1]) & (turn.abs() < 0.3)


def instead(target: Target, rows: Tensor, where: Tensor, gripper: float) -> Target:
    """Return `target`, but in `rows` [N] bool go to `where` [N 3] without a turn, with `gripper`."""
    pos, turn, grip = target
    return torch.where(rows[:, None], where, pos), torch.where(rows, 0.0, turn), torch.where(rows, gripper, grip)
