"""Gymnasium ids as tasks: gym-pusht, Fetch, and what is not admitted."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from robopolicy.cli.main import main
from robopolicy.core.errors import ConfigError, RobopolicyError, SpecError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import STATE
from robopolicy.sim.gymnasium.spec import _warn_of_rate
from robopolicy.sim.suites import gymnasium as gymnasium_task
from robopolicy.sim.suites.vector_env import vector_env


class Slide(gymnasium.Env):
    """Dense reward; success, not an end of its own, from the third step on."""

    def __init__(self, unit: str = "m") -> None:
        self.observation_space, self.action_space = Box(-9, 9, (1,), np.float32), Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(1, self.t, np.float32), -0.5, False, False, {"is_success": self.t >= 3}


class Says(Slide):
    """`says`: what the infos of the steps are, the last one from then on; the env ends its episodes with the fourth."""

    def __init__(self, says: tuple = ({},), success: bool = True) -> None:
        super().__init__()
        self.says, self.success = says, success

    def step(self, action):
        obs, reward, *_ = super().step(action)
        info = self.says[min(self.t, len(self.says)) - 1]
        return obs, reward, self.success and self.t == 4, False, dict(info)


class Seeds32(Slide):
    """Draws from a generator of NumPy's old kind, whose seeds have 32 bits."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=None)
        self.start = np.random.RandomState(seed).uniform()  # as gym-aloha does
        return np.full(1, self.start, np.float32), {}


class Int32Seeds(Seeds32):
    """Whose seeds are a C int; it begins elsewhere where it is given options."""

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=None if seed is None else int(np.int32(seed)))
        return (obs if options is None else obs + options["further"]), info


gymnasium.register("Int32Seeds-v0", entry_point=Int32Seeds, max_episode_steps=6)
gymnasium.register("Slide-v0", entry_point=Slide, max_episode_steps=6)
gymnasium.register("Seeds32-v0", entry_point=Seeds32, max_episode_steps=6)
gymnasium.register("Endless-v0", entry_point=Slide)
gymnasium.register("Says-v0", entry_point=Says, max_episode_steps=6)


def success_flags(steps: int = 4, **how) -> list[bool]:
    """Success at each step."""
    env = gymnasium_task.make("Says-v0", 1, **how)
    env.reset(torch.tensor([1]))
    return [bool(env.step(torch.zeros(1, 1)).success) for _ in range(steps)]


def options(*says: dict, success: bool = True) -> dict:
    return {"options": {"says": says, "success": success}}


def test_success_is_what_is_named():
    goal = options({"goal_achieved": False}, {"goal_achieved": True})
    assert success_flags(2, success="goal_achieved", **goal) == [False, True]
    assert success_flags(
        2, success="episode.won", **options({"episode": {"won": np.bool_(False)}}, {"episode": {"won": 1.0}})
    )[1]
    assert success_flags(3, success="success", **options({}, {"success": None}, {"success": True})) == [
        False,
        False,
        True,
    ]
    assert success_flags(4, success="terminated", **options({})) == [False, False, False, True]
    assert success_flags(6, success="terminated", **options({}, success=False)) == [False] * 6
    env = gymnasium_task.make("Says-v0", 1, success="terminated", **options({}))
    env.reset(torch.tensor([1]))
    steps = [env.step(torch.zeros(1, 1)) for _ in range(4)]
    assert [s.reward.item() for s in steps] == [0, 0, 0, 1] and bool(steps[3].terminated)


@pytest.mark.parametrize(
    ("named", "how", "said"),
    [
        (None, options({"goal_achieved": True}), "goal_achieved"),
        (None, options({}), "nothing"),
        (None, options({"success": False}, {"goal_achieved": True}, success=False), "goal_achieved"),
        ("won", options({"goal_achieved": True}), "goal_achieved"),
        ("success", options({}, {"success": False}, {"coverage": 1.0}, success=False), "coverage"),  # absent at the end
        (None, options({"success": 0.25}), "0.25"),
        ("coverage", options({"coverage": 0.25}), "coverage"),
        ("coverage", options({"coverage": float("nan")}), "coverage"),
        ("coverage", options({"coverage": "False"}), "coverage"),
        (None, options({"success": True, "is_success": False}), "is_success"),
    ],
)
@pytest.mark.parametrize("horizon", [6, 5])  # cut by the id's own limit, and by ours
@pytest.mark.parametrize("own_reward", [False, True])
def test_what_does_not_tell_success_is_refused(named, how, said, horizon, own_reward):
    with pytest.raises(ConfigError, match=r"task\.success") as error:
        success_flags(6, success=named, horizon=horizon, reward="own" if own_reward else "sparse", **how)
    assert said in str(error.value)


def test_a_step_whose_length_is_a_guess_is_warned_of_once_and_can_be_set(caplog):
    _warn_of_rate.cache_clear()
    assert [gymnasium_task.make("Slide-v0", 1).spec.dt for _ in range(2)] == [0.05, 0.05]
    assert [r.getMessage() for r in caplog.records if "task.dt=" in r.getMessage()] == [
        "Slide-v0: metadata['render_fps'] is missing, so a step lasts 0.05 s (20 Hz). Declare it in the env, or set "
        "task.dt=<seconds per step>; in Python adapt(…, dt=…)."
    ]
    assert gymnasium_task.make("Slide-v0", 1, dt=0.1).spec.dt == 0.1


@pytest.mark.slow  # a process imports torch
def test_a_worker_refuses_what_does_not_tell_success():
    envs = vector_env(functools.partial(Says, ({"goal_achieved": True},)), "says", 1, horizon=6, processes=1)
    envs.reset(seed=[1])
    with pytest.raises(RobopolicyError, match=r"task\.success.*goal_achieved"):
        envs.step(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize(("value", "said"), [(0.5, "terminated"), (None, "terminated")])
def test_an_end_that_is_none_is_refused(value, said):
    class Half(Slide):
        def step(self, action):
            obs, reward, _, truncated, info = super().step(action)
            return obs, reward, value, truncated, info

    envs = vector_env(Half, "half", 1, horizon=6, processes=0)
    envs.reset(seed=[1])
    with pytest.raises(SpecError, match=said):
        envs.step(np.zeros((1, 1), np.float32))


def test_an_env_that_cannot_be_made_is_told_by_its_options():
    with pytest.raises(ConfigError, match=r"task\.options"):
        gymnasium_task.make("Slide-v0", 1, options={"units": "cm"})
    with pytest.raises(ConfigError, match=r"task\.horizon"):
        gymnasium_task.make("Slide-v0", 1, horizon=0)


def test_success_ends_and_is_the_reward_unless_asked_otherwise():
    env = gymnasium_task.make("Slide-v0", 1)
    env.reset(torch.tensor([1]))
    steps = [env.step(torch.zeros(1, 1)) for _ in range(3)]
    assert [s.reward.item() for s in steps] == [0, 0, 1] and [bool(s.terminated) for s in steps] == [False, False, True]
    env = gymnasium_task.make("Slide-v0", 1, reward="own")
    env.reset(torch.tensor([1]))
    steps = [env.step(torch.zeros(1, 1)) for _ in range(6)]
    assert [s.reward.item() for s in steps] == [-0.5] * 6 and not any(s.terminated for s in steps)
    assert [bool(s.success) for s in steps] == [False, False, True, True, True, True] and bool(steps[5].truncated)


def test_a_task_is_another_with_other_options():
    digests = {
        gymnasium_task.make("Slide-v0", 1, **how).spec.digest
        for how in ({}, {"horizon": 4}, {"options": {"unit": "cm"}}, {"reward": "own"}, {"success": "is_success"})
    }
    assert len(digests) == 5


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"name": "Slid-v0"}, "no such id is registered. Did you mean 'Slide-v0'"),
        ({"name": "Slid-v0"}, "Of your own: task.package=<its module> --allow <its module>"),
        ({"name": "Slide-v0", "horizon": 7}, "expected 1 to 6 steps, found 7"),
        ({"name": "Endless-v0"}, "There is no time limit of its own: say task.horizon=<steps>"),
        (
            {"name": "Slide-v0", "package": "os"},
            "package='os': expected one of gym_pusht, gymnasium_robotics, or",
        ),
    ],
)
def test_what_is_wrong_is_named(how, said):
    with pytest.raises(ConfigError) as error:
        gymnasium_task.make(num_envs=1, **how)
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["Seeds32-v0", "Int32Seeds-v0"])
def test_an_env_whose_seeds_have_32_bits_starts_and_repeats(name):
    env = gymnasium_task.make(name, 2)
    seeds = episode_seeds("test", 0, 2)
    first = env.reset(seeds)[STATE]
    assert torch.equal(env.reset(seeds)[STATE], first) and float(first[0]) != float(first[1])
    assert not torch.equal(env.reset(episode_seeds("train", 0, 2))[STATE], first), "splits differ"


def test_an_id_that_the_program_registered_needs_no_admission():
    env = gymnasium_task.make("Slide-v0", 1, package=__name__)
    assert env.spec.id
    with pytest.raises(ConfigError, match="In Python import it first, and give no task"):
        gymnasium_task.make("Slide-v0", 1, package="json")  # imported, and registers none


def test_a_task_without_an_expert_says_so(tmp_path, capsys):
    task = ["task=gymnasium", "task.name=Slide-v0"]
    assert main(["demos", *task, f"out={tmp_path}/data", "episodes=1", "num_envs=1"]) == 1
    assert "Slide-v0: has no scripted expert" in capsys.readouterr().err


def test_fetch_says_what_its_actions_mean():
    pytest.importorskip("gymnasium_robotics", reason="needs ./scripts/setup.sh suites")
    env = gymnasium_task.make("FetchReach-v4", 1, package="gymnasium_robotics")
    assert (env.spec.action.names, env.spec.dt, env.spec.horizon) == (("dx", "dy", "dz", "gripper"), 0.04, 50)
    env.reset(torch.tensor([1]))
    before = env.step(torch.zeros(1, 4)).next_obs[STATE]
    after = env.step(torch.tensor([[0.0, 0.0, 1.0, 0.0]])).next_obs[STATE]
    moved = (after - before)[0, torch.tensor([3, 4, 5])]  # achieved_goal 0:3, desired_goal 3:6, observation 6:
    assert torch.equal(moved, torch.zeros(3)), "the goal stays"
    assert float((after - before)[0, 2]) > 0.003, "the hand rises"


def test_pusht_is_as_its_authors_made_it():
    pytest.importorskip("gym_pusht", reason="needs ./scripts/setup.sh suites")
    env = gymnasium_task.make("gym_pusht/PushT-v0", 1, package="gym_pusht")
    assert (env.spec.dt, env.spec.horizon, env.spec.action.high) == (0.1, 300, (512.0, 512.0))
    assert env.reset(torch.tensor([1]))[STATE].shape == (1, 5)
