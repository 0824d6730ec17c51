"""Envs of others are filmed by their own render()."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from robopolicy.core.errors import SpecError
from robopolicy.core.types import Step
from robopolicy.evaluation.saved import filming
from robopolicy.sim.gymnasium.adapter import GymVecEnv, adapt
from robopolicy.sim.suites import gymnasium as gymnasium_task


class Lamp(gymnasium.Env):
    """Shows its step as brightness, 12 × 16 pixels."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    shown: Any = None

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space, self.action_space = Box(-9, 9, (1,), np.float32), Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), 0.0, False, False, {"success": False}

    def render(self) -> Any:
        return np.full((12, 16, 3), 10 * self.t, np.uint8) if self.shown is None else self.shown


class Blind(Lamp):
    metadata = {"render_modes": [], "render_fps": 10}  # noqa: RUF012


class Modeless(Lamp):
    """Lists the mode and takes none."""

    def __init__(self) -> None:
        super().__init__()


for made in (Lamp, Blind, Modeless):
    gymnasium.register(f"{made.__name__}-v0", entry_point=made, max_episode_steps=5)


def stepped(env: GymVecEnv) -> Step:
    env.reset(torch.tensor([1, 2]))
    return env.step(torch.zeros(2, 1))


def lamps(mode: str | None) -> GymVecEnv:
    envs = SyncVectorEnv([lambda: Lamp(mode)] * 2, autoreset_mode=AutoresetMode.DISABLED)
    return adapt(envs, horizon=5)


@pytest.mark.parametrize("make", [lambda: lamps("rgb_array"), lambda: gymnasium_task.make("Lamp-v0", 2)])
def test_pictures_are_the_envs_own_in_their_proportions(make: Any) -> None:
    env = make()
    stepped(env)
    picture = env.render(1, height=24)
    assert picture.shape == (3, 24, 32) and picture.dtype == torch.uint8 and picture.unique().tolist() == [10]
    assert env.render(0, height=6).shape == (3, 6, 8)


def test_the_mode_of_films_is_not_part_of_the_task() -> None:
    digests = {adapt(gymnasium.make_vec("Lamp-v0", num_envs=1, **how)).spec.digest
               for how in ({}, {"render_mode": "rgb_array"})}  # fmt: skip
    assert len(digests) == 1


@pytest.mark.parametrize("name", ["Blind-v0", "Modeless-v0"])
def test_without_pictures_the_message_says_how_to_get_them(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    env = gymnasium_task.make(name, 2)
    stepped(env)
    filming(lambda: [env.render(0)])
    said = capsys.readouterr().out
    assert f"no films: {name}: render_mode: expected 'rgb_array' for films, found None" in said and "doctor" not in said


@pytest.mark.parametrize("shown", [[[0]], np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3))])
def test_other_pictures_are_refused(shown: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env = lamps("rgb_array")
    stepped(env)
    monkeypatch.setattr(Lamp, "shown", shown)
    with pytest.raises(SpecError, match=r"render\(\): expected a picture of uint8 \[h w 3\]"):
        env.render(0)
    with pytest.raises(SpecError, match="camera"):
        env.render(0, camera="top")
