"""Act zero: the base of reinforcement learning from scratch."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from robopolicy.core.errors import SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Obs
from robopolicy.policies.base import Policy

ZERO_ACTION = "zero_action"  # its name in `base=`
ZERO_ACTION_NODE = {"_target_": "zero_action"}


class ZeroActionPolicy(Policy):
    """Returns zero motion, the gripper channel at the middle of its range.

    A residual of scale ≥ 1 on top of it reaches every action. That is reinforcement learning from scratch by the same
    code, and the comparison for refined policies.

    Raises:
        SpecError: actions are absolute, so a zero action is a motion.
    """

    rest: Tensor  # [Da] physical units

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        if spec.action.reference == "absolute":
            raise SpecError(
                "ZeroActionPolicy needs delta actions, got action.reference='absolute', where zero is a pose. Give "
                "base=<run directory> of a trained policy."
            )
        self.spec = replace(spec, horizon=1, n_action_steps=1, n_obs_steps=1)
        rest = torch.zeros(spec.action.dim)
        if (g := spec.action.gripper) is not None:
            rest[g] = (spec.action.low[g] + spec.action.high[g]) / 2
        self.register_buffer("rest", rest)

    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        """[B 1 Da], the same for every observation."""
        batch = next(iter(obs.values())).shape[0]
        return self.rest.expand(batch, 1, -1)
