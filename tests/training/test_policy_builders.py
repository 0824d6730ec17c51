"""policy_builders.py: where the normaliser of a policy comes from, with and without a dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose
from robopolicy.config.registry import register
from robopolicy.core.errors import ConfigError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import BASE_ACTION, POINTS, STATE, Feature
from robopolicy.policies.base import Policy
from robopolicy.policies.factory import build_policy
from robopolicy.policies.gaussian import GaussianPolicy
from robopolicy.policies.io import load_policy, save_policy
from robopolicy.policies.normalizer import ACTION, Normalizer
from robopolicy.policies.residual import ResidualPolicy, ZeroActionPolicy
from robopolicy.training.policy_builders import build_policy_for, load_base, warn_of_random_encoder
from robopolicy.training.train_config import TrainConfig
from tests.fakes import PointPolicy
from tests.policies.test_vla import make as make_vla
from tests.toy import episodes, random_episodes, spec

DEMOS = episodes(0.07 * random_episodes().obs[STATE] + 0.4, 0.3 * random_episodes().action)


def config(base: str, **keys: Any) -> TrainConfig:
    node = {"_target_": "residual", "hidden": [8]}
    loop = {"_target_": "off_policy"}
    return TrainConfig(run_dir=Path("run"), loop=loop, tracker={}, policy=node, base=Path(base), **keys)


def residual_on(base: Policy, **keys: Any) -> ResidualPolicy:
    demos = DEMOS if "dataset" in keys else None
    built = build_policy_for(config("base", **keys), env=None, base=base, demonstrations=demos, resumed=None)
    assert isinstance(built, ResidualPolicy)
    return built


def fitted_base() -> Policy:
    normalizer = Normalizer(spec().observation, spec().action).fit(DEMOS)
    return build_policy({"_target_": "gaussian"}, "base", spec=spec(), normalizer=normalizer)


def test_without_a_dataset_a_residual_has_the_normaliser_of_its_base(tmp_path: Path) -> None:
    base = fitted_base()
    alone, fitted = residual_on(base), residual_on(base, dataset=Path("demos"))
    state = alone.normalizer.normalize(STATE, DEMOS.obs[STATE])
    torch.testing.assert_close(state.std(0, correction=0), torch.ones(3))
    for key, value in fitted.state_dict().items():
        if key.startswith("normalizer.") or key in ("low", "high"):
            assert torch.equal(alone.state_dict()[key], value), key

    assert alone.normalizer is not base.normalizer, "each is saved with its own"
    save_policy(alone, tmp_path / "saved")
    obs = {STATE: DEMOS.obs[STATE][:5, None], BASE_ACTION: DEMOS.action[:5]}
    assert torch.equal(load_policy(tmp_path / "saved").act(obs), alone.act(obs))


@pytest.mark.parametrize(("key", "given"), [("n_obs_steps", 3), ("horizon", 16), ("n_action_steps", 3)])
def test_chunks_of_a_base_stay_as_they_are(key: str, given: int) -> None:
    with pytest.raises(ConfigError, match=rf"{key}: expected \d+, as the base has, found {given}. Leave it out"):
        residual_on(fitted_base(), **{key: given})
    residual_on(fitted_base(), **{key: getattr(spec(), key)})


def test_a_run_that_began_with_another_normaliser_keeps_it(tmp_path: Path) -> None:
    """Runs without a dataset began with the action limits once, and go on with them."""
    base, limits = fitted_base(), Normalizer.from_limits(spec().observation, spec().action)
    node = {"_target_": "residual", "hidden": [8]}
    save_policy(build_policy(node, spec=spec(), normalizer=limits, base=base), tmp_path / "policy")
    built = build_policy_for(config("base"), env=None, base=base, demonstrations=None, resumed=tmp_path)
    assert torch.equal(built.normalizer.unnormalize(ACTION, torch.ones(2)), limits.unnormalize(ACTION, torch.ones(2)))


def test_without_any_statistics_the_limits_scale_actions(caplog: pytest.LogCaptureFixture) -> None:
    base = PointPolicy()
    limits = Normalizer.from_limits(base.spec.observation, base.spec.action)
    built = residual_on(base)
    assert torch.equal(built.normalizer.unnormalize(ACTION, torch.ones(2)), limits.unnormalize(ACTION, torch.ones(2)))
    assert "PointPolicy" in caplog.text and "dataset=" in caplog.text

    caplog.clear()
    zero = ZeroActionPolicy(spec())
    build_policy_for(config("zero_action"), env=None, base=zero, demonstrations=None, resumed=None)
    assert not caplog.records, "learning from scratch has no statistics"


def bare(policy: dict[str, Any], algo: dict[str, Any], **keys: Any) -> TrainConfig:
    loop = {"_target_": "offline"}
    return TrainConfig(run_dir=Path("run"), loop=loop, tracker={}, policy=policy, algo=algo, **keys)


def test_a_base_that_nothing_is_built_on_is_refused() -> None:
    given = bare({"_target_": "gaussian"}, {"_target_": "bc"}, base=Path("runs/bc"))
    with pytest.raises(ConfigError, match=r"base=runs/bc: .*found policy=gaussian.*Set policy=finetuned"):
        load_base(given, None, None)


def test_a_teacher_without_a_pupil_is_refused() -> None:
    given = bare({"_target_": "gaussian"}, {"_target_": "bc"}, teacher=Path("runs/vla"))
    with pytest.raises(ConfigError, match=r"teacher=runs/vla: .*found algo=bc.*algo=distill"):
        load_base(given, None, None)


def test_a_run_that_began_with_an_unused_base_resumes(tmp_path: Path) -> None:
    save_policy(fitted_base(), tmp_path / "policy")
    given = bare({"_target_": "gaussian"}, {"_target_": "bc"}, base=Path("runs/bc"))
    assert load_base(given, None, tmp_path) is not None


def test_a_frozen_encoder_student_receives_the_instructions_of_its_demonstrations() -> None:
    node = {"_target_": "make_frozen_encoder_student", "network": {"_target_": "mlp", "_partial_": True, "width": 16}}
    demos = replace(DEMOS, tasks=("stop", "left stop"))
    given = bare(node, {"_target_": "bc"}, base=Path("runs/vla"))
    built = build_policy_for(given, env=None, base=make_vla(), demonstrations=demos, resumed=None)
    assert built.spec.tasks == demos.tasks


def test_an_encoder_that_stays_random_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    seeing = spec(observation={**spec().observation, POINTS + "front": Feature((8, 3))})
    limits = Normalizer.from_limits(seeing.observation, seeing.action)
    policy = build_policy({"_target_": "gaussian"}, spec=seeing, normalizer=limits)
    assert isinstance(policy, GaussianPolicy)
    given = bare({"_target_": "gaussian"}, {"_target_": "rpd"})
    warn_of_random_encoder(given, policy)
    assert not caplog.records, "it is trained"

    policy.density_parameters()  # as PPO does
    warn_of_random_encoder(replace(given, base=Path("runs/bc")), policy)
    assert not caplog.records, "it was trained"
    warn_of_random_encoder(given, policy)
    assert "points=[]" in caplog.text


def test_a_student_of_rpd_reads_no_point_clouds() -> None:
    assert compose(find_verb("train"), ["algo=rpd", "run_dir=run"])["points"] == []


@register("policy", "seeded")
class SeededPolicy(GaussianPolicy):
    def __init__(self, spec: PolicySpec, normalizer: Normalizer, *, seed: int) -> None:
        torch.manual_seed(seed)
        super().__init__(spec, normalizer)


def test_a_policy_whose_checkpoints_could_not_be_loaded_is_refused() -> None:
    """A checkpoint holds its config, spec, normaliser and base, and no run to take a seed from."""
    given = bare({"_target_": "seeded"}, {"_target_": "bc"}, dataset=Path("demos"))
    with pytest.raises(ConfigError, match=r"policy=seeded: its constructor requires seed, "):
        build_policy_for(given, env=None, base=None, demonstrations=DEMOS, resumed=None)
    given = replace(given, policy={"_target_": "seeded", "seed": 1})
    assert isinstance(build_policy_for(given, env=None, base=None, demonstrations=DEMOS, resumed=None), SeededPolicy)
