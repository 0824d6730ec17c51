"""ManiSkill 3's GPU-batched simulator: N scenes in one PhysX, stepped together; the tasks of sim/suites/maniskill.py.

Written against the suite's batch axis and tested on the batch of one that its CPU simulator is; not yet run on a GPU.

It is a suite of its own, since its episodes are others. The suite's GPU controller takes one damped Jacobian step where
the CPU's solves for the pose, so the same action ends some millimetres elsewhere; seeds draw other objects and goals;
and what PhysX keeps of neighbours and earlier episodes may show, so an episode is no function of its seed to the last
bit: only its start is. Policies and demonstrations of one are not of the other.

The suite fetches its GPU library at the first use, and starts only where no CPU simulator ran before in the process.
Episodes begin one scene after the other, some milliseconds each, so many envs that end together wait.
"""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import kept_generators
from robopolicy.sim.gymnasium.adapter import GymVecEnv
from robopolicy.sim.gymnasium.info_columns import flags
from robopolicy.sim.suites import maniskill
from robopolicy.sim.suites.base import check_task, seed32, steps_of
from robopolicy.sim.suites.maniskill_meaning import action, names, read
from robopolicy.sim.suites.maniskill_registry import CONTROL, REGISTERED_ENVS, control_of, suites_own
from robopolicy.sim.suites.vector_env import identified


class ManiSkillBatch(VectorEnv):
    """N scenes whose ended episodes wait to be reset (AutoresetMode.DISABLED); numbers come to the CPU.

    Args:
        inner: the suite's env of N scenes.
        horizon: steps to truncation.
        felt: what of an observation says of contacts. These are of the last physics step, which a reset does not make:
            they are 0 where an episode begins.
    """

    def __init__(self, inner: Any, *, horizon: int, felt: slice | None = None) -> None:
        self.inner, self.horizon, self.felt, self.num_envs = inner, horizon, felt or slice(0, 0), inner.num_envs
        shape = inner.single_observation_space.shape
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.single_action_space = inner.single_action_space
        self.metadata = {"render_fps": inner.control_freq, "autoreset_mode": AutoresetMode.DISABLED}
        self._begin = inner._initialize_episode
        inner._initialize_episode = self._begin_each
        self._seeds = [0] * self.num_envs  # of the coming episodes
        self._age = np.zeros(self.num_envs, dtype=np.int64)
        self._seen = np.zeros((self.num_envs, *shape), dtype=np.float32)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        rows = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=bool))
        if rows.any():
            self._seeds = _each(seed, self.num_envs, self.np_random)
            chosen = torch.from_numpy(rows.nonzero()[0]).to(self.inner.device)
            with kept_generators(torch.device(self.inner.device)):
                obs = self.inner.reset(options={"env_idx": chosen})[0].cpu().numpy().copy()
            obs[:, self.felt] = 0.0
            self._seen = np.where(rows[:, None], obs, self._seen)
        self._age[rows] = 0
        return self._seen, {}

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        sent = torch.from_numpy(np.asarray(actions, dtype=np.float32)).to(self.inner.device)
        obs, _, _, _, info = self.inner.step(sent)
        self._seen, self._age = obs.cpu().numpy().copy(), self._age + 1
        success = flags(info["success"].cpu().numpy(), np.ones(self.num_envs, dtype=bool), "success")
        return self._seen, success.astype(np.float64), success, self._age >= self.horizon, {"success": success}

    def close_extras(self, **_: Any) -> None:
        self.inner.close()

    def _begin_each(self, chosen: Tensor, options: dict[str, Any]) -> None:
        """In place of the suite's `_initialize_episode`, which draws for all scenes of a reset from one seed."""
        scene, own = self.inner.scene, self.inner._episode_rng
        mask = scene._reset_mask
        for i in chosen.tolist():
            torch.manual_seed(self._seeds[i])
            self.inner._episode_rng = np.random.RandomState(self._seeds[i])
            scene._reset_mask = torch.zeros_like(mask)  # what is set is set of these scenes alone
            scene._reset_mask[i] = True
            self._begin(chosen.new_tensor([i]), options)
        scene._reset_mask, self.inner._episode_rng = mask, own


def _each(seed: Any, count: int, random: np.random.Generator) -> list[int]:
    """Return `count` 32-bit seeds from the argument of `reset`: as many, one, or None; None draws."""
    if isinstance(seed, numbers.Integral):
        return [seed32(int(seed) + i) for i in range(count)]
    given = [None] * count if seed is None else list(seed)
    return [int(random.integers(2**32)) if s is None else seed32(s) for s in given]


def make(
    name: str, num_envs: int, seed: int = 0, *, robot: str | None = None, control: str | None = None,
    horizon: int | None = None,
) -> GymVecEnv:  # fmt: skip
    """Build a task of ManiSkill on a GPU as a VecEnv.

    Args:
        name: one of `maniskill.task_names()`.
        seed: names the stream of training episodes.
        robot: the suite's name of it; None: the task's own.
        control: a control mode of the robot; None: pd_ee_delta_pose where it has that, else its own default.
        horizon: steps to truncation; None: the suite's own.

    Raises:
        ConfigError: no env, no such task, robot or control mode, PegInsertionSide, a horizon below 1, no GPU, or the
            simulator does not start.
    """
    check_task(name, maniskill.task_names(), "ManiSkill", key="maniskill")
    if num_envs < 1:
        raise ConfigError(f"num_envs: expected at least 1, found {num_envs}")
    if name == maniskill.PEG:
        raise ConfigError(
            f"task.name={name!r}: its peg and hole are drawn with the scene here, so an episode is no function of its "
            "seed. Take task=maniskill"
        )
    steps = steps_of(horizon, REGISTERED_ENVS[name].max_episode_steps)
    if not torch.cuda.is_available():
        raise ConfigError("task=maniskill_gpu: PyTorch sees no CUDA device. On the CPU: task=maniskill.")
    usual = maniskill.is_usual(name, robot, control)
    robot, control = maniskill.robot_of(name, robot), CONTROL if usual else control_of(name, robot, control)
    try:
        inner = suites_own(name, num_envs, "physx_cuda", robot, control)
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"task=maniskill_gpu: the simulator does not start with num_envs={num_envs} ({type(error).__name__}: "
            f"{error}). It needs an NVIDIA driver, libPhysXGpu_64.so, which it fetches into ~/.sapien at first use, "
            "memory for all envs, and a process in which no task=maniskill ran before. On the CPU: task=maniskill."
        ) from error
    batch = ManiSkillBatch(inner, horizon=steps, felt=read(name).get("held") if usual else None)
    batch.metadata |= {"action": action(inner, robot, control), "names": names(inner.get_obs(unflattened=True))}
    facts = {} if usual else {"robot": robot, "control": control}
    envs = identified(batch, f"maniskill_gpu/{name}", horizon=steps, name=name, **facts)
    env = maniskill.vec_env(name, envs, usual=usual, seed=seed, horizon=steps)
    env.spec = dataclasses.replace(env.spec, deterministic=False)
    return env
