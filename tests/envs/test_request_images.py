"""Unrequested images are not rendered; requested ones equal those of an env that renders every image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from robopolicy import sim
from robopolicy.buffers.collector import RolloutCollector
from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import BASE_ACTION, STATE, Feature, Obs, Selective
from robopolicy.envs.grouped_env import GroupedEnv
from robopolicy.envs.wrappers import BaseActionEnv, HistoryEnv
from robopolicy.evaluation.rollout import evaluate
from robopolicy.policies.base import Policy
from robopolicy.sim.env import SimEnv
from robopolicy.training.off_policy import OffPolicyCollector
from robopolicy.world_models.evaluation.real_rollouts import roll_out

CAMERA, CLOUD = "observation.images.front", "observation.points.front"
TA = 3


def make(num_envs: int = 3, **options: Any) -> SimEnv:
    env = sim.make("reach", num_envs, cameras=("front",), image_size=(16, 16), horizon=5, **options)
    assert isinstance(env, SimEnv) and isinstance(env, Selective)
    return env


class EveryImage:
    """The env, but it does not know `request_images`: every picture is taken."""

    def __init__(self, env: SimEnv) -> None:
        self.env = env
        self.spec, self.num_envs, self.device = env.spec, env.num_envs, env.device
        self.reset, self.step = env.reset, env.step

    @property
    def episode_seed(self) -> Tensor:
        return self.env.episode_seed


class Looking(Policy):
    """Chunks that depend on every pixel, and a note of every picture that they were made of."""

    noise_shape = ()

    def __init__(self, env: SimEnv, *, frames: int = 1) -> None:
        super().__init__()
        spec = {k: env.spec.observation[k] for k in (STATE, CAMERA)}
        self.spec = PolicySpec(spec, env.spec.action, env.spec.dt, frames, TA, TA, env.spec.tasks)
        self.seen: list[Tensor] = []

    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        self.seen += list(obs[CAMERA].clone())
        pixels = obs[CAMERA].double().flatten(1)
        weight = torch.linspace(0.0, 1.0, pixels.shape[1], dtype=torch.float64)
        tilt = (pixels @ weight / 1e3).sin().float()[:, None, None]
        return tilt.expand(-1, TA, self.spec.action.dim) * torch.tensor(self.spec.action.high)


class Blind(Policy):
    """Plays the base's action; reads no picture."""

    noise_shape = ()

    def __init__(self, base: Policy) -> None:
        super().__init__()
        self.base = base
        observation = {STATE: base.spec.observation[STATE], BASE_ACTION: Feature((base.spec.action.dim,))}
        self.spec = replace(base.spec, observation=observation, horizon=1, n_action_steps=1)

    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        return obs[BASE_ACTION][:, None]

    def explore(self, obs: Obs, *, warmup: bool) -> Tensor:
        return obs[BASE_ACTION]


class Explorer:
    noise_shape = (1,)

    def __init__(self, env: SimEnv, **options: Any) -> None:
        self.policy = Looking(env, **options)

    def explore(self, obs: Obs, noise: Tensor) -> tuple[Tensor, Obs]:
        return self.policy.act(obs), {"picture": obs[CAMERA].clone()}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A note of every picture that a renderer takes."""
    from robopolicy.sim.render import Camera

    names: list[str] = []
    picture = Camera.picture
    monkeypatch.setattr(Camera, "picture", lambda self, *a: names.append(a[2]) or picture(self, *a))
    return names


def test_an_env_renders_requested_images_and_first_and_last_frames():
    env, whole = make(), make()
    env.reset(seeds := episode_seeds("test", 0, 20)), whole.reset(seeds)
    generator, black = torch.Generator().manual_seed(0), 0
    for t in range(11):
        action = torch.rand((3, env.spec.action.dim), generator=generator) - 0.5
        rows = torch.rand(3, generator=generator) < 0.4
        if t % 4:  # else it is not called, and all are taken: it holds for one step
            env.request_images(rows)
        else:
            rows = torch.ones(3, dtype=torch.bool)
        step, want = env.step(action), whole.step(action)
        assert torch.equal(step.truncated, want.truncated)
        for found, true, there in ((step.next_obs, want.next_obs, rows | step.truncated),
                                   (step.obs, want.obs, rows | step.ended)):  # fmt: skip
            assert torch.equal(found[STATE], true[STATE])
            assert torch.equal(found[CAMERA][there], true[CAMERA][there]) and bool(true[CAMERA].any())
            assert not bool(found[CAMERA][~there].any())
            black += int((~there).sum())
    assert black > 10


def test_a_rollout_is_the_same_with_fewer_pictures(taken: list[str]):
    def collect(env: Any) -> tuple[list[Any], int]:
        collector, before = RolloutCollector(Explorer(env), HistoryEnv(env, 1)), len(taken)
        collector.reset()
        return [collector.collect(14) for _ in range(2)], len(taken) - before

    (few, some), (all, many) = collect(make()), collect(EveryImage(make()))
    for found, want in zip(few, all, strict=True):
        assert bool(found.truncated.any()) and bool(found.record["picture"].flatten(1).any(1).all())
        for part in ("record", "final_obs", "last_obs"):
            assert all_equal(getattr(found, part), getattr(want, part)), part
        assert torch.equal(found.planned, want.planned) and torch.equal(found.truncated, want.truncated)
    assert some < 0.75 * many, "episodes of five steps: plans at 0 and 3, the successor of the cut, and a reset"


def test_an_evaluation_is_the_same_with_and_without_a_policy_on_top(taken: list[str]):
    seeds = episode_seeds("test", 0, 7)
    for top in (lambda base: base, Blind):
        found = []
        for env in (make(), EveryImage(make())):
            base, before = Looking(make(1)), len(taken)
            rows = evaluate(top(base), env, seeds)
            found.append((rows.frame.drop(columns="wall_s"), base.seen, len(taken) - before))
        (rows, seen, some), (want, all, many) = found
        assert rows.equals(want) and len(seen) == len(all) > 0
        assert all_equal(dict(enumerate(seen)), dict(enumerate(all)))
        assert some < 0.75 * many


class Algo:
    def __init__(self, policy: Blind) -> None:
        self.policy, self.explore = policy, policy.explore


def test_an_off_policy_collector_requests_images_where_the_base_will_plan(taken: list[str]):
    def play(env: Any) -> tuple[list[Tensor], list[Tensor], int]:
        base, before, actions = Looking(make(1)), len(taken), []
        wrapped, algo = BaseActionEnv(HistoryEnv(env, 1), base), Algo(Blind(base))
        collector, step_env, raw = OffPolicyCollector(algo, wrapped), wrapped.step, []
        wrapped.step = lambda action: raw.append(step_env(action)) or raw[-1]
        collector.start(wrapped.reset(episode_seeds("test", 0, 20)))
        for _ in range(12):
            _, step = collector.collect(warmup=False)
            actions.append(step.executed)
            assert all_equal(collector.features, algo.policy.replay_features(raw[-1].obs))
            assert all_equal(step.next_obs, algo.policy.replay_features(raw[-1].next_obs))
        return actions, base.seen, len(taken) - before

    (actions, seen, some), (played, all, many) = play(make()), play(EveryImage(make()))
    assert all_equal(dict(enumerate(seen)), dict(enumerate(all))) and some < 0.75 * many
    assert all_equal(dict(enumerate(actions)), dict(enumerate(played)))


def test_what_keeps_every_picture_gets_it():
    seeds = episode_seeds("test", 0, 5)
    _, few = roll_out(Looking(make(1)), make(), seeds)
    _, all = roll_out(Looking(make(1)), EveryImage(make()), seeds)
    for found, want in zip(few, all, strict=True):
        assert all_equal(found.obs, want.obs) and bool(found.obs[CAMERA].flatten(1).any(1).all())


def test_envs_that_wait_in_a_group_change_nothing():
    def collect(env: Any) -> Any:
        collector = RolloutCollector(Explorer(env), HistoryEnv(GroupedEnv(env, 2), 1))
        collector.reset()
        return [collector.collect(5) for _ in range(2)]

    for found, want in zip(collect(make(4)), collect(EveryImage(make(4))), strict=True):
        assert all_equal(found.record, want.record) and all_equal(found.last_obs, want.last_obs)
        assert torch.equal(found.truncated, want.truncated) and bool(found.truncated.any())


def test_a_request_that_no_step_followed_is_forgotten():
    env = make()
    env.request_images(torch.zeros(3, dtype=torch.bool))
    env.reset(episode_seeds("test", 0, 9))
    assert bool(env.step(torch.zeros(3, env.spec.action.dim)).obs[CAMERA].flatten(1).any(1).all())
    with pytest.raises(ConfigError, match=r"request_images: rows must be \[3\] bool, found \[2\]"):
        env.request_images(torch.zeros(2, dtype=torch.bool))


def test_a_history_of_frames_needs_them_all(taken: list[str]):
    env = make()
    collector = RolloutCollector(Explorer(env, frames=2), HistoryEnv(env, 2))
    collector.reset()
    taken.clear()
    rollout = collector.collect(4)  # no episode ends
    assert len(taken) == 4 * 3 and bool(rollout.record["picture"].flatten(2).any(2).all())


def all_equal(a: dict[Any, Tensor], b: dict[Any, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


class Feeling(Looking):
    """Reads a point cloud in place of a picture."""

    def __init__(self, env: SimEnv) -> None:
        super().__init__(make(1))
        self.spec = replace(self.spec, observation={k: env.spec.observation[k] for k in (STATE, CLOUD)})

    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        self.seen += list(obs[CLOUD].clone())
        return obs[CLOUD].mean((1, 2, 3))[:, None, None].expand(-1, TA, self.spec.action.dim)


def test_point_clouds_are_taken_where_a_policy_reads_them():
    env = sim.make("reach", 3, points=("front",), cloud={"count": 8, "size": (24, 24)}, horizon=5)
    seeds = episode_seeds("test", 0, 7)
    policy, want = Feeling(env), Feeling(env)
    evaluate(policy, env, seeds)
    evaluate(want, EveryImage(env), seeds)
    assert len(policy.seen) == len(want.seen) > 7 and all(cloud.any() for cloud in policy.seen)
    assert all(torch.equal(a, b) for a, b in zip(policy.seen, want.seen, strict=True))
    explorer = Explorer(make(1))
    explorer.policy, explorer.explore = policy, lambda obs, noise: (policy.act(obs), {"cloud": obs[CLOUD].clone()})
    collector = RolloutCollector(explorer, HistoryEnv(env, 1))
    collector.reset()
    assert bool(collector.collect(6).record["cloud"].flatten(1).any(1).all())
