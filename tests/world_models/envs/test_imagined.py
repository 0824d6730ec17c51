"""ImaginedEnv: the VecEnv contract, and why episodes end."""

from __future__ import annotations

import pytest
import torch

from robopolicy.core.errors import CheckpointError, ConfigError, SpecError
from robopolicy.core.rng import episode_seeds, keyed_uniform
from robopolicy.core.types import STATE, Stateful, VecEnv
from robopolicy.envs.wrappers import HistoryEnv
from robopolicy.world_models.envs.imagined import ImaginedEnv
from robopolicy.world_models.envs.starts import starts_of
from robopolicy.world_models.models.chunk_transformer import ChunkTransformer
from robopolicy.world_models.models.ensemble import PhaseEnsemble
from robopolicy.world_models.models.success import SuccessClassifier
from robopolicy.world_models.models.world import World
from tests.world_models.point import POINT_ACTION, SPEC, at, point_env, point_world, walk

FAR = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]


def learned_env(num_envs: int, *, horizon: int = 20, seed: int = 0, kind: str = "ensemble") -> ImaginedEnv:
    """A real model with random weights, whose steps are as large as the data's."""
    torch.manual_seed(0)
    episodes = walk([30] * 12)
    dynamics: PhaseEnsemble | ChunkTransformer
    if kind == "ensemble":
        dynamics = PhaseEnsemble(SPEC, heads=3, elites=3, width=48, depth=2, phases=3, block=16)
        last = [dynamics.last.weight]
    else:
        dynamics = ChunkTransformer(SPEC, chunk=4, heads=3, modes=3, width=48, depth=1, block=16)
        last = [m.change.weight for m in dynamics.members]
    dynamics.state_transform.fit(episodes)
    for weight in last:
        torch.nn.init.normal_(weight, std=0.2)
    world = World(SPEC, dynamics, SuccessClassifier(dynamics.feature_dim, window=3, width=32))
    world.bound.fill_(1e9)
    world.success.threshold.fill_(0.35)
    dynamics.state_transform.low.fill_(-1e9), dynamics.state_transform.high.fill_(1e9)
    return ImaginedEnv(world, starts_of(episodes, 3), num_envs, horizon=horizon, seed=seed)


def actions(env: ImaginedEnv, seeds: torch.Tensor, t: int) -> torch.Tensor:
    """[N Da] keyed by seed and step, a third beyond the limits."""
    unit = keyed_uniform(seeds, torch.full_like(seeds, t), (2,), stream=1)
    return 0.3 * unit - 0.15


def trajectory(seeds: torch.Tensor, steps: int, kind: str) -> torch.Tensor:
    env = learned_env(len(seeds), kind=kind)
    env.world.success.threshold.fill_(1e9)  # no episode ends
    env.reset(seeds)
    return torch.stack([env.step(actions(env, seeds, t)).next_obs[STATE] for t in range(steps)])


# --- the contract, as tests/contracts/test_vec_env.py states it -------------------------------------------------------


def test_follows_the_protocols_and_its_own_spec() -> None:
    env = learned_env(3)
    assert isinstance(env, VecEnv) and isinstance(env, Stateful)
    obs, step = env.reset(), env.step(torch.zeros(3, 2))
    for found in (obs, step.obs, step.next_obs):
        assert found.keys() == env.spec.observation.keys()
        for key, feature in env.spec.observation.items():
            assert found[key].shape == (3, *feature.shape) and found[key].dtype == feature.torch_dtype, key
    assert step.obs is step.next_obs, "nothing ended: obs and next_obs are the same object"
    assert env.spec.id == "imagined point" and env.spec.resumable
    for value, kind in ((step.reward, torch.float32), (step.steps, torch.int64), (step.valid, torch.bool)):
        assert value.shape == (3,) and value.dtype == kind


@pytest.mark.parametrize("kind", ["ensemble", "chunks"])
def test_episodes_are_the_same_bits_whatever_n_and_neighbours(kind: str) -> None:
    seeds = episode_seeds("test", 0, 21)
    reference = trajectory(seeds, 10, kind)
    order = torch.randperm(21, generator=torch.Generator().manual_seed(0))
    assert torch.equal(trajectory(seeds[order], 10, kind), reference[:, order])
    for i in (0, 20):
        assert torch.equal(trajectory(seeds[i : i + 1], 10, kind)[:, 0], reference[:, i])
    assert (reference[0] - reference[-1]).abs().min(dim=1).values.max() > 1e-3, "something moves"


def test_seeds_choose_starts_of_the_data_all_of_them() -> None:
    env = point_env(FAR, 300)
    state = env.reset(episode_seeds("test", 1, 300))[STATE]
    counts = torch.tensor([(state == torch.tensor(s)).all(1).sum() for s in FAR])
    assert counts.sum() == 300 and counts.min() > 70


def test_horizon_truncates_and_next_obs_is_the_true_successor() -> None:
    short, long = learned_env(3, horizon=6), learned_env(3, horizon=20)
    seeds = episode_seeds("test", 4, 6)
    for env in (short, long):
        env.world.success.threshold.fill_(1e9)
        env.reset(seeds)
    for t in range(6):
        a, b = short.step(actions(short, seeds[:3], t)), long.step(actions(long, seeds[:3], t))
        assert torch.equal(a.next_obs[STATE], b.next_obs[STATE]), "the successor is the state before the reset"
        assert a.truncated.all() == (t == 5) and not a.terminated.any() and not b.ended.any()
    assert torch.equal(short.episode_seed, seeds[3:]), "seeds given to reset are handed out in order"
    assert torch.equal(a.obs[STATE], learned_env(3).reset(seeds[3:])[STATE]) and a.obs is not a.next_obs


def test_success_by_single_frame_scores_equals_success_of_whole_windows() -> None:
    env = learned_env(3, horizon=6)
    env.world.success.threshold.fill_(0.1)
    env.reset()
    assert not any(x.requires_grad for x in env.state_dict().values() if isinstance(x, torch.Tensor))
    succeeded = set()
    past = torch.zeros(3, 3, 2)
    for t in range(20):
        begun = env._t == 0
        past[begun] = env.world.windows(env.starts.take(env._choose(env.episode_seed)[0]))[begun]
        step = env.step(actions(env, torch.arange(3), t))
        after = step.next_obs[STATE]  # the ensemble's latent
        assert torch.equal(step.success, env.world.score(past, after) > env.world.success.threshold)
        succeeded |= set(step.success.tolist())
        past = torch.cat([past[:, 1:], after[:, None]], dim=1)
    assert succeeded == {True, False}


@pytest.mark.parametrize("kind", ["ensemble", "chunks"])
def test_a_saved_env_goes_on_bit_for_bit(kind: str) -> None:
    """Saved where a chunk has ended and another begun."""
    env, other = (learned_env(3, horizon=7, seed=1, kind=kind) for _ in range(2))
    env.reset(episode_seeds("train", 9, 5))
    keys = torch.arange(3)
    for t in range(5):
        env.step(actions(env, keys, t))
    other.load_state_dict(env.state_dict())
    assert torch.equal(other.observe()[STATE], env.observe()[STATE])
    for t in range(5, 16):  # over episode ends, from the given seeds into the training stream
        a, b = env.step(actions(env, keys, t)), other.step(actions(env, keys, t))
        for x, y in zip(a, b, strict=True):
            pairs = [(x[k], y[k]) for k in x] if isinstance(x, dict) else [(x, y)]
            assert all(torch.equal(p, q) for p, q in pairs)
        assert torch.equal(env.episode_seed, other.episode_seed)
    state = env.state_dict()
    for key in ("latent", "frame_scores"):
        with pytest.raises(CheckpointError, match="the saved state is of world p with 3"):
            other.load_state_dict(state | {key: state[key][:, :1]})
    with pytest.raises(CheckpointError, match="the saved state is of world p with 3 envs; this one is p with 2"):
        learned_env(2).load_state_dict(state)


def test_bad_actions_are_refused_by_name() -> None:
    env = learned_env(2)
    with pytest.raises(SpecError, match="shape"):
        env.step(torch.zeros(2, 3))
    with pytest.raises(SpecError, match="'dy'"):
        env.step(torch.tensor([[0.0, 0.0], [0.0, float("nan")]]))
    assert torch.equal(env.step(torch.full((2, 2), 1e3)).executed, torch.tensor(POINT_ACTION.high).expand(2, -1))
    with pytest.raises(ConfigError, match=r"seeds must be \[M\] with M >= 2"):
        env.reset(torch.tensor([1]))


def test_training_streams_differ_by_seed() -> None:
    assert not torch.equal(learned_env(4, seed=1).episode_seed, learned_env(4, seed=2).episode_seed)


# --- why episodes end -------------------------------------------------------------------------------------------------


def test_success_terminates_with_reward_one_once_it_has_lasted() -> None:
    """From x = 0.1 by −0.1: near the origin after the first action only, so success holds after the second."""
    env = point_env([[0.1, 0.0]], 1)
    env.reset(torch.tensor([3]))
    first, second = env.step(torch.tensor([[-0.1, 0.0]])), env.step(torch.zeros(1, 2))
    assert not first.ended.any() and first.reward.item() == 0.0
    assert second.terminated.all() and second.success.all() and second.reward.item() == 1.0 and second.valid.all()
    torch.testing.assert_close(second.next_obs[STATE], torch.zeros(1, 2))
    torch.testing.assert_close(second.obs[STATE], torch.tensor([[0.1, 0.0]]))


def test_uncertainty_terminates_with_the_pessimistic_value_and_no_success() -> None:
    """Doubt is |y| before the action: bound 1 is passed from y = 1.05."""
    env = point_env([[-0.1, 0.95]], 1, pessimism=-0.25)
    env.reset(torch.tensor([3]))
    up = torch.tensor([[0.0, 0.1]])
    first = env.step(torch.tensor([[0.1, 0.1]]))
    assert not first.ended.any() and first.success.item() is False, "lasted one step"
    second = env.step(up)
    assert second.terminated.all() and not second.truncated.any() and second.valid.all()
    assert not second.success.any(), "uncertain success does not count"
    assert second.reward.item() == -0.25 and second.info["uncertain"].all()
    trusting = point_env([[-0.1, 0.95]], 1, trust=2.0)
    trusting.reset(torch.tensor([3]))
    trusting.step(torch.tensor([[0.1, 0.1]]))
    assert trusting.step(up).success.all(), "a larger trust believes it"


def test_states_beyond_the_data_terminate_pessimistically() -> None:
    env = point_env([[8.95, 0.0]], 2)
    env.reset(torch.tensor([3, 4]))
    step = env.step(torch.tensor([[0.1, 0.0], [0.0, 0.0]]))
    assert step.terminated.tolist() == [True, False] and step.reward.tolist() == [0.0, 0.0]


def test_numbers_that_are_not_finite_end_that_episode_only_and_are_not_learned_from() -> None:
    env = point_env([[-5.05, 0.0], [1.0, 0.0]], 64)
    before = env.reset(episode_seeds("test", 2, 64))
    broken = before[STATE][:, 0] < -5
    step = env.step(torch.zeros(64, 2))
    assert 5 < broken.sum() < 60
    assert torch.equal(~step.valid, broken) and torch.equal(step.truncated, broken) and not step.terminated.any()
    assert torch.equal(step.next_obs[STATE], before[STATE]), "the last finite observation"
    assert all(torch.isfinite(v).all() for v in (step.obs[STATE], step.reward, step.info["uncertainty"]))


def test_history_wraps_it_like_any_env() -> None:
    env = HistoryEnv(point_env(FAR, 2), 3)
    assert env.reset()[STATE].shape == (2, 3, 2)
    assert env.step(torch.zeros(2, 2)).obs[STATE].shape == (2, 3, 2)


def test_starts_come_from_the_data_with_their_history() -> None:
    episodes = walk([4, 3], success=[True, False])
    state = episodes.obs[STATE]
    first = starts_of(episodes, 2)
    assert torch.equal(first.obs[STATE], torch.stack([state[[0, 0]], state[[4, 4]]]))
    anywhere = starts_of(episodes, 2, where="any")
    assert len(anywhere) == 6, "all frames but the one at which it succeeds"
    assert torch.equal(anywhere.obs[STATE][2], state[[1, 2]])


def test_a_start_is_encoded_once_however_often_it_begins_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    env, seen = learned_env(8, horizon=2), []
    windows = env.world.windows
    monkeypatch.setattr(env.world, "windows", lambda history: seen.append(len(history)) or windows(history))
    chosen = [env._choose(env.episode_seed)[0]]
    for t in range(60):
        env.step(actions(env, torch.arange(8), t))
        chosen.append(env._choose(env.episode_seed)[0])
        wanted = windows(env.starts.take(chosen[-1]))
        begun = env._t == 0
        assert torch.equal(env._latent[begun], wanted[begun, -1])
    assert sum(seen) == len(set(torch.cat(chosen).tolist()) - set(chosen[0].tolist())) > 0


def test_what_cannot_be_imagined() -> None:
    world = point_world()
    starts = at([[0.0, 0.0]])
    with pytest.raises(ConfigError, match="at least 1"):
        ImaginedEnv(world, starts, 0)
    with pytest.raises(ConfigError, match=r"pessimism: expected a number of at most 0.*found 0\.5"):
        ImaginedEnv(world, starts, 1, pessimism=0.5)
    with pytest.raises(ConfigError, match="no frame to start from"):
        ImaginedEnv(world, at([]), 1)
    world.bound.fill_(torch.nan)
    with pytest.raises(ConfigError, match="not calibrated"):
        ImaginedEnv(world, starts, 1)
