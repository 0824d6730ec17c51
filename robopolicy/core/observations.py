"""Check the observations that a policy is given."""

from __future__ import annotations

import torch

from robopolicy.core.errors import SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import IMAGES, TASK, Obs


def check_observation(obs: Obs, spec: PolicySpec) -> None:
    """Raise SpecError unless `obs` [B To ...] fits `spec`, its images and instructions in particular."""
    for key, feature in spec.observation.items():
        if key not in obs:
            if key == TASK:
                raise SpecError(f"{TASK!r}: no instruction is given; the policy can follow {len(spec.tasks)}")
            kind, name = ("camera", key.removeprefix(IMAGES)) if key.startswith(IMAGES) else ("observation", key)
            raise SpecError(f"{kind} {name!r} is missing, which the policy reads. Found: {', '.join(sorted(obs))}.")
        found, shape = obs[key], (spec.n_obs_steps, *feature.shape)
        if tuple(found.shape[1:]) != shape:
            hint = ""
            if key.startswith(IMAGES) and tuple(found.shape[-3:]) == (*feature.shape[1:], 3):
                hint = " Pictures are (3, h, w), not (h, w, 3): permute them."
            raise SpecError(f"{key!r}: expected shape [B To …] = [B, {', '.join(map(str, shape))}], found "
                            f"{list(found.shape)}.{hint}")  # fmt: skip
        if key.startswith(IMAGES) and found.dtype != torch.uint8:
            low, high = (float(v) for v in torch.aminmax(found)) if found.numel() else (0.0, 0.0)
            raise SpecError(
                f"{key!r}: expected uint8 from 0 to 255, found {found.dtype} from {low:.3g} to {high:.3g}. "
                "Scaling is the policy's business: give it pictures as the camera has them."
            )
    if TASK in spec.observation and len(index := obs[TASK]):
        low, high = torch.stack(torch.aminmax(index)).tolist()  # one transfer from a GPU
        if low < 0 or high >= len(spec.tasks):
            raise SpecError(
                f"{TASK!r}: {low if low < 0 else high} names no instruction; there are {len(spec.tasks)}: "
                f"{'; '.join(spec.tasks[:5])} …"
            )
