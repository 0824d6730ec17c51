"""Windows guided by a policy, by hand; as transitions that a replay holds; mixed into off-policy training."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from robopolicy.algos.pa_rl import PARL
from robopolicy.buffers.chunk_replay_buffer import ChunkReplay
from robopolicy.buffers.recorded_rollouts import replay_of_episodes
from robopolicy.buffers.relabeling import read_frames
from robopolicy.buffers.replay_buffer import Replay
from robopolicy.core.errors import CheckpointError, ConfigError, DataError, SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import BASE_ACTION, STATE, ActionSpec, Feature, Obs
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.networks.mlp import MLP
from robopolicy.policies.base import Policy
from robopolicy.policies.gaussian import GaussianPolicy
from robopolicy.policies.normalizer import ACTION, Normalizer
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.training.synthetic import MixedReplay, synthetic_off_policy
from robopolicy.world_models.models.trajectories import Trajectories
from robopolicy.world_models.models.windows import Window
from robopolicy.world_models.training.synthetic import (
    Synthetic,
    as_episodes,
    check_belongs,
    check_policy,
    frames_of,
    guide_of,
)
from tests.algos.test_chunk_critic import make as chunk_learner
from tests.algos.test_residual import make as residual
from tests.fakes import MemoryCheckpoints, NoTracker, PointEnv, PointPolicy
from tests.world_models.models.test_trajectories import Echo, run, small
from tests.world_models.point import walk
from tests.world_models.training.test_fit import record

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

SEEDS = torch.arange(3)


class Always(Policy):
    """The same action wherever it is; 0.08 m is within the limits, 0.3 m is not."""

    def __init__(self, model: Trajectories, action: tuple[float, float]) -> None:
        super().__init__()
        self.spec, self.action = replace(model.spec, horizon=2, n_action_steps=2), torch.tensor(action)

    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        return self.action.expand(len(obs[STATE]), 2, 2)


def test_a_guide_by_hand() -> None:
    """Half the way where guidance·variance = spread²; nearly all of it where it is far more; never beyond."""
    model = small()
    state, action = torch.zeros(3, 4, 2), torch.zeros(3, 4, 2)
    goal = model.normalizer.normalize(ACTION, torch.tensor([0.08, 0.1]))
    policy = Always(model, (0.08, 0.3))  # met with the limits, as the env would
    guide = guide_of(policy, model, SEEDS, guidance=2.0, spread=0.2)
    torch.testing.assert_close(guide(state, action, 0.02), (goal / 2).expand(3, 4, 2))
    torch.testing.assert_close(guide(state, action, 0.06), (goal * 0.75).expand(3, 4, 2))
    torch.testing.assert_close(guide(state, action, 0.0), action)
    far = guide_of(policy, model, SEEDS, guidance=1e6, spread=0.2)(state, action - 3.0, 1.0)
    assert bool((far <= goal + 1e-6).all()) and float((far - goal).abs().max()) < 1e-3


def test_without_guidance_it_is_the_plain_model_and_with_it_only_actions_are_moved() -> None:
    """States go where the point goes under the actions moved, by the linear model; what is left of them is the same."""
    model, first = small(), torch.rand(3, 2)
    noise, policy = torch.randn(3, *model.noise_shape), Always(model, (0.08, 0.0))
    plain = model.sample(first, noise=noise)
    none = model.sample(first, noise=noise, guide=guide_of(policy, model, SEEDS, guidance=0.0, spread=0.1))
    for name, value in plain._asdict().items():
        assert torch.equal(getattr(none, name), value), name
    most = model.sample(first, noise=noise, guide=guide_of(policy, model, SEEDS, guidance=1e4, spread=0.1))
    some = model.sample(first, noise=noise, guide=guide_of(policy, model, SEEDS, guidance=0.5, spread=0.1))
    left = [model.encode(w)[..., 2:] for w in (plain, most)]
    torch.testing.assert_close(*left, atol=0.05, rtol=0.0)
    for window in (plain, most):
        there = first[:, None] + window.action.cumsum(1)
        torch.testing.assert_close(window.state[:, 1:], there, atol=1e-3, rtol=0.0)
    gaps = [float((w.action - torch.tensor([0.08, 0.0])).abs().mean()) for w in (plain, some, most)]
    assert gaps[0] > gaps[1] > gaps[2] and gaps[2] < 1e-3


def test_the_guide_asks_the_policy_at_every_state_of_the_window() -> None:
    model, state = small(), torch.rand(3, 4, 2)

    class Back(Always):
        def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
            return -0.05 * obs[STATE][:, -1:].expand(-1, 2, -1)

    moved = guide_of(Back(model, (0, 0)), model, SEEDS, guidance=1e8, spread=0.1)(state, torch.zeros(3, 4, 2), 1.0)
    planned = -0.05 * state[:, [0, 0, 2, 2]]  # chunks of two
    torch.testing.assert_close(model.normalizer.unnormalize(ACTION, moved), planned, atol=1e-6, rtol=1e-4)


def test_of_a_density_the_slope_is_that_of_its_chunks() -> None:
    """(mean − x) / σ² in the policy's units, at the step of the chunk that plans it; then bounded."""
    torch.manual_seed(0)
    model = small(length=5)
    spec = replace(model.spec, horizon=3, n_action_steps=2)
    normalizer = Normalizer.from_limits(spec.observation, spec.action)
    policy = GaussianPolicy(spec, normalizer, network=partial(MLP, width=8, depth=1)).eval()
    with torch.no_grad():
        policy.log_std.copy_(torch.tensor([[0.2, -0.1], [0.4, 0.0], [9.0, 9.0]]))
    state, action = torch.rand(3, 5, 2), 0.1 * torch.randn(3, 5, 2)
    units = model.normalizer.affine[ACTION].scale / normalizer.affine[ACTION].scale
    x = normalizer.normalize(ACTION, model.normalizer.unnormalize(ACTION, action))
    expected = torch.zeros(3, 5, 2)
    with torch.no_grad():
        for t in range(5):
            mean, std = policy.mean_std({STATE: state[:, t - t % 2, None]})
            expected[:, t] = (mean[:, t % 2] - x[:, t]) / std[t % 2] ** 2 * units
    assert 0.0 < float(expected.norm(dim=-1).max()) < 1.0, "the bound does not act yet"
    moved = guide_of(policy, model, SEEDS, guidance=0.5, spread=0.1)(state, action, 0.4)
    torch.testing.assert_close(moved, action + 0.2 * expected, atol=1e-6, rtol=1e-4)
    with torch.no_grad():
        policy.log_std.fill_(-4.0)
    moved = guide_of(policy, model, SEEDS, guidance=0.5, spread=0.1)(state, action, 0.4)
    torch.testing.assert_close((moved - action).norm(dim=-1), torch.full((3, 5), 0.2))
    assert not any(p.grad is not None for p in policy.parameters())


def test_transitions_by_hand() -> None:
    """Two windows of three steps; the first ends its task with the second. n = 2, γ = ½."""
    state = torch.arange(16.0).view(2, 4, 2)
    flags = torch.tensor([[False, True, True], [False, False, False]])
    window = Window(state, state[:, :-1] / 100, flags, flags)
    episodes = as_episodes(window, small().spec, torch.tensor([5, 6]))
    assert episodes.lengths.tolist() == [2, 4] and episodes.seeds.tolist() == [5, 6]
    assert episodes.reward.tolist() == [0, 1, 0, 0, 0, 0] == episodes.terminated.int().tolist()
    replay = replay_of_episodes(Replay(capacity=10, num_envs=1, n_step=2, gamma=0.5), episodes, obs=episodes.obs)
    batch = replay.sample(400, torch.Generator().manual_seed(0))
    rows = {float(s[0]): (float(r), float(d), float(n[0])) for s, r, d, n in zip(
        batch.obs[STATE], batch.reward, batch.discount, batch.next_obs[STATE], strict=True)}  # fmt: skip
    assert sorted(rows) == [0.0, 2.0, 8.0, 10.0, 12.0], "5 transitions: not the one after the task's end, none invented"
    assert rows[0.0][:2] == (0.5, 0.0) and rows[2.0][:2] == (1.0, 0.0), "nothing is bootstrapped from its end"
    assert rows[8.0] == (0.0, 0.25, 12.0)
    assert rows[12.0] == (0.0, 0.5, 14.0), "at the window's end from the state there, which begins no transition"
    torch.testing.assert_close(batch.action, batch.obs[STATE] / 100)


def test_what_does_not_belong_together() -> None:
    model, other = small(), walk([6], dims=3)
    with pytest.raises(SpecError, match=r"(?s)demos does not fit the trajectory model.*expects shape \(2,\)"):
        check_belongs(model, other, offers="demos")
    same = walk([6])
    check_belongs(model, same, offers="demos")
    with pytest.raises(SpecError, match=r"the trajectory model has a step every 0\.1 s, demos every 0\.05 s"):
        check_belongs(model, replace(same, dt=0.05), offers="demos")
    wide = ActionSpec(**{**same.action_spec.__dict__, "high": (0.2, 0.1)})
    with pytest.raises(SpecError, match=r"action\.high: the trajectory model has \(0\.1.*, demos has \(0\.2, 0\.1\)"):
        check_belongs(model, replace(same, action_spec=wide), offers="demos")
    policy = Always(model, (0.0, 0.0))
    check_policy(model, policy)
    policy.base = PointPolicy()
    with pytest.raises(SpecError, match=r"PointPolicy does not fit.*\n.*shape \(2,\).*\(4,\)"):
        check_policy(model, policy)
    policy.base = None
    seen = {**policy.spec.observation, "observation.images.front": Feature((3, 8, 8), "uint8")}
    policy.spec = replace(policy.spec, observation=seen)
    with pytest.raises(SpecError, match=r"reads \['observation\.images\.front'\]"):
        check_policy(model, policy)


# -- in training ------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    run(out / "windows", record(out / "play"), steps=250, save_every=0)
    return out / "windows"


def test_a_lot_is_made_for_the_policy_as_it_is(trained: Path, tmp_path: Path) -> None:
    policy, _, _ = residual()
    source = Synthetic(policy, model=trained, windows=40, guidance=3.0, seed=7)
    episodes, obs = source(0)
    again, _ = Synthetic(policy, model=trained, windows=40, guidance=3.0, seed=7)(0)
    assert torch.equal(episodes.action, again.action), "a function of seed, number and policy"
    assert not torch.equal(episodes.action[:10], source(1)[0].action[:10])
    assert episodes.num_episodes == 40 and int(episodes.lengths.max()) == 5
    assert bool((episodes.action.abs() <= 0.1).all())
    assert torch.equal(obs[BASE_ACTION], read_frames(episodes, policy)[BASE_ACTION])
    with torch.no_grad():
        policy.net[-1].bias.fill_(5.0)
    pushed = source(0)[0]
    assert float(pushed.action.mean()) > float(episodes.action.mean()) + 0.01, "the same noise, another policy"
    assert torch.equal(pushed.obs[STATE][0], episodes.obs[STATE][0])
    with pytest.raises(ConfigError, match=r"loop\.synthetic\.model: needs a value"):
        Synthetic(policy)
    with pytest.raises(CheckpointError, match="expected a trajectory model"):
        Synthetic(policy, model=tmp_path)


class Ones:
    """Lots of three windows of four steps, all states equal to the lot's number plus 1."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __call__(self, number: int) -> tuple[Any, Obs]:
        self.numbers.append(number)
        state = torch.full((3, 4, 2), number + 1.0)
        episodes = frames_of(state, small().spec, SEEDS)
        return replace(episodes, outcomes=True), {STATE: episodes.obs[STATE]}


def filled(fraction: float, *, every: int = 100) -> tuple[MixedReplay, Ones]:
    env, source = PointEnv(2), Ones()
    replay = MixedReplay(Replay(capacity=60, num_envs=2, n_step=2, gamma=0.5), source, fraction=fraction, every=every)
    obs = env.reset()
    for _ in range(10):
        step = env.step(torch.zeros(2, 2))
        replay.add({STATE: 0.0 * obs[STATE][:, :2]}, step._replace(next_obs={STATE: 0.0 * step.next_obs[STATE][:, :2]}))
        obs = step.obs
    return replay, source


def test_a_share_of_every_part_of_a_sample_is_made_up() -> None:
    replay, source = filled(0.25)
    state = replay.sample(64, torch.Generator().manual_seed(0)).obs[STATE][:, 0]
    assert state.view(8, 8).sum(1).tolist() == [2.0] * 8, "a quarter of every batch that a sample is cut into"
    assert source.numbers == [0]
    assert replay.sample(16, torch.Generator()).obs[STATE].shape == (16, 2)
    for fraction, count in ((0.0, 0), (1.0, 12), (1 / 3, 4)):
        found = filled(fraction)[0].sample(12, torch.Generator().manual_seed(0))
        assert int((found.obs[STATE][:, 0] > 0).sum()) == count
        assert torch.equal(found.obs[STATE][:, 0] > 0, found.next_obs[STATE][:, 0] > 0)


def test_lots_are_made_anew_and_kept_with_the_state() -> None:
    replay, source = filled(0.5, every=20)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        replay.sample(8, generator)
    assert source.numbers == [0, 1], "after 24 of 40 transitions"
    other, fresh = filled(0.5, every=20)
    other.load_state_dict(replay.state_dict())
    a, b = (r.sample(8, torch.Generator().manual_seed(3)) for r in (replay, other))
    assert torch.equal(a.obs[STATE], b.obs[STATE]) and torch.equal(a.discount, b.discount)
    assert source.numbers == [0, 1, 2] and fresh.numbers == [2]
    a, b = (r.sample(8, torch.Generator().manual_seed(3)) for r in (replay, other))
    assert torch.equal(a.action, b.action) and fresh.numbers == [2], "the saved lot goes on being learned from"


def learn(trained: Path, checkpoints: MemoryCheckpoints, *, seed: int = 0, **options: Any) -> Policy:
    policy, algo, env = residual(seed=seed)
    settings = dict(
        total_steps=400, warmup_steps=100, critic_only_updates=10, updates_per_step=0.25, batch_size=32, demos=None,
        evaluate=None, tracker=NoTracker(), save_every=200, seed=1, synthetic_fraction=0.5, refresh_every=24,
        synthetic=partial(Synthetic, model=trained, windows=16, guidance=3.0),
        replay=partial(Replay, capacity=20_000, n_step=3, gamma=0.95),
    )  # fmt: skip
    synthetic_off_policy(algo=algo, env=env, checkpointer=checkpoints, **(settings | options))
    return policy


def test_off_policy_learns_from_both_and_resumes_in_the_same_bits(trained: Path) -> None:
    def weights(policy: Any) -> Tensor:
        return torch.cat([p.flatten() for p in policy.net.parameters()])

    whole, half = MemoryCheckpoints(), MemoryCheckpoints()
    want = weights(learn(trained, whole))
    half.saved[200] = whole.saved[200]
    assert half.saved[200]["replay"]["lots"] == 2 and whole.latest()["replay"]["lots"] > 3
    assert torch.equal(weights(learn(trained, half, seed=9)), want)
    real = weights(learn(trained, MemoryCheckpoints(), synthetic_fraction=0.0))
    assert not torch.equal(real, want)
    with pytest.raises(ConfigError, match=r"synthetic_fraction=1\.0 and .*\.25 are more than a whole"):
        learn(trained, MemoryCheckpoints(), demos=walk([4]), synthetic_fraction=1.0)


def test_a_learner_of_chunks_is_refused_before_its_first_step() -> None:
    algo = chunk_learner(PARL)
    with pytest.raises(ConfigError, match=r"loop\.replay: .* a ChunkReplay: PARL learns .*algo=residual_synthetic"):
        synthetic_off_policy(
            algo=algo, env=wrap_for(algo.policy, PointEnv(4)), checkpointer=MemoryCheckpoints(), tracker=NoTracker(),
            demos=None, evaluate=None, total_steps=400, warmup_steps=100, critic_only_updates=10, updates_per_step=0.25,
            batch_size=32, synthetic=lambda **_: Ones(), replay=partial(ChunkReplay, capacity=2_000),
        )  # fmt: skip


# -- against the truth ------------------------------------------------------------------------------------------------
def test_the_truth_is_where_the_task_goes_from_a_recorded_state(tmp_path: Path) -> None:
    from compare_windows import errors, truth

    from robopolicy.world_models.models.windows import cut, whole
    from robopolicy.world_models.training.data import load_source

    episodes = load_source(record(tmp_path / "play", episodes=20), "play")
    begins = whole(episodes, 3)[::5]
    window = cut(episodes, begins, 3)
    true = truth(PointEnv(len(begins)), episodes, begins, window.action)
    torch.testing.assert_close(true.state[:, 0], window.state[:, 0])
    goes_on = true.alive & ~true.success
    torch.testing.assert_close(true.state[:, 1:][goes_on], window.state[:, 1:][goes_on], atol=1e-5, rtol=1e-5)
    assert torch.equal(true.success & true.alive, window.success & true.alive), "success comes where it was recorded"
    shifted = window._replace(state=window.state + torch.tensor([0.0, 0.2, 0.0, 0.0]))
    spec = PolicySpec(episodes.observation, episodes.action_spec, 0.1, 1, 1, 1, episodes.tasks)
    model = Trajectories(spec, network=Echo, length=3)
    model.fit(episodes, window)
    found = errors(shifted, true, model, torch.ones(4))
    assert found["error_1"] == pytest.approx(0.05) and found["windows_1"] > 5
    assert found["claimed"] == found["claimed_true"] == found["true"]
    episodes.obs[STATE][:, 0] += 0.1
    with pytest.raises(DataError, match="it is not the task, or the version of it, that was recorded"):
        truth(PointEnv(len(begins)), episodes, begins, window.action)


def test_a_run_of_windows_is_told_from_one_of_a_world(trained: Path) -> None:
    from robopolicy.world_models.models.world import find_world

    assert Checkpointer(trained).latest_path() is not None
    with pytest.raises(CheckpointError, match="expected a world model"):
        find_world(trained)
