"""Write and read H.264 films, with text burnt into the pictures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import TracebackType

import av
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from robopolicy.utils.atomic import create, hidden

_HOLD_S = 0.8  # seconds for which the last picture is held


_GOOD, _BAD = (64, 168, 107), (214, 84, 72)


def side_by_side(left: Path | str, right: Path | str, out: Path | str) -> Path:
    """Join two films of equal height; the shorter one is held at its last picture."""
    films = [list(read_mp4(path)) for path in (left, right)]
    with av.open(str(left)) as container:
        fps = float(container.streams.video[0].average_rate or 10)
    gap = np.full((films[0][0].shape[0], 4, 3), 24, dtype=np.uint8)
    with Mp4Writer(out, fps=fps, hold_s=0.0) as writer:
        for t in range(max(map(len, films))):
            a, b = (frames[min(t, len(frames) - 1)] for frames in films)
            writer.add(np.concatenate([a, gap, b], axis=1))
    return Path(out)


class Mp4Writer:
    """Writes uint8 [h w 3] pictures as H.264 that browsers play; the file appears when it is complete.

    hold_s: seconds for which the last picture stands still at the end.
    """

    def __init__(self, path: Path | str, *, fps: float, hold_s: float = _HOLD_S) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.part = hidden(self.path, "tmp")  # of its own: another process may film the same episode
        self.fps, self.hold_s = Fraction(fps).limit_denominator(1000), hold_s
        self.last: np.ndarray | None = None

    def __enter__(self) -> Mp4Writer:
        os.close(create(self.part))
        self.container = av.open(str(self.part), "w", format="mp4", options={"movflags": "+faststart"})
        self.stream = self.container.add_stream("libx264", rate=self.fps)
        self.stream.pix_fmt = "yuv420p"
        self.stream.options = {"crf": "24", "preset": "veryfast"}
        self.stream.thread_count = 1
        return self

    def add(self, picture: np.ndarray) -> None:
        if self.last is None:
            self.stream.height, self.stream.width = (side - side % 2 for side in picture.shape[:2])
        self._encode(picture)
        self.last = picture

    def discard(self) -> None:
        """Leave no file."""
        self.last = None

    def _encode(self, picture: np.ndarray) -> None:
        even = np.ascontiguousarray(picture[: self.stream.height, : self.stream.width])
        self.container.mux(self.stream.encode(av.VideoFrame.from_ndarray(even, format="rgb24")))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self.last is not None:
            for _ in range(round(self.hold_s * float(self.fps))):
                self._encode(self.last)
            self.container.mux(self.stream.encode())
            self.container.close()
            self.part.replace(self.path)
            return
        self.container.close()
        self.part.unlink(missing_ok=True)


def read_mp4(path: Path | str) -> Iterator[np.ndarray]:
    """Return uint8 [h w 3] pictures of a film."""
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="rgb24")


def burn(picture: Tensor, text: str, *, mark: str, good: bool) -> np.ndarray:
    """Return uint8 [h w 3]: `picture` uint8 [3 h w] with a strip of `text` and a coloured `mark` along its upper edge.

    Players lay their controls over the lower edge.
    """
    image = Image.fromarray(picture.permute(1, 2, 0).contiguous().cpu().numpy())
    draw = ImageDraw.Draw(image, "RGBA")
    size = max(9, round(image.height / 20))
    font, pad = ImageFont.load_default(size), size // 2
    bottom = size + 2 * pad
    draw.rectangle((0, 0, image.width, bottom), fill=(16, 18, 22, 190))
    start = image.width - pad - draw.textlength(mark, font=font)
    draw.rectangle((start - pad, 0, image.width, bottom), fill=(*(_GOOD if good else _BAD), 235))
    draw.text((start, pad * 0.7), mark, font=font, fill=(255, 255, 255, 255))
    while text and pad + draw.textlength(text, font=font) > start - 2 * pad:
        text = text[:-1]
    draw.text((pad, pad * 0.7), text, font=font, fill=(240, 240, 240, 255))
    return np.asarray(image)
