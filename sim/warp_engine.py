"""Step N copies of a model by MuJoCo Warp: one captured CUDA graph per control step, or plain launches on the CPU.

Imported where `physics="warp"` alone (the extra `warp`). MuJoCo Warp computes in float32 and adds in the order in which
threads finish, so results on a GPU differ in their last bits from run to run.
"""

import contextlib
import copy
import logging
import os
from collections.abc import Iterator
from typing import Any, no_type_check

import mujoco
import mujoco_warp as mjw
import numpy as np
import warp as wp
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError
from robopolicy.sim.engine import Array, accept, state_arrays

_log = logging.getLogger(__name__)
_GIB = 2**30
_STATE = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)
_UNKNOWN = int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)  # Warp never resets a diverged state, and refuses the flag
# Without these, grasped boxes turn in the hand (the general collider finds one contact between two boxes, where MuJoCo
# and Warp's collider of boxes find up to eight), and sensors are compiled that no model has (`compile_model`).
_WITHOUT = int(mujoco.mjtDisableBit.mjDSBL_NATIVECCD) | int(mujoco.mjtDisableBit.mjDSBL_SENSOR)


class WarpPhysics:
    """Hold the states of N simulations on the host, and advance them on a device (a Physics, see sim/physics.py).

    As with RolloutPhysics the solver starts cold at each control step. States and targets are copied to the device
    before a step, and states back after it.

    Args:
        model: the model that all envs share.
        num_envs: N.
        substeps: physics steps per `step`.
        device: "cuda", "cuda:1" …, or "cpu", which is for tests.
        nconmax: contacts of an env, on average over the envs, for which memory is kept.
        njmax: constraint rows of an env for which memory is kept.

    Raises:
        ConfigError: there is no such device, MuJoCo Warp lacks a feature of the model, or the memory is too small.
    """

    deterministic = False

    def __init__(
        self, model: mujoco.MjModel, *, num_envs: int, substeps: int, device: str, nconmax: int, njmax: int
    ) -> None:
        self.device = _device(device)
        self.substeps, self.nconmax, self.njmax = substeps, nconmax, njmax
        self.state, self.qpos, self.qvel = state_arrays(model, num_envs)
        model = copy.copy(model)
        model.opt.disableflags = model.opt.disableflags & ~_UNKNOWN | _WITHOUT
        self._graph: Any = None
        with wp.ScopedDevice(self.device):
            try:
                self._model = mjw.put_model(model)
            except NotImplementedError as error:
                raise ConfigError(f"task.physics=warp: MuJoCo Warp lacks a feature of this model: {error}") from error
            if self.device.is_cuda and not wp.is_conditional_graph_supported():  # CUDA before 12.4
                self._model.opt.graph_conditional = False
            with _memory(self.device, num_envs):
                self._data = mjw.make_data(model, nworld=num_envs, nconmax=nconmax, njmax=njmax)
                size, nu = self.state.shape[1], model.nu
                self._on_device = [wp.zeros((num_envs, k), dtype=float) for k in (size, nu, nu)]  # state, start, end
                self._peaks = wp.zeros(3, dtype=int)
        pinned = {"device": "cpu", "pinned": self.device.is_cuda}
        self._on_host = [wp.zeros(a.shape, dtype=float, **pinned) for a in self._on_device]
        self._peaks_on_host = wp.zeros(3, dtype=int, **pinned)
        self._host = [a.numpy() for a in self._on_host]  # views

    def step(self, ctrl: Array, start: Array | None = None) -> NDArray[np.bool_]:
        """Advance all envs, see Physics.

        Raises:
            ConfigError: contacts or constraint rows exceed the memory kept for them; `state` is as before the step.
        """
        state, begin, end = self._host
        state[:], begin[:], end[:] = self.state, ctrl, ctrl
        if start is not None:
            begin[:, : start.shape[1]] = start
        with wp.ScopedDevice(self.device), _memory(self.device, len(state)):
            self._upload()
            if self._graph is None:
                _log.info("physics=warp: compiling for this model, the first time on a machine takes minutes")
                self._launch()  # compiles, which a capture cannot
                if self.device.is_cuda:
                    with wp.ScopedCapture() as capture:
                        self._launch()
                    self._graph = capture.graph
                    self._upload()
                    wp.capture_launch(self._graph)
                else:
                    self._graph = False
            elif self._graph:
                wp.capture_launch(self._graph)
            else:
                self._launch()
            wp.copy(self._on_host[0], self._on_device[0])
            wp.copy(self._peaks_on_host, self._peaks)
            wp.synchronize_device()
        self._check_capacity()
        return accept(state, self.state)

    def close(self) -> None:
        self._graph = None

    def _upload(self) -> None:
        for target, source in zip(self._on_device, self._on_host, strict=True):
            wp.copy(target, source)

    def _launch(self) -> None:
        """Run one control step on the device, from and to the state there."""
        m, d = self._model, self._data
        state, begin, end = self._on_device
        self._peaks.zero_()
        d.qacc_warmstart.zero_()
        mjw.set_state(m, d, state, _STATE)
        for k in range(self.substeps):
            wp.launch(_ramp, dim=d.ctrl.shape, inputs=[begin, end, 1.0 - (k + 1) / self.substeps], outputs=[d.ctrl])
            mjw.step(m, d)
            wp.launch(_peak, dim=d.nworld, inputs=[d.nacon, d.ncollision, d.nefc], outputs=[self._peaks])
        mjw.get_state(m, d, state, _STATE)

    def _check_capacity(self) -> None:
        contacts, pairs, rows = self._peaks_on_host.numpy().tolist()
        n = len(self.state)
        if max(contacts, pairs) > n * self.nconmax:
            found = max(contacts, pairs) / n
            raise ConfigError(
                f"task.warp.nconmax={self.nconmax}: too small, {n} envs had {found:.1f} contacts each on average. "
                f"Set task.warp.nconmax={round(1.5 * found) + 1}."
            )
        if rows > self.njmax:
            raise ConfigError(
                f"task.warp.njmax={self.njmax}: too small, an env had {rows} constraint rows. "
                f"Set task.warp.njmax={round(1.5 * rows)}."
            )


@wp.kernel(enable_backward=False)
@no_type_check  # compiled by Warp
def _ramp(begin: wp.array2d[float], end: wp.array2d[float], left: float, out: wp.array2d[float]) -> None:
    """Write `end` [N nu] plus the fraction `left` of the way back to `begin` [N nu] into `out`."""
    n, i = wp.tid()
    out[n, i] = end[n, i] + left * (begin[n, i] - end[n, i])


@wp.kernel(enable_backward=False)
@no_type_check  # compiled by Warp
def _peak(contacts: wp.array[int], pairs: wp.array[int], rows: wp.array[int], peaks: wp.array[int]) -> None:
    """Raise `peaks` to the contacts and colliding pairs of all envs together, and to the most rows of an env."""
    n = wp.tid()
    wp.atomic_max(peaks, 2, rows[n])
    if n == 0:
        wp.atomic_max(peaks, 0, contacts[0])
        wp.atomic_max(peaks, 1, pairs[0])


def _device(name: str) -> Any:
    """Return Warp's device of this name."""
    if name == "cpu":  # for tests: compiled fast, not to be fast
        wp.config.optimization_level, wp.config.cpu_compiler_flags = 0, ""
    wp.config.log_level = max(wp.config.log_level, wp.LOG_WARNING)
    wp.init()
    known = {device.alias: device for device in wp.get_devices()}
    if name == "cuda" and (count := len(wp.get_cuda_devices())):  # each process of torchrun its own
        name = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % count}"
    if name not in known:
        raise ConfigError(
            f"task.warp.device={name}: no such device; Warp found {', '.join(known)}. `robopolicy doctor` checks the "
            "GPU. On the CPU: task.physics=rollout (the default)."
        )
    return known[name]


@contextlib.contextmanager
def _memory(device: Any, num_envs: int) -> Iterator[None]:
    """Name the setting where the device's memory does not suffice."""
    try:
        yield
    except RuntimeError as error:
        if "allocat" not in str(error).lower():
            raise
        free = f" ({device.free_memory / _GIB:.1f} GiB free)" if device.is_cuda else ""
        raise ConfigError(
            f"num_envs={num_envs}: too many for the memory of {device}{free}. "
            f"Try num_envs={max(1, num_envs // 2)}, or a smaller task.warp.njmax."
        ) from error
