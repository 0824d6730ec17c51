"""The policy that does nothing: the base of learning from scratch."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from robopolicy.core.errors import SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Obs
from robopolicy.policies.base import Policy

HOLD = "hold"  # what `base=` calls it
HOLD_NODE = {"_target_": "hold"}


class HoldPolicy(Policy):
    """Zero motion, the gripper channel at the middle of its range.

    A residual of scale ≥ 1 on top of it reaches every action: that is reinforcement learning from scratch by the
    same code, which is what refined policies are compared with.

    Raises:
        SpecError: actions are absolute, so that "zero" would be a motion.
    """

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        if spec.action.reference == "absolute":
            raise SpecError("HoldPolicy needs delta actions; action.reference is 'absolute', where zero is a pose")
        self.spec = replace(spec, horizon=1, n_action_steps=1, n_obs_steps=1)
        rest = torch.zeros(spec.action.dim)
        if (g := spec.action.gripper) is not None:
            rest[g] = (spec.action.low[g] + spec.action.high[g]) / 2
        self.register_buffer("rest", rest)

    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        batch = next(iter(obs.values())).shape[0]
        return self.rest.expand(batch, 1, -1)
