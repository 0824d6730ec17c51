from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import Tensor

from robopolicy.algos.bc import BC
from robopolicy.algos.dppo import DPPO
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import STATE, TASK, EnvSpec, Feature, Obs
from robopolicy.datasets.batches import Batches
from robopolicy.datasets.episodes import Episodes
from robopolicy.networks.action_expert import ActionExpert, attend
from robopolicy.networks.mlp import ValueMLP
from robopolicy.networks.precision import Precision, computing
from robopolicy.networks.prefix import Prefix
from robopolicy.networks.vision import ConvTokens, KeypointTokens, PatchTokens, keypoints
from robopolicy.policies.denoising_chain import FloorNoise
from robopolicy.policies.edited import make_edited
from robopolicy.policies.factory import build_policy
from robopolicy.policies.finetuning import finetuned
from robopolicy.policies.io import load_policy, save_policy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.policies.steered import make_steered
from robopolicy.policies.vla import VLAPolicy, adapted
from tests.toy import ACTION, spec

CAMERA = "observation.images.front"
TASKS = ("go left", "go right now", "stop")
FEATURES = {
    STATE: Feature((3,), names=("a", "b", "secret")),
    CAMERA: Feature((3, 16, 24), "uint8"),
    TASK: Feature((), "int64"),
}
SMALL = {
    "prefix": {"_target_": "prefix", "_partial_": True, "width": 32, "depth": 1,
               "max_words": 5, "buckets": 64,
               "vision": {"_target_": "conv_tokens", "_partial_": True, "dims": [8, 16]}},
    "network": {"_target_": "action_expert", "_partial_": True, "width": 32, "depth": 2,
                "time_dim": 16},
}  # fmt: skip


def make(
    *, seed: int = 0, features: dict[str, Feature] = FEATURES, tasks: tuple[str, ...] = TASKS, **options
) -> VLAPolicy:
    """With random weights everywhere: a gate that starts at zero would hide what is behind it."""
    torch.manual_seed(seed)
    normalizer = Normalizer.from_limits(features, ACTION)
    node = {"_target_": "vla", **SMALL, "sampling_steps": 4, **options}
    policy = build_policy(node, spec=spec(observation=features, tasks=tasks), normalizer=normalizer)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return policy.eval()


def look(batch: int = 4, *, seed: int = 0) -> Obs:
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (batch, 1, *FEATURES[CAMERA].shape), generator=generator, dtype=torch.uint8)
    state = torch.randn(batch, 1, 3, generator=generator)
    return {STATE: state, CAMERA: image, TASK: torch.arange(batch)[:, None] % len(TASKS)}


def tokens(policy: VLAPolicy, obs: Obs) -> Tensor:
    """[B P width] of the prefix."""
    first, count, width = policy.encoder.summary_dim, policy.encoder.tokens, policy.encoder.width
    return policy.encode(obs)[:, first : first + count * width].unflatten(1, (count, -1))


# -- attention ---------------------------------------------------------------------------------------------------------
def test_the_state_sees_pictures_and_words_which_do_not_see_it():
    policy, obs = make(), look()
    count = 4 * 6  # a 16×24 picture, halved twice
    assert policy.encoder.tokens == count + 5 + 1
    before, changed = tokens(policy, obs), tokens(policy, {**obs, STATE: obs[STATE] + 1.0})
    assert torch.equal(before[:, :-1], changed[:, :-1])
    assert not torch.equal(before[:, -1], changed[:, -1])
    for other in ({TASK: (obs[TASK] + 1) % 3}, {CAMERA: 255 - obs[CAMERA]}):
        moved = (tokens(policy, {**obs, **other}) - before).abs().amax(-1)
        real = before.abs().amax(-1) > 0
        assert bool((moved[:, :count] > 0).all() and (moved[:, -1] > 0).all() and real[:, :count].all())


def test_padding_is_seen_by_nobody():
    policy, obs = make(), look(3)
    with torch.no_grad():
        before, chunk = tokens(policy, obs), policy.act(obs, noise=torch.ones(3, 4, 2))
        policy.encoder.text.position[3:] += 1.0  # no instruction has more than three words
        assert torch.equal(tokens(policy, obs), before)
        assert torch.equal(policy.act(obs, noise=torch.ones(3, 4, 2)), chunk)
        policy.encoder.text.position[2] += 1.0  # the third word of "go right now"
    after = tokens(policy, obs)
    assert torch.equal(after[0], before[0]) and not torch.equal(after[1], before[1])


def test_chunks_of_one_observation_do_not_leak_into_each_other():
    policy, obs, each = make(), look(3), 5
    cond = policy.encode(obs).detach()
    x, t = torch.randn(3 * each, 4, 2, requires_grad=True), torch.rand(3 * each)
    y = policy.network(x, t, cond)
    for row in (0, 4, 7, 14):
        (gradient,) = torch.autograd.grad(y[row].sum(), x, retain_graph=True)
        reached = gradient.flatten(1).abs().amax(1) > 0
        assert reached.nonzero()[:, 0].tolist() == [row], "a chunk depends on another's noise"
    alone = torch.cat([policy.network(x[i : i + 1], t[i : i + 1], cond[i // each : i // each + 1]) for i in range(15)])
    torch.testing.assert_close(y, alone, atol=1e-5, rtol=1e-5)


def test_attention_is_that_of_one_masked_sequence():
    """The oracle: PyTorch's own attention over [prefix, all chunks of the observation] with a mask."""
    torch.manual_seed(0)
    batch, each, heads, length, prefix, size = 2, 3, 4, 5, 7, 8
    q, k, v = torch.randn(3, batch * each, heads, length, size)
    key, value = torch.randn(2, batch, heads, prefix, size)
    keep = torch.rand(batch, prefix) > 0.3
    bias = torch.zeros(batch, prefix).masked_fill(~keep, -torch.inf)[:, None, None]

    def packed(x: Tensor) -> Tensor:  # [M heads H d] → [B heads S·H d]
        return torch.stack([torch.cat(list(x[b * each : (b + 1) * each]), dim=1) for b in range(batch)])

    own = torch.block_diag(*[torch.ones(length, length)] * each).bool()
    mask = torch.stack([torch.cat([keep[b].expand(each * length, -1), own], dim=1) for b in range(batch)])[:, None]
    keys, values = torch.cat([key, packed(k)], dim=2), torch.cat([value, packed(v)], dim=2)
    expected = F.scaled_dot_product_attention(packed(q), keys, values, attn_mask=mask)
    torch.testing.assert_close(packed(attend(q, k, v, key, value, bias)), expected, atol=1e-5, rtol=1e-5)


def test_the_prefix_is_computed_once_and_as_if_it_were_computed_at_every_step():
    policy, obs, noise = make(), look(), torch.randn(4, 4, 2)
    asked = []
    policy.encoder.register_forward_hook(lambda *_: asked.append("prefix"))
    policy.network.cond.register_forward_hook(lambda *_: asked.append("keys"))
    cond = policy.encode(obs)
    cached = policy.sample(cond, noise=noise)
    assert asked == ["prefix", "keys"]
    x = noise
    for k in range(4):
        x = x + 0.25 * policy.network(x, torch.full((4,), k / 4), policy.encode(obs))
    torch.testing.assert_close(cached, x, atol=1e-5, rtol=1e-5)


# -- what it reads -----------------------------------------------------------------------------------------------------
def test_words_pictures_and_state_change_the_action_and_what_is_left_out_does_not():
    prefix = {**SMALL["prefix"], "proprioception": ["b", "a"]}
    policy, obs, noise = make(prefix=prefix), look(), torch.randn(4, 4, 2)
    chunk = policy.act(obs, noise=noise)
    assert chunk.shape == (4, 4, 2)
    state = obs[STATE].clone()
    state[..., 2] += 5.0
    assert torch.equal(policy.act({**obs, STATE: state}, noise=noise), chunk), "`secret` is not read"
    for other in ({STATE: obs[STATE] + 1.0}, {CAMERA: 255 - obs[CAMERA]}, {TASK: (obs[TASK] + 1) % 3}):
        assert not torch.allclose(policy.act({**obs, **other}, noise=noise), chunk)
    assert torch.equal(policy.train().act(obs, noise=noise), chunk), "acting never augments"


def test_instructions_are_read_not_counted(tmp_path: Path):
    policy, obs, noise = make(), look(3), torch.randn(3, 4, 2)
    chunk = policy.act(obs, noise=noise)
    save_policy(policy, tmp_path / "policy")
    same = load_policy(tmp_path / "policy")
    assert torch.equal(same.act(obs, noise=noise), chunk)
    env = EnvSpec("toy", FEATURES, ACTION, ("stop", "GO LEFT!", "run", "go right now"), 0.05, 10, "")
    other = load_policy(tmp_path / "policy", env=env)
    assert isinstance(other, VLAPolicy) and other.spec.tasks == env.tasks
    told = {**obs, TASK: torch.tensor([[1], [3], [0]])}  # the same instructions under other numbers
    assert torch.equal(other.act(told, noise=noise), chunk)
    unknown = other.act({**told, TASK: torch.full((3, 1), 2)}, noise=noise)
    assert bool(unknown.isfinite().all()) and not torch.equal(unknown, chunk)


def test_one_task_needs_no_index():
    features = {k: v for k, v in FEATURES.items() if k != TASK}
    policy = make(features=features, tasks=("go left",))
    obs = {k: v for k, v in look().items() if k != TASK}
    assert policy.act(obs).shape == (4, 4, 2)
    with pytest.raises(SpecError, match="trained on one instruction, 'go left'"):
        policy.set_tasks(("go left", "go right"))


@pytest.mark.parametrize(
    "tower", [partial(ConvTokens, dims=(8, 8)), partial(PatchTokens, patch=8), partial(KeypointTokens, count=5)]
)
def test_vision_towers_say_how_many_tokens_they_make(tower):
    made = tower((3, 16, 24), width=12)
    tokens = made(torch.zeros(2, 3, 16, 24))
    assert tokens.shape == (2, made.count, 12) and made.outline(tokens).shape == (2, made.outline_dim)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_outline_of_keypoints_is_where_they_are(precision: Precision):
    torch.manual_seed(0)
    tower, image = KeypointTokens((3, 32, 32), width=12, dims=(8, 8), count=5), torch.rand(3, 3, 32, 32)
    maps = tower.net(image)
    with torch.no_grad():
        tower.feature.mul_(5.0)
        tower.place.bias.add_(3.0)
        outline = tower.outline(tower(image)).view(3, 5, 3)
        with computing(precision, image.device):
            assert tower.outline(tower(image)).dtype == torch.float32
    expected = torch.cat([keypoints(maps).view(3, 2, 5).transpose(1, 2), maps.amax((2, 3)).tanh()[..., None]], dim=2)
    torch.testing.assert_close(outline, expected, atol=1e-4, rtol=1e-4)


def test_critics_read_a_summary_and_the_expert_does_not():
    policy, obs = make(), look()
    cond, first = policy.encode(obs).detach(), policy.encoder.summary_dim
    assert policy.cond_dim == first < cond.shape[1]
    read = policy.normalizer.observation(obs)[STATE][:, 0]
    assert torch.equal(cond[:, : read.shape[1]], read), "the state to the last digit"
    for key in (STATE, CAMERA, TASK):
        other = {**obs, key: obs[key].flip(0)}
        assert not torch.equal(policy.encode(other)[:, :first], cond[:, :first]), key
    noise, changed = torch.ones(4, 4, 2), cond.clone()
    changed[:, :first] += 1.0
    assert torch.equal(policy.sample(changed, noise=noise), policy.sample(cond, noise=noise))
    spread = FloorNoise(floor=0.1)
    refined = finetuned(policy, finetuned_steps=2)
    assert isinstance(refined, VLAPolicy)
    algo = DPPO(refined, noise=lambda **_: spread, critic=ValueMLP)
    value = algo.learner.estimator.network
    with torch.no_grad():
        assert torch.equal(value(torch.cat([cond[:, :first], 0 * cond[:, first:]], dim=1)), value(cond))


@pytest.mark.learning
def test_keypoint_tokens_learn_where_a_thing_is():
    """A square of 3 pixels on a 32 × 32 picture: its place to half a pixel, from one linear layer behind."""
    torch.manual_seed(0)
    tower, head = KeypointTokens((3, 32, 32), width=16, dims=(8, 16, 16), count=4), torch.nn.Linear(64, 2)
    optimizer = torch.optim.Adam([*tower.parameters(), *head.parameters()], lr=3e-3)

    def draw(batch: int) -> tuple[Tensor, Tensor]:
        at = torch.randint(0, 30, (batch, 2))
        image = -torch.ones(batch, 3, 32, 32)
        for i, (x, y) in enumerate(at.tolist()):
            image[i, 0, y : y + 3, x : x + 3] = 1.0
        return image, at.float() / 15 - 1

    for _ in range(150):
        image, at = draw(32)
        optimizer.zero_grad()
        (head(tower(image).flatten(1)) - at).square().mean().backward()
        optimizer.step()
    image, at = draw(64)
    error = 15 * (head(tower(image).flatten(1)) - at).abs().mean().item()
    assert error < 0.5, f"{error:.2f} pixels"


def test_the_shipped_config_has_one_to_thirty_million_parameters():
    node = OmegaConf.to_container(OmegaConf.load("configs/policy/vla.yaml"))
    image = Feature((3, 96, 96), "uint8")
    features = {STATE: Feature((39,)), CAMERA: image, "observation.images.side": image, TASK: Feature((), "int64")}
    normalizer = Normalizer.from_limits(features, ACTION)
    policy = build_policy(node, spec=spec(observation=features, tasks=TASKS, horizon=16), normalizer=normalizer)
    assert 1e6 < sum(p.numel() for p in policy.parameters()) < 30e6


# -- learning ----------------------------------------------------------------------------------------------------------
def batch(policy: VLAPolicy, rows: int = 6) -> dict[str, Tensor]:
    action = 0.02 * (2 * torch.rand(rows, 4, 2) - 1)
    return {**look(rows), "action": action, "action_is_pad": torch.zeros(rows, 4, dtype=torch.bool)}


def test_two_level_loss_is_the_mean_over_chunks(monkeypatch):
    policy = make(noise_samples=3)
    data = batch(policy)
    noise, t = torch.randn(18, 4, 2), torch.rand(18)

    def corrupt(action: Tensor, rows: slice = slice(None)) -> tuple[Tensor, Tensor, Tensor]:
        x, time = noise[rows], t[rows]
        return torch.lerp(x, action, time[:, None, None]), time, action - x

    monkeypatch.setattr(policy.encoder, "image_shift", 0)
    monkeypatch.setattr(policy, "corrupt", corrupt)
    together = policy.loss(data)[0]
    policy.noise_samples = 1
    single = []
    for s in range(3):
        monkeypatch.setattr(policy, "corrupt", partial(corrupt, rows=slice(s, None, 3)))
        single.append(policy.loss(data)[0])
    torch.testing.assert_close(together, torch.stack(single).mean())


def test_gradients_reach_every_parameter():
    policy = make(noise_samples=2).train()
    policy.loss(batch(policy))[0].backward()
    missing = [n for n, p in policy.named_parameters() if p.grad is None or not bool(p.grad.any())]
    assert missing == []


def test_without_time_one_step_predicts_the_chunk_itself():
    network = {**SMALL["network"], "time_dim": 0}
    student = make(network=network, sampling_steps=1, prediction="sample")
    obs = look()
    cond, noise = student.encode(obs), torch.randn(4, *student.noise_shape)
    chunk = student.network(noise, torch.zeros(4), cond)
    torch.testing.assert_close(student.sample(cond, noise=noise), chunk)
    refined = finetuned(student, finetuned_steps=1)
    torch.testing.assert_close(refined.prediction(cond, noise, torch.zeros(4, dtype=torch.int64)), chunk)
    with pytest.raises(ConfigError, match="sampling_steps: expected 1, as the network sees no time"):
        make(network=network)


def test_it_can_be_steered_and_comes_back_from_disk(tmp_path: Path):
    base, obs = make(), look()
    policy = make_steered(base, hidden=(8,))
    noise = torch.randn(4, *policy.noise_shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(policy.act(obs, noise=noise), base.act(obs, noise=noise))
    with torch.no_grad():
        policy.net[-1].bias.fill_(0.5)
    assert (policy.act(obs, noise=noise) - base.act(obs, noise=noise)).abs().amax() > 1e-4
    loaded = load_policy(save_policy(policy, tmp_path / "steered"))
    assert torch.equal(loaded.act(obs, noise=noise), policy.act(obs, noise=noise))


def test_its_chunks_can_be_edited_and_it_comes_back_from_disk(tmp_path: Path):
    base, obs = make(), look()
    critic = {"_target_": "ensemble", "_partial_": True, "heads": 2, "width": 8, "depth": 1}
    policy = make_edited(base, critic=critic, samples=2, hidden=(8,))
    noise = torch.randn(4, *policy.noise_shape, generator=torch.Generator().manual_seed(1))
    low, high = (torch.tensor(limits) for limits in (base.spec.action.low, base.spec.action.high))
    torch.testing.assert_close(policy.act(obs, noise=noise), base.act(obs, noise=noise[:, 0]).clamp(low, high))
    with torch.no_grad():
        policy.net[-1].bias.fill_(0.5)
        policy.critic.last.weight.normal_()
    loaded = load_policy(save_policy(policy, tmp_path / "edited"))
    assert torch.equal(loaded.act(obs, noise=noise), policy.act(obs, noise=noise))


@pytest.mark.parametrize("rank", [0, 2])
def test_the_fine_tuned_copy_begins_as_the_base_and_only_it_learns(rank: int, tmp_path: Path):
    base, obs = make(), look()
    refined = finetuned(base, finetuned_steps=2, lora_rank=rank)
    assert isinstance(refined, VLAPolicy)
    noise = torch.randn(4, 4, 2)
    torch.testing.assert_close(refined.act(obs, noise=noise), base.act(obs, noise=noise), atol=1e-6, rtol=1e-5)
    cond = refined.encode(obs)
    x, k = torch.randn(4, 4, 2), torch.tensor([0, 1, 1, 0])
    one = torch.cat([refined.transition(cond[i : i + 1], x[i : i + 1], k[i : i + 1])[0] for i in range(4)])
    torch.testing.assert_close(refined.transition(cond, x, k)[0], one, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(one, refined.transition(cond, x, k, frozen=True)[0], atol=1e-5, rtol=1e-5)
    one.square().sum().backward()
    moved = {n.split(".")[0] for n, p in refined.named_parameters() if p.grad is not None}
    assert moved == {"finetuned"}
    if rank:
        full = finetuned(make(), finetuned_steps=2).finetuned_parameters()
        assert sum(p.numel() for p in refined.finetuned_parameters()) < 0.3 * sum(p.numel() for p in full)
    save_policy(refined, tmp_path / "refined")
    assert torch.equal(load_policy(tmp_path / "refined").act(obs, noise=noise), refined.act(obs, noise=noise))


@pytest.mark.parametrize("refined", [False, True])
def test_in_bfloat16_it_is_the_same_policy_to_its_precision(refined: bool, tmp_path: Path):
    """Same weights: outputs differ, by what 8 bits of mantissa cost; all that is kept is float32."""
    full, half = make(), make(precision="bfloat16")
    half.load_state_dict(full.state_dict())
    if refined:
        full, half = (finetuned(p, finetuned_steps=2) for p in (full, half))
    obs, noise = look(), torch.randn(4, 4, 2)
    seen = [p.encode(obs) for p in (full, half)]
    acts = [p.act(obs, noise=noise) for p in (full, half)]
    for (a, b), most in ((seen, 0.05), (acts, 0.02)):
        assert b.dtype == torch.float32 and not torch.equal(a, b)
        assert (a - b).abs().max() < most * a.abs().max()
    if refined:
        half.transition(seen[1], torch.randn(4, 4, 2), torch.tensor([0, 1, 1, 0]))[0].square().sum().backward()
    else:
        half.loss({**obs, "action": torch.randn(4, 4, 2), "action_is_pad": torch.zeros(4, 4).bool()})[0].backward()
    grads = [p.grad for p in half.parameters() if p.grad is not None]
    assert grads and all(g.dtype == torch.float32 for g in grads)
    save_policy(half, tmp_path / "half")
    assert torch.equal(load_policy(tmp_path / "half").act(obs, noise=noise), acts[1])


def test_state_and_action_are_read_and_written_in_full_precision():
    """In bfloat16 the layers between compute in it, and those that touch what bfloat16 would round do not."""
    policy, made = make(precision="bfloat16"), {}
    layers = {"state": policy.encoder.state, "action": policy.network.action, "out": policy.network.out,
              "feed": policy.network.blocks[0].feed, "words": policy.encoder.blocks[0].feed[1]}  # fmt: skip
    for name, layer in layers.items():
        layer.register_forward_hook(lambda _, __, out, name=name: made.update({name: out.dtype}))
    policy.act(look(1))
    full, half = torch.float32, torch.bfloat16
    assert made == {"state": full, "action": full, "out": full, "feed": half, "words": half}


def test_keypoints_stay_between_pixels_in_bfloat16():
    tower, made = KeypointTokens((3, 16, 16), width=8, dims=(8, 8), count=2), []
    for layer in (tower.net, tower.place):
        layer.register_forward_hook(lambda _, __, out: made.append(out.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        tower(torch.randn(3, 3, 16, 16))
    assert made == [torch.bfloat16, torch.float32]


@pytest.mark.learning
def test_it_learns_to_do_what_it_is_told():
    """x is ±1 cm as the instruction says, y follows the state: 150 updates of a small policy."""
    features = {STATE: Feature((3,)), TASK: Feature((), "int64")}
    torch.manual_seed(0)
    state, index = torch.randn(1_200, 3), torch.randint(0, 2, (1_200,))
    action = torch.stack([0.01 * (2.0 * index - 1.0), 0.01 * state[:, 0].tanh()], dim=1)
    data = Episodes(
        obs={STATE: state, TASK: index}, action=action, reward=torch.zeros(1_200), terminated=torch.zeros(1_200).bool(),
        success=torch.zeros(1_200).bool(), starts=torch.arange(0, 1_201, 1), seeds=torch.arange(1_200),
        observation=features, action_spec=ACTION, dt=0.05, tasks=TASKS[:2],
    )  # fmt: skip
    ours = VLAPolicy(
        PolicySpec(features, ACTION, 0.05, 1, 2, 1, TASKS[:2]), Normalizer(features, ACTION).fit(data),
        prefix=partial(Prefix, width=32, depth=1, max_words=4, buckets=64),
        network=partial(ActionExpert, width=32, depth=2, time_dim=16), noise_samples=4,
    )  # fmt: skip
    algo = BC(ours, steps=150, lr=5e-3, warmup=10, ema_decay=0.95)
    chunk, pad = data.chunk(torch.arange(1_200), 2)
    for step in range(150):
        rows = torch.randint(0, 1_200, (64,), generator=torch.Generator().manual_seed(step))
        obs = {STATE: state[rows, None], TASK: index[rows, None]}
        algo.update({**obs, "action": chunk[rows], "action_is_pad": pad[rows]})
    obs = {STATE: torch.randn(200, 1, 3), TASK: torch.arange(200)[:, None] % 2}
    x = algo.policy.act(obs, deterministic=True)[:, 0, 0]
    obeyed = (x.sign() == 2 * obs[TASK][:, 0] - 1).float().mean()
    assert obeyed > 0.97, f"obeyed {obeyed:.0%}"


def frames(count: int = 6) -> Episodes:
    obs = {k: v[:, 0] for k, v in look(count).items()}
    zero = torch.zeros(count)
    return Episodes(
        obs=obs, action=0.02 * (2 * torch.rand(count, 2) - 1), reward=zero, terminated=zero.bool(), success=zero.bool(),
        starts=torch.tensor([0, count]), seeds=torch.tensor([0]), observation=FEATURES, action_spec=ACTION, dt=0.05,
        tasks=("march", "halt", "salute"),
    )  # fmt: skip


def test_a_frozen_tower_sees_every_picture_once_and_learning_is_the_same():
    base, data = make(), frames()
    policy = adapted(base, data)
    assert policy.spec.tasks == data.tasks and policy.config["prefix"]["freeze_vision"]
    looks = []
    policy.encoder.vision[0].register_forward_hook(lambda _, inputs, __: looks.append(len(inputs[0])))
    plain, kept = (
        Batches(data, policy.spec, batch_size=4, seed=0, precompute_features=precompute_features)[0]
        for precompute_features in (None, policy.precompute_features)
    )
    assert looks == [6] and CAMERA not in kept
    torch.manual_seed(0)
    expected = policy.loss(plain)[0]
    assert looks == [6, 4]
    torch.manual_seed(0)
    found = policy.loss(kept)[0]
    assert looks == [6, 4], "the tower was asked again"
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)  # half precision
    found.backward()
    assert all(p.grad is None for p in policy.encoder.vision.parameters())
    assert policy.encoder.text.pieces.weight.grad is not None
    free = adapted(base, data, freeze_vision=False)
    assert free.precompute_features(plain, torch.zeros(4)) is plain and all(p.requires_grad for p in free.parameters())


def test_adapting_begins_as_the_base():
    base, obs, noise = make(), look(3), torch.randn(3, 4, 2)
    policy = adapted(base, frames()).eval()
    policy.set_tasks(TASKS)
    assert torch.equal(policy.act(obs, noise=noise), base.act(obs, noise=noise))
    with pytest.raises(SpecError, match="found VLAPolicy with a fine-tuned copy"):
        adapted(finetuned(base, finetuned_steps=1), frames())


# -- bad input ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({CAMERA: None}, "camera 'front' is missing"),
        ({TASK: None}, "no instruction is given"),
        ({CAMERA: torch.zeros(4, 1, 16, 24, 3, dtype=torch.uint8)}, r"\(3, h, w\), not \(h, w, 3\)"),
        ({CAMERA: torch.zeros(4, 1, 3, 24, 16, dtype=torch.uint8)}, r"3, 16, 24\], found \[4, 1, 3, 24, 16\]"),
        ({CAMERA: torch.ones(4, 1, 3, 16, 24)}, "expected uint8 from 0 to 255, found torch.float32 from 1 to 1"),
        ({TASK: torch.full((4, 1), 3)}, "3 names no instruction; there are 3"),
        ({TASK: torch.full((4, 1), -1)}, "-1 names no instruction"),
        ({STATE: torch.zeros(4, 3)}, r"expected shape \[B To …\] = \[B, 1, 3\]"),
    ],
)
def test_wrong_observations_are_named(change: Obs, message: str):
    obs = {k: v for k, v in {**look(), **change}.items() if v is not None}
    with pytest.raises(SpecError, match=message):
        make().act(obs)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ((), "there is no instruction"),
        (("go left", " ?!"), r"tasks\[1\]: the instruction is ' \?!': it has no words"),
        (("please go to the left side",), r"has 6 words, the policy reads 5.*max_words=6"),
    ],
)
def test_wrong_instructions_are_named(tasks: tuple[str, ...], message: str):
    with pytest.raises(SpecError, match=message):
        make(tasks=tasks)
    with pytest.raises(SpecError, match=message):
        make().set_tasks(tasks)


def test_wrong_proprioception_is_named():
    with pytest.raises(SpecError, match=r"has no 'secrt'\. Did you mean 'secret'"):
        make(prefix={**SMALL["prefix"], "proprioception": ["a", "secrt"]})
