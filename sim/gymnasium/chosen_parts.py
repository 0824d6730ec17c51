"""Choose and order the parts of a Gymnasium observation, nested dicts included; add the env's own picture."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict
from PIL import Image

from robopolicy.core.errors import ConfigError, SpecError, closest
from robopolicy.sim.gymnasium.film import RGB
from robopolicy.sim.gymnasium.observations import PIXELS, is_rgb, leaves

RENDER = "render"  # among cameras: what the env's render() shows


class ChosenParts(gymnasium.ObservationWrapper):
    """Makes a flat Dict of an env's observation, its vectors in a declared order.

    Parts of nested dicts have names with dots: `achieved_goal.kettle`. A bare Box is `main`.

    Args:
        keys: vectors to observe, in this order; (): all, in the space's order.
        cameras: pictures to observe, "render" for the env's own render(); None: those of the observation.
        size: pixels of the square pictures; None: as they come.

    Raises:
        ConfigError: the observation has no such part, or the env does not render arrays.
    """

    def __init__(
        self, env: gymnasium.Env, *, keys: tuple[str, ...] = (), cameras: tuple[str, ...] | None = None,
        size: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(env)
        parts = dict(leaves(env.observation_space))
        pictures = [key for key, space in parts.items() if isinstance(space, Box) and is_rgb(space)]
        vectors = [key for key in parts if key not in pictures]
        if seen := [key for key in keys if key in pictures]:
            raise ConfigError(f"task.keys: {seen[0]!r} is a picture. Give task.cameras=[{seen[0]}].")
        _check(keys, vectors, "task.keys", "the observation has no part")
        _check(cameras or (), [*pictures, RENDER], "task.cameras", "there is no picture")
        self._keys = keys or tuple(vectors)
        self._cameras, self._size = tuple(pictures) if cameras is None else tuple(cameras), size
        if size is not None and not self._cameras:
            raise ConfigError(
                f"task.size: expected null, found {size}: no picture is observed. Name one: task.cameras=[{RENDER}]"
            )
        if RENDER in self._cameras and RENDER not in pictures:
            if env.render_mode != RGB:
                raise ConfigError(
                    f"task.cameras={RENDER}: the env was made with render_mode={env.render_mode!r}, expected {RGB!r}. "
                    "List it in the env's metadata['render_modes'] and take render_mode= in the constructor."
                )
            env.reset(seed=0)
            shown: Any = env.render()
            if not (isinstance(shown, np.ndarray) and shown.ndim == 3):
                raise ConfigError(
                    f"task.cameras={RENDER}: expected a picture [height width 3] of the env's render(), found "
                    f"{type(shown).__name__}"
                )
            parts[RENDER] = Box(0, 255, shown.shape, dtype=np.uint8)
        spaces = OrderedDict((key, parts[key]) for key in self._keys)
        for name in self._cameras:
            spaces[name] = self._sized(parts[name])
        self.observation_space = Dict(spaces)

    def observation(self, observation: Any) -> dict[str, Any]:
        given = dict(leaves(observation))
        if lacking := [key for key in (*self._keys, *self._cameras) if key not in given and key != RENDER]:
            raise SpecError(f"the observation has no {lacking[0]!r}, which its space declares; it has {sorted(given)}")
        seen = {key: given[key] for key in self._keys}
        for name in self._cameras:
            seen[name] = self._small(given[name] if name in given else self.env.render())
        return seen

    def _sized(self, space: Any) -> Any:
        if self._size is None:
            return space
        first = space.shape[0] == 3
        return Box(0, 255, (3, self._size, self._size) if first else (self._size, self._size, 3), dtype=np.uint8)

    def _small(self, picture: Any) -> Any:
        if self._size is None:
            return picture
        first = picture.shape[0] == 3
        shown = Image.fromarray(np.moveaxis(picture, 0, -1) if first else picture)
        small = np.array(shown.resize((self._size, self._size), Image.Resampling.BOX))
        return np.moveaxis(small, -1, 0) if first else small


def nested(space: gymnasium.Space) -> bool:
    """Return whether a space is a Dict that holds further ones, LeRobot's pictures aside."""
    return isinstance(space, Dict) and any(isinstance(s, Dict) for k, s in space.spaces.items() if k != PIXELS)


def _check(asked: tuple[str, ...], offered: list[str], key: str, problem: str) -> None:
    if repeated := sorted({name for name in asked if asked.count(name) > 1}):
        raise ConfigError(f"{key}: {repeated[0]!r} is named twice. Name each once.")
    if unknown := [name for name in asked if name not in offered]:
        raise ConfigError(f"{key}: {problem} {unknown[0]!r}. {closest(unknown[0], offered)}")
