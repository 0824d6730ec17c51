"""SmolVLA from a directory, its language model tiny and random: instructions, noise, and both on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from robopolicy.core.types import TASK, Feature
from robopolicy.runs.checkpointer import load_policy, save_policy
from tests.lerobot_toys import env, observations, save, tiny_vlm

transformers = pytest.importorskip("transformers", reason="SmolVLA needs lerobot[smolvla]")
pytest.importorskip("num2words", reason="SmolVLA needs lerobot[smolvla]")
TASKS = ("pick up the cube", "push the tee")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("smolvla")
    save(
        "smolvla", root / "policy", cameras={"front": 64}, vlm_model_name=str(tiny_vlm(root / "vlm", TASKS)),
        load_vlm_weights=False, num_vlm_layers=2, chunk_size=4, n_action_steps=3, num_steps=2,
        resize_imgs_with_padding=(64, 64), tokenizer_max_length=8, pad_language_to="max_length",
    )  # fmt: skip
    return root / "policy"


def spec(tasks: tuple[str, ...] = TASKS) -> Any:
    return env({"front": 64}, tasks=tasks)


def test_it_acts_on_its_instruction_and_noise(folder: Path, tmp_path: Path) -> None:
    policy = load_policy(folder, env=spec())
    assert policy.noise_shape == (4, 32) and (policy.spec.horizon, policy.spec.n_action_steps) == (4, 3)
    assert policy.spec.observation[TASK] == Feature((), "int64")
    obs, z = observations(1, 2, spec()), torch.randn(2, 4, 32)
    obs[TASK] = torch.tensor([[0], [1]])
    chunk = policy.act(obs, noise=z)
    assert chunk.shape == (2, 4, 2) and torch.equal(policy.act(obs, noise=z), chunk)
    for i in range(2):
        alone = policy.act({k: v[i : i + 1] for k, v in obs.items()}, noise=z[i : i + 1])
        torch.testing.assert_close(alone[0], chunk[i], rtol=1e-3, atol=1e-4)
    other = policy.act({**obs, TASK: 1 - obs[TASK]}, noise=z)
    assert not torch.equal(other, chunk), "the instruction counts"
    save_policy(policy, tmp_path / "ours")
    assert torch.equal(load_policy(tmp_path / "ours").act(obs, noise=z), chunk)


def test_one_task_needs_no_index(folder: Path) -> None:
    policy = load_policy(folder, env=spec(TASKS[:1]))
    assert TASK not in policy.spec.observation
    obs, z = observations(1, 1, spec(TASKS[:1])), torch.randn(1, 4, 32)
    obs[TASK] = torch.zeros(1, 1, dtype=torch.int64)
    many = load_policy(folder, env=spec())
    assert torch.equal(policy.act(obs, noise=z), many.act(obs, noise=z))
