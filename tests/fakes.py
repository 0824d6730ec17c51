"""Small stand-ins with exact, hand-checkable behaviour."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from robopolicy.core.rng import episode_seeds, keyed_uniform
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import STATE, ActionSpec, EnvSpec, Feature, Obs, Step, check_action
from robopolicy.policies.base import Policy

POINT_ACTION = ActionSpec(
    names=("dx", "dy"), units=("m", "m"), low=(-0.1, -0.1), high=(0.1, 0.1), frame="world", tcp="point",
    rotation="none", reference="measured", gripper=None, gripper_meaning="",
)  # fmt: skip


class PointEnv:
    """A point that must come within 5 cm of the origin; it starts 20 to 60 cm away, by episode seed.

    State [x, y, seed mod 1000, episode step]. Success terminates, `horizon` truncates.
    """

    def __init__(self, num_envs: int, *, horizon: int = 12, seed: int = 0) -> None:
        self.spec = EnvSpec(
            id="point", observation={STATE: Feature((4,), names=("x", "y", "seed", "t"))}, action=POINT_ACTION,
            tasks=("go to the origin",), dt=0.1, horizon=horizon, digest="point-1",
            resumable=True,
        )  # fmt: skip
        self.num_envs, self.device, self.seed = num_envs, torch.device("cpu"), seed
        self.queue = torch.zeros(0, dtype=torch.int64)
        self.handed = 0
        self.episode_seed = torch.zeros(num_envs, dtype=torch.int64)
        self.position = torch.zeros(num_envs, 2)
        self.time = torch.zeros(num_envs, dtype=torch.int64)

    def reset(self, seeds: Tensor | None = None) -> Obs:
        self.queue = torch.zeros(0, dtype=torch.int64) if seeds is None else seeds.clone()
        self._start(torch.ones(self.num_envs, dtype=torch.bool))
        return self._obs()

    def _start(self, mask: Tensor) -> None:
        count = int(mask.sum())
        given, self.queue = self.queue[:count], self.queue[count:]
        drawn = episode_seeds("train", self.seed, count - len(given), start=self.handed)
        self.handed += len(drawn)
        seeds = torch.cat([given, drawn])
        u = keyed_uniform(seeds, torch.zeros_like(seeds), (2,))
        radius, angle = 0.2 + 0.4 * u[:, :1], 6.2831853 * u[:, 1:]
        self.episode_seed[mask] = seeds
        self.position[mask] = radius * torch.cat([angle.cos(), angle.sin()], dim=1)
        self.time[mask] = 0

    def _obs(self) -> Obs:
        extra = torch.stack([(self.episode_seed % 1000).float(), self.time.float()], dim=1)
        return {STATE: torch.cat([self.position, extra], dim=1)}

    def step(self, action: Tensor) -> Step:
        check_action(action, self.spec, self.num_envs)
        executed = action.clamp(-0.1, 0.1)
        self.position += executed
        self.time += 1
        next_obs = self._obs()
        success = self.position.norm(dim=1) < 0.05
        truncated = (self.time >= self.spec.horizon) & ~success
        obs = next_obs
        if bool((success | truncated).any()):
            self._start(success | truncated)
            obs = self._obs()
        ones = torch.ones(self.num_envs, dtype=torch.int64)
        return Step(obs, next_obs, executed, ones, success.float(), success, truncated, success, ones.bool(), {})

    def state_dict(self) -> dict[str, Any]:
        names = ("queue", "handed", "episode_seed", "position", "time")
        return {n: v.clone() if isinstance(v := getattr(self, n), Tensor) else v for n in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value.clone() if isinstance(value, Tensor) else value)


class PointPolicy(Policy):
    """Chunks of H steps towards the origin, `gain` of the way, plus keyed noise; open loop within a chunk."""

    def __init__(self, *, gain: float = 1.0, noise: float = 0.0, n_obs_steps: int = 1, chunk: int = 3) -> None:
        super().__init__()
        self.spec = PolicySpec(
            observation={STATE: Feature((4,), names=("x", "y", "seed", "t"))}, action=POINT_ACTION, dt=0.1,
            n_obs_steps=n_obs_steps, horizon=chunk + 1, n_action_steps=chunk, tasks=("go to the origin",),
        )  # fmt: skip
        self.gain, self.noise, self.calls = gain, noise, 0
        self.noise_shape = (chunk + 1, 2) if noise else ()

    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        self.calls += 1
        assert obs[STATE].shape[1] == self.spec.n_obs_steps
        position = obs[STATE][:, -1, :2]
        chunk = (-self.gain * position / self.spec.horizon)[:, None].repeat(1, self.spec.horizon, 1)
        return chunk if noise is None else chunk + self.noise * noise


class NoTracker:
    """A tracker that keeps what was logged."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((step, dict(metrics)))

    @contextmanager
    def progress(self, total: int, description: str) -> Any:
        yield self

    def update(self, step: int, **numbers: float) -> None:
        pass


class MemoryCheckpoints:
    """Keeps states in memory."""

    requested = False

    def __init__(self) -> None:
        self.saved: dict[int, dict[str, Any]] = {}
        self.best: list[int] = []  # steps that were the best so far when saved

    def save(self, step: int, *, policy: Any, state: dict[str, Any], best: bool = False) -> None:
        self.saved[step] = copy.deepcopy(state)  # tensors in it go on changing
        if best:
            self.best.append(step)

    def latest(self) -> dict[str, Any] | None:
        return self.saved[max(self.saved)] if self.saved else None


def keep_batches(algo: Any) -> list[Any]:
    """List the batches that an on-policy `algo` learns from, from now on."""
    seen: list[Any] = []
    update = algo.update
    algo.update = lambda batch, progress: (seen.append(batch), update(batch, progress=progress))[1]
    return seen
