"""Cut windows of recorded behaviour, and encode them as tokens for a diffusion model.

Token k of L holds action k, the state after it, and two flags: success, and the end of the task. The state is encoded
as the residual of a linear model of the first state and the actions so far, in deviations of that residual. So the
linear part of the dynamics is exact from the start, and small and large steps have the same precision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from robopolicy.config.schema import Positive
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import STATE
from robopolicy.datasets.episodes import Episodes
from robopolicy.policies.normalizer import ACTION, Normalizer
from robopolicy.world_models.models.model_files import ReportedModel
from robopolicy.world_models.models.state_transform import StateTransform

_FLAGS = 2
_LEAST = 1e-3  # of a number's way, that its deviation from the linear model counts at least: less is rounding
_RIDGE = 1e-6  # a transition, in standard units
_RARE = 0.25  # least deviation of a flag: a rarer one would be denoised beyond where tokens are clamped


class Window(NamedTuple):
    """B windows of L transitions, physical units."""

    state: Tensor  # [B L+1 Ds] before each action, and after the last
    action: Tensor  # [B L Da]
    success: Tensor  # [B L] bool: success holds after the action
    terminated: Tensor  # [B L] bool: the task has ended with it, or before


def whole(episodes: Episodes, length: int) -> Tensor:
    """Return [W] frames at which a window of `length` transitions may begin: none crosses its episode's end.

    Either the state after the last of them is recorded too, or the task ends before.
    """
    frame = torch.arange(episodes.num_frames)
    last = (episodes.starts[1:] - 1)[episodes.episode_of]
    return frame[(frame + length <= last) | episodes.terminated[last]]


def cut(episodes: Episodes, begins: Tensor, length: int) -> Window:
    """Return the windows from frames [B] of `whole`; after the task's end, last frame, action and flags repeat.

    The state at the task's end is not recorded, so later states of the window are not encoded (see encode).
    """
    last = (episodes.starts[1:] - 1)[episodes.episode_of[begins]]
    frames = torch.minimum(begins[:, None] + torch.arange(length + 1), last[:, None])
    acted = frames[:, :-1]
    state, action = episodes.obs[STATE][frames], episodes.action[acted]
    return Window(state, action, episodes.success[acted], episodes.terminated[acted])


class Tokens(ReportedModel):
    """Units of windows [B L], and the linear model; NaN until `fit`.

    Args:
        spec: features and rate of the data. length: L. periods, fine: see StateTransform.
    """

    linear: Tensor
    ways: Tensor
    counts: Tensor
    final: Tensor
    flag: Tensor

    def __init__(self, spec: PolicySpec, *, length: int, periods: dict[str, Positive] | None, fine: float) -> None:
        super().__init__()
        self.spec, self.length = spec, length
        self.state_dim, self.action_dim = spec.observation[STATE].shape[0], spec.action.dim
        self.state_transform = StateTransform(spec.observation[STATE], spec.action, periods=periods, fine=fine)
        self.normalizer = Normalizer({}, spec.action)
        self.token_dim = self.action_dim + self.state_dim + _FLAGS
        inputs = 1 + self.state_dim + length * self.action_dim
        self.register_buffer("linear", torch.full((length, inputs, self.state_dim), torch.nan))
        self.register_buffer("ways", torch.full((length, self.state_dim), torch.nan))  # deviations from it, by lag
        self.register_buffer("counts", torch.full((self.token_dim,), torch.nan))  # 1 where a number is modelled
        self.register_buffer("flag", torch.full((2, _FLAGS), torch.nan))  # mean and deviation of ±1
        self.register_buffer("final", torch.tensor(torch.nan))  # 1 where every success of the data ends its task

    def fit(self, episodes: Episodes, windows: Window) -> None:
        """Take units from the episodes, and from the windows in them, that it is trained on."""
        self.state_transform.fit(episodes)
        self.normalizer.fit(episodes)
        predicted, going = self.state_transform.predicted, ~windows.terminated  # where it leads is recorded
        inputs = self._inputs(windows.state[:, 0], self.normalizer.normalize(ACTION, windows.action)).double()
        way = self._ways(windows).double() * predicted
        self.linear.zero_()
        for k in range(self.length):  # of actions up to k alone
            used, rows = 1 + self.state_dim + (k + 1) * self.action_dim, going[:, k]
            x = inputs[rows, :used]
            gram = x.T @ x + _RIDGE * (1 + len(x)) * torch.eye(used, dtype=x.dtype)
            self.linear[k, :used] = torch.linalg.solve(gram, x.T @ way[rows, k]).to(self.linear.dtype)
        left = way - torch.einsum("bi,kid->bkd", inputs, self.linear.double())
        sizes = torch.stack([left, _LEAST * way]).square() * going[..., None]
        size = (sizes.sum(1) / going.sum(0).clamp_min(1)[:, None]).sqrt().amax(0)  # [L Ds]
        self.ways.copy_(torch.where(size > 0, size, 1.0))
        std, mean = torch.std_mean(_signs(windows).flatten(0, 1), dim=0, correction=0)
        self.flag.copy_(torch.stack([mean, std.clamp_min(_RARE)]))
        self.final.fill_(float((windows.success <= windows.terminated).all()))
        ones = predicted.new_ones
        self.counts.copy_(torch.cat([ones(self.action_dim), predicted, ones(_FLAGS)]))

    def encode(self, window: Window) -> Tensor:
        """Tokens [B L C]; 0 where a number follows from others, and where states are not recorded."""
        action = self.normalizer.normalize(ACTION, window.action)
        left = (self._ways(window) - self._straight(window.state[:, 0], action)) / self.ways
        left = torch.where(window.terminated[..., None], 0.0, left)
        flags = (_signs(window) - self.flag[0]) / self.flag[1]
        return torch.cat([action, left, flags], dim=-1) * self.counts

    def decode(self, tokens: Tensor, first: Tensor) -> Window:
        """Inverse of `encode`, given the first states [B Ds]; actions within their limits."""
        action, left, flags = tokens.split([self.action_dim, self.state_dim, _FLAGS], dim=-1)
        low, high = torch.tensor([self.spec.action.low, self.spec.action.high], device=tokens.device)
        action = self.normalizer.unnormalize(ACTION, action).clamp(low, high)
        way = left * self.ways + self._straight(first, self.normalizer.normalize(ACTION, action))
        after = self.state_transform.advance(first[:, None], way / self.state_transform.delta_std.clamp_min(1e-12))
        flags = flags * self.flag[1] + self.flag[0]
        flags = torch.where(self.final > 0, flags.mean(-1, keepdim=True), flags)  # two sayings of one thing
        success, terminated = (flags > 0.0).unbind(-1)
        terminated = terminated.cummax(dim=1).values
        return Window(
            torch.cat([first[:, None], after], dim=1),
            action,
            success | terminated,  # nothing but success ends a task: see check_learnable
            terminated,
        )

    def _ways(self, window: Window) -> Tensor:
        """Return [B L Ds] from the first state."""
        return self.state_transform.wrap(window.state[:, 1:] - window.state[:, :1])

    def _inputs(self, first: Tensor, action: Tensor) -> Tensor:
        """Return [B 1+Ds+L·Da] of the linear model; `action` normalised."""
        state = (first - self.state_transform.mean) / self.state_transform.std
        return torch.cat([torch.ones_like(state[:, :1]), state, action.flatten(1)], dim=-1)

    def _straight(self, first: Tensor, action: Tensor) -> Tensor:
        """Return [B L Ds] ways as the linear model has them."""
        return torch.einsum("bi,kid->bkd", self._inputs(first, action), self.linear)


def _signs(window: Window) -> Tensor:
    """Return [B L 2] flags as ±1."""
    return torch.stack([window.success, window.terminated], dim=-1).float() * 2.0 - 1.0
