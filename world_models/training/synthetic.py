"""Generate synthetic experience: recorded behaviour, denoised towards a policy (Jackson et al. 2024).

A window begins in a recorded state. During denoising its actions are moved up the policy's log-likelihood, and the
states follow by the model. The result is on-policy within the range of the data. `guidance` 0 is the behaviour of the
data; more is nearer to the policy and further from the data.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from robopolicy.buffers.relabeling import base_actions, read_frames
from robopolicy.config.schema import Count, NonNegative, Positive
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.rng import step_seed
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import BASE_ACTION, STATE, TASK, Obs
from robopolicy.datasets.compatibility import misfits
from robopolicy.datasets.episodes import Episodes, concatenate
from robopolicy.policies.base import LikelihoodPolicy, Policy
from robopolicy.policies.normalizer import ACTION
from robopolicy.world_models.envs.starts import made_from
from robopolicy.world_models.models.trajectories import Guide, Trajectories, load_trajectories, unguided
from robopolicy.world_models.models.windows import Window
from robopolicy.world_models.training.data import load_source

_STREAM = 9403
_SEED_BITS = 40


class Synthetic:
    """Windows of `policy` as it is when they are asked for, from states of the data that `model` was made from.

    Args:
        policy: its own, and those underneath, read the state alone.
        model: run directory of `train algo=trajectories`. starts: another dataset whose states windows begin in.
        windows: made at a time.
        guidance, spread: see `guide_of`.
        seed: of starts and noise.

    Raises:
        ConfigError: no model is named. CheckpointError: it is not a whole and trained one.
        SpecError: the policy, or the data of the starts, is of other features, actions or another rate.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        model: Path | None = None,
        starts: Path | None = None,
        windows: Count = 512,
        guidance: NonNegative = 1.0,
        spread: Positive = 0.1,
        seed: int = 0,
    ) -> None:
        if model is None:
            raise ConfigError(
                "loop.synthetic.model: needs a value. Add loop.synthetic.model=<run directory of train "
                "algo=trajectories>"
            )
        self.policy, self.model = policy, load_trajectories(model)
        check_policy(self.model, policy)
        paths = made_from(model)[0] if starts is None else [starts]
        parts = [load_source(path, "loop.synthetic.starts") for path in paths]
        for path, part in zip(paths, parts, strict=True):
            check_belongs(self.model, part, offers=str(path))
        episodes = concatenate(parts)
        self.first = episodes.obs[STATE][~episodes.success]  # [F Ds]: after success nothing is left to do
        self.windows, self.guidance, self.spread, self.seed = windows, guidance, spread, seed

    def __call__(self, number: int) -> tuple[Episodes, Obs]:
        """Return the `number`-th lot as episodes, and their replay features; see replay_of_episodes."""
        generator = torch.Generator().manual_seed(step_seed(self.seed, number, stream=_STREAM))
        first = self.first[torch.randint(len(self.first), (self.windows,), generator=generator)]
        seeds = torch.randint(1 << _SEED_BITS, (self.windows,), generator=generator)
        noise = torch.randn(self.windows, *self.model.noise_shape, generator=generator)
        guide = guide_of(self.policy, self.model, seeds, guidance=self.guidance, spread=self.spread)
        episodes = as_episodes(self.model.sample(first, noise=noise, guide=guide), self.model.spec, seeds)
        return episodes, read_frames(episodes, self.policy)


def check_belongs(model: Trajectories, other: PolicySpec | Episodes, *, offers: str) -> None:
    """Raise SpecError with all differences between what was modelled and a dataset's episodes, or a policy's spec.

    A policy may read less than was modelled, and nothing else.
    """
    read = {k: f for k, f in other.observation.items() if k in (STATE, TASK)}
    modelled = {k: f for k, f in model.spec.observation.items() if k in read or k == STATE}
    needed, offered = replace(model.spec, observation=modelled), replace(other, observation=read)
    if problems := misfits(needed, offered, needs="the trajectory model", offers=offers):
        raise SpecError(f"{offers} does not fit the trajectory model:\n  - " + "\n  - ".join(problems))


def check_policy(model: Trajectories, policy: Policy) -> None:
    """Raise SpecError where `policy`, or one underneath, reads what is not modelled or acts otherwise."""
    check_belongs(model, policy.spec, offers=type(policy).__name__)
    if strange := [k for k in policy.spec.observation if k not in (STATE, TASK, BASE_ACTION)]:
        raise SpecError(f"{type(policy).__name__} reads {strange}; trajectories are of {STATE!r} alone")
    if policy.base is not None:
        check_policy(model, policy.base)


def as_episodes(window: Window, spec: PolicySpec, seeds: Tensor) -> Episodes:
    """Windows as episodes of a frame before each action, and one after the last, which is there to bootstrap from.

    An episode stops at the action that ends its task: the state after that is neither modelled nor needed.
    """
    count, length = window.action.shape[:2]
    no = torch.zeros(count, 1, dtype=torch.bool)
    success, terminated = (torch.cat([x, no], dim=1) for x in (window.success, window.terminated))  # [B L+1]
    lengths = torch.where(terminated.any(1), terminated.to(torch.uint8).argmax(1) + 1, length + 1)
    kept = torch.arange(length + 1) < lengths[:, None]
    success, terminated = success[kept], terminated[kept]
    obs: Obs = {STATE: window.state[kept]}
    if TASK in spec.observation:
        obs[TASK] = torch.zeros(len(success), dtype=torch.int64)
    return Episodes(
        obs=obs,
        action=torch.cat([window.action, window.action.new_zeros(count, 1, spec.action.dim)], dim=1)[kept],
        reward=success.float(),
        terminated=terminated,
        success=success,
        starts=torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]),
        seeds=seeds,
        observation=spec.observation,
        action_spec=spec.action,
        dt=spec.dt,
        tasks=spec.tasks,
    )


def guide_of(policy: Policy, model: Trajectories, seeds: Tensor, *, guidance: NonNegative, spread: Positive) -> Guide:
    """Return the guide that moves denoised actions up the log-likelihood of `policy`.

    A denoised action is uncertain by the variance v that is left in it, so the move is `guidance`·v·∇log π, that of
    classifier guidance: large while little is decided, nothing at the end, when the states must fit. The gradient is
    bounded, as the paper normalises it. A policy without a density counts as N(its action, spread²); the step is then
    taken implicitly, and never leads beyond the policy's action.

    Args:
        seeds: [B] of the windows, by which a policy's noise is keyed: the same at every denoising step.
        guidance: 0 leaves the behaviour of the data.
        spread: in the model's action units, where the demonstrated range is [-1, 1].
    """
    if guidance == 0.0:
        return unguided
    low, high = torch.tensor([model.spec.action.low, model.spec.action.high])

    def towards(state: Tensor, action: Tensor, variance: float) -> Tensor:
        planned = base_actions(frames_of(state, model.spec, seeds), policy).view_as(action).clamp(low, high)
        pull = guidance * variance / spread**2
        return action + pull / (1.0 + pull) * (model.normalizer.normalize(ACTION, planned) - action)

    def uphill(state: Tensor, action: Tensor, variance: float) -> Tensor:
        assert isinstance(policy, LikelihoodPolicy)
        slope = _slope(policy, model, frames_of(state, model.spec, seeds), action)
        return action + guidance * variance * slope / slope.norm(dim=-1, keepdim=True).clamp_min(1.0)

    return uphill if isinstance(policy, LikelihoodPolicy) else towards


def _slope(policy: LikelihoodPolicy, model: Trajectories, frames: Episodes, action: Tensor) -> Tensor:
    """Return the gradient [B L Da] of the log-density of `policy`'s successive chunks, in the model's action units."""
    (count, length, dim), every = action.shape, policy.spec.n_action_steps
    total = action.new_zeros(())
    with torch.enable_grad():
        free = action.detach().requires_grad_(True)
        x = policy.normalizer.normalize(ACTION, model.normalizer.unnormalize(ACTION, free))
        padded = torch.cat([x, x.new_zeros(count, policy.spec.horizon, dim)], dim=1)
        for at in range(0, length, every):
            obs = frames.history(torch.arange(count) * length + at, policy.spec.n_obs_steps)
            number = min(every, length - at)
            weight = x.new_zeros(count, every)
            weight[:, :number] = 1.0 / number
            score = policy.log_prob(policy.encode(obs), padded[:, at : at + policy.spec.horizon], weight)
            total = total + score.sum() * number * dim
        (slope,) = torch.autograd.grad(total, free)
    return slope


def frames_of(state: Tensor, spec: PolicySpec, seeds: Tensor) -> Episodes:
    """States [B L Ds] as episodes that policies read; their actions are nothing."""
    count, length = state.shape[:2]
    none = torch.zeros(count, length, dtype=torch.bool)
    action = state.new_zeros(count, length - 1, spec.action.dim)
    window = Window(state, action, none[:, 1:], none[:, 1:])
    return replace(as_episodes(window, spec, seeds), outcomes=False)
