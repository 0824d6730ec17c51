"""Choose what advances N simulations: MuJoCo in C++ threads, or MuJoCo Warp on a GPU."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import mujoco
import numpy as np
from numpy.typing import NDArray

from robopolicy.config.schema import Count
from robopolicy.core.errors import ConfigError
from robopolicy.sim.engine import RolloutPhysics
from robopolicy.sim.randomization import ModelBank
from robopolicy.utils.install_commands import pip_install

Array = NDArray[np.float64]
Engine = Literal["rollout", "warp"]
_CPU = "On the CPU: task.physics=rollout (the default)."


class Physics(Protocol):
    """The states of N simulations and the call that advances them all."""

    state: Array  # [N 1+nq+nv] time, qpos, qvel; written by resets and `load_state_dict`
    qpos: Array  # [N nq] view of `state`
    qvel: Array  # [N nv] view of `state`
    deterministic: bool  # the same states and controls give the same bits, for any N and any neighbours

    def step(self, ctrl: Array, start: Array | None = None) -> NDArray[np.bool_]:
        """Advance all envs by one control step.

        Args:
            ctrl: [N nu] servo targets at the end of the step.
            start: [N k] targets of the first k servos before the step: they ramp from there to `ctrl` linearly, as a
                robot's own interpolator does; without it all targets jump at once.

        Returns:
            [N] bool: the env diverged (non-finite or absurd numbers). Its state stays the last good one.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class WarpOptions:
    """Options of `physics="warp"`.

    Args:
        device: "cuda", "cuda:1" …, or "cpu" for tests: it is many times slower than `physics="rollout"`.
        nconmax: contacts of an env, on average over the envs, for which memory is kept; None: as the task says.
        njmax: constraint rows of an env for which memory is kept; None: as the task says.
    """

    device: str = "cuda"
    nconmax: Count | None = None
    njmax: Count | None = None


def make_physics(
    engine: Engine, model: mujoco.MjModel, bank: ModelBank | None, *, num_envs: int, substeps: int,
    threads: int | None = None, warp: WarpOptions | None = None, capacity: tuple[int, int] = (32, 160),
) -> Physics:  # fmt: skip
    """Build the physics of N envs.

    Args:
        engine: "rollout" (MuJoCo in C++ threads) or "warp" (MuJoCo Warp).
        bank: models of their own for the envs (domain randomisation); None: all share `model`.
        substeps: physics steps per control step.
        threads: C++ threads of "rollout"; None: one per available core.
        warp: options of "warp".
        capacity: contacts and constraint rows of an env for which "warp" keeps memory by default.

    Raises:
        ConfigError: no such engine, MuJoCo Warp is not installed, no such GPU, or an option that the engine lacks.
    """
    how: dict[str, Any] = {"num_envs": num_envs, "substeps": substeps}
    if engine == "rollout":
        if warp is not None:
            raise ConfigError("task.warp: expected no value with task.physics=rollout. Add task.physics=warp.")
        return RolloutPhysics(bank.models if bank else model, threads=threads, **how)
    if engine != "warp":
        raise ConfigError(f"task.physics: expected 'rollout' or 'warp', found {engine!r}")
    if bank is not None:
        raise ConfigError(
            "task.randomization: mass, friction and damping of each env are not supported by task.physics=warp; "
            f"sensor_noise and latency are. {_CPU}"
        )
    if importlib.util.find_spec("mujoco_warp") is None:
        install = pip_install("robopolicy[warp]")
        raise ConfigError(f"task.physics=warp needs MuJoCo Warp. Install it: {install}. {_CPU}")
    from robopolicy.sim.warp_engine import WarpPhysics

    options = warp or WarpOptions()
    nconmax, njmax = options.nconmax or capacity[0], options.njmax or capacity[1]
    return WarpPhysics(model, device=options.device, nconmax=nconmax, njmax=njmax, **how)
