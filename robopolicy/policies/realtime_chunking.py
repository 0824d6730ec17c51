"""Plan the next chunk as a continuation of the chunk that is executed meanwhile (real-time chunking).

Black, Galliker and Levine 2025, "Real-Time Execution of Action Chunking Flow Policies" (arXiv 2506.07339), with the
paper's H, s (our `n_action_steps`) and d. Planning begins after s steps and takes d more, in which the arm executes
the old chunk. These d actions are fixed, those up to the old chunk's end are soft targets, the rest is free.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from robopolicy.core.errors import SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Obs
from robopolicy.policies.base import DenoisingPolicy, DenoisingStep
from robopolicy.policies.normalizer import ACTION

Continuation = Literal["rtc", "inpaint"]


def longest_delay(spec: PolicySpec) -> int:
    """Return the longest planning time d in control steps: d ≤ H − s (the old chunk must last) and d ≤ s (one plan at a
    time)."""
    return min(spec.n_action_steps, spec.horizon - spec.n_action_steps)


def weights(horizon: int, left: int, delay: int) -> Tensor:
    """Return the weight [H] of the old chunk's actions for the new one (eq. 5, with `left` = H − s).

    1 for the first `delay`, decaying exponentially up to `left`, 0 beyond.
    """
    i = torch.arange(horizon, dtype=torch.float32)
    c = (left - i) / (left - delay + 1)
    soft = c * torch.expm1(c) / (math.e - 1.0)
    return torch.where(i < delay, 1.0, torch.where(i < left, soft, 0.0))


def guided(step: DenoisingStep, x: Tensor, wanted: Tensor, weight: Tensor, *, limit: float) -> Tensor:
    """Compute the clean chunk [B H Da] at x, guided towards `wanted` by the pseudo-inverse.

    Eq. 2 to 4 (ΠGDM: Song et al. 2023), written for the expected chunk x̂ instead of the velocity:
    x̂ + min(β·(1−τ), (τ² + (1−τ)²)/τ) · Jᵀ·W·(Y − x̂), with J = ∂x̂/∂x. Diffusion has no velocity, but its latent
    α·chunk + σ·noise divided by α + σ is that of a flow at τ = α/(α + σ) (Pokle et al. 2024), hence one formula for
    both; where β does not bind it is Tweedie's for a likelihood of ΠGDM's variance r² = 1 − ᾱ.

    Args:
        x: [B H Da] latents. wanted: [B H Da] Y, normalised. weight: [H 1] diagonal of W. limit: β.
    """
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        clean = step.clean(x)
    (pull,) = torch.autograd.grad(clean, x, weight * (wanted - clean.detach()))
    scale = step.signal + step.spread
    tau = step.signal / scale
    gain = limit * (1.0 - tau)
    if tau > 0.0:
        gain = min(gain, (tau**2 + (1.0 - tau) ** 2) / tau)
    return clean.detach() + gain * scale * pull


@torch.no_grad()
def continue_chunk(
    policy: DenoisingPolicy, obs: Obs, left: Tensor, *, delay: int, mode: Continuation = "rtc",
    noise: Tensor | None = None, limit: float = 5.0,
) -> Tensor:  # fmt: skip
    """Plan a chunk that continues the actions executed during planning.

    Without actions left it equals `policy.act`, bit for bit.

    Args:
        obs: each key of the spec as [B To ...], physical units, seen when planning begins.
        left: [B L Da] physical units, remaining actions of the old chunk, L ≤ H.
        delay: d ≤ L, control steps until the new chunk is there.
        mode: "rtc": guidance, one pass back through the network a step. "inpaint": no gradient; at every step the d
            first actions are replaced by the given ones at that step's noise (RePaint, Lugmayr et al. 2022, eq. 8,
            without its resampling; for robots: Diffuser, Janner et al. 2022), the rest is free.
        noise: [B *noise_shape] standard normal; drawn from torch's global generator when None.
        limit: β, the most that guidance may count; the paper's 5.

    Returns:
        [B H Da] physical units, not clamped. The d first are those of `left`: exactly ("inpaint"), or as closely as
        the guidance gets ("rtc"; they are not executed).

    Raises:
        SpecError: not 0 ≤ d ≤ L ≤ H.
    """
    horizon, length = policy.spec.horizon, left.shape[1]
    if length == 0:
        return policy.act(obs, noise=noise)
    if not 0 <= delay <= length <= horizon:
        raise SpecError(
            f"chunking: expected 0 ≤ delay ≤ actions left ≤ horizon={horizon}, found a delay of {delay} control steps "
            f"and {length} actions left"
        )
    cond = policy.encode(obs)
    if noise is None:
        noise = torch.randn(len(cond), *policy.noise_shape, device=cond.device, dtype=cond.dtype)
    draws = noise if noise.ndim == 4 else noise[:, None]  # [B S+1 H Da], or the initial latent alone
    wanted = torch.zeros_like(draws[:, 0])
    wanted[:, :length] = policy.normalizer.normalize(ACTION, left)
    weight = weights(wanted.shape[1], length, delay).to(wanted)[:, None]
    x = draws[:, 0]
    for i, step in enumerate(policy.unroll(cond)):
        if mode == "rtc":
            clean = guided(step, x, wanted, weight, limit=limit)
        else:
            own = draws[:, i if noise.ndim == 4 else 0, :delay]
            x = torch.cat([step.signal * wanted[:, :delay] + step.spread * own, x[:, delay:]], dim=1)
            clean = step.clean(x)
        x, std = step.onward(x, clean)
        if noise.ndim == 4:
            x = torch.addcmul(x, std, draws[:, i + 1])
    chunk = policy.normalizer.unnormalize(ACTION, x)
    if mode == "inpaint":
        chunk[:, :delay] = left[:, :delay]
    return chunk
