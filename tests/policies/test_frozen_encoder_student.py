"""A student on the frozen prefix of a VLA: what it reads, that it stands alone, and what it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from robopolicy.algos.bc import BC
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.types import STATE, TASK
from robopolicy.policies.base import SEEN
from robopolicy.policies.factory import build_policy
from robopolicy.policies.frozen_encoder_student import FrozenEncoderStudent, make_frozen_encoder_student
from robopolicy.policies.gaussian import GaussianPolicy
from robopolicy.policies.io import load_policy, save_policy
from robopolicy.policies.normalizer import Normalizer
from tests.policies.test_vla import CAMERA, TASKS, look, make
from tests.toy import ACTION, spec
from tests.toy import episodes as toy

NODE = {"_target_": "mlp", "_partial_": True, "width": 16, "depth": 1}


def student(base=None, **options) -> FrozenEncoderStudent:
    torch.manual_seed(1)
    return make_frozen_encoder_student(base or make(), network=NODE, **options)


def fitted(**options):
    """A VLA whose normaliser is of data, not of limits."""
    base = make(**options)
    base.normalizer._affine(STATE).set(torch.tensor([0.5, -1.0, 2.0]), torch.tensor([2.0, 3.0, 0.5]))
    return base


def moved(policy, obs, key, change):
    with torch.no_grad():
        return (policy.encode({**obs, key: change(obs[key])}) - policy.encode(obs)).abs().flatten(1).amax(1)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_reads_what_the_base_s_prefix_makes_of_pictures_words_and_state(precision: str):
    base, obs = fitted(precision=precision), look()
    policy, size = student(base), base.encoder.summary_dim
    cond = policy.encode(obs)
    seen = torch.nn.functional.layer_norm(base.encode(obs)[:, :size], (size,))
    torch.testing.assert_close(cond[:, :size], seen)
    for row, task in enumerate(obs[TASK][:, -1].tolist()):
        places = cond[row, size:].view(len(TASKS), size)
        torch.testing.assert_close(places[task], seen[row])
        assert not places[[t for t in range(len(TASKS)) if t != task]].any(), "the other tasks' places are empty"
    assert policy.cond_dim == cond.shape[1] == size * (1 + len(TASKS))
    for key, change in ((CAMERA, lambda v: 255 - v), (STATE, lambda v: v + 0.5), (TASK, lambda v: (v + 1) % 3)):
        assert bool((moved(policy, obs, key, change) > 1e-4).all()), f"{key} is read"
    assert policy.act(obs, deterministic=True).shape == (4, base.spec.horizon, ACTION.dim)


def test_one_task_needs_no_places_of_its_own():
    base = make(tasks=TASKS[:1], features={k: f for k, f in make().spec.observation.items() if k != TASK})
    policy = student(base)
    assert policy.cond_dim == base.encoder.summary_dim
    obs = {k: v for k, v in look().items() if k != TASK}
    assert policy.encode(obs).shape == (4, policy.cond_dim)


def test_it_stands_by_itself_and_comes_back_from_disk(tmp_path):
    base, obs = fitted(precision="bfloat16"), look()
    policy = student(base)
    want = policy.act(obs, deterministic=True)
    with torch.no_grad():
        for value in (*base.parameters(), *base.buffers()):
            value.zero_()
    assert torch.equal(policy.act(obs, deterministic=True), want), "nothing is shared with the base"
    loaded = load_policy(save_policy(policy, tmp_path / "student"))
    assert isinstance(loaded, FrozenEncoderStudent) and loaded.base is None
    assert torch.equal(loaded.act(obs, deterministic=True), want)


def test_imitation_from_what_it_remembers_is_that_from_pictures_and_leaves_the_prefix_alone(monkeypatch):
    monkeypatch.setattr("robopolicy.policies.frozen_encoder_student._AT_ONCE", 4)
    base = fitted()
    batch = {**look(6), "action": torch.rand(6, base.spec.horizon, ACTION.dim)}
    batch["action_is_pad"] = torch.zeros(6, base.spec.horizon, dtype=torch.bool)
    policy = student(base).train()
    kept = policy.precompute_features({k: v[:, 0] for k, v in look(6).items()}, torch.arange(6))
    assert set(kept) == {SEEN, TASK} and kept[SEEN].shape == (6, base.encoder.summary_dim)
    short = {k: v for k, v in batch.items() if k not in base.spec.observation}
    short |= {k: v[:, None] for k, v in kept.items()}
    torch.testing.assert_close(policy.loss(short)[0], policy.loss(batch)[0])
    algo = BC(policy, steps=10, warmup=0)
    before = {k: v.clone() for k, v in algo.model.state_dict().items()}
    losses = [algo.update(short)["loss"] for _ in range(10)]
    assert losses[-1] < losses[0]
    changed = {k.split(".")[0] for k, v in algo.model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {"network"}, "neither the prefix nor how much is explored"


def two_frames() -> FrozenEncoderStudent:
    one = make()
    frames = replace(one.spec, n_obs_steps=2)
    base = build_policy(one.config, spec=frames, normalizer=one.normalizer).eval()
    with torch.no_grad():
        for p in base.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return student(base)


def test_of_several_frames_nothing_is_remembered_and_the_newest_task_counts():
    policy, one = two_frames(), look()
    obs = {k: v[:, 0] for k, v in one.items()}
    assert policy.precompute_features(obs, torch.arange(4)) is obs
    both = {k: v.repeat_interleave(2, dim=1) for k, v in one.items()}
    later = {**both, TASK: torch.cat([(one[TASK] + 1) % 3, one[TASK]], dim=1)}
    torch.testing.assert_close(policy.encode(later), policy.encode(both))
    assert bool((moved(policy, both, CAMERA, lambda v: torch.cat([255 - v[:, :1], v[:, 1:]], 1)) > 1e-4).all())


def test_it_learns_the_sentences_of_its_demonstrations():
    base = make()
    demos = toy(torch.randn(40, 1), torch.randn(40, ACTION.dim))
    policy = student(base, episodes=replace(demos, tasks=("stop", "go left", "left stop")))
    assert policy.spec.tasks == ("stop", "go left", "left stop") and policy.encoder.tasks == 3
    obs = look(2)
    same = student(make()).encoder.summary(policy.normalizer.observation({**obs, TASK: torch.tensor([[2], [0]])}))
    torch.testing.assert_close(policy.encoder.summary(policy.normalizer.observation(obs)), same)
    with pytest.raises(SpecError, match="apart by number"):
        student(policy, episodes=replace(demos, tasks=("go left", "go")))


def test_it_counts_as_its_base_and_the_env_do_where_these_know_all_sentences():
    """`offline` renumbers the dataset then."""
    demos = replace(toy(torch.randn(40, 1), torch.randn(40, ACTION.dim)), tasks=("stop", "go left"))
    assert student(make(), episodes=demos).spec.tasks == make().spec.tasks


def test_a_student_goes_on_as_it_is_and_not_with_other_options():
    policy = student()
    assert student(policy) is policy
    with pytest.raises(ConfigError, match=r"made with \{'initial_std': 0.1\}.*found \{'initial_std': 0.5\}"):
        student(policy, initial_std=0.5)


def test_other_instructions_and_wrong_observations_are_refused():
    policy, obs = student(), look()
    with pytest.raises(SpecError, match="apart by number"):
        policy.set_tasks(("go left", "fly", "stop"))
    with pytest.raises(SpecError, match=r"camera 'front' is missing"):
        policy.encode({k: v for k, v in obs.items() if k != CAMERA})
    bad = {**obs, CAMERA: obs[CAMERA].float()}
    for read in (
        policy.act,
        policy.mean_std,
        lambda o: policy.precompute_features({k: v[:, 0] for k, v in o.items()}, o[TASK]),
    ):
        with pytest.raises(SpecError, match="uint8"):
            read(bad)


def test_only_a_vla_without_a_memory_lends_its_prefix():
    with pytest.raises(SpecError, match=r"policy=vla, found GaussianPolicy.*Give the VLA itself"):
        student(GaussianPolicy(spec(), Normalizer.from_limits(spec().observation, ACTION)))
    base = make()
    base.memory = object()
    with pytest.raises(SpecError, match="with a memory"):
        student(base)
