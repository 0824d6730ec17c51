"""On-policy experience: what an env did under a policy that explores, and what each of its decisions was."""

from __future__ import annotations

import time
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from robopolicy.core.types import Obs, VecEnv, check_finite
from robopolicy.envs.wrappers import request_images
from robopolicy.policies.base import Policy
from robopolicy.policies.chunk_executor import ChunkExecutor

Record = dict[str, Tensor]


class Explorer(Protocol):
    """An algorithm as the collector sees it.

    One that reads more than its policy does says so by an attribute `reads`: the policy's spec with more observations.
    """

    policy: Policy

    @property
    def noise_shape(self) -> tuple[int, ...]: ...

    def explore(self, obs: Obs, noise: Tensor) -> tuple[Tensor, Record]:
        """Chunks [B H Da] in physical units for obs [B To ...], and what `update` has to know of them, [B ...]."""
        ...


class Rollout(NamedTuple):
    """T primitive steps of N envs, in which D chunks were planned, ordered by (step, env)."""

    record: Record  # [D ...] what the algorithm remembers of each
    planned: Tensor  # [T N] bool: the env planned a chunk before this step
    reward: Tensor  # [T N]
    terminated: Tensor  # [T N] bool
    truncated: Tensor  # [T N] bool
    valid: Tensor  # [T N] bool
    final_obs: Obs  # [F To ...] true successors of the truncated steps, ordered by (step, env)
    last_obs: Obs  # [N To ...] where the rollout stops
    success: list[float]  # of the episodes that ended
    steps: int  # primitive steps taken, over all envs
    info: dict[str, float]  # means of what the env logs, and `act_s`, `env_s`: seconds of policy and env


class RolloutCollector:
    """Runs N envs under an explorer, each planning anew when its own chunk is used up or its episode has ended.

    So no env waits for its neighbours, and training acts as evaluation does: both are ChunkExecutor. Where a rollout
    stops, the chunks under way are cut off and planned anew: every rollout is of one policy, and its last values are
    values of states at which that policy does plan.
    """

    def __init__(self, explorer: Explorer, env: VecEnv) -> None:
        self.env, self.actor = env, _Recorder(explorer)
        self.executor = ChunkExecutor(self.actor, env.num_envs, device=env.device)
        self.keys, self.frames = tuple(explorer.policy.spec.observation), explorer.policy.spec.n_obs_steps
        self.obs: Obs = {}

    def reset(self) -> None:
        self.obs = self.env.reset()
        self.executor.reset()

    def collect(self, length: int) -> Rollout:
        """Take `length` primitive steps in every env.

        Raises:
            DataError: a reward is not finite where physics did not fail.
        """
        n, env_s, began = self.env.num_envs, 0.0, time.perf_counter()
        planned = torch.zeros(length, n, dtype=torch.bool, device=self.env.device)
        reward = torch.zeros(length, n, device=self.env.device)
        terminated, truncated, valid = (torch.zeros_like(planned) for _ in range(3))
        finals: list[Obs] = []
        success: list[float] = []
        sums: dict[str, float] = {}
        steps = 0
        self.actor.records = []
        for t in range(length):
            action = self.executor.next_action(self.obs, self.env.episode_seed)
            planned[t, self.executor.planned] = True
            stepping = time.perf_counter()
            if t + 1 < length:  # the last observation is read whole
                request_images(self.env, self.executor.needs_images)
            step = self.env.step(action)
            env_s += time.perf_counter() - stepping
            check_finite(step, self.actor.spec.action.names)
            reward[t], terminated[t], truncated[t], valid[t] = step.reward, step.terminated, step.truncated, step.valid
            steps += int(step.steps.sum())
            if bool(step.ended.any()):
                if bool(step.truncated.any()):
                    finals.append({k: v[step.truncated] for k, v in self._read(step.next_obs).items()})
                success += step.success[step.ended & step.valid].float().tolist()
                self.executor.reset(step.ended)
            self.obs = step.obs
            for key, value in step.info.items():
                sums[key] = sums.get(key, 0.0) + float(value.float().mean())
        self.executor.replan()
        record = {k: torch.cat([r[k] for r in self.actor.records]) for k in self.actor.records[0]}
        self.actor.records = []
        last_obs = self._read(self.obs)
        final_obs = {k: torch.cat([f[k] for f in finals]) if finals else v[:0] for k, v in last_obs.items()}
        reward = torch.where(valid, reward, 0.0)
        info = {k: v / length for k, v in sums.items()}
        info |= {"env_s": env_s, "act_s": time.perf_counter() - began - env_s}
        return Rollout(record, planned, reward, terminated, truncated, valid, final_obs, last_obs, success, steps, info)

    def _read(self, obs: Obs) -> Obs:
        """What the policy reads of `obs`: its keys, its last To frames."""
        return {k: obs[k][:, -self.frames :] for k in self.keys}

    def state_dict(self) -> dict[str, Any]:
        return {"env": self.env.state_dict(), "executor": self.executor.state_dict(), "obs": self.obs}  # type: ignore[attr-defined]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.load_state_dict(state["env"])  # type: ignore[attr-defined]
        if not self.env.spec.resumable:  # the episodes of `obs` are gone
            self.reset()
            return
        self.executor.load_state_dict(state["executor"])
        self.obs = state["obs"]


class _Recorder(Policy):
    """The exploring policy as an executor knows policies; keeps the records of its chunks in their order."""

    def __init__(self, explorer: Explorer) -> None:
        super().__init__()
        self.spec = getattr(explorer, "reads", explorer.policy.spec)
        self.noise_shape, self.explore = explorer.noise_shape, explorer.explore
        self.records: list[Record] = []

    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        assert noise is not None
        chunk, record = self.explore(obs, noise)
        self.records.append(record)
        return chunk
