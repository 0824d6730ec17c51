"""Share what suites have in common: guarded imports, seeds of 32 bits, one env with success, and experts."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gymnasium
import numpy as np

from robopolicy.config.described import entries
from robopolicy.core.errors import ConfigError, closest
from robopolicy.core.types import ActionSpec
from robopolicy.sim.gymnasium.adapter import GymVecEnv
from robopolicy.sim.gymnasium.film import RGB
from robopolicy.sim.gymnasium.info_columns import flag
from robopolicy.sim.render import Canvas
from robopolicy.utils import suite_packages
from robopolicy.utils.install_commands import pip_install

_LOW = 40  # bits of an episode's number within its split (robopolicy.core.rng.episode_seeds)


@contextlib.contextmanager
def needs(suite: str) -> Iterator[None]:
    """Guard the imports of a suite: a missing package is named with the command that installs it.

    Args:
        suite: a key of `robopolicy.utils.suite_packages.PACKAGES`.

    Raises:
        ConfigError: it is not installed, does not fit what is beside it, or does not load.
    """
    suite_packages.require(suite)
    try:
        yield
    except Exception as error:  # any error of another version at import
        raise suite_packages.broken(suite, error) from error


def seed32(seed: int) -> int:
    """Return a seed in [0, 2³²): the split in the upper two bits, the episode's number in the others.

    So the training, validation and test episodes of a suite stay disjoint; two episodes of one split coincide with a
    chance of 2⁻³⁰.
    """
    number = seed & ((1 << _LOW) - 1)
    return (((seed >> _LOW) & 3) << 30) | ((number ^ (number >> 30)) & ((1 << 30) - 1))


@contextlib.contextmanager
def global_random(seed: int) -> Iterator[None]:
    """Seed NumPy's and Python's global generators inside the block, and restore them after it."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002  theirs, not ours
    np.random.seed(seed32(seed))  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)


def check_task(name: str, names: Iterable[str], suite: str, *, key: str = "") -> None:
    """Raise ConfigError unless `name` is one of `names`.

    Args:
        suite: its name in messages.
        key: of `suite_packages.PACKAGES`, to tell a task of another version than the installed one; "": none are told.
    """
    if name not in (names := list(names)):
        package = suite_packages.PACKAGES.get(key)
        if package is not None and name in _described(key):
            raise ConfigError(
                f"task.name={name!r}: {package.distribution} {suite_packages.installed(package.distribution)} has no "
                f"such task, {package.works} has: {pip_install(f'{package.distribution}=={package.works}')}"
            )
        raise ConfigError(f"task.name={name!r}: {suite} has no such task here. {closest(name, names)}")


def _described(key: str) -> set[str]:
    """Return the tasks of a suite in the version that it was described with."""
    rules = entries()[f"robopolicy.sim.suites.{key}:make"].get("names", [])
    return {name for rule in rules if rule["key"] == "name" for name in rule["known"]}


def steps_of(horizon: int | None, default: int | None, most: int | None = None) -> int:
    """Return the steps to truncation: `horizon`, or `default` where it is None.

    Raises:
        ConfigError: fewer than 1, more than `most`, or neither is given.
    """
    steps = default if horizon is None else horizon
    if not steps or steps < 1 or (most and steps > most):
        hint = ". There is no time limit of its own: say task.horizon=<steps>" if steps is None else ""
        raise ConfigError(f"task.horizon: expected 1 to {most or 'any number of'} steps, found {steps}{hint}")
    return steps


def unit_action(*names: str, **meaning: Any) -> ActionSpec:
    """Return the spec of actions from −1 to 1, the gripper last."""
    n = len(names)
    return ActionSpec(names=names, units=("1",) * n, low=(-1.0,) * n, high=(1.0,) * n, gripper=n - 1, **meaning)


class SuiteEnv(gymnasium.Env):
    """Base class of one task, in which an episode is a function of its seed. Success ends it and is its reward.

    Subclasses set `inner`, the suite's env, and the spaces.
    """

    metadata = {"render_modes": [RGB], "render_fps": 20}  # noqa: RUF012  as Gymnasium has it
    render_mode = RGB
    inner: Any
    begins_anywhere = False  # whether `begin_in` is heeded
    begin_in: Any = None  # a recorded state in which episodes begin; None: as their seeds say

    def act(self, action: Any) -> tuple[Any, Any]:
        """Step `inner`; return the observation, and success as the suite tells it."""
        raise NotImplementedError

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Raises SpecError where the suite's success is neither true nor false."""
        obs, found = self.act(action)
        success = flag(found, "success")
        return obs, float(success), success, False, {"success": success}

    def close(self) -> None:
        self.inner.close()


class MujocoSuiteEnv(SuiteEnv):
    """Base class of one task in MuJoCo, which is filmed by a fixed camera of its model.

    The suites' own renderers have shadows and multisampling, 15 times slower without a GPU.
    """

    camera: str  # of films
    hidden: tuple[int, ...] = ()  # groups of geoms that are not drawn
    _canvas: Canvas | None = None
    _drawn: Any = None  # the model of `_canvas`

    def physics(self) -> tuple[Any, Any]:
        """Return the model and data of the episode."""
        raise NotImplementedError

    def render(self) -> Any:
        """Return the picture of the state, uint8 [h w 3]."""
        return self.draw(self.camera, 320, 320)

    def draw(self, camera: str, height: int, width: int) -> Any:
        """Return the picture of a camera of the model, uint8 [h w 3]."""
        model, data = self.physics()
        if self._canvas is None or self._drawn is not model:  # a suite may load its model again
            self._erase()
            self._canvas, self._drawn = Canvas(model, hidden=self.hidden), model
        return self._canvas.draw(data, camera, height, width).transpose(1, 2, 0)

    def close(self) -> None:
        self._erase()
        super().close()

    def _erase(self) -> None:
        if self._canvas is not None:
            self._canvas.close()
        self._canvas = self._drawn = None


class ExpertVecEnv(GymVecEnv):
    """N copies of a task that has a scripted expert.

    Args:
        expert: makes it from the action's meaning, N and `expert_noise`.
    """

    def __init__(self, env: gymnasium.vector.VectorEnv, *, expert: Callable[..., Any], **how: Any) -> None:
        super().__init__(env, **how)
        self._expert = expert

    def make_expert(self, *, expert_noise: float = 0.0) -> Any:
        """Return the scripted policy of this task."""
        return self._expert(self.spec.action, self.num_envs, expert_noise=expert_noise)
