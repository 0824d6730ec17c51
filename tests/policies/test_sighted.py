"""A student on the frozen prefix of a VLA: what it reads, that it stands alone, and what it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from robopolicy.algos.bc import BC
from robopolicy.errors import SpecError
from robopolicy.normalize import Normalizer
from robopolicy.policies.base import SEEN
from robopolicy.policies.gaussian import GaussianPolicy
from robopolicy.policies.sighted import SightedPolicy, sighted
from robopolicy.policy_files import load_policy, save_policy
from robopolicy.types import STATE, TASK
from tests.policies.test_vla import CAMERA, TASKS, look, make
from tests.toy import ACTION, spec

NODE = {"_target_": "robopolicy.networks.mlp.MLP", "_partial_": True, "width": 16, "depth": 1}


def student(base=None) -> SightedPolicy:
    torch.manual_seed(1)
    return sighted(base or make(), network=NODE)


def moved(policy, obs, key, change):
    with torch.no_grad():
        return (policy.encode({**obs, key: change(obs[key])}) - policy.encode(obs)).abs().flatten(1).amax(1)


def test_it_reads_what_the_base_s_prefix_makes_of_pictures_words_and_state():
    base, obs = make(), look()
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
    base, obs = make(), look()
    policy = student(base)
    want = policy.act(obs, deterministic=True)
    loaded = load_policy(save_policy(policy, tmp_path / "student"))
    with torch.no_grad():
        for p in base.parameters():
            p.zero_()
    assert isinstance(loaded, SightedPolicy) and loaded.base is None
    torch.testing.assert_close(loaded.act(obs, deterministic=True), want)


def test_imitation_from_what_it_remembers_is_that_from_pictures_and_leaves_the_prefix_alone():
    base = make()
    batch = {**look(6), "action": torch.rand(6, base.spec.horizon, ACTION.dim)}
    batch["action_is_pad"] = torch.zeros(6, base.spec.horizon, dtype=torch.bool)
    policy = student(base).train()
    kept = policy.remember({k: v[:, 0] for k, v in look(6).items()}, torch.arange(6))
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


def test_of_several_frames_nothing_is_remembered():
    policy = student()
    policy.spec = replace(policy.spec, n_obs_steps=2)
    obs = {k: v[:, 0] for k, v in look().items()}
    assert policy.remember(obs, torch.arange(4)) is obs


def test_other_instructions_and_wrong_observations_are_refused():
    policy, obs = student(), look()
    with pytest.raises(SpecError, match="apart by number"):
        policy.instruct(("go left", "fly", "stop"))
    with pytest.raises(SpecError, match=r"camera 'front' is missing"):
        policy.encode({k: v for k, v in obs.items() if k != CAMERA})
    with pytest.raises(SpecError, match="uint8"):
        policy.act({**obs, CAMERA: obs[CAMERA].float()})


def test_only_a_vla_without_a_memory_lends_its_prefix():
    with pytest.raises(SpecError, match=r"policy=vla, found GaussianPolicy.*policy=gaussian first"):
        student(GaussianPolicy(spec(), Normalizer.from_limits(spec().observation, ACTION)))
    base = make()
    base.memory = object()
    with pytest.raises(SpecError, match="with a memory"):
        student(base)
