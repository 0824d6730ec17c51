"""robosuite 1.4 or 1.5 (Zhu et al. 2020): all tasks of one arm with a Panda, low-dimensional observations.

Protocol: OSC_POSE at 20 Hz over physics at 500 Hz; the observations are robomimic's (tool position and quaternion
x y z w, finger positions, object state), which hold no velocities: `relative` adds last steps; every episode draws the
arm's start and the objects' places with its seed; success is the task's own check, after any step, and ends the
episode; reward is that success. `horizon` is half of robomimic's 400 steps for Lift and Can, 400 for other tasks, and
the suite's own 1000 for those of several goals (NutAssembly, PickPlace, Wipe). Lift's cube has one size, drawn once:
the model is not loaded again for an episode.

Experts for Lift, Can and the square nut are ours; the other tasks have none. Recorded results are of 1.4. In 1.5 each
part of a robot has a controller of its own; the arm's is told to take its actions in the world's frame, as 1.4 does.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
from gymnasium.spaces import Box

from robopolicy.config.schema import Natural
from robopolicy.core.types import ActionSpec
from robopolicy.sim.experts.robosuite import EXPERTS
from robopolicy.sim.gymnasium.adapter import GymVecEnv
from robopolicy.sim.suites.base import (
    ExpertVecEnv,
    MujocoSuiteEnv,
    check_task,
    global_random,
    needs,
    steps_of,
    unit_action,
)
from robopolicy.sim.suites.robosuite_layout import PARTS, TOOL, element_names, layout, object_keys
from robopolicy.sim.suites.vector_env import FarmOptions, vector_env
from robopolicy.utils.suite_packages import installed

logging.disable(logging.WARNING)  # or it warns of a private macro file at every import
try:
    with needs("robosuite"):
        import robosuite
finally:
    logging.disable(logging.NOTSET)

logging.getLogger("robosuite_logs").setLevel(logging.WARNING)  # or 1.5 names a file of settings at every env
OF_PARTS = not (installed("robosuite") or "1.4.0").startswith("1.4.")  # robots of parts, from 1.5 on
# name: (the suite's name, object in its observations, instruction, steps)
TASKS = {
    "Lift": ("Lift", "cube", "lift the cube", 200),
    "Can": ("PickPlaceCan", "Can", "put the can into its bin", 200),
    "NutAssemblySquare": ("NutAssemblySquare", "SquareNut", "put the square nut on the square peg", 400),
    "NutAssemblyRound": ("NutAssemblyRound", "RoundNut", "put the round nut on the round peg", 400),
    "PickPlaceBread": ("PickPlaceBread", "Bread", "put the bread into its bin", 400),
    "PickPlaceCereal": ("PickPlaceCereal", "Cereal", "put the cereal into its bin", 400),
    "PickPlaceMilk": ("PickPlaceMilk", "Milk", "put the milk into its bin", 400),
    # Of these the observation has other parts than one object's.
    "Door": ("Door", "", "open the door", 400),
    "NutAssembly": ("NutAssembly", "", "put both nuts on their pegs", 1000),
    "NutAssemblySingle": ("NutAssemblySingle", "", "put the nut on its peg", 400),
    "PickPlace": ("PickPlace", "", "put all objects into their bins", 1000),
    "PickPlaceSingle": ("PickPlaceSingle", "", "put the object into its bin", 400),
    "Stack": ("Stack", "", "stack the red cube on the green one", 400),
    "Wipe": ("Wipe", "", "wipe the table", 1000),
}
# The body on which the nut goes, which no observation of the suite has.
PEGS = {"NutAssemblySquare": "peg1", "NutAssemblyRound": "peg2"}
SUITES_OWN = {"PickPlaceCan": "Can"}  # names of the suite: ours
ACTION = unit_action(  # 0.05 m and 0.5 rad at 1
    "dx", "dy", "dz", "drx", "dry", "drz", "gripper", frame="world", tcp="gripper0_grip_site", rotation="rotvec",
    reference="measured", gripper_meaning="velocity: -1 opens, +1 closes",
)  # fmt: skip
if OF_PARTS:
    ACTION = replace(ACTION, tcp="gripper0_right_grip_site")
WIPING = ActionSpec(  # without fingers
    names=ACTION.names[:6], units=ACTION.units[:6], low=ACTION.low[:6], high=ACTION.high[:6], frame="world",
    tcp=ACTION.tcp, rotation="rotvec", reference="measured", gripper=None, gripper_meaning="",
)  # fmt: skip


def task_names() -> list[str]:
    """Names that `make` takes."""
    return sorted(TASKS)


class RobosuiteEnv(MujocoSuiteEnv):
    """One task."""

    camera, hidden = "agentview", (0,)  # which are what collides

    def __init__(self, name: str, relative: bool = False) -> None:
        self.relative = relative
        with global_random(0):  # Lift draws its cube's size here
            self.inner = robosuite.make(
                TASKS[name][0], robots="Panda", has_renderer=False, has_offscreen_renderer=False, use_camera_obs=False,
                controller_configs=_controller(), control_freq=20, ignore_done=True, hard_reset=False,
                reward_shaping=False,
            )  # fmt: skip
        self._layout = layout(self.inner, TASKS[name][1])
        self._objects = object_keys(TASKS[name][1], of_parts=OF_PARTS)
        self._peg = self.inner.sim.model.body_name2id(PEGS[name]) if name in PEGS else None
        names = element_names(name, relative, peg=name in PEGS) if TASKS[name][1] else self._layout.names(relative)
        self.metadata = {**self.metadata, "names": names}
        self.observation_space = Box(-np.inf, np.inf, self._reset(0).shape, np.float32)
        self.action_space = Box(-1.0, 1.0, (self.inner.action_dim,), np.float32)

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
        if OF_PARTS:  # what is measured from the tool is 0 in its first observation
            obs = self.inner._get_observations(force_update=True)
        for gripper in _grippers(self.inner):  # the fingers' command outlives a reset
            gripper.current_action = np.zeros(gripper.dof)
        self._before = None
        return self._seen(obs)

    def physics(self) -> tuple[Any, Any]:
        sim = self.inner.sim
        return sim.model._model, sim.data._data

    def _seen(self, obs: dict[str, Any]) -> Any:
        own = np.concatenate([*(obs[key] for key in TOOL), *(sign * obs[key] for key, sign in self._objects.items())])
        if self.relative:
            tool, places, fingers = self._layout.moving(own)
            now = np.concatenate([tool, *places, fingers])
            moved = np.zeros_like(now) if self._before is None else now - self._before
            self._before = now
            goal = [] if self._peg is None else [self.inner.sim.data.body_xpos[self._peg] - places[0]]
            own = np.concatenate([own, *(place - tool for place in places), *goal, moved])
        return own.astype(np.float32)


def _controller() -> dict[str, Any]:
    """Return the controller of the tool's pose; actions are in the world's frame."""
    if not OF_PARTS:
        return dict(robosuite.load_controller_config(default_controller="OSC_POSE"))
    found = dict(robosuite.controllers.load_composite_controller_config(robot="Panda"))
    found["body_parts"]["right"]["input_ref_frame"] = "world"
    return found


def _grippers(inner: Any) -> list[Any]:
    found = [robot.gripper for robot in inner.robots]
    return [part for gripper in found for part in gripper.values()] if OF_PARTS else found


def make(
    name: str, num_envs: int, seed: int = 0, *, horizon: int | None = None, relative: bool = False,
    processes: Natural = 0, **workers: Unpack[FarmOptions],
) -> GymVecEnv:  # fmt: skip
    """Build a task of robosuite as a VecEnv.

    Args:
        name: one of `task_names()`.
        seed: names the stream of training episodes.
        horizon: steps to truncation; None: as the module says.
        relative: behind robomimic's numbers 11 more: the object from the tool, and how far tool, object and fingers
            moved in the last step (the env's own difference, as Meta-World's observation has the step before in it).
            A task of one nut has its peg from the nut too.
        processes: 0: all envs in this process; else so many workers (about 0.4 GB each).
        workers: how these run, see FarmOptions.

    Raises:
        ConfigError: no such task, or a horizon below 1.
    """
    name = SUITES_OWN.get(name, name)
    check_task(name, TASKS, "robosuite")
    *_, text, own = TASKS[name]
    steps = steps_of(horizon, own)
    one = functools.partial(RobosuiteEnv, name, relative)
    facts: dict[str, Any] = ({"relative": True} if relative else {}) | ({"version": "1.5"} if OF_PARTS else {})
    envs = vector_env(
        one, f"robosuite/{name}", num_envs, horizon=steps, processes=processes, **workers, name=name, **facts
    )
    made = (
        functools.partial(ExpertVecEnv, expert=functools.partial(EXPERTS[name], PARTS))
        if name in EXPERTS
        else GymVecEnv
    )
    action = ACTION if envs.single_action_space.shape == (ACTION.dim,) else WIPING
    return made(envs, seed=seed, instructions=text, horizon=steps, action=action, names=envs.metadata["names"])
