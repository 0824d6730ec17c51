"""ManiSkill's registry: which tasks and robots there are, their control modes, and the models that they need."""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import re
import types
from typing import Any

import torch

from robopolicy.core.errors import ConfigError, closest
from robopolicy.sim.gymnasium.film import RGB
from robopolicy.sim.suites.base import needs
from robopolicy.utils.suite_packages import broken

with needs("maniskill"):
    import mani_skill.envs
    from mani_skill.agents.registration import REGISTERED_AGENTS
    from mani_skill.utils import assets, download_asset
    from mani_skill.utils.registration import REGISTERED_ENVS

    mani_skill.logger.setLevel(logging.ERROR)  # or it warns of its own scenes at every episode

CONTROL = "pd_ee_delta_pose"  # of robots that have it; the others have their own default


@functools.cache
def _spare_the_collector() -> None:
    """Take what is loaded by now, and stays, out of Python's garbage collection.

    The suite collects garbage whenever it makes a scene, which is before every episode here: 0.2 s of going through the
    modules of Torch and others, where the scene itself takes 0.05 s.
    """
    gc.collect()
    gc.freeze()


def suites_own(
    name: str, num_envs: int, sim_backend: str, robot: str | None, control: str | None, *,
    pictures: bool | None = False, **more: Any,
) -> Any:  # fmt: skip
    """Return the suite's env of a task, with its batch axis.

    Args:
        sim_backend: physx_cpu, which has one scene, or physx_cuda.
        robot: its uid; None: the task's own. control: its control mode; None: its default.
        pictures: True: in observations; None: in films alone; False: nowhere.
        more: further options of the suite's env.
    """
    _spare_the_collector()
    chosen = {} if robot is None else {"robot_uids": robot}
    where = "gpu" if sim_backend == "physx_cuda" or torch.cuda.is_available() else "cpu"
    backend = "none" if pictures is False else where
    if pictures is None:
        more["render_mode"] = RGB
    modes = REGISTERED_ENVS[name].cls.SUPPORTED_REWARD_MODES
    return REGISTERED_ENVS[name].make(
        obs_mode="rgb" if pictures else "state", reward_mode="none" if "none" in modes else modes[0],
        control_mode=control, sim_backend=sim_backend, render_backend=backend, num_envs=num_envs, **chosen, **more,
    )  # fmt: skip


def _refuse(question: str) -> bool:
    """Answer the suite's question whether it may download models, which a command cannot wait for.

    Raises:
        ConfigError: always, with the command that downloads them.
    """
    asked = re.search(r"(?:Robot|Environment) (\S+)", question)
    name = asked[1] if asked else "--help"
    raise ConfigError(
        f"{name} needs models that are not on this machine. Download them: python -m "
        f"mani_skill.utils.download_asset {name}"
    )


@functools.cache
def control_of(name: str, robot: str | None, control: str | None) -> str:
    """Return the control mode: `control`, else `CONTROL` where the robot has it, else the robot's own default.

    Raises:
        ConfigError: no such robot or control mode, several robots, or models that are not on this machine.
    """
    _check_models(name, robot)
    known = _control_modes(robot, name)
    default = CONTROL if CONTROL in known else known[0]
    if control is not None and control not in known:
        said = closest(control, known)
        raise ConfigError(f"task.control={control!r}: the robot of {name} has no such control mode. {said}")
    return str(control or default)


def _control_modes(robot: str | None, name: str) -> list[str]:
    """Return the control modes of a task's robot, its default first.

    A scene is made only where they cannot be told without: after one on the CPU, none on a GPU starts in a process.
    """
    uids = (robot,) if robot is not None else robots_of(name)
    try:
        kind: Any = REGISTERED_AGENTS[uids[0]].agent_cls
        blank = kind.__new__(kind)
        blank.robot = types.SimpleNamespace(active_joints=())  # whose names a few robots list
        return list(blank._controller_configs)
    except Exception:  # any error of a robot that is not there
        try:
            probe = suites_own(name, 1, "physx_cpu", robot, None, pictures=None)
        except RuntimeError as error:  # no Vulkan device
            raise broken("maniskill", error) from error
        known = list(getattr(probe.agent, "supported_control_modes", ()))
        probe.close()
        return known or [CONTROL]


def robots_of(name: str) -> tuple[str, ...]:
    """Return the uids of a task's own robots; () where it has none, or takes any."""
    spec = REGISTERED_ENVS[name]
    taken = inspect.signature(spec.cls.__init__).parameters.get("robot_uids")
    default = None if taken is None else taken.default
    uids = spec.default_kwargs.get("robot_uids", default)
    return (uids,) if isinstance(uids, str) else tuple(uids) if isinstance(uids, tuple | list) else ()


def _check_models(name: str, robot: str | None) -> None:
    """Check that a task has one robot, and that all models are on this machine; the suite itself would ask.

    Raises:
        ConfigError: several robots, an unknown one, or the command that downloads the models.
    """
    if robot is None and len(uids := robots_of(name)) > 1:
        raise ConfigError(f"task.name={name!r}: has {len(uids)} robots ({', '.join(uids)}); tasks here have one.")
    if robot is not None and robot not in REGISTERED_AGENTS:
        raise ConfigError(f"task.robot={robot!r}: ManiSkill has no such robot. {closest(robot, REGISTERED_AGENTS)}")
    asked = list(REGISTERED_ENVS[name].asset_download_ids or ())
    for uid in (robot,) if robot is not None else robots_of(name):
        asked += REGISTERED_AGENTS[uid].asset_download_ids if uid in REGISTERED_AGENTS else []
    each = [one for key in asked for one in _sources(key)]
    if missing := [one for one in each if not assets.is_data_source_downloaded(one)]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ConfigError(
            f"task.name={name!r}: needs models that are not on this machine ({', '.join(missing[:3])}{more}). Download "
            f"them: python -m mani_skill.utils.download_asset {' '.join(asked)}"
        )


def _sources(key: str) -> list[str]:
    """Return the data sources of an asset's name, which may name a group."""
    return list(assets.expand_data_group_into_individual_data_source_ids(key)) if key in assets.DATA_GROUPS else [key]


download_asset.prompt_yes_no = _refuse
