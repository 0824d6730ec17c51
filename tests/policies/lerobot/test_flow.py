"""SmolVLA, π0 and π0.5 as flow policies: LeRobot's own chunks, likelihoods on the grid that drew, and back again."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from robopolicy.algos.dppo import DPPO
from robopolicy.core.errors import CheckpointError, ConfigError, RobopolicyError, SpecError
from robopolicy.networks.mlp import ValueMLP
from robopolicy.policies.denoising_chain import FloorNoise, LearnedNoise, gaussian_log_prob
from robopolicy.policies.finetuning import finetuned, resampled
from robopolicy.policies.lerobot.export import export
from robopolicy.policies.lerobot.flow import ExpertOptions, LeRobotFlow, check_flow, opened
from robopolicy.policies.lerobot.metadata import annotate_policy
from robopolicy.policies.realtime_chunking import continue_chunk
from robopolicy.policies.steered import make_steered
from robopolicy.runs.checkpointer import load_policy, save_policy
from tests.lerobot_toys import ACTION, env, observations, tiny_vla

pytest.importorskip("transformers", reason="VLAs need lerobot[smolvla,pi]")
TASKS = ("pick up the cube", "push the tee")
SPEC = env({"front": 64}, tasks=TASKS)
KINDS = ["smolvla", "pi0", "pi05"]
Saved = tuple[Path, Any, Any, Any]


@pytest.fixture(scope="module")
def patch():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module", params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> Saved:
    """The directory, LeRobot's policy and its processors."""
    if request.param == "smolvla":
        pytest.importorskip("num2words", reason="SmolVLA needs lerobot[smolvla]")
    root = tmp_path_factory.mktemp(request.param)
    return (root / "policy", *tiny_vla(request.param, root, TASKS, patch))


@pytest.fixture
def base(saved: Saved) -> Any:
    return load_policy(saved[0], env=SPEC)


def seen(rows: int = 3) -> dict[str, Tensor]:
    return {**observations(1, rows, SPEC), "task_index": torch.arange(rows)[:, None] % 2}


def latent(rows: int = 3, *, seed: int = 1) -> Tensor:
    """LeRobot's noise [B H Dl]."""
    return torch.randn(rows, 4, 32, generator=torch.Generator().manual_seed(seed))


def theirs(policy: Any, pre: Any, post: Any, obs: dict[str, Tensor], noise: Tensor) -> Tensor:
    """LeRobot's `sample_actions` [B H Da], as LeRobot calls it."""
    batch: dict[str, Any] = {k: v[:, 0] for k, v in obs.items() if k != "task_index"}
    batch = {k: v.float() / 255 if v.dtype == torch.uint8 else v for k, v in batch.items()}
    batch["task"] = [TASKS[i] for i in obs["task_index"][:, 0]]
    policy.reset()
    return post(policy.predict_action_chunk(pre(batch), noise=noise))


def stirred(policy: LeRobotFlow) -> LeRobotFlow:
    """As training would leave it: other weights in all that is fine-tuned."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in policy.finetuned_parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    return policy


@pytest.mark.parametrize("changes", [None, {}, {"lora_rank": 2}, {"finetuned_steps": 3}], ids=str)
def test_unchanged_it_acts_as_lerobot_does(saved: Saved, base: Any, changes: dict[str, Any] | None):
    obs, z = seen(), latent()
    expected = theirs(*saved[1:], obs, z)
    policy = opened(base) if changes is None else finetuned(base, **{"finetuned_steps": 2, **changes})
    assert isinstance(policy, LeRobotFlow)
    torch.testing.assert_close(policy.act(obs, noise=policy.pack(z)), expected, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(base.act(obs, noise=z), expected, rtol=0.0, atol=1e-5)
    other = {**obs, "task_index": 1 - obs["task_index"]}
    for changed in (policy.act(other, noise=policy.pack(z)), policy.act(obs, noise=policy.pack(latent(seed=2)))):
        assert (changed - expected).abs().amax() > 1e-4, "instruction and noise count"


def test_it_cannot_be_steered_and_says_so(base: Any):
    with pytest.raises(SpecError, match=r"base: a flow of LeRobot cannot be steered yet"):
        make_steered(base)


def test_a_row_depends_on_nothing_beside(base: Any):
    policy, obs, z = finetuned(base, finetuned_steps=2), seen(), latent()
    assert isinstance(policy, LeRobotFlow)
    cond, chunk = policy.encode(obs), policy.act(obs, noise=policy.pack(z))
    for i in range(3):
        one = {k: v[i : i + 1] for k, v in obs.items()}
        torch.testing.assert_close(policy.encode(one)[0], cond[i], rtol=1e-4, atol=1e-5)
        alone = policy.act(one, noise=policy.pack(z[i : i + 1]))[0]
        torch.testing.assert_close(alone, chunk[i], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("level", "noise"),
    [(0.0, partial(FloorNoise, floor=0.1)), (0.5, partial(FloorNoise, floor=0.1)), (0.0, LearnedNoise)],
    ids=["ode-floor", "sde-floor", "ode-learned"],
)
def test_the_ratio_is_one_before_the_first_update(base: Any, noise: Any, level: float):
    """Scored on the time grid that was drawn on (ALGORITHMS 12.6)."""
    policy = finetuned(base, finetuned_steps=3, sampling={"noise_level": level} if level else None)
    algo = DPPO(policy, noise=noise, critic=partial(ValueMLP, width=8), minibatch=64)
    draws = torch.randn(3, *algo.noise_shape, generator=torch.Generator().manual_seed(0))
    chunk, record = algo.explore(seen(), draws)
    assert chunk.shape == (3, 4, 2) and algo.learner.estimator.network[0].in_features < record["cond"].shape[1]
    rows = torch.arange(9)
    at, k = rows // 3, rows % 3
    with torch.no_grad():
        mean, own = policy.transition(record["cond"][at], record["x"][at, k], k)
        std = algo.noise.likelihood(own, k, record["cond"][at])
        score = gaussian_log_prob(record["x"][at, k + 1][:, :3], mean[:, :3], std).mean(-1)
        elsewhere, _ = policy.transition(record["cond"][at], record["x"][at, k], (k + 1) % 3)
        before, _ = policy.transition(record["cond"][at], record["x"][at, k], k, frozen=True)
    ratio = (score - record["log_prob"][at, k]).exp()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0.0, atol=1e-4)
    assert (elsewhere - mean).abs().amax() > 1e-4, "at another time it would not be"
    torch.testing.assert_close(before, mean)
    if not level:
        with pytest.raises(ConfigError, match="the sampler is deterministic"):
            policy.check_noise(FloorNoise(floor=0.0))


def gradients(base: Any, **memory: Any) -> tuple[Tensor, dict[str, Tensor]]:
    policy = stirred(finetuned(base, finetuned_steps=2, expert=ExpertOptions(**memory)))  # type: ignore[arg-type]
    cond, k = policy.encode(seen()), torch.tensor([0, 1, 1])
    mean, _ = policy.transition(cond, policy.pack(latent()), k)
    mean.square().mean().backward()
    assert not any(p.requires_grad for p in (*policy.encoder.parameters(), *policy.network.parameters()))
    named = dict(policy.finetuned.named_parameters())  # type: ignore[union-attr]
    assert [n for n, p in named.items() if p.grad is None] == [], "all of the expert learns"
    return mean.detach(), {n: p.grad for n, p in named.items() if p.grad is not None}


def test_gradients_are_the_same_however_memory_is_saved(base: Any, saved: Saved):
    mean, grads = gradients(base)
    again, others = gradients(load_policy(saved[0], env=SPEC), checkpointing=True)
    torch.testing.assert_close(again, mean)
    torch.testing.assert_close(others, grads)
    rough, near = gradients(load_policy(saved[0], env=SPEC), checkpointing=True, precision="bfloat16")
    torch.testing.assert_close(rough, mean, rtol=0.0, atol=0.05)
    for name, grad in near.items():
        assert grad.dtype == torch.float32 and (grad - grads[name]).norm() < 0.1 * grads[name].norm() + 1e-3


def test_in_bfloat16_frozen_weights_and_prefixes_take_half(base: Any, saved: Saved):
    full = finetuned(base, finetuned_steps=2)
    policy = finetuned(load_policy(saved[0], env=SPEC), finetuned_steps=2, expert=ExpertOptions(precision="bfloat16"))
    obs, z = seen(), latent()
    wide, narrow = full.encode(obs), policy.encode(obs)
    features = policy.cond_dim
    assert (narrow.shape[1] - features) < 0.6 * (wide.shape[1] - features)
    torch.testing.assert_close(narrow[:, :features], wide[:, :features], rtol=0.0, atol=0.1)
    torch.testing.assert_close(
        policy.act(obs, noise=policy.pack(z)), full.act(obs, noise=full.pack(z)), rtol=0.0, atol=0.1
    )
    frozen = [p for p in policy.network.parameters() if p.dtype == torch.bfloat16]
    assert frozen and all(p.dtype == torch.float32 for p in policy.finetuned_parameters())


def test_the_imitation_loss_is_lerobots(saved: Saved, base: Any):
    """At times of the grid: LeRobot's own training pass over the same noise, which knows of no cache."""
    lerobot = saved[1]
    policy, obs, k = finetuned(base, finetuned_steps=3), seen(), torch.tensor([0, 1, 2])
    assert isinstance(policy, LeRobotFlow)
    action, noise = torch.randn(3, 4, 2), torch.randn(3, 4, 2)
    found = policy.finetuned_loss(policy.encode(obs), action, torch.ones(3, 4).bool(), k=k, noise=noise)
    torch.randn(5)
    assert torch.equal(
        found, policy.finetuned_loss(policy.encode(obs), action, torch.ones(3, 4).bool(), k=k, noise=noise)
    )
    drawn: list[Tensor] = []
    before = policy.noised
    policy.noised = lambda a, n, i: drawn.append(n) or before(a, n, i)  # type: ignore[method-assign,func-returns-value]
    policy.finetuned_loss(policy.encode(obs), action, torch.ones(3, 4).bool(), k=k, noise=noise)
    batch: dict[str, Any] = policy.batch(obs)
    padded = torch.nn.functional.pad(action, (0, 30))
    pictures = lerobot.prepare_images(batch) if lerobot.name == "smolvla" else lerobot._preprocess_images(batch)
    words = (batch["observation.language.tokens"], batch["observation.language.attention_mask"].bool())
    state = () if lerobot.name == "pi05" else (lerobot.prepare_state(batch),)
    with torch.no_grad():
        losses = lerobot.model.forward(*pictures, *words, *state, padded, policy.layout.unpack(drawn[0]), 1.0 - k / 3)
    torch.testing.assert_close(found, losses[..., :2].mean(), rtol=1e-4, atol=1e-5)
    one = {"k": torch.ones_like(k), "noise": noise}  # from 1/3 on, two thirds of the way are left
    plain, of_chunk = (
        policy.finetuned_loss(policy.encode(obs), action, torch.ones(3, 4), of_chunk=chosen, **one)
        for chosen in (False, True)
    )
    torch.testing.assert_close(of_chunk, plain * 4 / 9, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [0, 2])
def test_fine_tuned_it_goes_to_disk_and_back_to_lerobot(saved: Saved, base: Any, tmp_path: Path, rank: int):
    policy = stirred(finetuned(base, finetuned_steps=3, lora_rank=rank))  # type: ignore[arg-type]
    obs, z = seen(), latent()
    chunk = policy.act(obs, noise=policy.pack(z))
    assert (chunk - theirs(*saved[1:], obs, z)).abs().amax() > 1e-2
    save_policy(policy, tmp_path / "ours")
    again = load_policy(tmp_path / "ours", env=SPEC)
    assert torch.equal(again.act(obs, noise=policy.pack(z)), chunk)
    assert finetuned(again, finetuned_steps=3, lora_rank=rank) is again, "it goes on as it is"
    out = export(checkpoint=tmp_path / "ours", out=tmp_path / "out")
    loaded = type(saved[1]).from_pretrained(out).eval()
    torch.testing.assert_close(theirs(loaded, *saved[2:], obs, z), chunk, rtol=0.0, atol=1e-5)
    black = load_policy(out, env=SPEC)
    torch.testing.assert_close(black.act(obs, noise=z), chunk, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize(
    "changes", [{"finetuned_steps": 2}, {"finetuned_steps": 3, "sampling": {"noise_level": 0.5}}], ids=str
)
def test_what_lerobot_cannot_run(base: Any, tmp_path: Path, changes: dict[str, Any]):
    save_policy(finetuned(base, **changes), tmp_path / "ours")
    with pytest.raises(CheckpointError, match=r"policy\.finetuned_steps=3 .* or export it with format=robopolicy"):
        export(checkpoint=tmp_path / "ours", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    export(checkpoint=tmp_path / "ours", out=tmp_path / "out", format="robopolicy")
    assert isinstance(load_policy(tmp_path / "out", env=SPEC), LeRobotFlow)


def test_other_sampling_steps_go_into_lerobots_config(saved: Saved, base: Any, tmp_path: Path):
    policy = stirred(finetuned(base, finetuned_steps=2, sampling={"sampling_steps": 2}))  # type: ignore[arg-type]
    save_policy(policy, tmp_path / "ours")
    loaded = type(saved[1]).from_pretrained(export(checkpoint=tmp_path / "ours", out=tmp_path / "out")).eval()
    chunk = policy.act(seen(), noise=policy.pack(latent()))
    torch.testing.assert_close(theirs(loaded, *saved[2:], seen(), latent()), chunk, rtol=0.0, atol=1e-5)


def test_chunks_go_on_from_one_another(base: Any):
    policy, obs = opened(base), seen()
    z = policy.pack(latent())
    chunk = policy.act(obs, noise=z)
    assert torch.equal(continue_chunk(policy, obs, chunk[:, :0], delay=0, noise=z), chunk)
    for mode in ("rtc", "inpaint"):
        after = continue_chunk(policy, obs, chunk[:, 1:3] + 0.1, delay=1, mode=mode, noise=z)  # type: ignore[arg-type]
        assert after.shape == chunk.shape and not torch.allclose(after, chunk)
    assert torch.equal(after[:, :1], chunk[:, 1:2] + 0.1)


def test_another_sampler_runs_their_weights(base: Any):
    noise = torch.randn(3, *opened(base).noise_shape, generator=torch.Generator().manual_seed(1))
    made = (opened(base), resampled(base, {"sampling_steps": 3}), resampled(base, {"sampling_steps": 1}))
    usual, same, few = (policy.act(seen(), noise=noise) for policy in made)
    assert torch.equal(usual, same) and usual.shape == few.shape and not torch.allclose(usual, few, atol=1e-4)


def test_what_does_not_go(base: Any, saved: Saved, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"finetuned_steps \(K'\) must lie between 0 and the 3 steps"):
        finetuned(base, finetuned_steps=4)
    with pytest.raises(ConfigError, match="more than the sampler of a LeRobotFlow"):
        finetuned(base, finetuned_steps=1, sampling={"sampler": "ddim"})
    with pytest.raises(ConfigError, match=r"is fine-tuned with .* and cannot go on"):
        finetuned(finetuned(base, finetuned_steps=1), finetuned_steps=2)
    with pytest.raises(RobopolicyError, match="trained by imitation by lerobot-train"):
        opened(base).loss({})
    settings = saved[1].config
    for name in ("adapt_to_pi_aloha", "use_relative_actions"):
        if hasattr(settings, name):
            changed = type(settings)(**{**vars(settings), name: True})
            with pytest.raises(SpecError, match=f"{name}=true changes actions"):
                check_flow(changed)


def test_a_renamed_camera_that_its_processor_renames_too_is_exported(tmp_path: Path, patch: pytest.MonkeyPatch):
    pytest.importorskip("num2words", reason="SmolVLA needs lerobot[smolvla]")
    tiny_vla("smolvla", tmp_path, TASKS, patch)
    file, front = tmp_path / "policy" / "policy_preprocessor.json", "observation.images.front"
    document = json.loads(file.read_text())
    for step in document["steps"]:
        if step.get("registry_name") == "rename_observations_processor":
            step["config"]["rename_map"] = {"observation.images.wrist": front}
    file.write_text(json.dumps(document))
    annotate_policy(tmp_path / "policy", action=ACTION, dt=0.05, tasks=TASKS, rename={front: "observation.images.top"})
    there = env({"top": 64}, tasks=TASKS)
    saved = load_policy(tmp_path / "policy", env=there)
    save_policy(opened(saved), tmp_path / "ours")
    again = load_policy(export(checkpoint=tmp_path / "ours", out=tmp_path / "out"), env=there)
    assert again.inputs == saved.inputs
