"""TensorBoard: its own reader finds curves, films, config, notes and system metrics."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from robopolicy.evaluation.mp4 import Mp4Writer
from robopolicy.runs.logger import Tracker


def read(run_dir: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"images": 0, "tensors": 0, "scalars": 0})
    return events.Reload()


def steps(events: Any, name: str) -> list[int]:
    return [event.step for event in events.Scalars(name)]


def tracker(run_dir: Path, step: int | None = None) -> Tracker:
    opened = Tracker(run_dir, wandb="disabled", tensorboard=True, config={"seed": 3}, quiet=True)
    opened.rewind(step)
    return opened


def test_everything_of_a_run_is_in_its_file(tmp_path: Path) -> None:
    run = tracker(tmp_path)
    with Mp4Writer(tmp_path / "film.mp4", fps=10) as film:
        for shade in range(100):
            film.add(np.full((48, 64, 3), shade, dtype=np.uint8))
    for step in (1, 2):
        run.log({"train/loss": 1.0 / step, "train/gone": float("nan")}, step)
        run.video("films/0", tmp_path / "film.mp4", step, "seed 4: failure")
    logging.getLogger("robopolicy.sim").warning("the gripper is stuck")
    run.close()
    found = read(tmp_path)
    assert steps(found, "train/loss") == [1, 2] and "train/gone" not in found.Tags()["scalars"]
    assert found.Scalars("system/memory_gib")[0].value > 0.01
    picture = found.Images("films/0")[1]
    animation: Any = Image.open(io.BytesIO(picture.encoded_image_string))
    assert (picture.step, picture.width, picture.height) == (2, 32, 24) and 30 < animation.n_frames <= 60
    texts = {name: str(found.Tensors(name)[0].tensor_proto.string_val[0]) for name in found.Tags()["tensors"]}
    assert '"seed": 3' in texts["config/text_summary"]
    assert "warning: the gripper is stuck" in texts["notes/text_summary"]
    assert "seed 4: failure" in texts["films/0/text_summary"]


def test_a_resumed_run_shows_each_step_once(tmp_path: Path) -> None:
    first = tracker(tmp_path)
    for step in range(1, 6):
        first.log({"train/loss": 1.0}, step)
    first.close()
    again = tracker(tmp_path, 3)  # killed after 5, the checkpoint is of 3
    for step in range(4, 8):
        again.log({"train/loss": 2.0}, step)
    again.close()
    assert steps(read(tmp_path), "train/loss") == [1, 2, 3, 4, 5, 6, 7]


def test_runs_go_on_where_tensorboard_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    run = tracker(tmp_path)
    run.log({"loss": 1.0}, 1)
    run.close()
    assert "robopolicy[tensorboard]" in caplog.text and (tmp_path / "metrics.jsonl").is_file()
    assert not run.shows_films
