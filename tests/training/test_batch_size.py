from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from robopolicy.cli.main import main
from robopolicy.core.errors import ConfigError
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.runs.checkpointer import load_policy
from robopolicy.training import batch_size
from robopolicy.training.batch_size import Estimate, chosen_batch_size

CPU = torch.device("cpu")
PICTURES = ("task=reach", "task.objects=false", "task.cameras=[front]", "task.image_size=[16,16]")
QUIET = ("tracker=quiet", "threads=1", "seed=0", "validation_episodes=0", "horizon=4", "n_action_steps=2")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A dataset with pictures, and a policy that reads them."""
    folder = tmp_path_factory.mktemp("pictures")
    data, run = folder / "data", folder / "bc"
    assert main(["demos", *PICTURES, f"out={data}", "episodes=2", "expert_noise=0", "num_envs=2", "seed=0"]) == 0
    assert main(["train", "algo=bc", *QUIET, f"dataset={data}", f"run_dir={run}", "loop.steps=1",
                 "loop.batch_size=2"]) == 0  # fmt: skip
    return data, run


def chosen(seen: tuple[Path, Path], wanted: int | None = None) -> int:
    return chosen_batch_size(wanted, load_policy(seen[1]), load_episodes(seen[0]), CPU)


def window_bytes(seen: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> float:
    kept: list[float] = []
    fitting = batch_size._fitting
    monkeypatch.setattr(batch_size, "_fitting", lambda window, *a, **k: kept.append(window) or fitting(window, *a, **k))
    chosen(seen)
    monkeypatch.setattr(batch_size, "_fitting", fitting)
    return kept[0]


def test_pictures_take_what_fits_into_half_of_the_free_memory(
    seen: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen(seen) == 64
    window = window_bytes(seen, monkeypatch)
    assert window > 16 * 16 * 3 * 4 * 2, "at least the picture itself, and its gradient"
    for windows, expected in ((129, 64), (127, 32), (20, 8)):
        monkeypatch.setattr(batch_size, "_free_bytes", lambda device, n=windows: int(n * window))
        assert chosen(seen) == expected
    monkeypatch.setattr(batch_size, "_free_bytes", lambda device: int(100 * window))
    assert chosen(seen, wanted=90) == 90
    with pytest.raises(ConfigError, match=r"loop\.batch_size: .*found 101 windows of .* Give loop\.batch_size=32, or"):
        chosen(seen, wanted=101)
    monkeypatch.setattr(batch_size, "_free_bytes", lambda device: int(7 * window))
    with pytest.raises(ConfigError, match=r"found 8 windows of .*MiB\. Give smaller pictures or fewer cameras"):
        chosen(seen)


def test_measuring_changes_neither_weights_nor_random_numbers(seen: tuple[Path, Path]) -> None:
    policy, episodes = load_policy(seen[1]), load_episodes(seen[0])
    before = {k: v.clone() for k, v in policy.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    chosen_batch_size(None, policy, episodes, CPU)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(v, before[k]) for k, v in policy.state_dict().items())


def test_numbers_alone_have_the_usual_batch_without_a_look_at_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = nn.Linear(2, 2)
    policy.spec = type("Spec", (), {"observation": {"observation.state": None}})  # type: ignore[assignment]
    monkeypatch.setattr(batch_size, "_free_bytes", lambda device: 0)
    assert chosen_batch_size(None, policy, None, CPU) == 256  # type: ignore[arg-type]
    assert chosen_batch_size(3, policy, None, CPU) == 3  # type: ignore[arg-type]


def test_a_resumed_run_keeps_its_batch_on_a_machine_with_less_memory(
    seen: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "algo=bc", *QUIET, f"dataset={seen[0]}", f"run_dir={tmp_path}", "loop.save_every=1"]
    assert main([*command, "loop.steps=1"]) == 0
    assert "loop.batch_size: 64 windows" in capsys.readouterr().out
    monkeypatch.setattr(batch_size, "_free_bytes", lambda device: 0)
    assert main([*command, "loop.steps=2"]) == 0
    assert "loop.batch_size" not in capsys.readouterr().out


def test_a_long_training_is_told_after_a_few_updates(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = iter([10.0, 25.0])  # five updates of 3 s
    monkeypatch.setattr(batch_size.time, "perf_counter", lambda: next(clock))
    caplog.set_level(logging.WARNING)
    estimate = Estimate(6_000, "Fewer steps help.")
    for _ in range(20):
        estimate.update()
    assert [r.message for r in caplog.records] == [
        "This training will take about 5.0 hours: 6000 updates of 3.0 s. Fewer steps help."
    ]
    caplog.clear()
    clock = iter([10.0, 10.5])
    short = Estimate(6_000, "")
    for _ in range(20):
        short.update()
    assert not caplog.records
