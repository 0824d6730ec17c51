"""The native tasks: one file each, found by name. A new file that calls `@register("name")` is all it takes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from robopolicy.core.errors import ConfigError, closest
from robopolicy.sim.tasks.base import Task

_TASKS: dict[str, Callable[..., Task]] = {}


def register(name: str) -> Callable[[Callable[..., Task]], Callable[..., Task]]:
    """Decorator of a Task class or of a function that returns a task; `name` is what `make` takes."""

    def add(factory: Callable[..., Task]) -> Callable[..., Task]:
        _TASKS[name] = factory
        return factory

    return add


def task_names() -> tuple[str, ...]:
    """Every registered task."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return tuple(sorted(_TASKS))


def make_task(name: str, **parameters: Any) -> Task:
    """A task by name; `parameters` replace its defaults."""
    if name not in task_names():
        raise ConfigError(f"task={name!r} is not a native task. {closest(name, _TASKS)}")
    try:
        return _TASKS[name](**parameters)
    except TypeError as error:
        raise ConfigError(f"task {name!r}: {error}. Parameters are the fields of its dataclass.") from error
