"""Step N copies of a model in C++ threads.

One small interface (`Physics`) hides which MuJoCo API does the stepping; today `mujoco.rollout.Rollout`'s
persistent thread pool, which every MuJoCo from 3.3 on has.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import mujoco
import numpy as np
from mujoco import rollout
from numba import njit
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError

_FULL = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)
_HUGE = 1e6  # a position or velocity beyond this is divergence (MuJoCo's own bound is 1e10)


if mujoco.get_mju_user_warning() is None:
    # By default MuJoCo writes its warnings (a diverged state) to MUJOCO_LOG.TXT in the working directory; `step`
    # reports divergence to the caller, so a debug line is enough.
    mujoco.set_mju_user_warning(lambda message: logging.getLogger(__name__).debug("mujoco: %s", message))


def available_cores() -> int:
    """Return the number of cores for this process: its share of those that it may run on, where torchrun started it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
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


class Physics:
    """State of N simulations and the call that advances them all.

    The solver starts cold (rollout zeroes the warm start, `Task.xml` turns it off), so a trajectory is a function of
    state and controls alone: the same bits for any N, thread count, neighbours, or a save and resume between.

    Args:
        model: one shared model, or a list of N of the same sizes (domain randomisation).
        substeps: physics steps per `step`.
        threads: C++ threads; None: one per available core. 1 runs on the calling thread.
    """

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
            raise ConfigError(f"Physics needs one model or one per env: expected {num_envs}, found {len(models)}")
        self.models = models
        self.substeps = substeps
        self.threads = max(1, min(threads or available_cores(), num_envs))
        m = models[0]
        size = mujoco.mj_stateSize(m, _FULL)
        if size != 1 + m.nq + m.nv:
            raise ConfigError(f"unexpected physics state layout: {size} numbers for nq {m.nq} and nv {m.nv}")
        self.state = np.zeros((num_envs, size))  # [N 1+nq+nv]: time, qpos, qvel
        self.qpos: NDArray[np.float64] = self.state[:, 1 : 1 + m.nq]  # [N nq] views
        self.qvel: NDArray[np.float64] = self.state[:, 1 + m.nq :]  # [N nv]
        self._out = np.empty((num_envs, substeps, size))
        self._ctrl = np.empty((num_envs, substeps, m.nu))
        self._data = [mujoco.MjData(m) for _ in range(self.threads)]
        self._pool = rollout.Rollout(nthread=self.threads if self.threads > 1 else 0)
        # Small chunks keep both threads busy to the end: contact-rich envs cost several times more than others.
        self._chunk = max(1, num_envs // (self.threads * 16))

    def step(self, ctrl: NDArray[np.float64], start: NDArray[np.float64] | None = None) -> NDArray[np.bool_]:
        """Advance all envs by `substeps`.

        Args:
            ctrl: [N nu] servo targets at the end of the step.
            start: [N k] targets of the first k servos before the step: they ramp from there to `ctrl` linearly, as a
                robot's own interpolator does; without it all targets jump at once.

        Returns:
            [N] bool: the env diverged (non-finite or absurd numbers). Its state stays the last good one.
        """
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
        bad = np.empty(len(self.state), dtype=np.bool_)
        _accept(self._out, self.state, bad)
        return bad

    def close(self) -> None:
        self._pool.close()


@njit(cache=True, nogil=True)
def _ramp(start: NDArray[np.float64], end: NDArray[np.float64], out: NDArray[np.float64]) -> None:
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
def _accept(out: NDArray[np.float64], state: NDArray[np.float64], bad: NDArray[np.bool_]) -> None:
    """state [N D] ← the last of `out` [N S D] where all its numbers are sound; bad [N] tells where not."""
    for n in range(out.shape[0]):
        sound = True
        for i in range(out.shape[2]):
            sound &= abs(out[n, -1, i]) < _HUGE  # NaN compares false
        if sound:
            state[n] = out[n, -1]
        bad[n] = not sound
