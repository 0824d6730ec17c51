"""Film Gymnasium envs by their own `render`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv, VectorEnv
from PIL import Image
from torch import Tensor

from robopolicy.core.errors import SpecError
from robopolicy.sim.render import choose_gl

RGB = "rgb_array"  # the render mode whose pictures are arrays


def picture(env: VectorEnv, index: int, camera: str | None, height: int, name: str) -> Tensor:
    """Return the picture of env `index`, uint8 [3 height w]; w keeps the picture's proportions.

    Args:
        camera: None, the only one. name: of the env, for messages.

    Raises:
        SpecError: the env was not built with render_mode="rgb_array", its picture is not RGB of uint8, or a camera
            is named.
    """
    if camera is not None:
        raise SpecError(f"{name}: camera: its render() has one alone, found {camera!r}. Leave it away.")
    if env.render_mode != RGB:
        raise SpecError(
            f"{name}: render_mode: expected {RGB!r} for films, found {env.render_mode!r}. List it in the env's "
            "metadata['render_modes'], take it as render_mode=, and build the env by make_vec(…, "
            f"render_mode={RGB!r}); for an id whose entry point is a function say task.options.render_mode={RGB}."
        )
    choose_gl()
    inner: Any = env.unwrapped
    if isinstance(inner, SyncVectorEnv):
        shown = inner.envs[index].render()
    elif hasattr(inner, "render_env"):  # it renders one alone
        shown = inner.render_env(index)
    else:
        shown = (env.render() or ())[index]
    if not (isinstance(shown, np.ndarray) and shown.dtype == np.uint8 and shown.ndim == 3 and shown.shape[2] == 3):
        found = f"{shown.dtype} {shown.shape}" if isinstance(shown, np.ndarray) else type(shown).__name__
        raise SpecError(f"{name}: render(): expected a picture of uint8 [h w 3], found {found}")
    width = max(2, round(shown.shape[1] * height / shown.shape[0]))
    way = Image.Resampling.NEAREST if shown.shape[0] < height else Image.Resampling.BOX
    return torch.from_numpy(np.array(Image.fromarray(shown).resize((width, height), way))).permute(2, 0, 1)
