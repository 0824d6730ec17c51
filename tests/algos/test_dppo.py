"""DPPO on a point that must come to the origin: its update, what it leaves alone, its errors, and that it learns."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from robopolicy.algos.advantage_estimator import Advantages
from robopolicy.algos.bc import BC
from robopolicy.algos.dppo import DPPO, DenoisingSamples
from robopolicy.buffers.collector import Rollout
from robopolicy.core.errors import ConfigError, DataError, RobopolicyError
from robopolicy.core.types import IMAGES, STATE, Feature
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.networks.mlp import MLP, ResidualMLP
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.denoising_chain import FloorNoise, LearnedNoise
from robopolicy.policies.diffusion import DiffusionPolicy
from robopolicy.policies.flow import FlowPolicy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.training.on_policy import on_policy
from tests.fakes import MemoryCheckpoints, NoTracker, PointEnv, PointPolicy, keep_batches

KINDS: dict[str, tuple[type[ChunkDenoiser], dict[str, Any]]] = {
    "ddpm": (DiffusionPolicy, {"denoising_steps": 5, "prediction": "epsilon"}),
    "ddim": (DiffusionPolicy, {"denoising_steps": 5, "sampler": "ddim", "eta": 1.0, "prediction": "sample"}),
    "flow": (FlowPolicy, {"sampling_steps": 5}),
    "flow_sde": (FlowPolicy, {"sampling_steps": 5, "noise_level": 0.5}),
}
STILL = {"denoising_steps": 5, "sampler": "ddim", "prediction": "epsilon"}
SILENT = {"still": (DiffusionPolicy, STILL), "flow": KINDS["flow"]}  # no noise
KINDS |= SILENT


def base(kind: str = "ddpm", **options: Any) -> ChunkDenoiser:
    torch.manual_seed(0)
    spec = PointPolicy(chunk=3).spec
    normalizer = Normalizer.from_limits(spec.observation, spec.action)
    normalizer._affine(STATE).set(torch.tensor([0.0, 0.0, 500.0, 6.0]), torch.tensor([0.3, 0.3, 500.0, 6.0]))
    made, fixed = KINDS[kind]
    network = partial(ResidualMLP, width=32, time_dim=16)
    return made(spec, normalizer, network=network, **{**fixed, **options})


PLAIN: dict[str, Any] = {"actor_lr": 1e-4, "lr_schedule": "constant", "critic_warmup": 0}
CLIPS = {"clip": 0.01, "clip_first": 0.01}


def make(kind: str = "ddpm", *, steps: int = 3, seed: int = 0, source: ChunkDenoiser | None = None, **options: Any):
    policy = base(kind, finetuned_steps=steps)
    policy.network.load_state_dict((source or base(kind)).network.state_dict())
    policy.begin_finetuning()
    settings = dict(critic=partial(MLP, width=32, depth=2), gamma=0.95, minibatch=64, epochs=2, seed=seed, **PLAIN,
                    **CLIPS)  # fmt: skip
    return DPPO(policy, **{**settings, **options})


def train(algo: DPPO, *, num_envs: int = 8, checkpoints: MemoryCheckpoints | None = None, **options: Any):
    checkpoints, tracker = checkpoints or MemoryCheckpoints(), NoTracker()
    settings = dict(total_steps=8 * 12 * 3, rollout_steps=12, evaluate=None)
    result = on_policy(
        algo=algo, env=wrap_for(algo.policy, PointEnv(num_envs)), tracker=tracker, checkpointer=checkpoints,
        **{**settings, **options},
    )  # fmt: skip
    return result, tracker, checkpoints


def batch_of(algo: DPPO, count: int = 20, dtype: torch.dtype = torch.float32) -> DenoisingSamples:
    """Chunks of the algorithm's own, with advantages and targets at random."""
    generator = torch.Generator().manual_seed(3)
    normal = partial(torch.randn, generator=generator, dtype=dtype)
    _, record = algo.explore({STATE: normal(count, 1, 4)}, normal(count, *algo.noise_shape))
    weight = torch.full((count, 3), 1 / 3, dtype=dtype)
    keep, advantage, target, value = torch.ones(count, dtype=torch.bool), normal(count), normal(count), normal(count)
    log_prob = (record["log_prob"] * weight[:, None]).sum(-1).flatten()
    return DenoisingSamples(
        record["cond"], record["x"].flatten(0, 1), log_prob, Advantages(keep, advantage, target, value, weight)
    )


def weights(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def every_row(batch: DenoisingSamples) -> torch.Tensor:
    return torch.arange(len(batch.log_prob))


# ---- the update ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "noise"), [*((kind, FloorNoise) for kind in KINDS), *((kind, LearnedNoise) for kind in SILENT)]
)
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_ratio_is_one_in_the_first_minibatch(kind: str, steps: int, noise: Any):
    for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        algo = make(kind, steps=steps, noise=noise)
        algo.policy.to(dtype), algo.noise.to(dtype)
        algo.clip = torch.full_like(algo.clip, bound)
        batch = batch_of(algo, dtype=dtype)
        _, stats = algo.loss(batch, every_row(batch)[torch.randperm(20 * steps)])
        assert bool(stats.isfinite().all())
        assert float(stats[1]) == 0.0, "of no sample is the ratio further from 1 than the bound"


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(SILENT)))
def test_learned_noise_is_for_samplers_without_their_own(kind: str):
    """Training would explore with one deviation, and what is deployed draw with another."""
    with pytest.raises(ConfigError, match=r"deviations up to 0\.\d+.*sampler: ddim, eta: 0"):
        make(kind, noise=LearnedNoise)


def test_entropy_of_noise_that_is_not_learned_is_refused():
    with pytest.raises(ConfigError, match=r"algo\.entropy=0\.1: nothing of FloorNoise is learned"):
        make(entropy=0.1)


def test_loss_of_a_sample_by_hand():
    algo = make(steps=3, clip=0.2, clip_first=0.1, denoising_gamma=0.9)
    batch = batch_of(algo)
    sides = torch.tensor([0.7, -0.7]).repeat(10)  # a clip shows where the advantage is positive
    advantages = batch.advantages._replace(advantage=sides)
    batch = batch._replace(log_prob=batch.log_prob - 0.15, advantages=advantages)  # ratio e^0.15 = 1.1618 everywhere
    for k, clip in enumerate((0.1, 0.1 + 0.1 * 0.182426, 0.2)):
        for chunk, bounded in ((4, min(1.161834, 1.0 + clip)), (5, 1.161834)):
            want = -float(sides[chunk]) * 0.9 ** (2 - k) * bounded
            assert algo.loss(batch, torch.tensor([chunk * 3 + k]))[0].item() == pytest.approx(want, rel=1e-3)


def test_the_tail_that_was_not_executed_does_not_count():
    algo = make(steps=2)
    batch = batch_of(algo)
    weight = batch.advantages.weight.clone()
    weight[4] = torch.tensor([0.5, 0.5, 0.0])
    changed = batch.x.clone()
    changed[4 * 3 + 2, 2] += 1.0  # chunk 4 ends in another third action …
    changed[4 * 3 + 2, 3] += 1.0  # … and another fourth, which nobody ever executes
    cut = batch._replace(advantages=batch.advantages._replace(weight=weight))
    row = torch.tensor([4 * 2 + 1])
    assert algo.loss(cut._replace(x=changed), row)[0].item() == algo.loss(cut, row)[0].item()
    assert algo.loss(batch._replace(x=changed), row)[0].item() != algo.loss(batch, row)[0].item()


def test_returns_put_each_step_s_weight_where_it_was_executed():
    algo = make(steps=2)
    seen = keep_batches(algo)
    train(algo, rollout_steps=14, total_steps=8 * 14 * 3)  # episodes of 12 steps are cut off amid chunks of 3
    for batch in seen[1:2]:
        weight = batch.advantages.weight
        torch.testing.assert_close(weight.sum(1), torch.ones(len(weight)))
        assert {tuple(w) for w in weight.mul(6).round().int().tolist()} == {(2, 2, 2), (3, 3, 0), (6, 0, 0)}
        assert len(batch.log_prob) == 2 * len(batch.cond) and len(batch.x) == 3 * len(batch.cond)
        assert abs(float(batch.advantages.advantage.mean())) < 1e-6
    # Before the first update, and only then, the stored log-probs are those of the current policy.
    fresh = make(steps=2)
    assert float(fresh.loss(seen[0], every_row(seen[0]))[1][2]) < 1e-4


def test_chunks_in_which_physics_failed_are_left_out_and_the_others_keep_their_places(monkeypatch):
    step = PointEnv.step
    monkeypatch.setattr(PointEnv, "step", lambda self, action: (
        step(self, action)._replace(valid=torch.arange(self.num_envs) != 2)
    ))  # fmt: skip
    algo, fresh = make(steps=2), make(steps=2)
    seen = keep_batches(algo)
    train(algo, total_steps=8 * 12)
    keep = seen[0].advantages.keep
    assert len(seen[0].cond) == int(keep.sum()) < len(keep)
    assert float(fresh.loss(seen[0], every_row(seen[0]))[1][2]) < 1e-4


def test_gradients_reach_the_copy_and_the_noise_and_nothing_else():
    algo = make("flow", noise=LearnedNoise)
    frozen = {k: v.clone() for k, v in algo.policy.state_dict().items() if not k.startswith("finetuned.")}
    finetuned, noise, critic = (
        weights(algo.policy.finetuned),
        weights(algo.noise),
        weights(algo.learner.estimator.network),
    )
    train(algo)
    assert all(torch.equal(v, algo.policy.state_dict()[k]) for k, v in frozen.items())
    assert not [n for n, p in algo.policy.named_parameters() if p.grad is not None and not n.startswith("finetuned.")]
    assert not torch.equal(finetuned, weights(algo.policy.finetuned)) and not torch.equal(noise, weights(algo.noise))
    assert not torch.equal(critic, weights(algo.learner.estimator.network))


def test_pieces_of_a_minibatch_add_up_to_its_gradient():
    whole, parts = make(anchor=0.5), make(anchor=0.5, microbatch=7)
    for algo in (whole, parts):
        with torch.no_grad():  # away from the base, so that the anchor pulls
            for p in algo.policy.finetuned_parameters():
                p.add_(0.05)
        batch = batch_of(algo)
        algo.learner.step(every_row(batch), partial(algo.loss, batch._replace(anchor=algo.anchor_means(batch))))
    for a, b in zip(whole.learner.parameters, parts.learner.parameters, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-7)


def test_equal_advantages_move_nothing():
    """Nor does the momentum of what was learned before."""
    algo = make()
    batch = batch_of(algo)
    before = weights(algo.policy.finetuned)
    algo.update(batch, progress=0.0)
    learned = weights(algo.policy.finetuned)
    algo.update(batch._replace(advantages=batch.advantages._replace(advantage=torch.zeros(20))), progress=0.0)
    assert torch.equal(learned, weights(algo.policy.finetuned)) and not torch.equal(learned, before)


def test_the_critic_warms_up_alone():
    algo = make(critic_warmup=2)
    before, critic = weights(algo.policy.finetuned), weights(algo.learner.estimator.network)
    taken = [algo.update(batch_of(algo, 64), progress=0.0)["actor_steps"] for _ in range(2)]
    assert taken == [0, 0] and torch.equal(before, weights(algo.policy.finetuned))
    assert not torch.equal(critic, weights(algo.learner.estimator.network))
    assert algo.update(batch_of(algo, 64), progress=0.0)["actor_steps"] > 0
    assert not torch.equal(before, weights(algo.policy.finetuned))


def test_learning_stops_at_the_target_kl():
    free, held = make(actor_lr=1e-2, epochs=20), make(actor_lr=1e-2, epochs=20, target_kl=1e-4)
    steps = [algo.update(batch_of(algo, 64), progress=0.0)["actor_steps"] for algo in (free, held)]
    assert steps[0] == 20 * 3 and 0 < steps[1] < 20


def test_the_step_that_would_go_beyond_is_not_taken():
    algo = make(actor_lr=1e-2, target_kl=1e-4)
    batch = batch_of(algo, 64)
    rows, loss = every_row(batch), partial(algo.loss, batch)
    assert float(algo.learner.step(rows, loss)[0]) <= 1e-4
    moved = weights(algo.policy.finetuned)
    assert float(algo.learner.step(rows, loss)[0]) > 1e-4
    assert torch.equal(moved, weights(algo.policy.finetuned))


def test_minibatches_grow_with_the_rollout_where_their_number_is_given():
    sizes: list[int] = []
    for count in (20, 80):
        algo = make(minibatches=4, epochs=1)
        original = algo.loss
        algo.loss = lambda batch, rows, original=original: (sizes.append(len(rows)), original(batch, rows))[1]
        algo.update(batch_of(algo, count), progress=0.0)
    assert sizes == [15] * 4 + [60] * 4


def test_an_anchor_holds_the_policy_at_the_frozen_one():
    moved = {}
    for anchor in (0.0, 100.0):
        algo = make(actor_lr=1e-2, epochs=10, anchor=anchor)
        batch = batch_of(algo, 64)
        before = algo.anchor_means(batch)
        algo.update(batch._replace(anchor=before if anchor else None), progress=0.0)
        x = batch.x.view(64, 4, 4, 2)[:, :3].flatten(0, 1)
        mean, _ = algo.policy.transition(batch.cond.repeat_interleave(3, 0), x, torch.arange(3).repeat(64))
        moved[anchor] = (mean[:, :3] - before).square().mean().item()
    assert moved[100.0] < 0.2 * moved[0.0]


def test_fine_tuning_spreads_from_the_last_step_backwards():
    algo = make(steps=5, progressive=0.5)
    assert [algo.first_step(p) for p in (0.0, 0.09, 0.1, 0.25, 0.41, 0.5, 1.0)] == [4, 4, 3, 2, 0, 0, 0]
    seen: list[int] = []
    original = algo.loss
    algo.loss = lambda batch, rows: (seen.extend((rows % 5).tolist()), original(batch, rows))[1]
    learned: list[int] = []
    learn = algo.learner.estimator.learn
    algo.learner.estimator.learn = lambda cond, target: (learned.append(len(cond)), learn(cond, target))[1]
    algo.update(batch_of(algo), progress=0.25)
    assert set(seen) == {2, 3, 4} and len(seen) == 2 * 3 * 20
    assert len(learned) == 2 * round(5 * 20 / 64) and sum(learned) == 2 * 20, "the critic has its usual steps"


def test_learning_rates_follow_the_schedule():
    algo = make(lr_schedule="linear", lr_final=0.5, actor_lr=1e-3)
    rates = [row["train/lr"] for _, row in train(algo)[1].rows]
    assert rates == pytest.approx([1e-3, 1e-3 * (1 - 0.5 / 3), 1e-3 * (1 - 1 / 3)])


def test_entropy_widens_learned_noise():
    algo = make("flow", noise=LearnedNoise, entropy=1.0, actor_lr=1e-2, epochs=20)
    batch = batch_of(algo)
    algo.update(batch._replace(advantages=batch.advantages._replace(advantage=torch.zeros(20))), progress=0.0)
    std = algo.noise.sampling(torch.zeros(()), 0, batch.cond)
    assert float(std.detach().min()) > 0.115  # from 0.106 towards 0.14


# ---- errors --------------------------------------------------------------------------------------------------------


def test_a_ratio_that_is_not_finite_is_an_error_and_changes_nothing():
    algo = make()
    batch = batch_of(algo)
    before = weights(algo.policy.finetuned)
    bad = batch.log_prob.clone()
    bad[7] = -1e6
    with pytest.raises(
        RobopolicyError, match=r"not everything is finite in update 1: kl .*ratio_off inf.*Lower actor_lr"
    ):
        algo.update(batch._replace(log_prob=bad), progress=0.0)
    assert torch.equal(before, weights(algo.policy.finetuned))


def test_a_critic_that_is_not_finite_is_an_error_and_changes_nothing():
    algo = make(critic_warmup=1, minibatch=1_000)
    batch = batch_of(algo)
    before = weights(algo.learner.estimator.network)
    bad = batch.advantages.target.clone()
    bad[3] = torch.nan
    with pytest.raises(RobopolicyError, match=r"critic's loss is nan.*rewards"):
        algo.update(batch._replace(advantages=batch.advantages._replace(target=bad)), progress=0.0)
    assert torch.equal(before, weights(algo.learner.estimator.network))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_reward_that_is_not_finite_is_named(monkeypatch, bad: float):
    step = PointEnv.step
    monkeypatch.setattr(PointEnv, "step", lambda self, action: (
        (out := step(self, action))._replace(reward=torch.where(self.time == 3, bad, out.reward))
    ))  # fmt: skip
    with pytest.raises(DataError, match=r"reward of env 0 is -?(nan|inf), expected a finite number"):
        train(make())


def test_nothing_but_failed_physics_is_an_error(monkeypatch):
    step = PointEnv.step
    monkeypatch.setattr(PointEnv, "step", lambda self, action: (
        (out := step(self, action))._replace(valid=torch.zeros_like(out.valid))
    ))  # fmt: skip
    with pytest.raises(RobopolicyError, match=r"physics failed in all chunks"):
        train(make())


def test_images_are_encoded_once_a_chunk_and_an_empty_batch_of_them_is_no_trouble():
    """A rollout without a time limit has no final observations."""
    torch.manual_seed(0)
    plain = PointPolicy(chunk=3).spec
    spec = replace(plain, observation={**plain.observation, IMAGES + "front": Feature((3, 96, 96), "uint8")})
    policy = DiffusionPolicy(
        spec, Normalizer.from_limits(spec.observation, spec.action), denoising_steps=3, finetuned_steps=2,
        network=partial(ResidualMLP, width=16, time_dim=16),
    )  # fmt: skip
    policy.begin_finetuning()
    algo = DPPO(policy, critic=partial(MLP, width=16, depth=1), minibatch=8, epochs=1, **PLAIN)
    obs = {STATE: torch.randn(4, 1, 4), IMAGES + "front": torch.randint(0, 256, (4, 1, 3, 96, 96), dtype=torch.uint8)}
    _, record = algo.explore(obs, torch.randn(4, *algo.noise_shape))
    none, planned = torch.zeros(2, 4, dtype=torch.bool), torch.tensor([[True] * 4, [False] * 4])
    rollout = Rollout(
        record, planned, torch.randn(2, 4), none, none, ~none, {k: v[:0] for k, v in obs.items()}, obs, [], 8, {}, []
    )
    encoder = weights(policy.encoder)
    batch = algo.returns(rollout)
    policy.encode = lambda obs: pytest.fail("encoded in an update")
    found = algo.update(batch, progress=0.0)
    assert batch.cond.shape == (4, policy.cond_dim) and found["actor_steps"] == 1
    assert torch.equal(encoder, weights(policy.encoder))


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(ConfigError, match=r"has 0\. Make it from its base by policy=finetuned"):
        DPPO(base())
    with pytest.raises(ConfigError, match=r"between 0 and the 5 steps.*found 6"):
        make(steps=6)
    with pytest.raises(ConfigError, match="deterministic in fine-tuned steps"):
        make("flow", noise=partial(FloorNoise, floor=0.0))
    with pytest.raises(ConfigError, match=r"total_steps=50 is less than one rollout .* = 96 primitive .*Raise"):
        train(make(), total_steps=50)
    with pytest.raises(ConfigError, match=r"total_steps=200 makes 2 rollouts of 96 .*critic_warmup=2 the critic alone"):
        train(make(critic_warmup=2), total_steps=200)
    train(make(critic_warmup=1), total_steps=200)


# ---- the loop ------------------------------------------------------------------------------------------------------


def test_total_steps_are_never_exceeded():
    result, tracker, checkpoints = train(make(), total_steps=8 * 12 * 2 + 95)
    assert (
        result["steps"] == 192 and [step for step, _ in tracker.rows] == [96, 192] and list(checkpoints.saved) == [192]
    )


def test_evaluations_happen_on_schedule_and_the_best_is_kept():
    seen: list[int] = []
    score = lambda policy, step: seen.append(step) or {"success_rate": 0.9 if step == 192 else 0.1}  # noqa: E731
    result, tracker, checkpoints = train(make(), eval_every=150, evaluate=score)
    assert seen == [0, 192, 288] and result["success_rate"] == 0.1
    assert [s for s, row in tracker.rows if "eval/success_rate" in row] == seen
    assert checkpoints.best == [0, 192] and max(checkpoints.saved) == 288


@pytest.mark.parametrize("kind", ["ddpm", "flow"])
def test_resume_gives_the_same_run_bit_for_bit(kind: str):
    options = dict(total_steps=8 * 12 * 4, save_every=96)
    noise = LearnedNoise if kind == "flow" else FloorNoise
    algo = make(kind, noise=noise, lr_schedule="cosine")
    _, _, whole = train(algo, **options)
    other = make(kind, noise=noise, lr_schedule="cosine", seed=9)
    for p in other.learner.parameters:
        torch.nn.init.normal_(p)
    half = MemoryCheckpoints()
    half.saved[192] = copy.deepcopy(whole.saved[192])
    train(other, checkpoints=half, **options)
    assert torch.equal(weights(algo.policy), weights(other.policy))
    assert torch.equal(weights(algo.learner.estimator.network), weights(other.learner.estimator.network))
    a, b = whole.saved[384], half.saved[384]
    assert torch.equal(a["collector"]["obs"][STATE], b["collector"]["obs"][STATE])
    assert torch.equal(a["algo"]["generator"], b["algo"]["generator"])


# ---- learning ------------------------------------------------------------------------------------------------------


def slow_base(kind: str) -> ChunkDenoiser:
    """Imitates a policy that goes 40% of the way a chunk with much noise: too slow from most starts."""
    learner = BC(base(kind), steps=500, lr=3e-3, warmup=20)
    generator = torch.Generator().manual_seed(0)
    teacher = PointPolicy(gain=0.4, chunk=3)
    for _ in range(500):
        state = torch.rand(128, 1, 4, generator=generator) * torch.tensor([1.2, 1.2, 1000, 12]) - torch.tensor(
            [0.6, 0.6, 0, 0]
        )
        action = teacher.act({STATE: state}) + 0.02 * torch.randn(128, 4, 2, generator=generator)
        learner.update({STATE: state, "action": action, "action_is_pad": torch.zeros(128, 4, dtype=torch.bool)})
    return learner.policy


def success(policy: ChunkDenoiser) -> float:
    from robopolicy.core.rng import episode_seeds
    from robopolicy.evaluation.rollout import evaluate

    return evaluate(policy, PointEnv(64), episode_seeds("validation", 0, 200)).success_rate().value


@pytest.mark.learning
@pytest.mark.parametrize(("kind", "noise"), [("ddpm", FloorNoise), ("flow", LearnedNoise)])
def test_it_improves_a_slow_base(kind: str, noise: Any):
    source = slow_base(kind)
    algo = make(kind, source=source, noise=noise, actor_lr=1e-3, critic_lr=3e-3, clip=0.05, clip_first=0.02, epochs=8,
                minibatch=512, critic_warmup=1)  # fmt: skip
    before = success(algo.policy)
    assert before == pytest.approx(success(source), abs=1e-6), "before training it is the base"
    train(algo, num_envs=64, rollout_steps=24, total_steps=64 * 24 * 15)
    after = success(algo.policy)
    assert before < 0.6 and after > before + 0.3, (before, after)
