"""Demonstrations are a function of the seeds, not of N or of who finishes first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robopolicy.core.errors import ConfigError, DataError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import STATE, Obs
from robopolicy.datasets import demonstrations
from robopolicy.datasets.demonstrations import record_demos
from robopolicy.datasets.episode_buffer import EpisodeBuffer
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.datasets.metadata import RecordingMeta, env_steps_of, num_episodes, recorded
from robopolicy.envs.episode_queue import EpisodeQueue
from tests.fakes import PointEnv


class PointExpert:
    """Walks to the origin; in episodes with an even seed it stops after two steps, which fails.

    Its speed depends on the seed, so that episodes differ in length.
    """

    expert_noise = 0.25

    def __init__(self, num_envs: int) -> None:
        self.step = torch.zeros(num_envs, dtype=torch.int64)
        self.seed = torch.zeros(num_envs, dtype=torch.int64)

    def reset(self, mask: Tensor | None, *, episode_seed: Tensor) -> None:
        mask = torch.ones_like(self.step, dtype=torch.bool) if mask is None else mask
        self.step[mask] = 0
        self.seed[mask] = episode_seed[mask]

    def act(self, obs: Obs) -> Tensor:
        assert torch.equal(self.step.float(), obs[STATE][:, 3]), "the expert's clock is the episode's"
        assert torch.equal((self.seed % 1000).float(), obs[STATE][:, 2])
        speed = 0.05 + 0.05 * (self.seed % 3 == 0)
        self.step += 1
        position = obs[STATE][:, :2]
        action = -position / position.norm(dim=1, keepdim=True).clamp_min(0.2) * speed[:, None]
        action[(self.seed % 2 == 0) & (self.step > 2)] = 0.0
        return action


def run_alone(seed: int) -> tuple[list[Tensor], bool]:
    env, expert = PointEnv(1), PointExpert(1)
    obs, states = env.reset(torch.tensor([seed])), []
    expert.reset(None, episode_seed=env.episode_seed)
    while True:
        states.append(obs[STATE][0].clone())
        step = env.step(expert.act(obs))
        obs = step.obs
        if bool(step.ended):
            return states, bool(step.success)


@pytest.mark.parametrize("num_envs", [1, 5, 64])
def test_the_first_successes_in_seed_order_are_kept(tmp_path: Path, num_envs: int) -> None:
    env, expert = PointEnv(num_envs), PointExpert(num_envs)
    done = record_demos(env=env, expert=expert, episodes=8, out=tmp_path / "d", run_seed=3)
    expected, attempted, steps = [], 0, 0
    for seed in episode_seeds("demonstrations", 3, 180).tolist():
        attempted += 1
        states, success = run_alone(seed)
        steps += len(states)
        if success:
            expected.append((seed, torch.stack(states)))
        if len(expected) == 8:
            break
    loaded = load_episodes(tmp_path / "d")
    assert loaded.seeds.tolist() == [seed for seed, _ in expected]
    assert len({len(s) for _, s in expected}) > 2, "the test needs episodes of several lengths"
    torch.testing.assert_close(loaded.obs[STATE], torch.cat([s for _, s in expected]), rtol=0, atol=0)
    assert bool(loaded.success[loaded.starts[1:] - 1].all())
    assert (done.episodes, done.attempted, done.successes) == (8, attempted, 8)
    assert done.frames == loaded.num_frames < steps == done.env_steps == env_steps_of(tmp_path / "d")
    facts = RecordingMeta.load(tmp_path / "d").provenance
    assert (facts["attempted"], facts["successes"], facts["expert_noise"]) == (attempted, 8, 0.25)
    assert facts["env"] == {"id": "point", "digest": "point-1", "horizon": 12}


def test_with_cameras_an_episode_of_one_frame_is_left_out_and_counted(tmp_path: Path, monkeypatch) -> None:
    """It makes no film, and no key could leave it out."""
    in_order = demonstrations._in_seed_order

    def first_cut(*given: Any) -> Iterator[Any]:
        for number, episode in enumerate(in_order(*given)):
            whole = episode if number else SimpleNamespace(valid=True, success=[True], action=episode.action[:1])
            yield whole

    monkeypatch.setattr(demonstrations, "_in_seed_order", first_cut)
    monkeypatch.setattr(demonstrations, "IMAGES", STATE)  # as if the state were a picture
    done = record_demos(env=PointEnv(2), expert=PointExpert(2), episodes=2, out=tmp_path / "d", cameras=None)
    assert done.too_short == 1 and done.episodes == 2 == load_episodes(tmp_path / "d").num_episodes
    assert RecordingMeta.load(tmp_path / "d").provenance["too_short"] == 1  # type: ignore[union-attr]


def test_an_expert_may_act_in_numpy_and_needs_its_two_methods(tmp_path: Path) -> None:
    expert = PointExpert(2)
    act = expert.act
    expert.act = lambda obs: act(obs).numpy()  # type: ignore[assignment]
    done = record_demos(env=PointEnv(2), expert=expert, episodes=1, out=tmp_path / "data")
    assert done.episodes == 1
    with pytest.raises(ConfigError, match=r"expert: a object has no reset\(\)"):
        record_demos(env=PointEnv(2), expert=object(), episodes=1, out=tmp_path / "none")  # type: ignore[arg-type]
    assert not (tmp_path / "none").exists()


def test_failures_can_be_kept(tmp_path: Path) -> None:
    done = record_demos(env=PointEnv(4), expert=PointExpert(4), episodes=6, out=tmp_path / "d", only_success=False)
    loaded = load_episodes(tmp_path / "d")
    assert loaded.seeds.tolist() == episode_seeds("demonstrations", 0, 6).tolist()
    assert 0 < done.successes < 6
    ends = loaded.starts[1:] - 1
    assert torch.equal(loaded.terminated[ends], loaded.success[ends]), "the others were cut by the time limit"


@pytest.mark.parametrize("seed", [0, 7])
def test_training_does_not_begin_where_demonstrations_of_its_seed_did(tmp_path: Path, seed: int) -> None:
    record_demos(env=PointEnv(2), expert=PointExpert(2), episodes=4, out=tmp_path / "d", run_seed=seed)
    shown = load_episodes(tmp_path / "d").seeds.tolist()
    trained = EpisodeQueue(seed, {}).next(40)[0].tolist()
    assert len(set(trained)) == 40
    assert not {s >> 40 for s in shown} & {s >> 40 for s in trained}, "of one split"


def test_too_few_successes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"succeeded in (\d+) of 7 episodes of point.*100 were asked for"):
        record_demos(env=PointEnv(4), expert=PointExpert(4), episodes=100, out=tmp_path / "d", max_attempts=7)
    assert not RecordingMeta.load(tmp_path / "d").complete
    found = load_episodes(tmp_path / "d").num_episodes
    assert found > 0, "what was found is kept"
    record_demos(env=PointEnv(4), expert=PointExpert(4), episodes=1, out=tmp_path / "d", run_seed=3, overwrite=True)
    with pytest.raises(DataError, match=r"found are beside .*d, which is as it was"):
        record_demos(env=PointEnv(4), expert=PointExpert(4), episodes=100, out=tmp_path / "d", max_attempts=7,
                     overwrite=True)  # fmt: skip
    assert (recorded(tmp_path / "d"), num_episodes(tmp_path / "d")) == ("whole", 1)


def test_none_at_all(tmp_path: Path) -> None:
    class Idle(PointExpert):
        def act(self, obs: Obs) -> Tensor:
            return torch.zeros_like(super().act(obs))

    with pytest.raises(DataError, match="0 of 3 episodes") as found:
        record_demos(env=PointEnv(4), expert=Idle(4), episodes=2, out=tmp_path / "d", max_attempts=3)
    assert not (tmp_path / "d").exists() and str(tmp_path / "d") not in str(found.value)


class Faulty(PointEnv):
    """Physics that fails in the third step of every episode whose seed is a multiple of 3."""

    def step(self, action: Tensor):
        seeds, times = self.episode_seed.clone(), self.time.clone()
        step = super().step(action)
        return step._replace(valid=~((seeds % 3 == 0) & (times == 2)))


def test_episodes_with_physics_faults_are_dropped_and_counted(tmp_path: Path) -> None:
    done = record_demos(env=Faulty(4), expert=PointExpert(4), episodes=5, out=tmp_path / "d")
    assert done.dropped > 0
    assert bool((load_episodes(tmp_path / "d").seeds % 3 != 0).all())


def test_progress_counts_kept_episodes(tmp_path: Path) -> None:
    calls = []

    class Tracker:
        @contextmanager
        def progress(self, total: int, description: str):
            calls.append((total, description))
            yield self

        def update(self, step: int, **numbers: float) -> None:
            calls.append((step, numbers["attempted"]))

    record_demos(env=PointEnv(3), expert=PointExpert(3), episodes=4, out=tmp_path / "d", tracker=Tracker())
    assert calls[0][0] == 4
    assert calls[-1][0] == 4
    assert [attempted for _, attempted in calls[1:]] == list(range(1, len(calls)))


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    class Stubborn(PointExpert):
        def act(self, obs: Obs) -> Tensor:
            if self.calls == 40:
                raise KeyboardInterrupt
            self.calls += 1
            return super().act(obs)

        calls = 0

    with pytest.raises(KeyboardInterrupt):
        record_demos(env=PointEnv(2), expert=Stubborn(2), episodes=50, out=tmp_path / "d")
    whole = record_demos(env=PointEnv(2), expert=PointExpert(2), episodes=50, out=tmp_path / "e")
    part, all_ = load_episodes(tmp_path / "d"), load_episodes(tmp_path / "e")
    assert 0 < part.num_episodes < whole.episodes
    assert torch.equal(part.action, all_.action[: part.num_frames])


def interrupted(out: Path, after: int, *, episodes: int = 20, **options: Any) -> None:
    """A recording with Ctrl-C when `after` episodes are written."""
    add, written = DatasetWriter.add_episode, []

    def once_more(self: DatasetWriter, **episode: Any) -> None:
        if len(written) == after:
            raise KeyboardInterrupt
        written.append(add(self, **episode))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatasetWriter, "add_episode", once_more)
        with pytest.raises(KeyboardInterrupt):
            record_demos(env=PointEnv(2), expert=PointExpert(2), episodes=episodes, out=out, **options)


def test_repeating_an_interrupted_recording_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "d"
    for after, kept in ((4, 4), (2, 4), (6, 6)):
        interrupted(path, after)
        assert (recorded(path), num_episodes(path)) == ("part", kept), "the longer of the two stays"
    record_demos(env=PointEnv(2), expert=PointExpert(2), episodes=20, out=path)
    assert (recorded(path), num_episodes(path)) == ("whole", 20)
    assert [p.name for p in tmp_path.iterdir()] == ["d"], "nothing is left lying about"
    with pytest.raises(DataError, match="exists already"):
        record_demos(env=PointEnv(2), expert=PointExpert(2), episodes=20, out=path)


def test_an_interrupted_recording_of_something_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "d"
    interrupted(path, 4)
    point = {"env": PointEnv(2), "expert": PointExpert(2), "out": path}
    with pytest.raises(DataError, match=r"another command: run_seed was 0, now 1\. .* overwrite=true"):
        record_demos(episodes=20, run_seed=1, **point)
    with pytest.raises(DataError, match="it holds 4 episodes, now 3 are asked for"):
        record_demos(episodes=3, **point)
    assert (recorded(path), num_episodes(path)) == ("part", 4)
    record_demos(episodes=20, run_seed=1, overwrite=True, **point)
    assert (recorded(path), num_episodes(path)) == ("whole", 20)


def test_an_interrupted_recording_is_not_taken_for_the_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    interrupted(tmp_path / "d", 4)
    with pytest.raises(DataError, match=r"holds 4 episodes of the 20 asked for: .*Repeat the command.*incomplete=true"):
        load_episodes(tmp_path / "d", incomplete=False)
    assert load_episodes(tmp_path / "d").num_episodes == 4
    assert "holds 4 episodes of the 20 asked for" in caplog.text
    record_demos(env=PointEnv(2), expert=PointExpert(2), episodes=20, out=tmp_path / "d")
    caplog.clear()
    assert load_episodes(tmp_path / "d", incomplete=False).num_episodes == 20
    assert not caplog.records


def test_unknown_cameras(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"point: emits no pictures of camera 'front'.*cameras=\('front',\)"):
        record_demos(env=PointEnv(1), expert=PointExpert(1), episodes=1, out=tmp_path / "d", cameras=("front",))
    with pytest.raises(ConfigError, match="episodes must be at least 1"):
        record_demos(env=PointEnv(1), expert=PointExpert(1), episodes=0, out=tmp_path / "d")


def test_the_buffer_hands_out_whole_episodes() -> None:
    env = PointEnv(3, horizon=4)
    buffer, obs, lengths = EpisodeBuffer(env.spec, 3, (STATE,)), env.reset(torch.arange(3)), []
    for _ in range(8):
        seeds = env.episode_seed.clone()
        step = env.step(torch.zeros(3, 2))
        for episode in buffer.add(obs, step, episode_seed=seeds):
            np.testing.assert_array_equal(episode.obs[STATE][:, 3], [0, 1, 2, 3])
            assert set(episode.obs[STATE][:, 2].tolist()) == {episode.seed % 1000}
            lengths.append(len(episode.action))
        obs = step.obs
    assert lengths == [4] * 6
