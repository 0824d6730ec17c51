"""`base_critic` loads the critic of the base's run, and errors name each input that does not fit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from robopolicy.algos.aloe import ALOE
from robopolicy.algos.ogpo import OGPO
from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.training import trainers
from robopolicy.training.base_critic import load_base_critic
from robopolicy.training.builders import build_algorithm
from robopolicy.training.train_config import TrainConfig
from robopolicy.utils.storage import write_manifest
from tests.algos.test_chunk_critic import policy_of

SIZE = {"heads": 2, "width": 16}
CRITIC = partial(CriticEnsemble, **SIZE)


class Found:
    """Stands for a policy in a checkpoint: it is found, and not read."""

    folder = "policy"

    def write(self, folder: Path) -> None:
        (folder / "policy.json").write_text("{}")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose critic and target differ from each other, and whose optimiser has taken a step."""
    torch.manual_seed(3)
    algo = ALOE(policy_of(), critic=CRITIC)
    with torch.no_grad():
        for x in algo.target_params:
            x.add_(1.0)
    for parameter in algo.critic.parameters():
        parameter.grad = torch.zeros_like(parameter)
    algo.critic_optim.step()
    saved(tmp_path / "offline", algo.state_dict())
    return tmp_path / "offline"


def saved(run: Path, algo: dict[str, Any]) -> None:
    Checkpointer(run).write(1, policy=Found(), state={"algo": algo})


def test_critic_and_target_are_those_of_the_run_and_nothing_else_is(run: Path) -> None:
    torch.manual_seed(4)
    algo = OGPO(policy_of(), critic=CRITIC)
    before = algo.state_dict()
    load_base_critic(run, algo)
    was = ALOE(policy_of(), critic=CRITIC)
    was.load_state_dict(Checkpointer(run).latest()["algo"])  # type: ignore[index]
    for name in ("critic", "target"):
        own, old = getattr(algo, name).state_dict(), getattr(was, name).state_dict()
        assert all(torch.equal(own[key], old[key]) for key in old)
    assert algo.state_dict()["critic_optim"] == before["critic_optim"] != was.state_dict()["critic_optim"]
    assert algo.critic_params[0] is next(iter(algo.critic.parameters())), "the optimiser would train another critic"


def test_a_checkpoint_of_the_run_serves_too(run: Path) -> None:
    algo = ALOE(policy_of(), critic=CRITIC)
    load_base_critic(run / "checkpoints" / "latest", algo)
    assert not torch.equal(algo.critic_params[0], algo.target_params[0])


def test_what_does_not_fit_is_refused_by_name(run: Path, tmp_path: Path) -> None:
    algo = ALOE(policy_of(), critic=CRITIC)
    for other in (object(), SimpleNamespace(critic=algo.critic, target=algo.target)):
        with pytest.raises(
            ConfigError, match=r"expected algo=aloe, offline, ogpo or pa_rl, found (object|SimpleNamespace)"
        ):
            load_base_critic(run, other)
    for base in (None, tmp_path / "nothing", Path("zero_action")):
        with pytest.raises(ConfigError, match="expected a run directory, found base="):
            load_base_critic(base, algo)
    wider = ALOE(policy_of(), critic=partial(CriticEnsemble, heads=2, width=32))
    before = wider.critic_params[0].clone()
    with pytest.raises(CheckpointError, match=r"critic of base=.*\n.*expected shape \(2, .*32\), found \(2, .*16\)"):
        load_base_critic(run, wider)
    assert torch.equal(before, wider.critic_params[0])
    (tmp_path / "policy").mkdir()
    Found().write(tmp_path / "policy")
    with pytest.raises(ConfigError, match="expected a training's state beside the policy, found none"):
        load_base_critic(tmp_path / "policy", algo)
    saved(tmp_path / "bc", {"updates": 3})
    with pytest.raises(ConfigError, match="its run has no critic and no target of chunks"):
        load_base_critic(tmp_path / "bc", algo)
    with pytest.raises(ConfigError, match="its run has no value of chunks"):
        load_base_critic(run, ALOE(policy_of(), critic=CRITIC, expectile=0.8))


def test_the_value_of_an_expectile_goes_along(tmp_path: Path) -> None:
    torch.manual_seed(5)
    was, algo = (ALOE(policy_of(), critic=CRITIC, expectile=0.8) for _ in range(2))
    saved(tmp_path, was.state_dict())
    load_base_critic(tmp_path, algo)
    cond = torch.randn(6, algo.policy.cond_dim)
    assert torch.equal(algo.next_value(cond, None), was.next_value(cond, None))


def test_a_critic_that_is_not_finite_or_of_a_newer_version_is_refused(run: Path, tmp_path: Path) -> None:
    bad = ALOE(policy_of(), critic=CRITIC).state_dict()
    next(iter(bad["target"].values())).view(-1)[0] = float("nan")
    saved(tmp_path / "bad", bad)
    algo = ALOE(policy_of(), critic=CRITIC)
    with pytest.raises(CheckpointError, match=r"target of base=.* holds NaN or infinity"):
        load_base_critic(tmp_path / "bad", algo)
    newer = next(run.glob("checkpoints/step_*"))
    facts = newer / "checkpoint.json"
    facts.write_text(facts.read_text().replace('"format": 4', '"format": 99'))
    write_manifest(newer)
    with pytest.raises(CheckpointError, match="format 99"):
        load_base_critic(run, algo)


def test_a_damaged_checkpoint_is_refused(run: Path) -> None:
    state = next(run.glob("checkpoints/step_*/state.safetensors"))
    state.write_bytes(state.read_bytes()[:-4])
    with pytest.raises(CheckpointError):
        load_base_critic(run, ALOE(policy_of(), critic=CRITIC))


@pytest.mark.parametrize("resumed", [False, True])
def test_the_key_reaches_the_algorithm_where_the_run_begins(run: Path, tmp_path: Path, resumed: bool) -> None:
    config = TrainConfig(
        run_dir=tmp_path / "run", base=run, base_critic=True, loop={"_target_": "off_policy", "total_steps": 10},
        tracker={}, algo={"_target_": "aloe", "critic": {"_target_": "ensemble", "_partial_": True, **SIZE}},
    )  # fmt: skip
    algo = build_algorithm(config, policy_of(), demonstrations=None, resumed=resumed)
    assert torch.equal(algo.critic_params[0], algo.target_params[0]) == resumed


@pytest.mark.parametrize(("imagined", "weight"), [(False, 0.0), (True, 0.01)])
def test_imagination_s_anchor_is_for_ppo_on_the_chain_alone(tmp_path: Path, imagined: bool, weight: float) -> None:
    """What has an anchor of its own meaning keeps its own default, also where a config does not repeat it."""

    def built(algo: dict[str, Any]) -> Any:
        config = TrainConfig(run_dir=tmp_path, loop={"_target_": "on_policy", "total_steps": 10}, tracker={}, algo=algo,
                             world={} if imagined else None)  # fmt: skip
        return build_algorithm(config, policy_of(), demonstrations=None, resumed=False)

    assert built({"_target_": "dppo"}).anchor == weight
    ogpo = built({"_target_": "ogpo", "critic": {"_target_": "ensemble", "_partial_": True, **SIZE}})
    assert ogpo.anchor == 1.0


@pytest.mark.parametrize("resumed", [None, Path("checkpoint")])
@pytest.mark.parametrize("trainer", [trainers.train_offline_rl, trainers.train_off_policy])
def test_a_resumed_run_does_not_read_its_base(monkeypatch: pytest.MonkeyPatch, trainer: Any, resumed: Any) -> None:
    told = []

    def build(*_: Any, resumed: bool, **__: Any) -> Any:
        told.append(resumed)
        raise KeyboardInterrupt

    for name in ("build_env", "load_base", "load_demonstrations", "build_policy_for", "load_teacher"):
        monkeypatch.setattr(trainers, name, lambda *_, **__: None)
    monkeypatch.setattr(trainers, "build_algorithm", build)
    with pytest.raises(KeyboardInterrupt):
        trainer(SimpleNamespace(has_env=True), SimpleNamespace(latest_path=lambda: resumed))
    assert told == [resumed is not None]
