"""Parts of a Gymnasium observation: nested dicts, a declared order, the env's own picture."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.sim.gymnasium.chosen_parts import ChosenParts, nested


class Nested(gymnasium.Env):
    """Counts its parts: goal.a 1, goal.b 2 and 3, speed 4; a picture of one colour."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        number = lambda n: Box(-9, 9, (n,), np.float32)  # noqa: E731
        self.observation_space = Dict(
            {
                "speed": number(1),
                "goal": Dict({"a": number(1), "b": number(2)}),
                "top": Box(0, 255, (8, 8, 3), np.uint8),
            }
        )
        self.action_space = number(1)

    def reset(self, *, seed=None, options=None):
        number = lambda *n: np.array(n, np.float32)  # noqa: E731
        picture = np.full((8, 8, 3), 7, np.uint8)
        return {"speed": number(4), "goal": {"a": number(1), "b": number(2, 3)}, "top": picture}, {}

    def render(self):
        return np.full((16, 16, 3), 9, np.uint8)


def test_nested_parts_have_names_with_dots_in_the_spaces_order():
    env = ChosenParts(Nested())
    assert list(env.observation_space.spaces) == ["goal.a", "goal.b", "speed", "top"]
    assert nested(Nested().observation_space) and not nested(env.observation_space)
    obs, _ = env.reset()
    assert env.observation_space.contains(obs)


def test_parts_are_taken_in_the_declared_order():
    env = ChosenParts(Nested(), keys=("speed", "goal.b"), cameras=())
    obs, _ = env.reset()
    assert list(env.observation_space.spaces) == ["speed", "goal.b"]
    assert np.concatenate(list(obs.values())).tolist() == [4, 2, 3]


def test_the_envs_own_picture_is_a_camera():
    env = ChosenParts(Nested("rgb_array"), cameras=("render", "top"), size=4)
    obs, _ = env.reset()
    assert obs["render"].shape == obs["top"].shape == (4, 4, 3)
    assert (obs["render"] == 9).all() and (obs["top"] == 7).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keys": ("sped",)}, "task.keys.*'speed'"),
        ({"keys": ("speed", "speed")}, "task.keys.*twice"),
        ({"keys": ("top",)}, r"task.keys: 'top' is a picture. Give task.cameras=\[top\]"),
        ({"cameras": ("tob",)}, "task.cameras.*'top'"),
        ({"cameras": ("render",)}, "task.cameras=render.*rgb_array"),
    ],
)
def test_what_there_is_not_is_named(options, said):
    with pytest.raises(ConfigError, match=said):
        ChosenParts(Nested(), **options)


def test_a_render_that_shows_nothing_is_named():
    env = Nested("rgb_array")
    env.render = lambda: None
    with pytest.raises(ConfigError, match=r"task\.cameras=render: expected a picture .* found NoneType"):
        ChosenParts(env, cameras=("render",))


def test_an_observation_without_a_declared_part_is_named():
    env = Nested()
    chosen = ChosenParts(env)
    env.reset = lambda **_: ({"speed": np.zeros(1, np.float32)}, {})
    with pytest.raises(SpecError, match=r"has no 'goal\.a', which its space declares; it has \['speed'\]"):
        chosen.reset()


def test_a_size_of_no_picture_is_named():
    with pytest.raises(ConfigError, match=r"task.size: expected null, found 4: no picture is observed"):
        ChosenParts(Nested("rgb_array"), cameras=(), size=4)
