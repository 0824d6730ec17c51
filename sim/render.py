"""Pictures of one env: MuJoCo's off-screen renderer, opened at the first picture."""

from __future__ import annotations

import atexit
import copy
import functools
import importlib
import os
import threading
import weakref
from typing import Any, Literal, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError, closest
from robopolicy.sim.tasks.base import Task
from robopolicy.utils.point_clouds import Intrinsics

Array = NDArray[np.float64]
Offset = tuple[float, float, float]
Quality = Literal["fast", "full"]
_FULL = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)
_MAX_GEOMS = 500


def open_gl(width: int, height: int, backends: tuple[str, ...] = ("egl", "osmesa")) -> Any:
    """Return a current off-screen GL context from MUJOCO_GL's backend, or the first of `backends` that works.

    mujoco itself reads MUJOCO_GL when it is imported, and fails there where the library is missing; opening the
    context here keeps state-only runs free of GL, in any order of imports.
    """
    wanted = os.environ.get("MUJOCO_GL", "").lower()
    failures = []
    for backend in (wanted,) if wanted in ("egl", "osmesa", "glfw") else backends:
        # PyOpenGL settles on one platform per process; mujoco's modules set it, but refuse another that is set.
        platform = os.environ.pop("PYOPENGL_PLATFORM", None)
        try:
            context = importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
            context.make_current()
            return context
        except Exception as error:  # a missing library shows as ImportError, AttributeError or RuntimeError
            failures.append(f"{backend}: {type(error).__name__}: {error}")
            if platform is not None:
                os.environ["PYOPENGL_PLATFORM"] = platform
    raise ConfigError(
        f"cannot open an off-screen GL context (MUJOCO_GL={wanted or None!r}): {'; '.join(failures)}. "
        "Install libegl1 (MUJOCO_GL=egl) or libosmesa6 (MUJOCO_GL=osmesa); `robopolicy doctor` checks both."
    )


@functools.cache
def choose_gl() -> None:
    """Set MUJOCO_GL for the renderers of others where nothing says it and there is no display: they would try a window.

    Without a library for off-screen pictures nothing is set, and states alone go on.
    """
    if "MUJOCO_GL" in os.environ or os.environ.get("DISPLAY"):
        return
    for backend in ("egl", "osmesa"):
        try:
            open_gl(64, 64, (backend,)).free()
        except ConfigError:
            continue
        os.environ["MUJOCO_GL"] = backend
        return


class DepthImage(NamedTuple):
    """A rendered depth image and its camera."""

    depth: Array  # [h w] m along the optical axis
    camera: Intrinsics
    pose: Array  # [4 4] of the optical frame in the world: x right, y down, z forward


class Canvas:
    """Draws one model off screen. "fast" has no shadows, reflections or multisampling: 14-16 times faster in software.

    The GL context is opened at the first picture. Of a model that is simulated, `vis` is changed and nothing else.
    """

    def __init__(self, model: mujoco.MjModel, quality: Quality = "fast", *, hidden: tuple[int, ...] = ()) -> None:
        """`hidden`: groups of geoms that are not drawn."""
        self._model, self._quality, self._hidden = model, quality, hidden
        self._gl: Any = None

    def draw(self, data: mujoco.MjData, camera: str, height: int, width: int) -> NDArray[np.uint8]:
        """Return uint8 [3 h w] of `data`, whose kinematics are up to date.

        Raises:
            ConfigError: no such camera, a size beyond the model's off-screen buffer, or no GL.
        """
        rect, _ = self._render(data, camera, height, width)
        pixels = np.empty((height, width, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(pixels, None, rect, self._context)
        return np.ascontiguousarray(pixels[::-1].transpose(2, 0, 1))  # GL's first row is the lowest

    def depth(self, data: mujoco.MjData, camera: str, height: int, width: int) -> DepthImage:
        """Return the depth along the optical axis, of the same view as `draw`; raises as it does."""
        rect, index = self._render(data, camera, height, width)
        buffer = np.empty((height, width), dtype=np.float32)
        mujoco.mjr_readPixels(None, buffer, rect, self._context)
        model = self._model
        near, far = (float(v * model.stat.extent) for v in (model.vis.map.znear, model.vis.map.zfar))
        pose = np.eye(4)
        pose[:3, :3] = data.cam_xmat[index].reshape(3, 3) * [1, -1, -1]  # MuJoCo's cameras look along -z, y up
        pose[:3, 3] = data.cam_xpos[index]
        view = Intrinsics.of_view(float(np.deg2rad(model.cam_fovy[index])), height, width)
        return DepthImage(near / (1 - buffer[::-1].astype(np.float64) * (1 - near / far)), view, pose)

    def _render(self, data: mujoco.MjData, camera: str, height: int, width: int) -> tuple[mujoco.MjrRect, int]:
        """Draw into the off-screen buffer; return its rectangle and the camera's index."""
        model = self._model
        names = [model.camera(i).name for i in range(model.ncam)]
        if camera not in names:
            raise ConfigError(f"camera={camera!r} is not in the scene. {closest(camera, names)}")
        if height > model.vis.global_.offheight or width > model.vis.global_.offwidth:
            limit = (model.vis.global_.offheight, model.vis.global_.offwidth)
            raise ConfigError(f"picture size must be at most {limit} (height, width), found {(height, width)}")
        if self._gl is None:
            self._open()
        try:
            self._gl.make_current()
        except Exception as error:  # OpenGL's own
            if self._thread == threading.get_ident():
                raise
            raise ConfigError(
                f"pictures: this env drew in another thread before, and GL refuses this one ({type(error).__name__}). "
                "Draw in that thread, or make an env in each"
            ) from error
        view, index = self._view, names.index(camera)
        view.type, view.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, index
        mujoco.mjv_updateScene(model, data, self._option, None, view, int(mujoco.mjtCatBit.mjCAT_ALL), self._scene)
        rect = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(rect, self._scene, self._context)
        return rect, index

    def _open(self) -> None:
        model = self._model
        if self._quality == "fast":
            model.vis.quality.offsamples = 0
            model.vis.quality.shadowsize = 0
        self._thread = threading.get_ident()
        self._gl = open_gl(model.vis.global_.offwidth, model.vis.global_.offheight)
        # GL must go before mujoco's own exit handler ends the display (atexit runs last in, first out).
        me = weakref.ref(self)

        def close() -> None:
            if (canvas := me()) is not None:
                canvas.close()

        atexit.register(close)
        self._scene = mujoco.MjvScene(model, maxgeom=max(_MAX_GEOMS, 2 * model.ngeom + model.nsite))
        self._option, self._view = mujoco.MjvOption(), mujoco.MjvCamera()
        for group in self._hidden:
            self._option.geomgroup[group] = False
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        if self._quality == "fast":
            self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
            self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False

    def close(self) -> None:
        if self._gl is not None:
            self._context.free()
            self._gl.free()
            self._gl = None


class Camera:
    """Renders states of `task`, of a copy of its model. `offset`: m in the world, by which fixed cameras are moved."""

    def __init__(
        self, model: mujoco.MjModel, task: Task, at: Any, quality: Quality, offset: Offset = (0, 0, 0)
    ) -> None:
        if quality not in ("fast", "full"):
            raise ConfigError(f"render_quality must be 'fast' or 'full', found {quality!r}")
        if not np.isfinite(offset).all():
            raise ConfigError(f"camera_offset: expected three finite numbers in m, found {tuple(offset)}")
        self._source, self._task, self._at, self._quality = model, task, at, quality
        self.offset = tuple(offset)
        self._canvas: Canvas | None = None

    def picture(self, state: Array, extra: Array, camera: str, height: int, width: int) -> NDArray[np.uint8]:
        """Return uint8 [3 h w] of one physics `state` [1+nq+nv] and task state `extra` [E]."""
        return self._prepared(state, extra).draw(self._data, camera, height, width)

    def depth(self, state: Array, extra: Array, camera: str, height: int, width: int) -> DepthImage:
        """Return the depth image of the same."""
        return self._prepared(state, extra).depth(self._data, camera, height, width)

    def _prepared(self, state: Array, extra: Array) -> Canvas:
        """Bring the copy of the model to `state`."""
        if self._canvas is None:
            self._model = copy.copy(self._source)  # decorate() may change it
            # MuJoCo reads no pos of a geom or site that was compiled into its body's own frame, as targets are.
            self._model.geom_sameframe[:], self._model.site_sameframe[:] = 0, 0
            self._model.cam_pos[self._model.cam_bodyid == 0] += self.offset
            self._data, self._canvas = mujoco.MjData(self._model), Canvas(self._model, self._quality)
        model, data = self._model, self._data
        mujoco.mj_setState(model, data, state, _FULL)
        self._task.decorate(self._at, model, data, extra)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        return self._canvas

    def close(self) -> None:
        if self._canvas is not None:
            self._canvas.close()
            self._canvas = None
