from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from robopolicy.algos.bc import BC
from robopolicy.core.errors import CheckpointError, ConfigError, SpecError
from robopolicy.core.types import STATE, TASK, EnvSpec, Feature
from robopolicy.datasets.batches import Batches
from robopolicy.datasets.episodes import Episodes
from robopolicy.datasets.retrieval import Retrieved
from robopolicy.policies import ricl
from robopolicy.policies.denoising_chain import FloorNoise
from robopolicy.policies.factory import build_policy
from robopolicy.policies.finetuning import finetuned
from robopolicy.policies.in_context import in_context
from robopolicy.policies.io import load_policy, save_policy
from robopolicy.policies.normalizer import ACTION, Normalizer
from robopolicy.policies.ricl import RICLPolicy
from robopolicy.policies.vla import adapted
from tests.elsewhere import HERE, elsewhere
from tests.policies.test_vla import CAMERA, FEATURES, SMALL, TASKS, look
from tests.policies.test_vla import make as vla
from tests.toy import ACTION as ACTIONS
from tests.toy import spec

WORDS = {STATE: FEATURES[STATE], TASK: FEATURES[TASK]}
LENGTH = 6


def demos(*, each: int = 4, seed: int = 0, tasks: tuple[str, ...] = TASKS, features: dict = WORDS) -> Episodes:
    """`each` demonstrations of every instruction, `LENGTH` frames long, instructions in turn."""
    generator = torch.Generator().manual_seed(seed)
    count = each * len(tasks)
    frames = count * LENGTH
    obs = {STATE: torch.randn(frames, 3, generator=generator)}
    if CAMERA in features:
        obs[CAMERA] = torch.randint(0, 256, (frames, 3, 16, 24), generator=generator, dtype=torch.uint8)
    obs[TASK] = (torch.arange(count) % len(tasks)).repeat_interleave(LENGTH)
    zero = torch.zeros(frames)
    return Episodes(
        obs=obs, action=0.02 * (2.0 * torch.rand(frames, 2, generator=generator) - 1.0), reward=zero,
        terminated=zero.bool(), success=zero.bool(), starts=torch.arange(0, frames + 1, LENGTH),
        seeds=100 + torch.arange(count), observation=features, action_spec=ACTIONS, dt=0.05, tasks=tasks,
    )  # fmt: skip


def make(
    data: Episodes | None = None, *, features: dict = WORDS, tasks: tuple[str, ...] = TASKS, **options
) -> RICLPolicy:
    """With random weights everywhere: a gate that starts at zero would hide what is behind it."""
    torch.manual_seed(0)
    node = {"_target_": "ricl", **SMALL, "sampling_steps": 4, "pairs": 3, **options}
    normalizer = Normalizer.from_limits(features, ACTIONS)
    runtime = {} if data is None else {"episodes": data}
    policy = build_policy(node, spec=spec(observation=features, tasks=tasks), normalizer=normalizer, **runtime)
    assert isinstance(policy, RICLPolicy)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return policy.eval()


def batches(policy: RICLPolicy, data: Episodes, *, size: int = 24, seed: int = 0) -> Batches:
    return Batches(data, policy.spec, batch_size=size, seed=seed, precompute_features=policy.precompute_features)


def words(count: int = 3) -> dict[str, Tensor]:
    return {k: v for k, v in look(count).items() if k != CAMERA}


# -- what is retrieved -------------------------------------------------------------------------------------------------
def test_training_never_sees_its_own_episode_nor_other_instructions(monkeypatch: pytest.MonkeyPatch):
    """Every frame of an episode looks the same here, so its own would be the nearest by far."""
    data = demos()
    data.obs[STATE].copy_(torch.randn(12, 3).repeat_interleave(LENGTH, dim=0))
    policy, asked = make(data, alone=0.0), []
    monkeypatch.setattr(
        policy, "_tokens", lambda key, found: asked.append((key, found)) or type(policy)._tokens(policy, key, found)
    )
    policy.loss(batches(policy, data, size=72)[0])
    key, found = asked[0]
    assert len(key) == 72 and bool(found.distance.isfinite().all())
    for row in range(72):
        own = (data.obs[STATE] == key[row]).all(1).nonzero()[:, 0] // LENGTH
        theirs = found.frame[row] // LENGTH
        assert len(own.unique()) == 1 and not torch.isin(theirs, own).any(), "its own episode is in the context"
        assert (theirs % 3).tolist() == [int(own[0]) % 3] * 3, "of another instruction"
        assert len(theirs.unique()) == 3, "one frame of each demonstration"


def test_an_episode_that_was_recorded_twice_is_still_its_own():
    data = demos()
    twice = replace(data, seeds=100 + torch.arange(12) // 6)  # episodes 0–5 are one, 6–11 another
    policy = make(twice)
    kept = policy.precompute_features(twice.obs, twice.seeds[twice.episode_of])
    half = kept["retrieval.frame"] // LENGTH // 6
    there = kept["retrieval.distance"].isfinite()
    assert there.sum(1).unique().tolist() == [2]
    assert bool((half != (twice.episode_of // 6)[:, None])[there].all())


def test_the_context_is_the_nearest_of_the_shown_episodes():
    data = demos(each=8)
    policy = make(data, shown=4, alone=0.0)
    batch = batches(policy, data, size=200)[0]
    pool, drawn = batch["retrieval.distance"][:, -1], []
    policy._tokens = lambda key, found: drawn.append(found) or RICLPolicy._tokens(policy, key, found)  # type: ignore[method-assign]
    policy.encode_batch(batch)
    (found,) = drawn
    assert bool((found.distance[:, 1:] >= found.distance[:, :-1]).all()), "the nearest first"
    rank = (found.distance[:, :, None] > pool[:, None, :]).sum(-1)  # among the 7 others
    assert int(rank.max()) <= 6 and bool((rank[:, 0] <= 3).all()), "the nearest of 4 of 7 is among the first 4"
    assert set(rank[:, 0].tolist()) == {0, 1, 2, 3}, "always the same ones"


def test_only_episodes_of_the_instruction_take_up_room_in_the_pool(monkeypatch: pytest.MonkeyPatch):
    data = demos()
    policy = make(data)
    monkeypatch.setattr(ricl, "_POOL", 3)
    kept = policy.precompute_features(data.obs, data.seeds[data.episode_of])
    assert kept["retrieval.distance"].shape == (72, 3) and bool(kept["retrieval.distance"].isfinite().all())


def test_shares_of_a_batch_without_context_and_without_words():
    data = demos(each=8)
    policy = make(data, alone=0.25, forget=0.5)
    batch, seen = batches(policy, data, size=144)[0], []
    policy.encoder.register_forward_pre_hook(lambda _, __, kwargs: seen.append(kwargs), with_kwargs=True)
    torch.manual_seed(0)
    for _ in range(20):
        policy.encode_batch(batch)
    alone, silent = torch.cat([~s["more"][1].any(1) for s in seen]), torch.cat([s["silent"] for s in seen])
    assert abs(alone.float().mean() - 0.25) < 0.03 and abs(silent.float().mean() - 0.5) < 0.03  # 3 deviations
    assert not bool((alone & silent).any()), "nothing would be left that says what to do"


def test_without_precomputed_features_it_is_not_trained():
    data = demos()
    policy = make(data)
    with pytest.raises(SpecError, match="precompute_features"):
        policy.loss(Batches(data, policy.spec, batch_size=8, seed=0)[0])


def test_pictures_are_compared_by_thumbnails_or_by_what_a_frozen_tower_sees():
    data = demos(features=FEATURES)
    policy = make(data, features=FEATURES, thumbnail=2)
    assert policy.memory.key.shape == (72, 3 + 3 * 4)
    mean = (data.obs[CAMERA][0, :, :8, :12].float() / 127.5 - 1.0).mean((1, 2))  # of the upper left quarter
    torch.testing.assert_close(policy.memory.key[0, 3::4], mean)
    frozen = make(data, features=FEATURES, thumbnail=2, prefix={**SMALL["prefix"], "freeze_vision": True})
    assert frozen.memory.key.shape == (72, 3 + 32 * 2)
    for made in (policy, frozen):
        loss, _ = made.loss(batches(made, data)[0])
        assert bool(loss.isfinite())
        assert made.act(look(3)).shape == (3, 4, 2)


def test_a_key_of_chosen_elements():
    data = demos()
    policy = make(data, compare=["b"])
    assert torch.equal(policy.memory.key[:, 0], data.obs[STATE][:, 1])
    with pytest.raises(SpecError, match=r"policy\.compare: .*has no 'bb'\. Did you mean 'b'"):
        make(data, compare=["bb"])
    with pytest.raises(SpecError, match="nothing to tell observations apart by"):
        make(data, compare=[])


# -- what becomes of it ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("prediction", ["velocity", "sample"])
def test_the_nearest_chunk_has_its_share_of_the_action(prediction: str):
    data = demos()
    policy, noise = make(data, decay=0.5, prediction=prediction), torch.randn(3, 4, 2)
    obs = words()
    found = policy.memory.nearest(obs[STATE][:, 0], obs[TASK][:, 0], 1)
    share = torch.exp(-0.5 * found.distance)[..., None]
    nearest = policy.memory.chunk[found.frame[:, 0]]
    x = noise
    for k in range(4):  # the chain by hand: what is expected moves towards the nearest chunk
        context = policy.encode(obs)[:, : -4 * 2 - 1]
        predicted = policy.network(x, torch.full((3,), k / 4), context)
        expected = x + (1 - k / 4) * predicted if prediction == "velocity" else predicted
        wanted = (1 - share) * expected + share * nearest
        x = x + 0.25 * (wanted - x) / (1 - k / 4)
    chunk = policy.act(obs, noise=noise)
    torch.testing.assert_close(chunk, policy.normalizer.unnormalize(ACTION, x), atol=1e-5, rtol=1e-4)
    policy.decay = 0.0
    torch.testing.assert_close(policy.act(obs, noise=noise), policy.normalizer.unnormalize(ACTION, nearest))
    policy.decay = None
    assert not torch.allclose(policy.act(obs, noise=noise), chunk)


def test_a_frame_of_the_memory_itself_is_repeated_exactly():
    data = demos()
    policy = make(data)
    obs = {k: v[7:8, None] for k, v in data.obs.items()}
    chunk, _ = data.chunk(torch.tensor([7]), 4)
    torch.testing.assert_close(policy.act(obs), chunk, atol=1e-6, rtol=1e-5)


def test_what_is_in_memory_changes_the_action_and_what_fills_it_up_does_not():
    data, obs, noise = demos(), words(), torch.randn(3, 4, 2)
    policy = make(data, decay=None)
    chunk = policy.act(obs, noise=noise)
    policy.set_retrieval_memory(demos(seed=1))
    assert not torch.allclose(policy.act(obs, noise=noise), chunk)
    policy.set_retrieval_memory(None)
    nothing = policy.act(obs, noise=noise)
    assert not torch.allclose(nothing, chunk) and bool(nothing.isfinite().all())
    policy.decay = 10.0  # no share of nothing
    torch.testing.assert_close(policy.act(obs, noise=noise), nothing)
    policy.set_retrieval_memory(demos(each=1))  # one demonstration, two places left empty
    policy.decay = None
    before = policy.act(obs, noise=noise)
    policy.memory.key[data.episode_of[: 3 * LENGTH] % 3 != 0] += 0.5  # of other instructions than the first row's
    after = policy.act(obs, noise=noise)
    assert torch.equal(before[0], after[0]) and not torch.equal(before[1], after[1])


def test_an_action_does_not_depend_on_its_neighbours():
    policy, obs, noise = make(demos()), words(9), torch.randn(9, 4, 2)
    together = policy.act(obs, noise=noise)
    alone = torch.cat([policy.act({k: v[i : i + 1] for k, v in obs.items()}, noise=noise[i : i + 1]) for i in range(9)])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=1e-5)


def test_new_words_are_hidden_where_demonstrations_show_what_they_mean():
    new = ("advance", "retreat", "halt")
    policy, obs, noise = make(demos(), decay=None), words(), torch.randn(3, 4, 2)
    trained = policy.act(obs, noise=noise)
    policy.set_tasks(new)
    read = policy.act(obs, noise=noise)
    with torch.no_grad():
        policy.encoder.text.position.mul_(-3.0)
        assert not torch.allclose(policy.act(obs, noise=noise), read), "without demonstrations they are read"
        policy.set_retrieval_memory(replace(demos(), tasks=new))
        shown = policy.act(obs, noise=noise)
        policy.encoder.text.position.mul_(-3.0)
    assert torch.equal(policy.act(obs, noise=noise), shown)
    policy.set_tasks(TASKS)
    assert not torch.allclose(policy.act(obs, noise=noise), trained)


# -- on disk -----------------------------------------------------------------------------------------------------------
def test_it_is_saved_with_its_memory_and_with_what_it_was_trained_on(tmp_path: Path):
    policy, obs, noise = make(demos()), words(), torch.randn(3, 4, 2)
    chunk = policy.act(obs, noise=noise)
    save_policy(policy, tmp_path / "policy")
    same = load_policy(tmp_path / "policy")
    assert torch.equal(same.act(obs, noise=noise), chunk)
    env = EnvSpec("toy", WORDS, ACTIONS, ("advance", *TASKS), 0.05, 10, "")
    other = load_policy(tmp_path / "policy", env=env)
    assert torch.equal(other.act({**obs, TASK: obs[TASK] + 1}, noise=noise), chunk), "found by words, not by number"
    other.set_retrieval_memory(demos(tasks=env.tasks))
    save_policy(other, tmp_path / "other")
    again = load_policy(tmp_path / "other")
    assert isinstance(again, RICLPolicy) and again.known == TASKS and again.memory.tasks == env.tasks
    file = tmp_path / "policy" / "memory.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"memory\.safetensors is damaged"):
        load_policy(tmp_path / "policy")


def test_a_training_cut_off_anywhere_ends_in_the_same_weights():
    data = demos()

    def learn(state: dict | None, begin: int, end: int) -> dict:
        algo = BC(make(data), steps=4, warmup=1)
        if state is not None:
            algo.load_state_dict(state)
        given = batches(algo.policy, data)
        for step in range(begin, end):
            torch.manual_seed(step)
            algo.update(given[step])
        return algo.state_dict()

    whole, resumed = learn(None, 0, 4), learn(learn(None, 0, 2), 2, 4)
    assert all(torch.equal(v, resumed["average"][k]) for k, v in whole["average"].items())
    assert any(not torch.equal(v, make(data).state_dict()[k]) for k, v in whole["average"].items())


def test_the_fine_tuned_copy_looks_up_the_same_and_its_steps_are_those_it_samples():
    base, obs, noise = make(demos(), noise_level=0.5), words(), torch.randn(3, 5, 4, 2)
    policy = finetuned(base, finetuned_steps=2)
    assert isinstance(policy, RICLPolicy)
    torch.testing.assert_close(policy.act(obs, noise=noise), base.act(obs, noise=noise), atol=1e-6, rtol=1e-5)
    cond = policy.encode(obs)
    assert len(cond) == 3 and policy.cond_dim == policy.encoder.summary_dim
    chain = policy.sample_chain(cond, noise=noise, spread=FloorNoise(floor=0.0))
    for k in range(2):
        mean, std = policy.transition(cond, chain.x[:, k], torch.full((3,), k))
        torch.testing.assert_close(chain.x[:, k + 1], mean + std * noise[:, 3 + k], atol=1e-5, rtol=1e-4)


@pytest.mark.learning
def test_it_does_what_is_shown_under_words_it_never_read():
    """x is ±1 cm as the instruction says: what a new instruction means, the demonstrations alone say."""
    torch.manual_seed(0)

    def shown(each: int, tasks: tuple[str, ...], seed: int) -> Episodes:
        data = demos(each=each, tasks=tasks, seed=seed)
        side = 2.0 * data.obs[TASK] - 1.0
        return replace(data, action=torch.stack([0.01 * side, 0.01 * data.obs[STATE][:, 0].tanh()], dim=1))

    data = shown(40, ("left", "right"), 0)
    algo = BC(make(data, tasks=("left", "right"), decay=None), steps=110, lr=5e-3, warmup=10, ema_decay=0.95)
    given = batches(algo.policy, data, size=48)
    for step in range(110):
        torch.manual_seed(step)
        algo.update(given[step])
    policy, obs = algo.policy, words(200)
    obs[TASK] = obs[TASK] % 2
    policy.set_tasks(("hither", "thither"))
    policy.set_retrieval_memory(shown(10, ("hither", "thither"), 1))
    x = policy.act(obs, deterministic=True)[:, 0, 0]
    obeyed = (x.sign() == 2 * obs[TASK][:, 0] - 1).float().mean()
    assert obeyed > 0.97, f"obeyed {obeyed:.0%}"


# -- bad input ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observation": {STATE: Feature((4,)), TASK: FEATURES[TASK]}}, r"observation\.state.*\(3,\).*\(4,\)"),
        ({"observation": {TASK: FEATURES[TASK]}}, r"the policy needs 'observation\.state'"),
        ({"dt": 0.1}, r"dt: the policy has a step every 0\.05 s, the dataset every 0\.1 s"),
        ({"action_spec": replace(ACTIONS, frame="world")}, r"action\.frame"),
        ({"tasks": ("run", "jump", "sing")}, r"it demonstrates jump; run; sing, and .* go left; .* to the letter"),
    ],
)
def test_demonstrations_that_do_not_fit_are_refused(change: dict, message: str):
    with pytest.raises(SpecError, match=f"policy and memory do not fit(.|\n)*{message}"):
        make().set_retrieval_memory(replace(demos(), **change))


def test_pictures_of_another_size_are_refused():
    other = {**FEATURES, CAMERA: Feature((3, 32, 24), "uint8")}
    with pytest.raises(SpecError, match=r"(?s)do not fit.*images\.front.*\(3, 16, 24\).*\(3, 32, 24\)"):
        make(features=FEATURES).set_retrieval_memory(demos(features=other))


def test_an_empty_memory_is_refused_and_a_lack_is_warned_of(caplog: pytest.LogCaptureFixture):
    policy, data = make(), demos()
    nothing = {k: v[:0] for k, v in data.obs.items()}
    empty = replace(data, obs=nothing, action=data.action[:0], starts=torch.zeros(1).long(), seeds=data.seeds[:0])
    with pytest.raises(SpecError, match="it holds no episode"):
        policy.set_retrieval_memory(empty)
    with caplog.at_level(logging.WARNING):
        policy.set_retrieval_memory(replace(data, tasks=("go left", "stop", "jump")))
    assert "no demonstration of go right now" in caplog.text


def test_shares_that_add_up_to_more_than_all_are_refused():
    with pytest.raises(ConfigError, match=r"at most 1, found 0\.7 \+ 0\.5"):
        make(alone=0.7, forget=0.5)


def test_nothing_was_retrieved_for_found_of_too_few():
    found = Retrieved(torch.tensor([[4, 5]]), torch.tensor([[2.0, 1.0]])).closest(3)
    assert found.frame.tolist() == [[5, 4]] and found.distance.tolist() == [[1.0, 2.0]]


def test_the_shipped_config_builds():
    node = OmegaConf.to_container(OmegaConf.load("configs/policy/ricl.yaml"))
    policy = build_policy(
        node, spec=spec(observation=WORDS, tasks=TASKS), normalizer=Normalizer.from_limits(WORDS, ACTIONS)
    )
    assert isinstance(policy, RICLPolicy) and len(policy.memory) == 0


# -- on a VLA that was trained without ---------------------------------------------------------------------------------
def test_a_trained_vla_learns_to_retrieve_with_the_eyes_that_it_has(tmp_path: Path):
    base, data = vla(), demos(features=FEATURES, tasks=("march", "halt", "salute"))
    policy = in_context(base, data, retrieval={"thumbnail": 2, "decay": None}).eval()
    assert policy.spec.tasks == policy.known == data.tasks and policy.memory.key.shape == (72, 3 + 32 * 2)
    policy.set_retrieval_memory(None)
    obs, noise = look(3), torch.randn(3, 4, 2)
    torch.testing.assert_close(policy.act(obs, noise=noise), base.act(obs, noise=noise), atol=1e-6, rtol=1e-5)
    policy.set_retrieval_memory(data)
    policy.loss(batches(policy, data)[0])[0].backward()
    assert all(p.grad is None for p in policy.encoder.vision.parameters()) and policy.pair[0].weight.grad is not None
    save_policy(policy, tmp_path / "policy")
    again = in_context(load_policy(tmp_path / "policy"), data)  # a resumed run finds itself as its base
    assert again.memory.digest() == policy.memory.digest()


def test_words_that_a_base_which_retrieves_is_trained_on_are_read(tmp_path: Path):
    """Else they would be hidden wherever demonstrations explain them, as words that are new."""
    new = ("march", "halt", "salute")
    policy = in_context(make(demos()), replace(demos(), tasks=new))
    obs, noise = words(), torch.randn(3, 4, 2)
    chunk = policy.act(obs, noise=noise)
    save_policy(policy, tmp_path / "policy")
    same = load_policy(tmp_path / "policy")
    assert isinstance(same, RICLPolicy) and same.known == (*TASKS, *new)
    with torch.no_grad():
        same.encoder.text.position.mul_(-3.0)
    assert not torch.allclose(same.act(obs, noise=noise), chunk)


def test_what_cannot_be_a_base_is_named():
    data = demos(features=FEATURES)
    with pytest.raises(SpecError, match="found VLAPolicy with a fine-tuned copy"):
        in_context(finetuned(vla(), finetuned_steps=1), data)
    with pytest.raises(ConfigError, match=r"\['horizon'\] are not about retrieval"):
        in_context(vla(), data, retrieval={"horizon": 3})
    with pytest.raises(SpecError, match="policy=ricl_adapted"):
        adapted(make(demos()), demos())
    with pytest.raises(SpecError, match="VLAPolicy acts from its weights alone"):
        vla().set_retrieval_memory(data)


def test_other_retrieval_than_that_of_a_base_that_retrieves_is_refused():
    data = demos(features=FEATURES)
    policy = in_context(vla(), data, retrieval={"pairs": 3, "decay": None})
    assert in_context(policy, data, retrieval={"pairs": 3, "decay": None, "shown": 15}) is policy
    with pytest.raises(ConfigError, match=r"policy\.retrieval: .*'pairs': 3.*'pairs': 4"):
        in_context(policy, data, retrieval={"pairs": 4})


def test_a_base_on_another_device_keeps_its_memory_there():
    with elsewhere() as device:
        policy = in_context(vla().to(device), demos(features=FEATURES))
        assert policy.times.device == device != HERE
        assert {t.device for t in policy.parameters()} == {device}
