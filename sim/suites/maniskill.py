"""ManiSkill 3 (Tao et al. 2024) on the CPU: every registered task of one robot, with states or pictures.

Protocol: the task's own robot, `pd_ee_delta_pose` where it has that, at the suite's own rate; every episode draws
objects, goal and the arm's start with its episode seed; success is the task's own flag, at any step, and ends the
episode; reward is that success. `horizon` is the suite's own. StackCube has the plain Panda here, not the one with a
wrist camera.

The suite's own motion planner does not run beside NumPy 2; the experts are ours, for five tasks. The suite's files of
demonstrations are read by `robopolicy demos` (sim/suites/replay.py). The GPU-batched simulator is
sim/suites/maniskill_gpu.py.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Unpack

import gymnasium

from robopolicy.config.schema import Natural, Positive, Side
from robopolicy.core.errors import ConfigError
from robopolicy.sim.experts.maniskill import EXPERTS
from robopolicy.sim.gymnasium.adapter import GymVecEnv
from robopolicy.sim.suites.base import ExpertVecEnv, check_task, steps_of
from robopolicy.sim.suites.maniskill_meaning import PEG, element_names, read
from robopolicy.sim.suites.maniskill_registry import CONTROL, REGISTERED_ENVS, control_of, robots_of
from robopolicy.sim.suites.maniskill_scene import ManiSkillEnv
from robopolicy.sim.suites.vector_env import FarmOptions, vector_env

TASKS = {  # with an expert of ours
    "PickCube-v1": "pick the red cube and hold it at the goal",
    "PushCube-v1": "push the cube into the circle",
    "PullCube-v1": "pull the cube into the circle",
    "StackCube-v1": "stack the red cube on the green one and let go",
    PEG: "put the orange end of the peg into the hole",
}
ROBOTS = {**dict.fromkeys(TASKS, "panda"), PEG: "panda_wristcam"}  # of these


def task_names() -> list[str]:
    """Names that `make` takes: the tasks of one robot that are registered."""
    return sorted(name for name in REGISTERED_ENVS if len(robots_of(name)) < 2)


def table_top() -> list[str]:
    """Return the tasks of one arm at a table: the suite's rooms `tabletop`, `fmb`, `digital_twins` and `drawing`."""
    rooms = ("tabletop", "fmb", "digital_twins", "drawing")
    room = {name: (REGISTERED_ENVS[name].cls.__module__.split(".") + [""] * 4)[3] for name in task_names()}
    return sorted((name for name in room if room[name] in rooms), key=lambda name: rooms.index(room[name]))


def instruction(name: str) -> str:
    """Return the instruction of a task: ours where there is one, else its name in words."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name.rpartition("-v")[0] or name)
    return TASKS.get(name, words.replace("-", " ").lower())


def robot_of(name: str, robot: str | None) -> str | None:
    """Return the robot: `robot`, else that of our expert; None: the task's own."""
    return robot or ROBOTS.get(name)


def is_usual(name: str, robot: str | None, control: str | None) -> bool:
    """Return whether a task runs as its expert, and the recorded results, have it."""
    return name in TASKS and robot_of(name, robot) == ROBOTS[name] and control in (None, CONTROL)


def make(
    name: str,
    num_envs: int,
    seed: int = 0,
    *,
    robot: str | None = None,
    control: str | None = None,
    cameras: tuple[str, ...] = (),
    size: Side = 128,
    horizon: int | None = None,
    friction: Positive = 1.0,
    mass: Positive = 1.0,
    relative: bool = False,
    processes: Natural = 0,
    **workers: Unpack[FarmOptions],
) -> GymVecEnv:
    """Build a task of ManiSkill as a VecEnv.

    Args:
        name: one of `task_names()`.
        seed: names the stream of training episodes.
        robot: the suite's name of it; None: the task's own.
        control: a control mode of the robot; None: pd_ee_delta_pose where it has that, else its own default.
        cameras: pictures beside the state, such as base_camera, hand_camera; the state is then without the objects, as
            the suite has it for pictures.
        size: pixels of the square pictures.
        horizon: steps to truncation; None: the suite's own.
        friction: of everything, as a multiple of the suite's own. mass: the same, of free bodies.
        relative: PegInsertionSide alone, as its expert has it: nine numbers more, the peg from the tool, its head in
            the hole's frame, and the turn between their axes. Other tasks with experts have such numbers already.
        processes: 0: all envs in this process; else so many workers (about 0.7 GB each).
        workers: how these run, see FarmOptions.

    Raises:
        ConfigError: no such task, robot, control mode or camera, models that are not on this machine, a horizon below
            1, `relative` of another task, or a machine on which the simulator does not start.
    """
    check_task(name, task_names(), "ManiSkill", key="maniskill")
    steps = steps_of(horizon, REGISTERED_ENVS[name].max_episode_steps)
    usual = is_usual(name, robot, control) and not cameras
    if relative and not (usual and name == PEG):
        raise ConfigError(
            f"task.relative: expected false for {name}, found true. Only {PEG} with its own robot, control mode and no "
            "pictures has it. Remove task.relative."
        )
    robot = robot_of(name, robot)
    control = CONTROL if usual else control_of(name, robot, control)
    changed: dict[str, Any] = {k: v for k, v in (("friction", friction), ("mass", mass)) if v != 1.0}
    facts: dict[str, Any] = {} if usual else {"robot": robot, "control": control}
    facts |= {"cameras": list(cameras), "size": size} if cameras else {}
    facts |= {"relative": True} if relative else {}
    one = functools.partial(ManiSkillEnv, name, robot, control, tuple(cameras), size, relative=relative, **changed)
    envs = vector_env(one, f"maniskill/{name}", num_envs, horizon=steps, processes=processes, **workers, name=name,
                      **facts, **changed)  # fmt: skip
    return vec_env(name, envs, usual=usual, relative=relative, seed=seed, horizon=steps)


def vec_env(
    name: str, envs: gymnasium.vector.VectorEnv, *, usual: bool, relative: bool = False, **how: Any
) -> GymVecEnv:
    """Envs of a task on either simulator, with its instruction, names of observations and actions, and expert.

    Args:
        usual: whether robot, control mode and observations are the expert's.
        relative: whether the observations have differences at their end.
    """
    how |= {"action": envs.metadata["action"], "instructions": instruction(name)}
    if not usual:
        return GymVecEnv(envs, names=envs.metadata["names"], **how)
    expert = functools.partial(EXPERTS[name], read(name))
    return ExpertVecEnv(envs, expert=expert, names=element_names(name, relative=relative), **how)
