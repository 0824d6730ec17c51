"""Build the EnvSpec of a Gymnasium vector env. Integer actions and infinite limits are refused."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import logging
import math
import re
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.types import IMAGES, TASK, ActionSpec, EnvSpec, Feature
from robopolicy.sim.gymnasium.observations import ObservationLayout

_log = logging.getLogger(__name__)
_HOW_MANY = ("num_envs", "vectorization_mode", "vector_kwargs", "render_mode")  # how a task is run, not what it is


def name_of(env: VectorEnv) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def check_vector_env(env: Any) -> None:
    """Raise ConfigError unless `env` is a vector env with its number of envs and its single spaces."""
    if not isinstance(env, VectorEnv):
        raise ConfigError(
            f"env: expected a gymnasium.vector.VectorEnv, found {type(env).__name__}. Build one: "
            "gymnasium.make_vec(<id>, num_envs=…), or SyncVectorEnv([lambda: env])."
        )
    for key in ("num_envs", "single_observation_space", "single_action_space"):
        if getattr(env, key, None) is None:
            raise ConfigError(f"{type(env.unwrapped).__name__}: {key}: expected a value, found none. Set it.")
    if not (isinstance(env.num_envs, int | np.integer) and env.num_envs >= 1):
        raise ConfigError(f"{name_of(env)}: num_envs: expected a number of at least 1, found {env.num_envs!r}")


def action_spec(space: gymnasium.Space, given: ActionSpec | None, name: str) -> ActionSpec:
    """Return `given`, if it fits the space; None: numbers in the env's own units.

    Raises:
        ConfigError: a space other than a Box of floats, or without finite limits where none are given.
        SpecError: `given` has other dimensions, or limits beyond the space's.
    """
    if not isinstance(space, Box) or not math.prod(space.shape):
        raise ConfigError(f"{name}: action_space: expected a Box of one number or more, found {space}")
    if space.dtype not in (np.float32, np.float64):
        raise ConfigError(
            f"{name}: action_space: expected float32 or float64, found {space.dtype}, which would cut 0.9 to 0. Round "
            "in a wrapper that offers a Box of floats: gymnasium.wrappers.TransformAction."
        )
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    if given is None:
        bad = [i for i in range(len(low)) if not (np.isfinite(low[i]) and np.isfinite(high[i]) and low[i] < high[i])]
        if bad:
            raise ConfigError(
                f"{name}: action_space: expected finite limits, low below high; dimension {bad[0]} has "
                f"{low[bad[0]]} and {high[bad[0]]}. Set them with gymnasium.wrappers.TransformAction(env, f, Box(…)), "
                "or say what actions mean: adapt(…, action=ActionSpec(…))."
            )
        return ActionSpec(
            names=tuple(f"a{i}" for i in range(len(low))),
            units=("1",) * len(low),
            low=tuple(low.astype(float).tolist()),
            high=tuple(high.astype(float).tolist()),
            frame="world",
            tcp="",
            rotation="none",
            reference="absolute",
            gripper=None,
            gripper_meaning="",
        )
    if given.dim != len(low):
        raise SpecError(f"{name}: action: expected {len(low)} dimensions as in action_space, found {given.dim}")
    inside = (np.array(given.low, space.dtype) >= low) & (np.array(given.high, space.dtype) <= high)
    inside &= np.isfinite(given.low) & np.isfinite(given.high)
    if not inside.all():
        i = int((~inside).nonzero()[0][0])
        raise SpecError(
            f"{name}: action: expected limits within those of action_space, {low[i]} to {high[i]}; {given.names[i]!r} "
            f"has {given.low[i]} to {given.high[i]}"
        )
    return given


def env_spec(
    env: VectorEnv,
    parts: ObservationLayout,
    *,
    instructions: str,
    horizon: int | None,
    dt: float | None,
    action: ActionSpec | None,
    names: Sequence[str] | None,
    success: str | None,
) -> EnvSpec:
    """Return the spec of a vector env; see `GymVecEnv` for the arguments.

    Raises:
        ConfigError: no usable horizon or dt, or `names` that are not one of its own for every element.
    """
    name, space = name_of(env), env.single_observation_space
    sizes = {feature: parts.counted(feature) for feature in parts.joined}
    counted = tuple(name for group in sizes.values() for name in group)
    if names is not None and not len(set(names)) == len(names) == len(counted):
        raise ConfigError(
            f"{name}: names: expected one of its own for each of the {len(counted)} elements of {' and '.join(sizes)}, "
            f"found {len(names)}, of which {len(set(names))} differ"
        )
    features, left = dict[str, Feature](), iter(names or counted)
    for feature, group in sizes.items():
        features[feature] = Feature((len(group),), names=tuple(itertools.islice(left, len(group))))
    for k in parts.images:
        shape = parts.boxes[k].shape
        features[IMAGES + k] = Feature((3, *(shape[1:] if shape[0] == 3 else shape[:2])), dtype="uint8")
    features[TASK] = Feature((), dtype="int64")
    meaning = action_spec(env.single_action_space, action, name)
    steps, given = _horizon(env, horizon, name), env.spec.kwargs if env.spec is not None else {}  # of Gymnasium's make
    task = {k: v for k, v in given.items() if k not in _HOW_MANY}
    defines = [task, steps] if success is None else [task, steps, success]
    kwargs = json.dumps(defines, sort_keys=True, default=_named)
    identity = json.dumps([name, kwargs, repr(space), repr(env.single_action_space), gymnasium.__version__])
    return EnvSpec(
        id=name,
        observation=features,
        action=meaning,
        tasks=(instructions or name,),
        dt=_dt(env, dt, name),
        horizon=steps,
        digest=hashlib.sha256(identity.encode()).hexdigest()[:16],
    )


def _named(value: object) -> str:
    """Write an object of an env's options without its place in memory, which each process has its own of."""
    if hasattr(value, "__qualname__"):  # a class or a function
        return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(value))


def reset_mode(env: VectorEnv, given: AutoresetMode | str | None, name: str) -> AutoresetMode:
    """Return the mode in which the env resets ended episodes.

    Raises:
        ConfigError: neither its metadata nor `given` say it, or they differ; or Gymnasium resets ended envs once more.
    """
    said = [_known_mode(m, name) for m in ((env.metadata or {}).get("autoreset_mode"), given) if m is not None]
    if not said or len(set(said)) > 1:
        raise ConfigError(
            f"{name}: autoreset_mode: expected one of {', '.join(m.name for m in AutoresetMode)} in the env's "
            f"metadata, found {[m.name for m in said] or 'none'}. Say how it resets ended episodes: "
            "adapt(…, autoreset_mode=…). SAME_STEP: in the step that ends them; NEXT_STEP: in the step after it."
        )
    inner = env.unwrapped
    if said[0] == AutoresetMode.NEXT_STEP and isinstance(inner, AsyncVectorEnv) and not inner.shared_memory:
        # Its workers (Gymnasium 1.4) forget that a reset was due only where they share memory.
        raise ConfigError(
            f"{name}: AsyncVectorEnv(shared_memory=False): expected autoreset mode DISABLED or SAME_STEP, found "
            "NEXT_STEP, in which it resets an ended env a second time, without its seed. Build it with "
            "autoreset_mode=AutoresetMode.DISABLED, or with shared_memory=True."
        )
    return said[0]


def _known_mode(value: Any, name: str) -> AutoresetMode:
    for mode in AutoresetMode:
        if value in (mode, mode.name, mode.value):
            return mode
    raise ConfigError(
        f"{name}: autoreset_mode: expected one of {', '.join(m.name for m in AutoresetMode)}, found {value!r}"
    )


def _horizon(env: VectorEnv, given: int | None, name: str) -> int:
    steps = given if given is not None else env.spec.max_episode_steps if env.spec is not None else None
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or not steps >= 1:
        raise ConfigError(
            f"{name}: horizon: expected a whole number of steps, at least 1, found {steps!r}. Pass horizon=, or "
            "register the env with max_episode_steps."
        )
    return int(steps)


def _dt(env: VectorEnv, given: float | None, name: str) -> float:
    """s per step."""
    rate: Any = (env.metadata or {}).get("render_fps")
    if given is None and rate is None:
        _warn_of_rate(name)
        return 0.05
    try:
        dt = float(given) if given is not None else 1 / float(rate)
    except (TypeError, ValueError, ZeroDivisionError):
        dt = math.nan
    if not 0 < dt < math.inf:
        raise ConfigError(
            f"{name}: expected seconds per step above 0, found dt={given!r} and metadata['render_fps']={rate!r}. "
            "Set task.dt=<seconds per step> (in Python adapt(…, dt=…)), or correct render_fps."
        )
    return dt


@functools.cache
def _warn_of_rate(name: str) -> None:
    """Warn, once in a process, that the length of a step is a guess."""
    _log.warning(
        "%s: metadata['render_fps'] is missing, so a step lasts 0.05 s (20 Hz). Declare it in the env, or set "
        "task.dt=<seconds per step>; in Python adapt(…, dt=…).",
        name,
    )
