"""A policy on another device than its envs: evaluated, refined and relabelled with the very same outcome."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from robopolicy.algos.dppo import DPPO
from robopolicy.algos.residual import ResidualTD3
from robopolicy.buffers.relabeling import base_actions
from robopolicy.buffers.replay_buffer import Replay
from robopolicy.core.errors import CheckpointError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import STATE
from robopolicy.datasets.compatibility import check_same_statistics
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.evaluation.rollout import evaluate
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.networks.mlp import MLP, ResidualMLP
from robopolicy.policies.diffusion import DiffusionPolicy
from robopolicy.policies.residual import ResidualPolicy
from robopolicy.training.off_policy import off_policy
from robopolicy.utils.storage import read_state, write_state
from robopolicy.world_models.training import supervised
from tests import toy
from tests.algos.test_dppo import base
from tests.algos.test_dppo import train as train_dppo
from tests.elsewhere import ELSEWHERE, HERE, elsewhere
from tests.fakes import MemoryCheckpoints, NoTracker, PointEnv

DEVICES = (HERE, ELSEWHERE)


def test_the_other_device_refuses_to_mix():
    with elsewhere() as device:
        policy, obs = base().to(device), {STATE: torch.zeros(2, 1, 4)}
        noise = torch.zeros(2, *policy.noise_shape)
        with pytest.raises(RuntimeError, match="same device"):
            policy.act(obs, noise=noise)
        chunk = policy.act({STATE: obs[STATE].to(device)}, noise=noise.to(device))
        assert chunk.device == device and torch.equal(chunk.to(HERE), base().act(obs, noise=noise))


def test_evaluation_is_the_same_on_every_device():
    with elsewhere():
        rows = [evaluate(base().to(d), PointEnv(4), episode_seeds("test", 0, 9)).frame for d in DEVICES]
    columns = ["seed", "success_once", "return", "length"]
    assert rows[0][columns].equals(rows[1][columns])


def test_base_actions_of_demonstrations_are_the_same_on_every_device():
    data = toy.random_episodes()
    made = toy.policy(DiffusionPolicy, data, network=partial(ResidualMLP, width=16, time_dim=16), denoising_steps=3)
    with elsewhere():
        found = [base_actions(data, made.to(device)) for device in DEVICES]
    assert torch.equal(*found)


def residual(device: torch.device, checkpoints: MemoryCheckpoints, total_steps: int) -> ResidualTD3:
    source = base()
    policy = ResidualPolicy(source.spec, source.normalizer, source, hidden=(16,)).to(device)
    algo = ResidualTD3(policy, critic=partial(CriticEnsemble, heads=3, width=16), target_noise=0.1)
    off_policy(
        algo=algo, env=wrap_for(policy, PointEnv(4)), replay=partial(Replay, capacity=800, n_step=2, gamma=0.9),
        demos=None, tracker=NoTracker(), checkpointer=checkpoints, evaluate=None, total_steps=total_steps,
        warmup_steps=24, critic_only_updates=2, updates_per_step=0.1, batch_size=8,
    )  # fmt: skip
    return algo


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")  # this meta device holds numbers
def test_a_residual_is_learned_and_resumed_on_every_device(tmp_path):
    learned = []
    with elsewhere():
        for device in DEVICES:
            first, second = MemoryCheckpoints(), MemoryCheckpoints()
            residual(device, first, 60)
            folder = tmp_path / str(device)
            folder.mkdir()
            write_state(first.latest(), folder)
            second.saved[60] = read_state(folder)
            algo = residual(device, second, 100)
            assert algo.critic.last.weight.device == algo.target.last.weight.device == device
            learned.append([p.detach().to(HERE) for p in (*algo.actor_params, *algo.critic_params)])
    assert float(learned[0][-1].abs().max()) > 0.0
    assert all(torch.equal(a, b) for a, b in zip(*learned, strict=True))


def test_dppo_is_the_same_on_every_device():
    learned = []
    with elsewhere():
        for device in DEVICES:
            policy = base(finetuned_steps=3)
            policy.begin_finetuning()
            algo = DPPO(
                policy.to(device), critic=partial(MLP, width=16, depth=2), minibatch=64, epochs=1, critic_warmup=0
            )
            train_dppo(algo, num_envs=4, total_steps=4 * 12 * 2)
            learned.append([p.detach().to(HERE) for p in policy.finetuned_parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*learned, strict=True))


@pytest.mark.parametrize("change", [0.0, 1.0])
def test_a_resumed_run_compares_its_data_on_every_device(change):
    """What was saved is read on the CPU; what was fitted lies where the run learns."""
    saved, where = {"normalizer.x": torch.arange(3.0)}, Path("run")
    with elsewhere() as device:
        fitted = {"normalizer.x": (torch.arange(3.0) + change).to(device)}
        for check in (
            lambda: check_same_statistics(where, fitted, saved, dataset=where),
            lambda: supervised._check_same_data(saved, fitted),
        ):
            if change:
                with pytest.raises(CheckpointError, match="dataset"):
                    check()
            else:
                check()
