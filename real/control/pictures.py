"""Pictures of a camera in the size that a policy was trained on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture

from robopolicy.real.safety import SafetyError

ASPECT = 0.02  # by which width / height may differ from those of training


def fitted(pixels: NDArray[np.uint8], shape: tuple[int, ...], key: str) -> NDArray[np.uint8]:
    """Return a picture [H W 3] as [3 h w] of `shape`; a larger one of the same aspect is averaged down.

    Args:
        key: feature that it is of, for messages.

    Raises:
        SafetyError: it is smaller than trained on, or of another aspect.
    """
    _, h, w = shape
    height, width = pixels.shape[:2]
    if (height, width) != (h, w):
        if height < h or width < w:
            raise SafetyError(f"{key}: {width} × {height} pixels are fewer than the {w} × {h} trained on")
        if abs(width / height * h / w - 1) > ASPECT:
            raise SafetyError(
                f"{key}: {width} × {height} pixels are of another shape than the {w} × {h} trained on. Set the driver "
                "to crop them as the training data were"
            )
        pixels = np.asarray(Picture.fromarray(pixels).resize((w, h), Picture.Resampling.BOX))
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
