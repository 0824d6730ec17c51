from __future__ import annotations

import importlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from robopolicy.cli.main import main
from robopolicy.core.errors import ConfigError
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.runs.checkpointer import load_policy
from robopolicy.runs.run_dir import read_config
from robopolicy.training import batch_size
from robopolicy.training.batch_size import Estimate, chosen_batch_size

offline = importlib.import_module("robopolicy.training.offline")
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


def spy(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of windows that trainings learn from, one a training."""
    used: list[int] = []
    build = offline.Batches

    def built(*args: Any, batch_size: int, **keys: Any) -> Any:
        used.append(batch_size)
        return build(*args, batch_size=batch_size, **keys)

    monkeypatch.setattr(offline, "Batches", built)
    return used


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
        monkeypatch.setattr(batch_size, "_free_bytes", lambda *_, n=windows: int(n * window))
        assert chosen(seen) == expected
    monkeypatch.setattr(batch_size, "_free_bytes", lambda *_: int(100 * window))
    assert chosen(seen, wanted=90) == 90
    with pytest.raises(ConfigError, match=r"loop\.batch_size: .*found 101 windows of .* Give loop\.batch_size=32, or"):
        chosen(seen, wanted=101)
    monkeypatch.setattr(batch_size, "_free_bytes", lambda *_: int(7 * window))
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
    policy.spec = type("Spec", (), {"reads_pictures": False})  # type: ignore[assignment]
    monkeypatch.setattr(batch_size, "_free_bytes", lambda *_: 0)
    assert chosen_batch_size(None, policy, None, CPU) == 256  # type: ignore[arg-type]
    assert chosen_batch_size(3, policy, None, CPU) == 3  # type: ignore[arg-type]


def command(seen: tuple[Path, Path], run: Path) -> list[str]:
    return ["train", "algo=bc", *QUIET, f"dataset={seen[0]}", f"run_dir={run}", "loop.save_every=1"]


def saved(run: Path) -> Any:
    return (read_config(run) or {})["loop"]["batch_size"]


def test_a_resumed_run_keeps_its_batch_on_a_machine_with_less_memory(
    seen: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used = spy(monkeypatch)
    window = window_bytes(seen, monkeypatch)
    monkeypatch.setattr(batch_size, "_free_bytes", lambda *_: int(20 * window))
    assert main([*command(seen, tmp_path), "loop.steps=1"]) == 0
    assert "loop.batch_size: 8 windows" in capsys.readouterr().out
    assert saved(tmp_path) == 8
    monkeypatch.setattr(batch_size, "_free_bytes", lambda *_: 0)
    assert main([*command(seen, tmp_path), "loop.steps=2"]) == 0
    assert "loop.batch_size" not in capsys.readouterr().out
    assert saved(tmp_path) == 8
    assert main([*command(seen, tmp_path), "loop.steps=3", "loop.batch_size=8"]) == 0, "said aloud, it is the same"
    assert used == [8, 8, 8]
    assert main([*command(seen, tmp_path), "loop.steps=4", "loop.batch_size=16"]) == 1
    assert "loop.batch_size: was 8, now 16" in capsys.readouterr().err


@pytest.mark.parametrize("own", [256, 3])
def test_a_run_that_began_with_a_number_resumes_with_it(
    seen: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: int
) -> None:
    used = spy(monkeypatch)
    assert main([*command(seen, tmp_path), "loop.steps=1", f"loop.batch_size={own}"]) == 0
    assert main([*command(seen, tmp_path), "loop.steps=2"]) == 0
    assert used == [own, own]
    assert saved(tmp_path) == own


def test_a_run_of_numbers_saves_what_configs_said_before(
    seen: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = spy(monkeypatch)
    assert main([*command(seen, tmp_path), "loop.steps=1", "cameras=[]"]) == 0
    assert (used, saved(tmp_path)) == ([256], 256)
    state = json.loads(next(tmp_path.glob("checkpoints/step_*/state.json")).read_text())
    assert "batch_size" not in str(state), "the config is the one place"


def test_a_batch_that_cannot_fit_leaves_no_run(
    seen: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(batch_size, "_free_bytes", lambda *_: 1000)
    assert main([*command(seen, tmp_path / "run"), "loop.steps=1", "loop.batch_size=64"]) == 1
    assert "loop.batch_size: expected a batch that fits" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_ranks_on_cpus_share_the_memory_of_their_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size.ranks, "count", lambda: 4)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert batch_size._share(CPU) == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert batch_size._share(CPU) == 0.5
    assert batch_size._share(torch.device("cuda")) == 0.25


def test_a_gpu_has_no_room_where_the_dataset_will_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000))
    pictures = torch.zeros(5, 3, 4, 4, dtype=torch.uint8)
    assert batch_size._free_bytes(torch.device("cuda"), [pictures]) == 760


def told(monkeypatch: pytest.MonkeyPatch, five_updates_s: float, updates: int) -> None:
    clock = iter([10.0, 10.0 + five_updates_s])
    monkeypatch.setattr(batch_size.time, "perf_counter", lambda: next(clock))
    estimate = Estimate(updates, advice="Fewer steps help.")
    for _ in range(20):
        estimate.update()


def test_a_long_training_is_told_after_a_few_updates(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.WARNING)
    told(monkeypatch, 15.0, 6_000)
    assert [r.message for r in caplog.records] == [
        "This training will take about 5.0 hours: 6000 updates of 3 s. Fewer steps help."
    ]
    caplog.clear()
    told(monkeypatch, 0.5, 6_000)
    assert capsys.readouterr().out == "This training will take about 10 minutes: 6000 updates of 0.1 s.\n"
    told(monkeypatch, 0.5, 100)
    assert not capsys.readouterr().out, "ten seconds need no estimate"
    monkeypatch.setattr(batch_size.ranks, "rank", lambda: 1)
    told(monkeypatch, 15.0, 6_000)
    assert not caplog.records, "one of the ranks speaks"


def test_advice_names_what_this_training_can_change(seen: tuple[Path, Path]) -> None:
    policy = load_policy(seen[1])
    assert batch_size.advice(policy, CPU) == (
        "Fewer loop.steps, a smaller loop.batch_size, smaller pictures or a GPU (device=cuda) help."
    )
    assert batch_size.advice(policy, torch.device("cuda")).endswith("loop.batch_size or smaller pictures help.")
