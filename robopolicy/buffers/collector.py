"""Collect rollouts with the queue that evaluation and deployment run on, so all of them act alike."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from robopolicy.core.types import Obs, VecEnv, check_finite, newest
from robopolicy.envs.chunk_executor import ChunkQueue
from robopolicy.envs.wrappers import request_images
from robopolicy.policies.base import Policy

Record = dict[str, Tensor]


class Explorer(Protocol):
    """An on-policy algorithm, as the collector uses it.

    An optional attribute `reads` (the policy's spec with more observations) says that it reads more than its policy.
    """

    policy: Policy

    @property
    def noise_shape(self) -> tuple[int, ...]: ...

    def explore(self, obs: Obs, noise: Tensor) -> tuple[Tensor, Record]:
        """Return chunks [B H Da] in physical units for obs [B To ...], and the record [B ...] that `update` needs."""
        ...


class Rollout(NamedTuple):
    """T primitive steps of N envs, in which D chunks were planned, ordered by (step, env)."""

    record: Record  # [D ...] the explorer's record of each chunk
    planned: Tensor  # [T N] bool: the env planned a chunk before this step
    reward: Tensor  # [T N]
    terminated: Tensor  # [T N] bool
    truncated: Tensor  # [T N] bool
    valid: Tensor  # [T N] bool
    final_obs: Obs  # [F To ...] true successors of the truncated steps, ordered by (step, env)
    last_obs: Obs  # [N To ...] where the rollout stops
    success: list[float]  # of the episodes that ended
    steps: int  # primitive steps taken, over all envs
    info: dict[str, float]  # means of the env's `info`, and `act_s`, `env_s`: seconds of policy and env
    elapsed: list[int]  # primitive steps from the starts of these episodes to the end of the rollout
    ended_at: Sequence[int] = ()  # row of the rollout in which each of these episodes ended


class RolloutCollector:
    """Runs N envs under an explorer. Each env plans again when its chunk is used up or its episode has ended.

    At the end of a rollout the remaining chunks are dropped. So every rollout is of one policy, and its last values
    are values of states at which that policy does plan.
    """

    def __init__(self, explorer: Explorer, env: VecEnv) -> None:
        self.explorer, self.env = explorer, env
        self.spec, self.reads = explorer.policy.spec, getattr(explorer, "reads", explorer.policy.spec)
        self.queue = ChunkQueue(
            self._plan, env.num_envs, action_dim=self.spec.action.dim, n_action_steps=self.spec.n_action_steps,
            noise_shape=explorer.noise_shape, device=env.device,
        )  # fmt: skip
        self.reads_images = self.reads.reads_pictures
        self.records: list[Record] = []  # of the rollout under way
        self.age = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)  # [N] steps of the episode so far
        self.obs: Obs = {}

    def reset(self) -> None:
        """Start new episodes in all envs."""
        self.obs = self.env.reset()
        self.queue.reset()
        self.age.zero_()

    def collect(self, length: int) -> Rollout:
        """Take `length` primitive steps in every env.

        Raises:
            DataError: a reward is not finite where physics did not fail.
        """
        shape, env_s, began = (length, self.env.num_envs), 0.0, time.perf_counter()
        planned = torch.zeros(shape, dtype=torch.bool, device=self.env.device)
        reward = torch.zeros(shape, device=self.env.device)
        terminated, truncated, valid = (torch.zeros_like(planned) for _ in range(3))
        finals: list[Obs] = []
        success, elapsed, ended_at = list[float](), list[int](), list[int]()
        sums: dict[str, float] = {}
        steps, self.records = 0, []
        for t in range(length):
            action = self.queue.next_action(self.obs, self.env.episode_seed)
            planned[t, self.queue.planned] = True
            stepping = time.perf_counter()
            if t + 1 < length:  # the value of the last observation needs the images of all envs
                request_images(self.env, (self.queue.left == 0) & self.reads_images)
            step = self.env.step(action)
            env_s += time.perf_counter() - stepping
            check_finite(step, self.spec.action.names)
            reward[t], terminated[t], truncated[t], valid[t] = step.reward, step.terminated, step.truncated, step.valid
            steps += int(step.steps.sum())
            self.age += step.steps
            if bool(step.ended.any()):
                if bool(step.truncated.any()):
                    finals.append({k: v[step.truncated] for k, v in newest(step.next_obs, self.spec).items()})
                success += step.success[step.ended & step.valid].float().tolist()
                elapsed += (self.age[step.ended & step.valid] + length - 1 - t).tolist()
                ended_at += [t] * (len(success) - len(ended_at))
                self.age[step.ended] = 0
                self.queue.reset(step.ended)
            self.obs = step.obs
            for key, value in step.info.items():
                sums[key] = sums.get(key, 0.0) + float(value.float().mean())
        self.queue.replan()
        records, self.records = self.records, []
        record = {k: torch.cat([r[k] for r in records]) for k in records[0]}
        last_obs = newest(self.obs, self.spec)
        final_obs = {k: torch.cat([f[k] for f in finals]) if finals else v[:0] for k, v in last_obs.items()}
        reward = torch.where(valid, reward, 0.0)
        info = {k: v / length for k, v in sums.items()}
        info |= {"env_s": env_s, "act_s": time.perf_counter() - began - env_s}
        ends = (terminated, truncated, valid)
        return Rollout(record, planned, reward, *ends, final_obs, last_obs, success, steps, info, elapsed, ended_at)

    def _plan(self, obs: Obs, rows: Tensor, noise: Tensor | None) -> Tensor:
        assert noise is not None
        chunk, record = self.explorer.explore({k: v[rows] for k, v in newest(obs, self.reads).items()}, noise)
        self.records.append(record)
        return chunk

    def state_dict(self) -> dict[str, Any]:
        env = self.env.state_dict()  # type: ignore[attr-defined]
        return {"env": env, "executor": self.queue.state_dict(), "obs": self.obs, "age": self.age}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.load_state_dict(state["env"])  # type: ignore[attr-defined]
        if not self.env.spec.resumable:  # the episodes of `obs` are gone
            self.reset()
            return
        self.queue.load_state_dict(state["executor"])
        self.obs = state["obs"]
        self.age = state.get("age", self.age).to(self.age.device).clone()  # older checkpoints have none
