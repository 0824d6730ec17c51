"""robosuite 1.4 (Zhu et al. 2020): Lift, Can and NutAssemblySquare with a Panda, low-dimensional observations.

Protocol: OSC_POSE at 20 Hz over physics at 500 Hz; the observations are robomimic's (tool position and quaternion
x y z w, finger positions, object state), which hold no velocities: `relative` adds last steps; every episode draws the
arm's start and the objects' places with its seed; success is the task's own check, after any step, and ends the
episode; reward is that success. `horizon` is half of robomimic's 400 steps for Lift and Can, all of them for the nut.
Lift's cube has one size, drawn once: the model is not loaded again for an episode.

Experts for Lift and Can are ours; the nut has none.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from robopolicy.core.types import ActionSpec
from robopolicy.sim.experts.robosuite import EXPERTS
from robopolicy.sim.experts.suites import slices
from robopolicy.sim.gymnasium.adapter import GymVecEnv
from robopolicy.sim.suites.base import ExpertVecEnv, SuiteEnv, check_task, global_random, needs, steps_of
from robopolicy.sim.suites.workers import vector_env

logging.disable(logging.WARNING)  # or it warns of a private macro file at every import
try:
    with needs("robosuite"):
        import robosuite
finally:
    logging.disable(logging.NOTSET)

# name: (the suite's name, object in its observations, instruction, steps)
TASKS = {
    "Lift": ("Lift", "cube", "lift the cube", 200),
    "Can": ("PickPlaceCan", "Can", "put the can into its bin", 200),
    "NutAssemblySquare": ("NutAssemblySquare", "SquareNut", "put the square nut on the square peg", 400),
}
ACTION = ActionSpec(
    # 0.05 m and 0.5 rad at 1
    names=("dx", "dy", "dz", "drx", "dry", "drz", "gripper"), units=("1",) * 7, low=(-1.0,) * 7, high=(1.0,) * 7,
    frame="world", tcp="gripper0_grip_site", rotation="rotvec", reference="measured", gripper=6,
    gripper_meaning="velocity: -1 opens, +1 closes",
)  # fmt: skip
TOOL = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
_SIZES = {"tool": 3, "quat": 4, "fingers": 2, "object": 3, "object_quat": 4}  # of every task's observation, at its head
_PARTS = slices(_SIZES)
_MOVING = ("tool", "object", "fingers")  # whose last steps `relative` adds


def task_names() -> list[str]:
    """Names that `make` takes."""
    return sorted(TASKS)


class RobosuiteEnv(SuiteEnv):
    """One task."""

    def __init__(self, name: str, relative: bool = False) -> None:
        self.relative = relative
        with global_random(0):  # Lift draws its cube's size here
            self.inner = robosuite.make(
                TASKS[name][0], robots="Panda", has_renderer=False, has_offscreen_renderer=False, use_camera_obs=False,
                controller_configs=robosuite.load_controller_config(default_controller="OSC_POSE"), control_freq=20,
                ignore_done=True, hard_reset=False, reward_shaping=False,
            )  # fmt: skip
        self.observation_space = Box(-np.inf, np.inf, self._reset(0).shape, np.float32)
        self.action_space = Box(-1.0, 1.0, (7,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        episode = int(self.np_random.integers(2**62)) if seed is None else seed
        return self._reset(episode), {"success": False}

    def act(self, action: Any) -> tuple[Any, Any]:
        obs, _, _, _ = self.inner.step(np.asarray(action, dtype=np.float64))
        return self._seen(obs), self.inner._check_success()

    def _reset(self, seed: int) -> Any:
        with global_random(seed):
            obs = self.inner.reset()
        for robot in self.inner.robots:  # the fingers' command outlives a reset
            robot.gripper.current_action = np.zeros(robot.gripper.dof)
        self._before = None
        return self._seen(obs)

    def _seen(self, obs: dict[str, Any]) -> Any:
        own = np.concatenate([*(obs[key] for key in TOOL), obs["object-state"]])
        if self.relative:
            now = np.concatenate([own[_PARTS[key]] for key in _MOVING])
            moved = np.zeros_like(now) if self._before is None else now - self._before
            self._before = now
            own = np.concatenate([own, own[_PARTS["object"]] - own[_PARTS["tool"]], moved])
        return own.astype(np.float32)


def element_names(name: str, relative: bool = False) -> list[str]:
    """Return the names: tool_x …, tool_qx …, fingers_0, …, object_x …, then the object beside the tool.

    Lift has the vector from the cube to the tool in the world's frame (object_to_tool_*); the others have the object's
    pose in the tool's frame (object_in_tool_*). Behind them what `relative` adds: tool_to_object_* in the world's
    frame, tool_step_*, object_step_*, fingers_step_*.
    """
    beside = {"object_to_tool": 3} if name == "Lift" else {"object_in_tool": 3, "object_in_tool_quat": 4}
    if relative:
        beside |= {"tool_to_object": 3, **{f"{key}_step": _SIZES[key] for key in _MOVING}}
    ends = {2: ("0", "1"), 3: "xyz", 4: ("qx", "qy", "qz", "qw")}
    return [
        f"{key.removesuffix('_quat').replace('quat', 'tool')}_{e}"
        for key, size in {**_SIZES, **beside}.items()
        for e in ends[size]
    ]


def make(
    name: str, num_envs: int, seed: int = 0, *, horizon: int | None = None, relative: bool = False, processes: int = 0
) -> GymVecEnv:
    """Build a task of robosuite as a VecEnv.

    Args:
        name: one of `task_names()`.
        seed: names the stream of training episodes.
        horizon: steps to truncation; None: as the module says.
        relative: behind robomimic's numbers 11 more: the object from the tool, and how far tool, object and fingers
            moved in the last step (the env's own difference, as Meta-World's observation has the step before in it).
        processes: 0: all envs in this process; else so many workers (about 0.4 GB each).

    Raises:
        ConfigError: no such task, or a horizon below 1.
    """
    check_task(name, TASKS, "robosuite")
    *_, text, own = TASKS[name]
    steps = steps_of(horizon, own)
    one = functools.partial(RobosuiteEnv, name, relative)
    facts: dict[str, Any] = {"relative": True} if relative else {}
    envs = vector_env(one, f"robosuite/{name}", num_envs, horizon=steps, processes=processes, name=name, **facts)
    made = (
        functools.partial(ExpertVecEnv, expert=functools.partial(EXPERTS[name], _PARTS))
        if name in EXPERTS
        else GymVecEnv
    )
    return made(envs, seed=seed, instructions=text, horizon=steps, action=ACTION, names=element_names(name, relative))
