"""Step N copies of a model in C++ threads: `mujoco.rollout.Rollout`'s pool, which every MuJoCo from 3.3 on has."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from mujoco import rollout
from numba import njit
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError
from robopolicy.utils.cgroups import cpu_quota

Array = NDArray[np.float64]

_FULL = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)
_HUGE = 1e6  # a position or velocity beyond this is divergence (MuJoCo's own bound is 1e10)


if mujoco.get_mju_user_warning() is None:
    # By default MuJoCo writes its warnings (a diverged state) to MUJOCO_LOG.TXT in the working directory; `step`
    # reports divergence to the caller, so a debug line is enough.
    mujoco.set_mju_user_warning(lambda message: logging.getLogger(__name__).debug("mujoco: %s", message))


def available_cores() -> int:
    """Return the number of cores for this process: its share of those that it may use, where torchrun started it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    cores = math.ceil(min(cores, cpu_quota()))
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def compile_model(xml: str) -> mujoco.MjModel:
    """Compile MJCF, with MuJoCo's own auto-reset off: it would turn a diverged state into a fake fresh one."""
    model = mujoco.MjModel.from_xml_string(xml)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    if model.na or model.nplugin or model.nmocap or model.nsensor:
        # The state below is [time, qpos, qvel]; mocap is allowed for pictures only, through `Task.decorate`.
        found = {k: getattr(model, k) for k in ("na", "nplugin", "nmocap", "nsensor")}
        raise ConfigError(f"models must have no activations, plugins, mocap bodies or sensors; found {found}")
    return model


def state_arrays(model: mujoco.MjModel, num_envs: int) -> tuple[Array, Array, Array]:
    """Return the states [N 1+nq+nv] (time, qpos, qvel) as zeros, and views of qpos [N nq] and qvel [N nv] in them.

    Raises:
        ConfigError: MuJoCo's full state of this model is laid out otherwise.
    """
    size = mujoco.mj_stateSize(model, _FULL)
    if size != 1 + model.nq + model.nv:
        raise ConfigError(f"unexpected physics state layout: {size} numbers for nq {model.nq} and nv {model.nv}")
    state = np.zeros((num_envs, size))
    return state, state[:, 1 : 1 + model.nq], state[:, 1 + model.nq :]


class RolloutPhysics:
    """Hold the states of N simulations, and advance them on the CPU (a Physics, see sim/physics.py).

    The solver starts cold (rollout zeroes the warm start, `Task.xml` turns it off), so a trajectory is a function of
    state and controls alone: the same bits for any N, thread count, neighbours, or a save and resume between.

    Args:
        model: one shared model, or a list of N of the same sizes (domain randomisation).
        substeps: physics steps per `step`.
        threads: C++ threads; None: one per available core. 1 runs on the calling thread.
    """

    deterministic = True

    def __init__(
        self,
        model: mujoco.MjModel | Sequence[mujoco.MjModel],
        *,
        num_envs: int,
        substeps: int,
        threads: int | None = None,
    ) -> None:
        models = [model] * num_envs if isinstance(model, mujoco.MjModel) else list(model)
        if len(models) != num_envs:
            raise ConfigError(f"physics: expected one model or one per env, {num_envs}; found {len(models)}")
        self.models = models
        self.substeps = substeps
        self.threads = max(1, min(threads or available_cores(), num_envs))
        m = models[0]
        self.state, self.qpos, self.qvel = state_arrays(m, num_envs)
        self._out = np.empty((num_envs, substeps, self.state.shape[1]))
        self._ctrl = np.empty((num_envs, substeps, m.nu))
        self._data = [mujoco.MjData(m) for _ in range(self.threads)]
        self._pool = rollout.Rollout(nthread=self.threads if self.threads > 1 else 0)
        # Small chunks keep both threads busy to the end: contact-rich envs cost several times more than others.
        self._chunk = max(1, num_envs // (self.threads * 16))

    def step(self, ctrl: Array, start: Array | None = None) -> NDArray[np.bool_]:
        """Advance all envs, see Physics."""
        _ramp(ctrl if start is None else start, ctrl, self._ctrl)
        self._pool.rollout(
            self.models,
            self._data,
            initial_state=self.state,
            control=self._ctrl,
            skip_checks=True,
            nstep=self.substeps,
            state=self._out,
            chunk_size=self._chunk,
        )
        return accept(self._out[:, -1], self.state)

    def close(self) -> None:
        self._pool.close()


@njit(cache=True, nogil=True)
def _ramp(start: Array, end: Array, out: Array) -> None:
    """out [N S nu] ← from `start` [N k] (its first k columns) linearly to `end` [N nu], which the last substep has."""
    substeps = out.shape[1]
    for n in range(out.shape[0]):
        for s in range(substeps):
            left = 1.0 - (s + 1) / substeps
            for i in range(out.shape[2]):
                out[n, s, i] = end[n, i]
            for i in range(start.shape[1]):
                out[n, s, i] += left * (start[n, i] - end[n, i])


@njit(cache=True, nogil=True)
def accept(new: NDArray[Any], state: Array) -> NDArray[np.bool_]:
    """Copy `new` [N D] into `state` where all of an env's numbers are sound, and return [N] where they are not."""
    bad = np.empty(len(state), dtype=np.bool_)
    for n in range(len(state)):
        sound = True
        for i in range(state.shape[1]):
            sound &= abs(new[n, i]) < _HUGE  # NaN compares false
        if sound:
            for i in range(state.shape[1]):
                state[n, i] = new[n, i]
        bad[n] = not sound
    return bad
