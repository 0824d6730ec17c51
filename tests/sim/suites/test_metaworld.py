"""Meta-World as a VecEnv: episodes by seed, its own experts, demonstrations that train."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("metaworld")

from robopolicy.cli.main import main
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import STATE
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.sim.suites import metaworld

SEEDS = torch.arange(40, 46)


def rollout(env, seeds, *, expert_noise=0.0):
    """By seed: the first observation; success, length and last observation of the expert's episode."""
    expert = env.make_expert(expert_noise=expert_noise)
    obs = env.reset(seeds)
    expert.reset(None, episode_seed=env.episode_seed)
    first, found, begun = {}, {}, torch.zeros(env.num_envs, dtype=torch.int64)
    for i, seed in enumerate(env.episode_seed.tolist()):
        first[seed] = obs[STATE][i]
    while len(found) < len(seeds):
        was = env.episode_seed.tolist()
        step = env.step(expert.act(obs))
        begun += 1
        for i in step.ended.nonzero()[:, 0].tolist():
            if was[i] in seeds.tolist():
                found.setdefault(was[i], (bool(step.success[i]), int(begun[i]), step.next_obs[STATE][i]))
            first[int(env.episode_seed[i])] = step.obs[STATE][i]
            begun[i] = 0
        obs = step.obs
        expert.reset(step.ended, episode_seed=env.episode_seed)
    return first, found


@pytest.mark.parametrize("name", ["reach-v3", "drawer-open-v3"])
def test_an_episode_is_a_function_of_its_seed(name):
    """The same bits whatever N and whichever episode came before; the expert succeeds; goals differ."""
    alone, many = metaworld.make(name, 1), metaworld.make(name, 4, seed=7)
    first, found = rollout(many, SEEDS, expert_noise=0.1)
    again_first, again = rollout(alone, SEEDS[-2:], expert_noise=0.1)
    for seed in SEEDS[-2:].tolist():
        assert torch.equal(first[seed], again_first[seed])
        assert found[seed][:2] == again[seed][:2] and torch.equal(found[seed][2], again[seed][2])
    assert sum(success for success, *_ in found.values()) >= 5
    assert len({tuple(first[s].tolist()) for s in SEEDS.tolist()}) == len(SEEDS)
    assert alone.spec.digest == many.spec.digest != metaworld.make(name, 1, horizon=100).spec.digest


def test_time_limits_are_no_terminations():
    env = metaworld.make("reach-v3", 2, horizon=5)
    env.reset(SEEDS[:2])
    for _ in range(4):
        step = env.step(torch.zeros(2, 4))
        assert not step.ended.any()
    step = env.step(torch.zeros(2, 4))
    assert step.truncated.all() and not step.terminated.any() and not step.success.any()
    assert not torch.equal(step.obs[STATE], step.next_obs[STATE]), "the successor is the old episode's"


def test_the_second_object_has_numbers_of_its_own_behind_the_others():
    plain, more = (
        metaworld.make("stick-push-v3", 1, relative=True),
        metaworld.make("stick-push-v3", 1, relative=True, second=True),
    )
    names = more.spec.observation[STATE].names
    a, b = plain.reset(SEEDS[:1])[STATE], more.reset(SEEDS[:1])[STATE]
    assert torch.equal(a, b[:, :51]) and len(set(names)) == len(names) == 60
    assert plain.spec.digest != more.spec.digest
    at = {name: float(b[0, i]) for i, name in enumerate(names)}
    for end in "xyz":
        assert at[f"hand_to_other_{end}"] == pytest.approx(at[f"other_{end}"] - at[f"hand_{end}"], abs=1e-6)
        assert at[f"object_to_other_{end}"] == pytest.approx(at[f"other_{end}"] - at[f"object_{end}"], abs=1e-6)


@pytest.mark.parametrize("processes", [0, 1])
def test_it_is_filmed_without_changing_the_episode(processes):
    seen, filmed = metaworld.make("reach-v3", 2), metaworld.make("reach-v3", 2, processes=processes)
    first = [env.reset(SEEDS[:2])[STATE] for env in (seen, filmed)]
    assert torch.equal(*first)
    pictures = []
    for _ in range(3):
        pictures.append(filmed.render(1))
        a, b = (env.step(torch.ones(2, 4)) for env in (seen, filmed))
        assert torch.equal(a.next_obs[STATE], b.next_obs[STATE])
    assert pictures[0].shape == (3, 240, 240) and float(pictures[0].float().std()) > 10
    assert not torch.equal(pictures[0], pictures[2])
    seen.close(), filmed.close()


def test_a_task_of_another_version_is_named_with_the_command(monkeypatch):
    monkeypatch.setattr(metaworld, "task_names", lambda: ["reach-v3"])
    with pytest.raises(ConfigError, match=r"push-v3.*has no such task, 3.0.0 has: .*pip install .*metaworld==3.0.0"):
        metaworld.make("push-v3", 1)


def test_what_there_is_not_is_named():
    assert len(metaworld.task_names()) == 50
    with pytest.raises(ConfigError, match=r"no such task.*reach-v3"):
        metaworld.make("reach-v2", 1)
    with pytest.raises(ConfigError, match="expected 1 to 500 steps, found 501"):
        metaworld.make("reach-v3", 1, horizon=501)


def test_its_demonstrations_train(tmp_path):
    """By the command line, like any task."""
    task = ["task=metaworld", "task.name=reach-v3"]
    data = f"{tmp_path}/data"
    assert main(["demos", *task, f"out={data}", "episodes=2", "num_envs=2", "expert_noise=0.2"]) == 0
    assert load_episodes(data).tasks == ("reach",)
    more = [f"dataset={data}", f"run_dir={tmp_path}/run", "loop.steps=5", "tracker=quiet", "policy=gaussian"]
    assert main(["train", "algo=bc", *task, *more]) == 0
