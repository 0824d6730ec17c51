"""Any Gymnasium id as a task: gym-pusht, gym-aloha, panda-gym, gymnasium-robotics, or a package of your own.

Protocol: the id's own observations (as `sim.gymnasium.adapter` maps them), actions and time limit; success is
info["success"] or info["is_success"], which has to be there after every step, or what `task.success` names. Unless
`reward` is "own", success ends the episode and is the reward, as in every suite here.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from typing import Any, Literal, Unpack

import gymnasium
from gymnasium.envs.registration import load_env_creator

from robopolicy.config import registry
from robopolicy.config.schema import Natural, Positive, Side
from robopolicy.core.errors import ConfigError, RobopolicyError, closest
from robopolicy.sim.gymnasium.adapter import GymVecEnv
from robopolicy.sim.gymnasium.chosen_parts import RENDER, ChosenParts, nested
from robopolicy.sim.gymnasium.film import RGB
from robopolicy.sim.render import choose_gl
from robopolicy.sim.suites.base import needs, steps_of, unit_action
from robopolicy.sim.suites.vector_env import FarmOptions, vector_env

KNOWN = {"gym_pusht": "pusht", "gymnasium_robotics": "fetch"}  # package that registers ids: our extra
FETCH = unit_action(  # 0.05 m at 1
    "dx", "dy", "dz", "gripper", frame="world", tcp="robot0:grip", rotation="none", reference="measured",
    gripper_meaning="position: -1 closes, +1 opens, relative to measured; without effect where the task blocks it",
)  # fmt: skip
TEXTS = {
    "gym_pusht/PushT-v0": "push the T onto its outline",
    "FetchReach-v4": "move the hand to the goal",
    "FetchPush-v4": "push the block to the goal",
    "FetchSlide-v4": "slide the puck to the goal",
    "FetchPickAndPlace-v4": "bring the block to the goal",
}


_FILES = re.compile(r"(^|_)(file|path|dir|folder|root)s?$")
_SIDES = re.compile(r"(^|_)(width|height|size)$")
_WIDEST = 4096  # pixels


def make_one(
    package: str, ident: str, options: dict[str, Any], keys: tuple[str, ...] = (),
    cameras: tuple[str, ...] | None = None, size: int | None = None,
) -> gymnasium.Env:  # fmt: skip
    """Build one env of an id; `keys`, `cameras` and `size` as in `make`.

    Raises:
        ConfigError: the env takes no such options, has no such parts of an observation, or lacks a package.
    """
    register(package)
    if package or RENDER in (cameras or ()):
        choose_gl()
    try:
        env: gymnasium.Env = gymnasium.make(ident, disable_env_checker=True, **_filmable(ident, options))
        if keys or cameras is not None or size is not None or nested(env.observation_space):
            env = ChosenParts(env, keys=keys, cameras=cameras, size=size)
        return env
    except RobopolicyError:
        raise
    except Exception as error:  # any error of an env on untrusted options
        raise ConfigError(
            f"task.name={ident!r} with task.options={options}: cannot be made ({type(error).__name__}: {error})"
        ) from error


def _filmable(ident: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return `options` with the render mode of films, where the id has it and `options` name none."""
    creator: Any = gymnasium.registry[ident].entry_point
    creator = load_env_creator(creator) if isinstance(creator, str) else creator
    takes = inspect.signature(creator).parameters.values()
    takes_it = any(p.name == "render_mode" or p.kind == p.VAR_KEYWORD for p in takes)
    has_it = RGB in ((getattr(creator, "metadata", None) or {}).get("render_modes") or ())
    return {"render_mode": RGB, **options} if takes_it and has_it else options


def register(package: str) -> None:
    """Import the package that registers an id; "" for Gymnasium's own.

    Raises:
        ConfigError: it is neither known here nor admitted by --allow, or cannot be imported.
    """
    if package in KNOWN:
        with needs(KNOWN[package]):
            module = importlib.import_module(package)
            if hasattr(module, "register_robotics_envs"):
                gymnasium.register_envs(module)
    elif package in registry.admitted():
        importlib.import_module(package)
    elif package and not _registered_by(package):
        raise ConfigError(
            f"task.package={package!r}: expected one of {', '.join(KNOWN)}, or a package of your own that you admit: "
            f"--allow {package}. In Python import it first, and give no task.processes"
        )


def _registered_by(package: str) -> bool:
    """Return whether a module, which the program has imported itself, has registered ids."""
    if package not in sys.modules:
        return False
    entries = (spec.entry_point for spec in gymnasium.registry.values())
    modules = (e.partition(":")[0] if isinstance(e, str) else getattr(e, "__module__", "") for e in entries)
    return any(module == package or module.startswith(f"{package}.") for module in modules)


def make(
    name: str,
    num_envs: int,
    seed: int = 0,
    *,
    package: str = "",
    text: str | None = None,
    horizon: int | None = None,
    dt: Positive | None = None,
    keys: tuple[str, ...] = (),
    names: tuple[str, ...] | None = None,
    cameras: tuple[str, ...] | None = None,
    size: Side | None = None,
    success: str | None = None,
    reward: Literal["sparse", "own"] = "sparse",
    options: dict[str, Any] | None = None,
    processes: Natural = 0,
    **workers: Unpack[FarmOptions],
) -> GymVecEnv:
    """Build a Gymnasium id as a VecEnv.

    Args:
        name: the id, e.g. FetchReach-v4.
        seed: names the stream of training episodes.
        package: module to import so that the id is registered.
        text: instruction; None: ours where there is one, else the id.
        horizon: steps to truncation, at most the id's own; None: those.
        dt: seconds per step; None: 1 / metadata["render_fps"].
        keys: parts of a Dict observation that make up the state, in this order, with dots into nested dicts
            (achieved_goal.kettle); (): all vectors, in the space's order.
        names: of all elements of the state, in that order; None: the keys, counted.
        cameras: pictures to observe; "render" is the env's own render(); None: those of the observation.
        size: pixels of the square pictures; None: as they come.
        success: the key of info that tells success, with dots into nested dicts; it has to be there when an episode
            ends. "terminated": the env ends an episode only where it succeeded. None: as the module says.
        reward: sparse: success is the reward and ends the episode; own: the env's reward, and success ends nothing.
        options: keyword arguments of the env.
        processes: 0: all envs in this process; else so many workers.
        workers: how these run, see FarmOptions.

    Raises:
        ConfigError: an unknown package or id, no time limit, or an option that opens a window or a file.
    """
    _check_options(options or {}, "task.options")
    register(package)
    if name not in gymnasium.registry:
        hint = "" if package else " Of your own: task.package=<its module> --allow <its module>."
        raise ConfigError(f"task.name={name!r}: no such id is registered. {closest(name, gymnasium.registry)}{hint}")
    own = gymnasium.registry[name].max_episode_steps
    steps, options = steps_of(horizon, own, own), dict(options or {})
    chosen: dict[str, Any] = {"keys": keys, "cameras": cameras, "size": size}
    facts = {"options": options, "own_reward": reward == "own"} | ({} if success is None else {"told_by": success})
    facts |= {key: value for key, value in chosen.items() if value not in ((), None)}
    one = functools.partial(make_one, package, name, options, **chosen)
    envs = vector_env(one, name, num_envs, horizon=steps, processes=processes, **workers, success=success,
                      sparse=reward == "sparse", **facts)  # fmt: skip
    action = FETCH if name.startswith("Fetch") and package == "gymnasium_robotics" else None
    said = TEXTS.get(name, name) if text is None else text
    return GymVecEnv(envs, seed=seed, instructions=said, horizon=steps, dt=dt, action=action, names=names)


def _check_options(value: Any, where: str) -> None:
    """Refuse what a stranger's config may ask of any env: windows, files, and pictures that fill the memory.

    Raises:
        ConfigError: names the option.
    """
    key = where.rpartition(".")[2]
    if key == "render_mode" and value not in (None, "rgb_array"):
        raise ConfigError(f"{where}: expected null or 'rgb_array', found {value!r}: no windows are opened")
    if value is not None and _FILES.search(key):
        raise ConfigError(f"{where}: files are not read by options. Register an env of your own, task.package=…")
    if isinstance(value, str) and ("/" in value or "\\" in value or value.startswith("~")):
        raise ConfigError(f"{where}: expected no path, found {value!r}. Register an env of your own, task.package=…")
    sides = value if isinstance(value, list | tuple) else (value,)
    if _SIDES.search(key) and any(isinstance(n, int | float) and not abs(n) <= _WIDEST for n in sides):
        raise ConfigError(f"{where}: expected at most {_WIDEST}, found {value!r}")
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for name, inner in items:
        _check_options(inner, f"{where}.{name}")
