"""ManiSkill 3 (Tao et al. 2024) on the CPU: PickCube, PushCube, StackCube with a Panda, state observations.

Protocol: `pd_ee_delta_pose` at 20 Hz over physics at 100 Hz; every episode draws objects, goal and the arm's start with
its episode seed; success is the task's own flag, at any step, and ends the episode; reward is that success. `horizon`
is the suite's own 50 steps. StackCube has the plain Panda here, not the one with a wrist camera.

The suite's own motion planner does not run beside NumPy 2; the experts are ours. Its GPU-batched simulator is
sim/suites/maniskill_gpu.py.
"""

from __future__ import annotations

import functools
import gc
from typing import Any

import gymnasium
import numpy as np
import torch

from robopolicy.config.schema import Positive
from robopolicy.core.types import ActionSpec
from robopolicy.sim.experts.maniskill import EXPERTS
from robopolicy.sim.experts.suites import slices
from robopolicy.sim.suites.base import ExpertVecEnv, SuiteEnv, check_task, needs, seed32, steps_of
from robopolicy.sim.suites.workers import vector_env
from robopolicy.utils.suite_packages import broken

with needs("maniskill"):
    import mani_skill.envs  # noqa: F401  registers the tasks
    import sapien
    from mani_skill.utils.registration import REGISTERED_ENVS

HORIZON = 50  # steps
TASKS = {
    "PickCube-v1": "pick the red cube and hold it at the goal",
    "PushCube-v1": "push the cube into the circle",
    "StackCube-v1": "stack the red cube on the green one and let go",
}
ACTION = ActionSpec(
    # 0.1 m and 0.1 rad at 1; the suite turns the other way round than its action says (`rot_lower` scales it).
    names=("dx", "dy", "dz", "minus_drx", "minus_dry", "minus_drz", "gripper"), units=("1",) * 7, low=(-1.0,) * 7,
    high=(1.0,) * 7, frame="base", tcp="panda_hand_tcp", rotation="rotvec", reference="measured", gripper=6,
    gripper_meaning="position: -1 closes, +1 opens",
)  # fmt: skip


def task_names() -> list[str]:
    """Names that `make` takes."""
    return sorted(TASKS)


class ManiSkillEnv(SuiteEnv):
    """One task without its batch axis."""

    def __init__(self, name: str, friction: float = 1.0, mass: float = 1.0) -> None:
        self.friction, self.mass = friction, mass
        try:
            self.inner = suites_own(name, 1, "physx_cpu")
        except RuntimeError as error:  # no Vulkan device
            raise broken("maniskill", error) from error
        obs, _ = self.inner.reset(seed=0)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, obs.shape[1:], np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (7,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        # Build the whole scene again, in about 0.05 s: PhysX lets contacts of earlier episodes affect the last digits
        # of later ones, even where all contacts were separated and stepped before the reset.
        obs, _ = self.inner.reset(seed=None if seed is None else seed32(seed), options={"reconfigure": True})
        if self.friction != 1.0 or self.mass != 1.0:
            self._change_physics()
        return obs[0].numpy().copy(), {"success": False}

    def act(self, action: Any) -> tuple[Any, Any]:
        obs, _, _, _, info = self.inner.step(torch.from_numpy(np.asarray(action, dtype=np.float32))[None])
        return obs[0].numpy().copy(), info["success"]

    def _change_physics(self) -> None:
        """Of a scene as it is made: friction of everything, mass and inertia of everything but the arm."""
        scene = self.inner.unwrapped.scene
        for actor in scene.actors.values():
            for entity in actor._objs:
                body = entity.find_component_by_type(sapien.physx.PhysxRigidBaseComponent)
                if isinstance(body, sapien.physx.PhysxRigidDynamicComponent):
                    body.mass, body.inertia = body.mass * self.mass, body.inertia * self.mass
                self._rub(body)
        for arm in scene.articulations.values():
            for link in arm.links:
                for body in link._objs:
                    self._rub(body)

    def _rub(self, body: Any) -> None:
        for shape in body.collision_shapes:
            was = shape.physical_material  # shapes may share one, so it stays as it is
            shape.set_physical_material(
                sapien.physx.PhysxMaterial(
                    was.static_friction * self.friction, was.dynamic_friction * self.friction, was.restitution
                )
            )


@functools.cache
def _spare_the_collector() -> None:
    """Take what is loaded by now, and stays, out of Python's garbage collection.

    The suite collects garbage whenever it makes a scene, which is before every episode here: 0.2 s of going through the
    modules of Torch and others, where the scene itself takes 0.05 s.
    """
    gc.collect()
    gc.freeze()


def suites_own(name: str, num_envs: int, sim_backend: str) -> Any:
    """Return the suite's env of one of `TASKS`, with its batch axis: physx_cpu, which has one scene, or physx_cuda."""
    _spare_the_collector()
    return REGISTERED_ENVS[name].make(
        obs_mode="state", reward_mode="none", control_mode="pd_ee_delta_pose", robot_uids="panda",
        sim_backend=sim_backend, render_backend="none", num_envs=num_envs,
    )  # fmt: skip


def read(name: str) -> dict[str, slice]:
    """Return the parts of an observation for the expert (quaternions are w x y z)."""
    return slices({"qpos": 9, "qvel": 9, **_LAYOUTS[name]})


def element_names(name: str) -> list[str]:
    """Return the names of an observation: qpos_0 … (7 and 8 are the fingers), tcp_x, tcp_qw …, tcp_to_cube_x …"""
    ends = {1: [""], 3: ["_x", "_y", "_z"], 7: ["_x", "_y", "_z", "_qw", "_qx", "_qy", "_qz"],
            9: [f"_{i}" for i in range(9)]}  # fmt: skip
    whose = {"to_cube": "tcp_to_cube", "to_base": "tcp_to_base", "to_goal": "cube_to_goal"}
    return [whose.get(k, k) + end for k, place in read(name).items() for end in ends[place.stop - place.start]]


_LAYOUTS = {
    "PickCube-v1": {"held": 1, "tcp": 7, "goal": 3, "cube": 7, "to_cube": 3, "to_goal": 3},
    "PushCube-v1": {"tcp": 7, "goal": 3, "cube": 7},
    "StackCube-v1": {"tcp": 7, "cube": 7, "base": 7, "to_cube": 3, "to_base": 3, "cube_to_base": 3},
}


def make(
    name: str,
    num_envs: int,
    seed: int = 0,
    *,
    horizon: int | None = None,
    friction: Positive = 1.0,
    mass: Positive = 1.0,
    processes: int = 0,
) -> ExpertVecEnv:
    """Build a task of ManiSkill as a VecEnv.

    Args:
        name: one of `task_names()`.
        seed: names the stream of training episodes.
        horizon: steps to truncation; None: the suite's own.
        friction: of everything, as a multiple of the suite's own. mass: the same, of everything but the arm.
        processes: 0: all envs in this process; else so many workers (about 0.7 GB each).

    Raises:
        ConfigError: no such task, a horizon below 1, or a machine on which the simulator does not start.
    """
    check_task(name, TASKS, "ManiSkill")
    steps = steps_of(horizon, HORIZON)
    changed: dict[str, Any] = {k: v for k, v in (("friction", friction), ("mass", mass)) if v != 1.0}
    one = functools.partial(ManiSkillEnv, name, **changed)
    envs = vector_env(one, f"maniskill/{name}", num_envs, horizon=steps, processes=processes, name=name, **changed)
    return vec_env(name, envs, seed=seed, horizon=steps)


def vec_env(name: str, envs: gymnasium.vector.VectorEnv, **how: Any) -> ExpertVecEnv:
    """Envs of a task on either simulator, with its instruction, expert, and names of observations and actions."""
    expert = functools.partial(EXPERTS[name], read(name))
    return ExpertVecEnv(envs, expert=expert, action=ACTION, names=element_names(name), instructions=TASKS[name], **how)
