"""Wrap envs for policies: stack the observation history, and add a base policy's action to the observation.

There are two pipelines. Learners on a base use BaseActionEnv(HistoryEnv(env), base). All others use HistoryEnv(env).
In either, GroupedEnv(env) may take the place of env. Simulated, imagined and real envs are wrapped alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from robopolicy.core.errors import SpecError
from robopolicy.core.specs import check_fits
from robopolicy.core.types import BASE_ACTION, TASK, Feature, Obs, Selective, Stateful, Step, VecEnv
from robopolicy.policies.base import Policy
from robopolicy.policies.chunk_executor import ChunkExecutor


class Wrapper:
    """Forwards to the inner env, `state_dict` included, but not `request_images` of Selective.

    A wrapper that reads no images of its own forwards that one by the function `request_images`. Where
    `spec.resumable` is False, reset the env after `load_state_dict`: its episodes are lost.
    """

    def __init__(self, env: VecEnv) -> None:
        self.env = env
        self.spec = env.spec
        self.num_envs, self.device = env.num_envs, env.device

    @property
    def episode_seed(self) -> Tensor:
        return self.env.episode_seed

    def render(self, index: int, **kwargs: Any) -> Tensor:
        return self.env.render(index, **kwargs)  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        return {"env": self.env.state_dict() if isinstance(self.env, Stateful) else {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if isinstance(self.env, Stateful):
            self.env.load_state_dict(state["env"])


def request_images(env: VecEnv, rows: Tensor) -> None:
    """Request images of the envs in `rows` [N] bool at the next step; no effect where `env` is not Selective."""
    if isinstance(env, Selective):
        env.request_images(rows)


class HistoryEnv(Wrapper):
    """Stacks the last `length` frames: every key becomes [N To ...]; an episode's first frame is repeated.

    Raises:
        SpecError: the env stacks already; or its episodes branch off from others, so that a repeated first frame would
            wrongly mean that nothing moved.
    """

    def __init__(self, env: VecEnv, length: int) -> None:
        if env.spec.history or env.spec.chunk:
            raise SpecError(f"{env.spec.id}: HistoryEnv goes directly on an env that emits single frames")
        if env.spec.branches and length > 1:
            raise SpecError(
                f"{env.spec.id}: the policy reads {length} frames, and branches begin with one. Leave world.branch "
                "away, or take a policy with n_obs_steps=1."
            )
        super().__init__(env)
        self.spec = replace(env.spec, history=length)
        self.length = length
        self.frames: Obs = {}

    def reset(self, seeds: Tensor | None = None) -> Obs:
        self.frames = {k: self._repeat(v) for k, v in self.env.reset(seeds).items()}
        return self.frames

    def step(self, action: Tensor) -> Step:
        step = self.env.step(action)
        next_obs = {k: torch.cat([old[:, 1:], step.next_obs[k][:, None]], dim=1) for k, old in self.frames.items()}
        obs, ended = next_obs, step.ended
        if bool(ended.any()):
            obs = {k: v.clone() for k, v in next_obs.items()}
            for key, value in obs.items():
                value[ended] = self._repeat(step.obs[key][ended])
        self.frames = obs
        return step._replace(obs=obs, next_obs=next_obs)

    def request_images(self, rows: Tensor) -> None:
        """See Selective. With a history, every image is read later and must be rendered now."""
        if self.length == 1:
            request_images(self.env, rows)

    def _repeat(self, frame: Tensor) -> Tensor:
        return frame[:, None].repeat_interleave(self.length, dim=1)

    def state_dict(self) -> dict[str, Any]:
        return {"env": super().state_dict()["env"], "frames": {k: v.clone() for k, v in self.frames.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.frames = dict(state["frames"])


class BaseActionEnv(Wrapper):
    """Adds the frozen base policy's next action to the observation: `base_action` [N Da].

    At an episode's end the base action of `next_obs` comes from the *old* queue. Then queue and history are reset, and
    the base plans on `obs`. Otherwise the base acts once per step.
    """

    def __init__(self, env: VecEnv, base: Policy) -> None:
        if not env.spec.history or env.spec.chunk:
            raise SpecError(f"{env.spec.id}: BaseActionEnv goes on HistoryEnv(env); found {type(env).__name__}")
        if env.spec.history < base.spec.n_obs_steps:
            raise SpecError(
                f"{env.spec.id}: the base reads {base.spec.n_obs_steps} frames, HistoryEnv stacks {env.spec.history}"
            )
        check_fits(base.spec, env.spec, ignore=[BASE_ACTION])
        super().__init__(env)
        feature = Feature((env.spec.action.dim,), names=env.spec.action.names)
        self.spec = replace(env.spec, observation={**env.spec.observation, BASE_ACTION: feature})
        self.executor = ChunkExecutor(base.eval(), env.num_envs, device=env.device)

    def reset(self, seeds: Tensor | None = None) -> Obs:
        obs = self.env.reset(seeds)
        self.executor.reset()
        return self._with(obs, self.executor.next_action(obs, self.env.episode_seed))

    def step(self, action: Tensor) -> Step:
        seed = self.env.episode_seed.clone()
        step = self.env.step(action)
        following = self.executor.next_action(step.next_obs, seed)
        next_obs = self._with(step.next_obs, following)
        obs, ended = next_obs, step.ended
        if bool(ended.any()):
            self.executor.reset(ended)
            first = self.executor.next_action(step.obs, self.env.episode_seed, mask=ended)
            obs = self._with(step.obs, torch.where(ended[:, None], first, following))
        return step._replace(obs=obs, next_obs=next_obs)

    def request_images(self, rows: Tensor) -> None:
        """See Selective; the base reads images where it will plan."""
        request_images(self.env, rows | self.executor.needs_images)

    @staticmethod
    def _with(obs: Obs, base_action: Tensor) -> Obs:
        return {**obs, BASE_ACTION: base_action}

    def state_dict(self) -> dict[str, Any]:
        return {"env": super().state_dict()["env"], "executor": self.executor.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.executor.load_state_dict(state["executor"])


def wrap_for(policy: Policy, env: VecEnv, *, teacher: Policy | None = None) -> VecEnv:
    """Wrap `env` as `policy` needs it: with a history, and with a base action for each policy underneath.

    Args:
        teacher: another policy that acts on the same observations.

    Raises:
        SpecError: policy and env do not fit (all differences are listed), or both policy and teacher have a base.
    """
    chain, beside = chain_of(policy), [] if teacher is None else chain_of(teacher)
    bases = chain[1:] or beside[1:]
    if chain[1:] and beside[1:]:
        raise SpecError(f"teacher: {type(teacher).__name__} and the policy both have a policy underneath, and only one "
                        f"of these can be in {BASE_ACTION!r}")  # fmt: skip
    for member in (*chain, *beside):
        check_fits(member.spec, env.spec, ignore=[BASE_ACTION] if member.base is not None else [])
        blind = member.base is not None and TASK in member.base.spec.observation and TASK not in member.spec.observation
        if blind and len(env.spec.tasks) > 1:
            raise SpecError(
                f"{env.spec.id}: has {len(env.spec.tasks)} tasks, which the base tells apart by {TASK!r} and "
                f"{type(member).__name__} does not. Refine it on one task at a time."
            )
        if TASK in member.spec.observation and member.spec.tasks != env.spec.tasks:
            raise SpecError(
                f"{env.spec.id}: its instructions are not those that the policy was trained on, or in another order: "
                f"{', '.join(sorted(set(env.spec.tasks) ^ set(member.spec.tasks))[:6]) or 'the same ones'}. A policy "
                "that reads instructions (policy=vla) takes others where it is loaded for the env."
            )
    wrapped: VecEnv = HistoryEnv(env, max(member.spec.n_obs_steps for member in (*chain, *beside)))
    for base in reversed(bases):
        wrapped = BaseActionEnv(wrapped, base)
    return wrapped


def chain_of(policy: Policy) -> list[Policy]:
    """List `policy` and the policies underneath it, from the top."""
    return [policy] if policy.base is None else [policy, *chain_of(policy.base)]
