"""Show a run in TensorBoard: curves, films, config, notes and system metrics."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from robopolicy.core.errors import TrackerError
from robopolicy.utils.install_commands import pip_install

FOLDER = "tensorboard"  # in the run directory
_FRAMES = 60  # pictures of an animation, at most
_GIB = 2**30


class TensorBoardRun:
    """One process's part of a run; a resumed run writes a second file into the same folder.

    Args:
        folder: run directory; events go below its `tensorboard/`.
        config: of the run, shown as text.

    Raises:
        TrackerError: tensorboard is not installed.
    """

    name = "tensorboard"
    active = True

    def __init__(self, folder: Path, *, config: dict[str, Any] | None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise TrackerError(
                f"is not installed ({error}). Choose tracker=local, or install it: "
                f"{pip_install('robopolicy[tensorboard]')}"
            ) from None
        self._open = partial(SummaryWriter, str(folder / FOLDER))
        self._writer = self._open()
        self.place = f"tensorboard --logdir {folder}"  # the command that shows it
        self._config, self._process = config, psutil.Process()
        self._process.cpu_percent()  # The first call measures nothing.

    def rewind(self, step: int | None, rows: list[dict[str, Any]]) -> None:
        """Hide events beyond `step`, which are logged again; None: all."""
        self._writer.close()
        self._writer = self._open(purge_step=0 if step is None else step + 1)

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Log numbers at `step` of the training; values that are not finite are left out."""
        if self._config is not None:
            text, self._config = json.dumps(self._config, indent=2, default=str), None
            self._writer.add_text("config", "\n".join("    " + line for line in text.splitlines()), step)
        for name, value in {**metrics, **self._system()}.items():
            if value is not None:
                self._writer.add_scalar(name, value, step)

    def video(self, name: str, path: Path, step: int, caption: str) -> None:
        """Show an MP4 file as an animated picture, at half its size; TensorBoard plays no MP4."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        data, (width, height) = _gif(path)
        picture = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=data)
        assert self._writer.file_writer is not None
        self._writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=name, image=picture)]), step)
        self._writer.add_text(name, caption, step)

    def note(self, text: str, step: int) -> None:
        """Log a text."""
        self._writer.add_text("notes", text, step)

    def close(self, *, failed: bool) -> None:
        """Write everything and close the file."""
        self._writer.close()

    def _system(self) -> dict[str, float]:
        """Measure this process: memory in GiB, CPU in percent of one core, memory of the GPU in GiB."""
        found = {
            "system/memory_gib": self._process.memory_info().rss / _GIB,
            "system/cpu_percent": self._process.cpu_percent(),
        }
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            found["system/gpu_memory_gib"] = torch.cuda.memory_allocated() / _GIB
        return found


def _gif(path: Path) -> tuple[bytes, tuple[int, int]]:
    """Return a film as an animated GIF, and its width and height in pixels."""
    import av
    from PIL import Image

    with av.open(str(path)) as film:
        stream = film.streams.video[0]
        rate = float(stream.average_rate or 10)
        pictures = [frame.to_ndarray(format="rgb24") for frame in film.decode(stream)]
    every = -(-len(pictures) // _FRAMES)
    size = (pictures[0].shape[1] // 2, pictures[0].shape[0] // 2)
    frames = [Image.fromarray(picture).resize(size) for picture in pictures[::every]]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=max(20, 1000 * every / rate), loop=0)
    return out.getvalue(), size
