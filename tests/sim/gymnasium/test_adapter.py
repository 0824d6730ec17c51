"""Gymnasium both ways."""

from __future__ import annotations

import enum
import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

import robopolicy.sim.gym_envs
from robopolicy import sim
from robopolicy.core.errors import CheckpointError, ConfigError, SpecError
from robopolicy.core.rng import episode_seeds, keyed_normal
from robopolicy.core.types import ENV_STATE, STATE, Stateful, VecEnv
from robopolicy.sim.gymnasium.adapter import GymVecEnv, adapt
from robopolicy.sim.gymnasium.spec import _named


class Counter(gymnasium.Env):
    """Counts its steps; ends after `length`; the observation is [seed, count]."""

    def __init__(self, length: int = 3, as_dict: bool = False):
        self.length, self.as_dict = length, as_dict
        box = Box(-1e9, 1e9, (2,), np.float32)
        image = Box(0, 255, (8, 6, 3), np.uint8)
        self.observation_space = Dict({"camera": image, "numbers": box}) if as_dict else box
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def _obs(self):
        numbers = np.array([self.seed, self.count], np.float32)
        return {"camera": np.full((8, 6, 3), self.count, np.uint8), "numbers": numbers} if self.as_dict else numbers

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.count = -1 if seed is None else seed, 0
        return self._obs(), {}

    def step(self, action):
        self.count += 1
        ended = self.count >= self.length
        return self._obs(), 1.0, ended, ended, {"success": ended}


class Plain(VectorEnv):
    """A NEXT_STEP vector env of somebody else's, without reset masks."""

    def __init__(self, lengths):
        self.inner = SyncVectorEnv([lambda k=k: Counter(k) for k in lengths])
        self.num_envs, self.metadata = len(lengths), {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = self.inner.single_observation_space
        self.single_action_space, self.spec = self.inner.single_action_space, None

    def reset(self, *, seed=None, options=None):
        assert not options
        return self.inner.reset(seed=seed)

    def step(self, actions):
        return self.inner.step(actions)


def counters(mode: AutoresetMode, lengths=(3, 5), seed=0, **kw) -> GymVecEnv:
    envs = SyncVectorEnv([lambda k=k: Counter(k, **kw) for k in lengths], autoreset_mode=mode)
    return adapt(envs, seed=seed, horizon=9)


def named(kind: AutoresetMode | str, seed=0) -> GymVecEnv:
    return adapt(Plain((3, 5)), seed=seed, horizon=9) if kind == "plain" else counters(kind, seed=seed)


def episodes(env: GymVecEnv, steps=12) -> list[tuple[int, float]]:
    """(episode_seed, the seed that the env was given) of all episodes begun, in order."""
    obs = env.reset()
    seen = list(zip(env.episode_seed.tolist(), obs[STATE][:, 0].tolist(), strict=True))
    for _ in range(steps):
        step = env.step(torch.zeros(2, 1))
        for i in (step.ended & (step.obs[STATE][:, 1] == 0)).nonzero()[:, 0].tolist():
            seen.append((int(env.episode_seed[i]), step.obs[STATE][i, 0].item()))
    return seen


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_successors_are_right_in_every_autoreset_mode(mode):
    env = counters(mode)
    assert isinstance(env, VecEnv)
    env.reset(torch.tensor([7, 8]))
    seen = [env.step(torch.zeros(2, 1)) for _ in range(6)]
    assert [s.next_obs[STATE][0, 1].item() for s in seen] == [1, 2, 3, 1, 2, 3]
    assert [s.obs[STATE][0, 1].item() for s in seen] == [1, 2, 0, 1, 2, 0]
    assert [s.next_obs[STATE][1, 1].item() for s in seen] == [1, 2, 3, 4, 5, 1]
    assert [s.terminated[0].item() for s in seen] == [False, False, True] * 2
    assert not any(s.truncated.any() for s in seen), "where both are set, the episode terminated"
    assert [s.success[0].item() for s in seen] == [False, False, True] * 2
    assert all(s.valid.all() and (s.steps == 1).all() for s in seen)
    assert seen[0].obs is seen[0].next_obs


def test_seeds_are_handed_out_where_the_mode_allows_it():
    env = counters(AutoresetMode.DISABLED)
    env.reset(torch.tensor([7, 8, 9]))
    for _ in range(3):
        step = env.step(torch.zeros(2, 1))
    assert step.obs[STATE][:, 0].tolist() == [9, 8] and env.episode_seed.tolist() == [9, 8]
    with pytest.raises(ConfigError, match="DISABLED"):
        counters(AutoresetMode.SAME_STEP).reset(torch.tensor([1, 2, 3]))


MODES = [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, "plain"]


@pytest.mark.parametrize("kind", MODES)
def test_training_episodes_differ_in_their_noise_and_follow_from_the_seed(kind):
    seen = episodes(named(kind))
    names = torch.tensor([name for name, _ in seen])
    assert len(seen) >= 6 and len(names.unique()) == len(names)
    noise = keyed_normal(names, torch.zeros_like(names), (4,))
    assert len(noise.unique(dim=0)) == len(names)
    assert episodes(named(kind)) == seen, "a function of the seed"
    assert not {name for name, _ in episodes(named(kind, seed=1))} & set(names.tolist())


@pytest.mark.parametrize("kind", MODES)
def test_training_episodes_are_begun_with_seeds_of_the_training_split(kind):
    # The observation holds the seed that `reset` was given as float32.
    stream = episode_seeds("train", 3, 8)
    seen = episodes(named(kind, seed=3))
    asked = len(seen) if kind in (AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP) else 2
    assert [name for name, _ in seen[:asked]] == stream[:asked].tolist()
    assert [given for _, given in seen[:asked]] == stream[:asked].float().tolist()
    # The others the env began by itself: their names are no seeds, so nobody waits for them or repeats them.
    assert all(name < 0 and given == -1 for name, given in seen[asked:])


@pytest.mark.parametrize("kind", MODES)
def test_a_loaded_env_goes_on_with_the_episodes_after_those_begun(kind):
    env, other = named(kind, seed=2), named(kind)
    assert isinstance(env, Stateful) and not env.spec.resumable
    before = episodes(env)
    other.load_state_dict(env.state_dict())
    after = episodes(other)
    assert after == episodes(env)
    assert not {name for name, _ in after} & {name for name, _ in before}
    state = {**env.state_dict(), "num_envs": 3}
    with pytest.raises(CheckpointError, match="num_envs=3"):
        other.load_state_dict(state)


class Reuses(Counter):
    """Writes its counter into one array; its other part is one array that never changes."""

    def __init__(self, length: int = 3, copy: bool = False):
        super().__init__(length)
        self.copy, self.own, self.fixed = copy, np.zeros(1, np.float32), np.full(1, 0.1)
        self.observation_space = Dict({"count": Box(-9, 9, (1,), np.float32), "fixed": Box(-9, 9, (1,), np.float32)})

    def _obs(self):
        self.own[:] = self.count
        return {"count": self.own.copy() if self.copy else self.own, "fixed": self.fixed}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("copy", [True, False])
def test_an_array_that_an_env_writes_into_again_is_never_a_last_observation(mode, copy):
    env = adapt(SyncVectorEnv([lambda: Reuses(copy=copy)] * 2, autoreset_mode=mode), horizon=9)
    env.reset()
    if mode == AutoresetMode.SAME_STEP and not copy:
        with pytest.raises(SpecError, match=r"'count'.*DISABLED"):
            [env.step(torch.zeros(2, 1)) for _ in range(3)]
    else:
        seen = [env.step(torch.zeros(2, 1)).next_obs[STATE][0, 0].item() for _ in range(6)]
        assert seen == [1, 2, 3] * 2


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_episodes_of_async_envs_without_shared_memory_keep_their_seeds_or_are_refused(mode):
    class Tells(Counter):  # at the reset as well, as many do
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0], {"success": False}

    envs = AsyncVectorEnv([lambda: Tells(2)], shared_memory=False, autoreset_mode=mode)
    try:
        if mode == AutoresetMode.NEXT_STEP:  # Gymnasium resets an env again that was reset through a mask
            with pytest.raises(ConfigError, match=r"shared_memory.*DISABLED"):
                adapt(envs, horizon=9)
        else:
            env = adapt(envs, horizon=9)
            env.reset(torch.tensor([7, 8]))
            seen = [env.step(torch.zeros(1, 1)).next_obs[STATE][0].tolist() for _ in range(4)]
            assert seen == [[7, 1], [7, 2], [8, 1], [8, 2]]
    finally:
        envs.close()


def test_where_one_env_tells_no_success_only_what_that_env_tells_is_listed():
    class Tells(Counter):
        def __init__(self, key):
            super().__init__()
            self.key = key

        def step(self, action):
            return *super().step(action)[:4], {self.key: False}

    env = adapt(SyncVectorEnv([lambda k=k: Tells(k) for k in ("success", "won")]), horizon=9)
    env.reset()
    with pytest.raises(ConfigError, match=r"task\.success.*; found won \(env 1\)"):
        env.step(torch.zeros(2, 1))


def test_too_few_seeds_are_refused():
    with pytest.raises(ConfigError, match=r"M >= 2, found \(1,\)"):
        counters(AutoresetMode.DISABLED).reset(torch.tensor([1]))


def test_the_reset_step_of_a_foreign_next_step_env_is_marked():
    env = adapt(Plain((2, 4)), horizon=9)
    env.reset(torch.tensor([1, 2]))
    seen = [env.step(torch.zeros(2, 1)) for _ in range(5)]
    assert [s.valid[0].item() for s in seen] == [True, True, False, True, True]
    assert [s.steps[0].item() for s in seen] == [1, 1, 0, 1, 1]
    assert seen[2].truncated[0] and seen[2].reward[0] == 0 and seen[2].obs[STATE][0, 1] == 0
    assert all(s.valid[1] for s in seen[:4])


def test_dict_observations_become_our_features():
    env = counters(AutoresetMode.SAME_STEP, as_dict=True)
    env.reset()
    step = [env.step(torch.zeros(2, 1)) for _ in range(3)][-1]
    assert step.next_obs["observation.images.camera"].shape == (2, 3, 8, 6)
    assert step.next_obs["observation.images.camera"][0].unique().tolist() == [3]
    assert step.obs["observation.images.camera"][0].unique().tolist() == [0]
    assert env.spec.observation[STATE].shape == (2,)


class LeRobots(Counter):
    """Shows what LeRobot's envs show; pictures in a box, or in a Dict of them."""

    def __init__(self, cameras: bool = False, **others: Box):
        super().__init__()
        picture, number = Box(0, 255, (8, 6, 3), np.uint8), Box(-1e9, 1e9, (1,), np.float32)
        pixels = Dict({"top": picture, "wrist": picture}) if cameras else picture
        spaces = {"environment_state": number, "pixels": pixels, "agent_pos": Box(-1e9, 1e9, (2,), np.float32)}
        self.observation_space = Dict({**spaces, **others})

    def _obs(self):
        found = {k: np.full(v.shape, self.count, v.dtype) for k, v in self.observation_space.spaces.items()
                 if isinstance(v, Box)}  # fmt: skip
        if "pixels" not in found:
            found["pixels"] = {k: np.full((8, 6, 3), self.count, np.uint8) for k in ("top", "wrist")}
        return found | {"environment_state": np.array([100 + self.count], np.float32)}


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize(("cameras", "names"), [(False, ["pixels"]), (True, ["top", "wrist"])])
def test_lerobots_names_keep_their_meaning(mode, cameras, names):
    envs = SyncVectorEnv([lambda: LeRobots(cameras)] * 2, autoreset_mode=mode)
    env = adapt(envs, horizon=9)
    assert env.spec.observation[STATE].names == ("agent_pos_0", "agent_pos_1")
    assert env.spec.observation[ENV_STATE].names == ("environment_state_0",)
    assert [k for k in env.spec.observation if "images" in k] == [f"observation.images.{name}" for name in names]
    env.reset()
    step = [env.step(torch.zeros(2, 1)) for _ in range(3)][-1]
    assert (step.next_obs[STATE][0].tolist(), step.next_obs[ENV_STATE][0].tolist()) == ([3, 3], [103])
    assert (step.obs[STATE][0].tolist(), step.obs[ENV_STATE][0].tolist()) == ([0, 0], [100])
    assert step.next_obs[f"observation.images.{names[-1]}"].unique().tolist() == [3]
    called = adapt(envs, horizon=9, names=("x", "y", "z")).spec.observation
    assert (called[STATE].names, called[ENV_STATE].names) == (("x", "y"), ("z",))


class Nested(Counter):
    """Shows nested dicts."""

    def __init__(self):
        super().__init__()
        number, picture = Box(-1e9, 1e9, (1,), np.float32), Box(0, 255, (8, 6, 3), np.uint8)
        self.observation_space = Dict({"goal": Dict({"x": number, "inner": Dict({"y": number})}), "top": picture})

    def _obs(self):
        x, y = np.array([[self.count], [10 + self.count]], np.float32)
        return {"goal": {"x": x, "inner": {"y": y}}, "top": np.full((8, 6, 3), self.count, np.uint8)}


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_nested_dicts_are_flattened_in_the_spaces_order(mode):
    env = adapt(SyncVectorEnv([Nested] * 2, autoreset_mode=mode), horizon=9)
    env.reset()
    step = [env.step(torch.zeros(2, 1)) for _ in range(3)][-1]
    values = dict(zip(env.spec.observation[STATE].names, step.next_obs[STATE][0].tolist(), strict=True))
    assert values == {"goal.x_0": 3, "goal.inner.y_0": 13}
    assert step.next_obs["observation.images.top"].unique().tolist() == [3] and step.obs[STATE].min() == 0


@pytest.mark.parametrize(
    ("spaces", "said"),
    [
        ({"x": Box(0, 1, (1,)), "mode": Discrete(3)}, r"found \{'mode': 'Discrete'\}.*task\.keys=\[x\]"),
        ({"a.b": Box(0, 1, (1,)), "a": Dict({"b": Box(0, 1, (1,))})}, "two parts .* have one name"),
    ],
)
def test_parts_that_cannot_be_read_are_named_with_a_fix(spaces, said):
    class Others(Counter):
        observation_space = Dict(spaces)

        def __init__(self):
            self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    with pytest.raises(ConfigError, match=said):
        adapt(SyncVectorEnv([Others]), horizon=9)


def test_next_to_other_boxes_lerobots_names_are_joined_like_them():
    env = adapt(SyncVectorEnv([lambda: LeRobots(touch=Box(0, 1, (1,), np.float32))]), horizon=9)
    assert ENV_STATE not in env.spec.observation and env.spec.observation[STATE].shape == (4,)


def test_a_native_task_survives_the_round_trip():
    env = adapt(gymnasium.make_vec("robopolicy/Pick-v0", num_envs=3, horizon=4), horizon=4)
    native = sim.make("pick", 3, horizon=4)
    seeds = torch.arange(3)
    assert torch.equal(env.reset(seeds)[STATE], native.reset(seeds)[STATE])
    for _ in range(4):
        a, b = env.step(torch.full((3, 5), 0.01)), native.step(torch.full((3, 5), 0.01))
        assert torch.equal(a.next_obs[STATE], b.next_obs[STATE]) and torch.equal(a.truncated, b.truncated)
    assert a.truncated.all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", sim.task_names())
def test_gymnasiums_own_checker_passes(task):
    env = gymnasium.make(robopolicy.sim.gym_envs.gym_id(task), render_mode="rgb_array")
    check_env(env.unwrapped)
    first, _ = env.reset(seed=5)
    again, _ = env.reset(seed=5)
    assert np.array_equal(first, again) and not np.array_equal(first, env.reset(seed=6)[0])
    assert env.render().shape == (240, 320, 3)
    env.close()


@pytest.mark.filterwarnings("ignore")
def test_the_last_picture_of_an_episode_is_its_own():
    """The native env has begun the next episode by then."""
    env, ended, pictures = gymnasium.make(robopolicy.sim.gym_envs.gym_id("reach"), render_mode="rgb_array"), False, []
    env.reset(seed=5)
    while not ended:
        *_, terminated, truncated, _ = env.step(np.zeros(env.action_space.shape, np.float32))
        ended = terminated or truncated
        pictures.append(env.render().astype(int))
    env.reset()
    following = env.render().astype(int)
    assert np.abs(pictures[-1] - pictures[-2]).mean() < 0.1 * np.abs(pictures[-1] - following).mean()
    env.close()


def test_vector_seeds_of_every_kind_are_taken_and_others_refused():
    env = robopolicy.sim.gym_envs.GymVectorEnv(2, task="reach")
    first = [env.reset(seed=s)[0] for s in ([3, 4], (3, 4), np.array([3, 4]), [np.int64(3), 4])]
    assert all(np.array_equal(first[0], other) for other in first[1:])
    stream = [env.reset(seed=s)[0] for s in (7, np.int64(7), 8)]
    assert np.array_equal(stream[0], stream[1]) and not np.array_equal(stream[0], stream[2])
    for wrong in ([3], [3, None], [3, 0.5], [3, 4, 5]):
        with pytest.raises(ConfigError, match="seed"):
            env.reset(seed=wrong)
    with pytest.raises(ConfigError, match="reset_mask"):
        env.reset(options={"reset_mask": np.array([True, False])})


class Mode(enum.Enum):
    EASY = 1
    HARD = 2


def grow(x, k):
    return k * x


@pytest.mark.parametrize(
    ("one", "other"),
    [(Mode.EASY, Mode.HARD), (functools.partial(grow, k=1), functools.partial(grow, k=9)), (int, float)],
)
def test_an_option_is_named_by_what_it_is_and_not_by_where_it_lies(one, other):
    assert _named(one) != _named(other) and "0x" not in _named(one) + _named(lambda: 0) + _named(object())
