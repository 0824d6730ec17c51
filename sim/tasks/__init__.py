"""Native tasks, one file each, found by name. A new file calls `@register("name")`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from robopolicy.core.errors import ConfigError, closest
from robopolicy.sim.tasks.base import Task

_TASKS: dict[str, Callable[..., Task]] = {}


def register(name: str) -> Callable[[Callable[..., Task]], Callable[..., Task]]:
    """Register a Task class, or a function that returns a task, under `name`, as a decorator."""

    def add(factory: Callable[..., Task]) -> Callable[..., Task]:
        _TASKS[name] = factory
        return factory

    return add


def task_names() -> tuple[str, ...]:
    """Return the names of all registered tasks."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return tuple(sorted(_TASKS))


def make_task(name: str, **parameters: Any) -> Task:
    """Build a task by name; `parameters` replace its defaults."""
    if name not in task_names():
        raise ConfigError(f"task={name!r} is not a native task. {closest(name, _TASKS)}")
    try:
        return _TASKS[name](**parameters)
    except TypeError as error:
        raise ConfigError(f"task {name!r}: {error}. Parameters are the fields of its dataclass.") from error
