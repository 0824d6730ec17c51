"""robosuite 1.4 (Zhu et al. 2020): all tasks of one arm with a Panda, low-dimensional observations.

Protocol: OSC_POSE at 20 Hz over physics at 500 Hz; the observations are robomimic's (tool position and quaternion
x y z w, finger positions, object state), which hold no velocities: `relative` adds last steps; every episode draws the
arm's start and the objects' places with its seed; success is the task's own check, after any step, and ends the
episode; reward is that success. `horizon` is half of robomimic's 400 steps for Lift and Can, 400 for other tasks, and
the suite's own 1000 for those of several goals (NutAssembly, PickPlace, Wipe). Lift's cube has one size, drawn once:
the model is not loaded again for an episode.

Experts for Lift and Can are ours; the other tasks have none.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, NamedTuple, Unpack

import numpy as np
from gymnasium.spaces import Box

from robopolicy.config.schema import Natural
from robopolicy.core.types import ActionSpec
from robopolicy.sim.experts.robosuite import EXPERTS
from robopolicy.sim.experts.suites import slices
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
from robopolicy.sim.suites.vector_env import FarmOptions, vector_env

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
SUITES_OWN = {"PickPlaceCan": "Can"}  # names of the suite: ours
ACTION = unit_action(  # 0.05 m and 0.5 rad at 1
    "dx", "dy", "dz", "drx", "dry", "drz", "gripper", frame="world", tcp="gripper0_grip_site", rotation="rotvec",
    reference="measured", gripper_meaning="velocity: -1 opens, +1 closes",
)  # fmt: skip
TOOL = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
WIPING = ActionSpec(  # without fingers
    names=ACTION.names[:6], units=ACTION.units[:6], low=ACTION.low[:6], high=ACTION.high[:6], frame="world",
    tcp=ACTION.tcp, rotation="rotvec", reference="measured", gripper=None, gripper_meaning="",
)  # fmt: skip
_SIZES = {"tool": 3, "quat": 4, "fingers": 2, "object": 3, "object_quat": 4}  # of every task's observation, at its head
_PARTS = slices(_SIZES)
_MOVING = ("tool", "object", "fingers")  # whose last steps `relative` adds


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
                controller_configs=robosuite.load_controller_config(default_controller="OSC_POSE"), control_freq=20,
                ignore_done=True, hard_reset=False, reward_shaping=False,
            )  # fmt: skip
        self._layout = layout(self.inner, TASKS[name][1])
        names = element_names(name, relative) if TASKS[name][1] else self._layout.names(relative)
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
        for robot in self.inner.robots:  # the fingers' command outlives a reset
            robot.gripper.current_action = np.zeros(robot.gripper.dof)
        self._before = None
        return self._seen(obs)

    def physics(self) -> tuple[Any, Any]:
        sim = self.inner.sim
        return sim.model._model, sim.data._data

    def _seen(self, obs: dict[str, Any]) -> Any:
        own = np.concatenate([*(obs[key] for key in TOOL), obs["object-state"]])
        if self.relative:
            tool, places, fingers = self._layout.moving(own)
            now = np.concatenate([tool, *places, fingers])
            moved = np.zeros_like(now) if self._before is None else now - self._before
            self._before = now
            own = np.concatenate([own, *(place - tool for place in places), moved])
        return own.astype(np.float32)


class Layout(NamedTuple):
    """Parts of an observation: those of the tool, then the suite's of objects, in order: {name: size}."""

    tool: dict[str, int]
    objects: dict[str, int]

    def moving(self, own: Any) -> tuple[Any, list[Any], Any]:
        """Return the places of the tool, of each object, and the fingers' positions, of an observation."""
        parts = slices({**self.tool, **self.objects})
        places = [own[parts[key]] for key in self._places()]
        return own[parts["tool"]], places, own[parts["fingers"]]

    def names(self, relative: bool) -> list[str]:
        """Return the names of the elements: tool_x …, tool_qx …, fingers_0 …, cubeA_x …, cubeA_to_cubeB_x …"""
        found = [_named(key, size) for key, size in {**self.tool, **self.objects}.items()]
        if relative:
            things = [key.removesuffix("_pos") for key in self._places()]
            found += [_named(f"tool_to_{thing}", 3) for thing in things]
            found += [_named(f"{thing}_step", 3) for thing in ("tool", *things)]
            found.append(_named("fingers_step", self.tool["fingers"]))
        return [name for part in found for name in part]

    def _places(self) -> list[str]:
        return [key for key, size in self.objects.items() if key.endswith("_pos") and "_to_" not in key and size == 3]


def layout(inner: Any, thing: str) -> Layout:
    """Read the layout of a task's observation.

    Args:
        thing: the one object, which is then called `object`; "": each as the suite calls it. Tasks whose object differs
            from episode to episode have it as `object` too.
    """
    if thing:
        return Layout({"tool": 3, "quat": 4, "fingers": 2}, {"object_pos": 3})
    obs = inner._get_observations(force_update=True)
    keys = [k for k, o in inner._observables.items() if o.modality == "object" and k in obs and o.is_active()]
    one = {key.removesuffix("_pos") for key in keys if key.endswith("_pos") and "_to_" not in key}
    varies = next(iter(one)) if {"nut_id", "obj_id"} & set(keys) and len(one) == 1 else ""
    sizes = {_ours(key, varies): int(np.size(obs[key])) for key in keys}
    return Layout({"tool": 3, "quat": 4, "fingers": int(np.size(obs[TOOL[2]]))}, sizes)


def _ours(key: str, varies: str) -> str:
    """Return our name of a part: object for the one that varies, X_in_tool for its pose in the tool's frame."""
    key = key.replace(varies, "object") if varies else key
    return key.replace("_to_robot0_eef_pos", "_in_tool").replace("_to_robot0_eef_quat", "_in_tool_quat")


def _named(key: str, size: int) -> list[str]:
    """Return the names of a part's elements; one number has the part's own name."""
    stem = key.removesuffix("_pos").removesuffix("_quat").replace("quat", "tool")
    quat = key.endswith("quat") and size == 4
    ends = ("qx", "qy", "qz", "qw") if quat else "xyz" if size == 3 else tuple(map(str, range(size)))
    return [stem] if size == 1 else [f"{stem}_{end}" for end in ends]


def element_names(name: str, relative: bool = False) -> list[str]:
    """Return the names of a task of one object: tool_x …, fingers_0, …, object_x …, then the object beside the tool.

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
    facts: dict[str, Any] = {"relative": True} if relative else {}
    envs = vector_env(
        one, f"robosuite/{name}", num_envs, horizon=steps, processes=processes, **workers, name=name, **facts
    )
    made = (
        functools.partial(ExpertVecEnv, expert=functools.partial(EXPERTS[name], _PARTS))
        if name in EXPERTS
        else GymVecEnv
    )
    action = ACTION if envs.single_action_space.shape == (ACTION.dim,) else WIPING
    return made(envs, seed=seed, instructions=text, horizon=steps, action=action, names=envs.metadata["names"])
