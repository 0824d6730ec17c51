"""Check what a task hands out: types and shapes once for each env that is built, numbers at every step.

NumPy repeats a value of another shape, and takes any number for true, without an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.sim.tasks.base import Task
from robopolicy.sim.tasks.scene import Range, Scene, arm_features


def check_scene(task: Task, at: Any, scene: Scene, reward: str) -> None:
    """Check what the task says of M envs in `scene`: outcomes, instructions and its part of the state.

    Raises:
        ConfigError: names the method whose values are not one of the right type for each env, or the name in `observe`.
    """
    _check_outcomes(task, at, scene, reward)
    _check_parts(task, at, scene)


def _check_outcomes(task: Task, at: Any, scene: Scene, reward: str) -> None:
    _check(task, "success", task.success(at, scene), len(scene.qpos), bool)
    if (failed := task.failure(at, scene)) is not None:
        _check(task, "failure", failed, len(scene.qpos), bool)
    if reward != "sparse":
        _check(task, "dense", task.dense(at, scene), len(scene.qpos), float)
    index = _check(task, "task_index", task.task_index(scene), len(scene.qpos), np.int64)
    if not ((index >= 0) & (index < len(task.instructions))).all():
        raise ConfigError(
            f"{task.name}: task_index: expected 0 to {len(task.instructions) - 1}, as there are instructions, found "
            f"{index.tolist()}"
        )


def drawn(task: Task, before: Mapping[str, Range], after: Mapping[str, Range]) -> dict[str, Range]:
    """Return the ranges of all numbers of an episode, those of the task between others.

    Raises:
        ConfigError: the task has one of another's name, or a range that is not two numbers.
    """
    own = task.ranges
    for name, ends in own.items():
        if name in before or name in after:
            raise ConfigError(f"{task.name}: ranges: {name!r} is drawn for every task. Give it a name of its own.")
        if np.shape(ends) != (2,):
            raise ConfigError(f"{task.name}: ranges: {name!r}: expected (low, high), found {ends!r}")
    return {**before, **own, **after}


def _check_parts(task: Task, at: Any, scene: Scene) -> None:
    count = len(scene.qpos)
    for name, value in task.observe(at, scene).items():
        if name in arm_features(scene):
            raise ConfigError(
                f"{task.name}: observe: {name!r} is a part of the arm's state, which experts read too. Give it a name "
                f"of its own, e.g. 'object_{name}'."
            )
        if not (isinstance(value, np.ndarray) and value.ndim in (1, 2) and len(value) == count):
            found = value.shape if isinstance(value, np.ndarray) else type(value).__name__
            raise ConfigError(
                f"{task.name}: observe: {name!r}: expected a NumPy array of shape ({count},) or ({count}, k), found "
                f"{found}"
            )


def check_state(state: Tensor, names: tuple[str, ...], task: str) -> None:
    """Raise SpecError where `state` [M Ds] has a number that is not finite; `names` [Ds] of its elements."""
    if math.isfinite(state.sum().item()):  # a fast first check
        return
    wrong = (~torch.isfinite(state)).nonzero()
    if len(wrong):
        row, i = wrong[0].tolist()
        raise SpecError(
            f"{task}: observation {names[i]!r}: expected a finite number, found {state[row, i].item()}. Correct the "
            "task's observe or reset."
        )


def _check(task: Task, method: str, value: Any, count: int, kind: type) -> NDArray[Any]:
    typed = isinstance(value, np.ndarray) and (value.dtype == kind or (kind is float and value.dtype.kind in "fiu"))
    if typed and value.shape == (count,):
        return np.asarray(value)
    found = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
    raise ConfigError(
        f"{task.name}: {method}: expected one {kind.__name__} for each env, a NumPy array of shape ({count},); found "
        f"{found}"
    )
