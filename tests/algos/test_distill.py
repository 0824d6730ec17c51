"""Distillation into a flow of one or two steps: the student goes where the teacher goes from the same noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from robopolicy.algos.distill import Distill
from robopolicy.core.errors import CheckpointError, ConfigError, SpecError
from robopolicy.core.types import STATE, TASK, Feature
from robopolicy.networks.mlp import MLP, ResidualMLP
from robopolicy.policies.base import Policy
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.flow import FlowPolicy
from robopolicy.policies.residual import ResidualPolicy
from tests.algos.test_dppo import base
from tests.fakes import PointPolicy
from tests.policies.test_edited import edited_of

ENCODER = partial(MLP, out_dim=5, width=8, depth=1)
CHUNKS: dict[str, Any] = {"time_dim": 0, "prediction": "sample"}  # as in configs/algo/distill.yaml


def student(steps: int = 1, teacher: ChunkDenoiser | None = None, *, time_dim: int = 16, **options: Any) -> FlowPolicy:
    like = teacher or base()
    torch.manual_seed(1)
    network = partial(ResidualMLP, width=64, time_dim=time_dim)
    return FlowPolicy(like.spec, like.normalizer, network=network, sampling_steps=steps, **options)


def batch_of(count: int = 128) -> dict[str, Tensor]:
    state = torch.rand(count, 1, 4) * torch.tensor([0.6, 0.6, 1000.0, 12.0]) - torch.tensor([0.3, 0.3, 0.0, 0.0])
    horizon, dim = base().noise_shape[-2:]
    return {STATE: state, "action": torch.zeros(count, horizon, dim)}


@pytest.mark.parametrize(
    ("kind", "steps", "options"),
    [("ddpm", 1, CHUNKS), ("flow", 1, {}), ("flow", 2, {}), ("flow", 2, {"prediction": "sample"})],
    ids=["ddpm-1-chunk", "flow-1-velocity", "flow-2-velocity", "flow-2-chunk"],
)
def test_the_student_follows_every_noise(kind: str, steps: int, options: dict[str, Any]) -> None:
    teacher = base(kind)
    high = torch.tensor(teacher.spec.action.high)

    def act(obs: dict[str, Tensor], *, noise: Tensor) -> Tensor:
        first = noise[:, 0] if noise.ndim == 4 else noise
        return high * torch.tanh(first + 3 * obs[STATE][:, -1:, :2])

    teacher.act = act  # type: ignore[method-assign,assignment]
    algo = Distill(student(steps, teacher, **options), teacher, steps=500, lr=3e-3, ema_decay=0.9)
    torch.manual_seed(2)
    for _ in range(500):
        algo.update(batch_of())
    batch, noise = batch_of(512), torch.randn(512, *algo.model.noise_shape)
    wanted = algo.chunk(batch, noise)
    found = algo.model.normalizer.normalize("action", algo.policy.act({STATE: batch[STATE]}, noise=noise))
    assert (found - wanted).square().mean() < 0.2 * wanted.var(), "the mean over noises misses all of it"


def test_a_ddpm_acts_from_its_initial_noise_alone() -> None:
    teacher = base("ddpm")
    algo = Distill(student(teacher=teacher), teacher, steps=1)
    batch, noise = batch_of(3), torch.randn(3, *algo.model.noise_shape)
    every = torch.zeros(3, *teacher.noise_shape)
    every[:, 0] = noise
    action = teacher.spec.action
    wanted = teacher.act({STATE: batch[STATE]}, noise=every).clamp(torch.tensor(action.low), torch.tensor(action.high))
    assert torch.equal(algo.chunk(batch, noise), algo.model.normalizer.normalize("action", wanted))


def test_a_network_that_sees_no_time_serves_one_step_alone_and_is_not_imitated_with() -> None:
    with pytest.raises(ConfigError, match=r"sampling_steps: expected 1, as the network sees no time .*, found 2"):
        student(2, time_dim=0)
    with pytest.raises(ConfigError, match=r"network\.time_dim: is 0, .* all times"):
        student(time_dim=0).loss({})


def test_a_teacher_is_not_changed() -> None:
    teacher = base("flow")
    before = {k: v.clone() for k, v in teacher.state_dict().items()}
    Distill(student(teacher=teacher), teacher, steps=2).update(batch_of())
    assert all(torch.equal(v, before[k]) for k, v in teacher.state_dict().items())


def test_a_teacher_that_does_not_fit_is_refused_with_every_reason() -> None:
    teacher = base("flow")
    short = replace(teacher.spec, horizon=3, n_action_steps=3, n_obs_steps=2)
    narrow = FlowPolicy(short, teacher.normalizer, network=partial(ResidualMLP, width=8, time_dim=4), sampling_steps=1)
    with pytest.raises(SpecError, match=r"Say n_obs_steps=") as caught:
        Distill(narrow, teacher, steps=1)
    assert f"horizon: the student has 3, the teacher {teacher.spec.horizon}" in str(caught.value)
    seeing = base("flow")
    seeing.spec = replace(seeing.spec, observation={**seeing.spec.observation, "observation.more": Feature((2,))})
    with pytest.raises(SpecError, match=r"it reads \['observation.more'\]"):
        Distill(student(), seeing, steps=1)


def residual_of(own: FlowPolicy) -> Policy:
    point = PointPolicy(gain=0.3, chunk=3)
    return ResidualPolicy(point.spec, own.normalizer, point, hidden=(8,))


@pytest.mark.parametrize(
    "teacher_of", [residual_of, lambda own: edited_of("flow"), lambda own: edited_of("ddpm")],
    ids=["residual", "edited_flow", "edited_ddpm"],
)  # fmt: skip
def test_of_a_teacher_that_follows_no_noise_the_recorded_actions_are_learned(
    teacher_of: Callable[[FlowPolicy], Policy],
) -> None:
    own = student(**CHUNKS)
    teacher = teacher_of(own)
    assert not teacher.follows_noise and base("ddpm").follows_noise
    algo = Distill(own, teacher, steps=250, lr=3e-3, ema_decay=0.9)
    torch.manual_seed(2)
    for _ in range(250):
        batch = recorded_batch()
        algo.update(batch)
    assert algo.loss_items(batch) == 128 * own.noise_shape[0] // 2
    batch, noise = recorded_batch(512), torch.randn(512, *own.noise_shape)
    found = own.normalizer.normalize("action", algo.policy.act({STATE: batch[STATE]}, noise=noise))
    wanted = own.normalizer.normalize("action", batch["action"])
    kept = ~batch["action_is_pad"]
    assert (found - wanted)[kept].square().mean() < 0.02 * wanted[kept].var(), "every noise leads to the action"


def recorded_batch(count: int = 128) -> dict[str, Tensor]:
    """Chunks of which the second half is padding, with actions that are wrong there."""
    batch = batch_of(count)
    horizon = base().noise_shape[-2]
    high = torch.tensor(base().spec.action.high)
    batch["action_is_pad"] = (torch.arange(horizon) >= horizon // 2).expand(count, -1)
    batch["action"] = (high * torch.tanh(3 * batch[STATE][:, :, :2])).repeat(1, horizon, 1)
    batch["action"][batch["action_is_pad"]] = -high
    return batch


def test_a_refined_teacher_that_reads_more_is_refused() -> None:
    point, own = PointPolicy(chunk=3), student()
    point.spec = replace(point.spec, observation={**point.spec.observation, "observation.more": Feature((2,))})
    spec = replace(point.spec, observation={STATE: point.spec.observation[STATE]})
    with pytest.raises(SpecError, match=r"it reads \['observation.more'\]"):
        Distill(own, ResidualPolicy(spec, own.normalizer, point, hidden=(8,)), steps=1)


@pytest.mark.parametrize("other", [lambda: base("ddpm"), lambda: student(2, noise_level=0.5)])
def test_a_student_that_is_no_plain_flow_is_refused(other: Any) -> None:
    with pytest.raises(SpecError, match=r"policy=flow policy\.sampling_steps=1"):
        Distill(other(), base("flow"), steps=1)


def test_the_encoder_of_the_teacher_is_taken_over_where_both_normalise_alike() -> None:
    def with_encoder(kind: str, seed: int) -> ChunkDenoiser:
        torch.manual_seed(seed)
        return base(kind, state_encoder=ENCODER)

    def same(teacher: ChunkDenoiser, own: FlowPolicy) -> bool:
        pairs = zip(teacher.encoder.parameters(), own.encoder.parameters(), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)

    teacher = with_encoder("ddpm", 3)
    own = student(teacher=teacher, state_encoder=ENCODER)
    assert not same(teacher, own)
    Distill(own, teacher, steps=1)
    assert same(teacher, own)


def with_tasks(policy: Any, *tasks: str) -> Any:
    observation = {**policy.spec.observation, TASK: Feature((), "int64")}
    policy.spec = replace(policy.spec, observation=observation, tasks=tasks)
    return policy


def test_a_teacher_is_given_its_own_numbers_of_the_tasks() -> None:
    teacher, own = with_tasks(base("flow"), "lift", "push", "pull"), with_tasks(student(), "pull", "lift")
    asked = list[Tensor]()

    def act(obs: dict[str, Tensor], *, noise: Tensor) -> Tensor:
        asked.append(obs[TASK])
        return noise

    teacher.act = act
    algo = Distill(own, teacher, steps=1)
    algo.chunk({**batch_of(2), TASK: torch.tensor([[0], [1]])}, torch.zeros(2, *own.noise_shape))
    assert asked[0].tolist() == [[2], [0]]
    with pytest.raises(SpecError, match=r"has fold, and the teacher knows lift"):
        Distill(with_tasks(student(), "fold"), teacher, steps=1)


def test_a_run_goes_on_with_its_own_teacher_alone() -> None:
    state = Distill(student(), base("flow"), steps=1).state_dict()
    other = base("flow")
    with torch.no_grad():
        next(other.network.parameters()).add_(1.0)
    algo = Distill(student(), other, steps=1)
    with pytest.raises(CheckpointError, match="teacher: its weights are not those"):
        algo.load_state_dict(state)
    del state["teacher"]
    algo.load_state_dict(state)  # an older checkpoint


@pytest.mark.parametrize(("key", "value"), [("noise_samples", 4), ("time_distribution", "beta")])
def test_options_of_imitation_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"policy\.{key}: expected its default, .*found {value}"):
        Distill(student(**{key: value}), base("flow"), steps=1)


def test_a_fine_tuned_student_is_refused() -> None:
    with pytest.raises(ConfigError, match="has a fine-tuned copy of its denoiser"):
        Distill(student(finetuned_steps=1), base("flow"), steps=1)
