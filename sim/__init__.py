"""Native task suite: a batched MuJoCo engine, a Franka-like arm, and tasks from easy to hard."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Protocol, runtime_checkable

from robopolicy.core.errors import ConfigError, closest
from robopolicy.core.types import EnvSpec
from robopolicy.sim.env import SimEnv
from robopolicy.sim.experts.slow import SlowExpert
from robopolicy.sim.experts.waypoints import Expert
from robopolicy.sim.physics import WarpOptions
from robopolicy.sim.randomization import Randomization
from robopolicy.sim.tasks import make_task, register, task_names
from robopolicy.sim.tasks.base import Task
from robopolicy.utils.point_clouds import PointCloud

__all__ = ["Expert", "Randomization", "SimEnv", "Task", "make", "make_expert", "make_native", "register", "task_names"]


def make(task: str | Task, num_envs: int, seed: int = 0, **kw: Any) -> SimEnv:
    """Build a batched env of a native task.

    Args:
        task: a registered name (`task_names()`), or a Task.
        num_envs: N.
        seed: names the stream of training episodes.
        kw: arguments of `SimEnv` (control, reward, cameras …) and parameters of the task (horizon, range_x …).
    """
    env_keys = set(inspect.signature(SimEnv.__init__).parameters) - {"self", "task", "num_envs", "seed"}
    env_kw = {k: v for k, v in kw.items() if k in env_keys}
    task_kw = {k: v for k, v in kw.items() if k not in env_keys}
    if isinstance(env_kw.get("randomization"), dict):
        env_kw["randomization"] = Randomization(**env_kw["randomization"])
    if isinstance(env_kw.get("warp"), dict):
        env_kw["warp"] = WarpOptions(**env_kw["warp"])
    if isinstance(env_kw.get("cloud"), dict):
        env_kw["cloud"] = PointCloud(**env_kw["cloud"])
    if isinstance(task, str):
        default = make_task(task)
        known = {f.name for f in fields(default)} if is_dataclass(default) else set()
        for key in task_kw:
            if key not in known:
                raise ConfigError(f"{task}: no such option {key!r}. {closest(key, known | env_keys)}")
        task = make_task(task, **task_kw) if task_kw else default
    elif task_kw:
        raise ConfigError(f"task parameters {sorted(task_kw)} need a task name, found a Task; set its fields instead")
    return SimEnv(task, num_envs, seed=seed, **env_kw)


def make_native(task: str, num_envs: int, seed: int = 0, **kw: Any) -> SimEnv:
    """Make an env as `make` does, for configs: they name the task.

    Args:
        task: a registered name, see `task_names`.
    """
    return make(task, num_envs, seed, **kw)


def _forwards_to(given: Mapping[str, Any]) -> tuple[Callable[..., Any], ...]:
    """Whose keywords `make_native` passes on; configs are checked against them before anything is built."""
    task = given.get("task")
    return (SimEnv, type(make_task(task)) if isinstance(task, str) else Task)


make_native.forwards_to = _forwards_to  # type: ignore[attr-defined]


@runtime_checkable
class HasExpert(Protocol):
    """An env whose task comes with a scripted expert."""

    spec: EnvSpec

    def make_expert(self, *, expert_noise: float = 0.0) -> Any: ...


def make_expert(env: HasExpert, *, expert_noise: float = 0.0, speed: float = 1.0) -> Any:
    """Return the scripted expert of `env`'s task.

    Args:
        speed: the most motion of a step, as a share of the action's limits; the gripper's is not changed.

    Raises:
        ConfigError: the task has none; see SlowExpert.
    """
    if not isinstance(env, HasExpert):
        name = env.spec.id
        raise ConfigError(
            f"{name}: has no scripted expert, so no demonstrations can be recorded of it. Train on some of your own: "
            "dataset=<folder>, or register an expert of your own: expert._target_=<its name> --allow <your module>."
        )
    expert = env.make_expert(expert_noise=expert_noise)
    return expert if speed == 1.0 else SlowExpert(expert, env.spec.action, speed)
