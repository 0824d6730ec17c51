"""Compute advantages over chunks, PPO's objective and schedules, in pure functions.

Time runs in primitive steps [T N]. The D decisions (planned chunks) are ordered by (step, env), as in
`planned.nonzero()`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robopolicy.utils import ranks


class ChunkReturns(NamedTuple):
    """Advantages and targets of D decisions."""

    advantage: Tensor  # [D]
    target: Tensor  # [D]: advantage + value, the critic's target
    steps: Tensor  # [D] int64: primitive steps of the chunk that were executed
    valid: Tensor  # [D] bool: False where physics failed during the chunk


def gae(
    *,
    reward: Tensor,
    planned: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    value: Tensor,
    last_value: Tensor,
    final_value: Tensor,
    gamma: float,
    lam: float,
) -> ChunkReturns:
    """Generalised advantages (Schulman et al. 2016) of chunks of any length, γ per primitive step, λ per chunk.

    δ = Σγⁱrᵢ + γˢ·V' − V over the s steps of a chunk. V' is the value at the env's next decision.
    Terminated: V' = 0. Truncated: V' is the value of the true successor, not of the next episode's start. The λ-trace
    stops at either end, and before a chunk in which physics failed.

    Args:
        reward: [T N]. planned, terminated, truncated, valid: [T N] bool; an env must plan in the first row.
        value: [D] at each decision. last_value: [N] where the rollout stops.
        final_value: [F] of the successors of the truncated steps, ordered by (step, env).
    """
    width = reward.shape[1]
    value_at, final_at = torch.zeros_like(reward), torch.zeros_like(reward)
    value_at[planned], final_at[truncated] = value, final_value
    out = torch.zeros_like(reward)
    steps, good = torch.zeros_like(planned, dtype=torch.int64), torch.ones_like(planned)
    # What follows: value of the next decision (or bootstrap) and its advantage; of the chunk so far: return, discount.
    following, trace = last_value.clone(), reward.new_zeros(width)
    total, discount = reward.new_zeros(width), reward.new_ones(width)
    count, fine = steps.new_zeros(width), good.new_ones(width)
    for t in range(len(reward) - 1, -1, -1):
        end = terminated[t] | truncated[t]
        following = torch.where(end, final_at[t].masked_fill(terminated[t], 0.0), following)
        trace, total = trace.masked_fill(end, 0.0), total.masked_fill(end, 0.0)
        discount, count, fine = discount.masked_fill(end, 1.0), count.masked_fill(end, 0), fine | end
        total, discount, count, fine = reward[t] + gamma * total, gamma * discount, count + 1, fine & valid[t]
        now = planned[t]
        out[t] = total + discount * (following + lam * trace) - value_at[t]
        steps[t], good[t] = count, fine
        following = torch.where(now, value_at[t], following)
        trace = torch.where(now, torch.where(fine, out[t], 0.0), trace)
        total, discount = total.masked_fill(now, 0.0), discount.masked_fill(now, 1.0)
        count, fine = count.masked_fill(now, 0), fine | now
    advantage = out[planned]
    return ChunkReturns(advantage, advantage + value, steps[planned], good[planned])


def executed_steps(planned: Tensor, ended: Tensor) -> Tensor:
    """Count the primitive steps [D] until an env plans again or its episode ends; planned, ended: [T N] bool."""
    steps, count = torch.zeros_like(planned, dtype=torch.int64), planned.new_zeros(planned.shape[1], dtype=torch.int64)
    for t in range(len(planned) - 1, -1, -1):
        steps[t] = count = count.masked_fill(ended[t], 0) + 1
        count = count.masked_fill(planned[t], 0)
    return steps[planned]


def chunk_weight(steps: Tensor, chunk_steps: int) -> Tensor:
    """Return the weight [D Ta] of each step in a mean over the `steps` [D] executed ones of its chunk; 0 beyond."""
    executed = torch.arange(chunk_steps, device=steps.device) < steps[:, None]
    return executed / executed.sum(1, keepdim=True)


def group_advantage(total: Tensor, counts: Tensor, size: int) -> Tensor:
    """Compute (return − mean) / deviation among `size` neighbours; 0 where they are equal (GRPO, Shao et al. 2024).

    Args:
        total: [N] returns of whole episodes. counts: [N] bool; other episodes get 0 and do not enter the mean.

    Returns:
        [N]; the deviation is the population deviation of the group.
    """
    total, counts = total.view(-1, size), counts.view(-1, size)
    number = counts.sum(1, keepdim=True).clamp_min(1)
    mean = total.masked_fill(~counts, 0.0).sum(1, keepdim=True) / number
    centred = (total - mean).masked_fill(~counts, 0.0)
    deviation = (centred.square().sum(1, keepdim=True) / number).sqrt()
    same = deviation <= 1e-8 + 1e-6 * mean.abs()  # but for rounding
    return torch.where(same, torch.zeros_like(total), centred / deviation).flatten()


class RewardScale:
    """Divides rewards by the running deviation of their discounted return, over all ranks: values are of order one.

    Rewards are not centred, since this would change the task. The scale is 1 until returns vary.
    """

    def __init__(self, *, gamma: float, clip: float = 10.0) -> None:
        self.gamma, self.clip = gamma, clip
        self.returns = torch.zeros(())  # [N] Σγⁱr of the episode so far, the newest reward with weight 1
        self.count, self.mean, self.square = 0.0, 0.0, 0.0  # Σ1, mean and Σ(x − mean)² of all returns seen

    @property
    def deviation(self) -> float:
        deviation = math.sqrt(self.square / self.count) if self.count else 0.0
        return deviation if deviation > 1e-8 else 1.0

    def __call__(self, reward: Tensor, ended: Tensor) -> Tensor:
        """Update the deviation with a rollout's returns and scale its rewards [T N]; ended: [T N] bool."""
        seen = torch.empty_like(reward)
        for t in range(len(reward)):
            self.returns = seen[t] = self.gamma * self.returns.to(reward) + reward[t]
            self.returns = self.returns.masked_fill(ended[t], 0.0)
        count, mean = seen.numel() * ranks.count(), float(ranks.mean_of(seen.double()))
        shift, total = mean - self.mean, self.count + count
        self.square += float(ranks.total((seen.double() - mean).square().sum())) + shift**2 * self.count * count / total
        self.mean, self.count = self.mean + shift * count / total, total
        return (reward / self.deviation).clamp(-self.clip, self.clip)

    def interrupt(self) -> None:
        """Drop the returns of the running episodes, which are lost: the next rewards are of new ones."""
        self.returns = torch.zeros(())

    def state_dict(self) -> dict[str, Any]:
        returns = ranks.gather_rows(self.returns) if self.returns.ndim else self.returns  # of all ranks' envs
        return {"returns": returns.clone(), "count": self.count, "mean": self.mean, "square": self.square}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        returns = state["returns"]
        self.returns = returns[ranks.own_part(len(returns))].clone() if returns.ndim else returns.clone()
        self.count, self.mean, self.square = (float(state[k]) for k in ("count", "mean", "square"))


def standardize(x: Tensor) -> Tensor:
    """Shift and scale to zero mean and unit deviation over all ranks; all zero where nothing varies."""
    centred = x - ranks.mean_of(x)
    deviation = ranks.mean_of(centred.square()).sqrt()
    return torch.where(deviation <= 1e-8, torch.zeros_like(x), centred / deviation)  # NaN stays NaN


def clip_schedule(steps: int, *, first: float, last: float, rate: float = 3.0) -> Tensor:
    """Return the PPO clip [K'] of each fine-tuned step, growing exponentially from the noisiest (DPPO).

    first + (last − first)·(e^{rate·s} − 1)/(e^{rate} − 1) with s = k/(K'−1). A single step takes `last`.
    """
    s = torch.linspace(0.0, 1.0, steps, dtype=torch.float64) if steps > 1 else torch.ones(1, dtype=torch.float64)
    return (first + (last - first) * torch.expm1(rate * s) / math.expm1(rate)).float()


def denoising_discount(steps: int, gamma: float) -> Tensor:
    """Return γ^(K'−1−k) [K']: the factor of step k on the chunk's advantage; 1 at the last step (DPPO)."""
    return gamma ** torch.arange(steps - 1, -1, -1, dtype=torch.float32)


def clipped_loss(log_ratio: Tensor, advantage: Tensor, clip: Tensor) -> tuple[Tensor, Tensor]:
    """Compute PPO's loss (Schulman et al. 2017, eq. 7) of [B] samples, and their STATS [4].

    Log-ratios are means over the elements of a chunk, so −E[log r] is an unbiased KL per element. Estimators that add
    r − 1 hold for ratios of whole chunks only.
    """
    ratio = log_ratio.exp()
    loss = -torch.minimum(advantage * ratio, advantage * ratio.clamp(1.0 - clip, 1.0 + clip)).mean()
    with torch.no_grad():
        off = ratio - 1.0
        stats = torch.stack([-log_ratio.mean(), (off.abs() > clip).to(off).mean(), off.abs().mean(), loss])
    return loss, stats


STATS = ("kl", "clipped", "ratio_off", "loss")  # KL(old ‖ new) per element; share clipped; mean |r − 1|; loss


def minibatches(
    samples: Tensor, chunks: int, *, whole: int, count: int, epochs: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs (part of `samples`, part of `chunks` rows); each epoch covers all of both in a new random order.

    Args:
        whole: number of samples of the whole rollout. Where `samples` are fewer, fewer pairs contain samples: the
            minibatches keep their size, and the critic its number of steps.
        count: pairs per epoch, at most one per chunk.
    """
    count = max(1, min(count, chunks))
    filled = max(1, round(count * len(samples) / whole))
    for _ in range(epochs):
        order = samples[torch.randperm(len(samples), generator=generator).to(samples.device)]
        rows = torch.randperm(chunks, generator=generator).to(samples.device)
        parts = iter(order.tensor_split(filled))
        for i, some in enumerate(rows.tensor_split(count)):
            yield next(parts) if (i + 1) * filled // count > i * filled // count else samples[:0], some


def schedule(kind: str, progress: float, *, final: float = 0.0) -> float:
    """Return the factor on a learning rate after a share `progress` of the training: from 1 to `final`."""
    progress = min(1.0, max(0.0, progress))
    left = {"constant": 1.0, "linear": 1.0 - progress, "cosine": 0.5 * (1.0 + math.cos(math.pi * progress))}[kind]
    return final + (1.0 - final) * left
