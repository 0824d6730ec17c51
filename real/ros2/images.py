"""Pictures that come over ROS 2, checked, in the size that the policy was trained on."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture
from sensor_msgs.msg import CompressedImage, Image

from robopolicy.real.control.pictures import fitted
from robopolicy.real.ros2.messages import to_time
from robopolicy.real.ros2.wiring import CameraTopic
from robopolicy.real.safety import SafetyError

CHANNELS = {"rgb8": slice(None), "bgr8": slice(None, None, -1)}  # how to make RGB of an encoding
LARGEST = 4096  # pixels a side; more is no camera of ours


class ImageReader:
    """A camera's messages as uint8 [3 H W].

    Args:
        key: its feature.
        shape: (3, H, W), as the policy was trained; larger pictures of the same shape are averaged down.
        topic: the expected pictures.
    """

    def __init__(self, key: str, shape: tuple[int, ...], topic: CameraTopic) -> None:
        self.key, self.topic, self.shape = key, topic, shape
        _, self.height, self.width = shape

    def read(self, message: Image | CompressedImage) -> NDArray[np.uint8]:
        """Return the picture in a message.

        Raises:
            SafetyError: another camera's, another encoding, damaged, smaller than was trained on, or of another shape.
        """
        expected, found = self.topic.frame_id, message.header.frame_id
        if expected and found != expected:
            raise SafetyError(
                f"{self.key}: the pictures on {self.topic.name!r} are of frame {found!r}, expected {expected!r}. "
                "Are two cameras swapped?"
            )
        pixels = self._raw(message) if isinstance(message, Image) else self._compressed(message)
        return fitted(pixels, self.shape, f"{self.key}: topic {self.topic.name!r}")

    def _raw(self, message: Image) -> NDArray[np.uint8]:
        if message.encoding not in CHANNELS:
            raise self._error(f"encoding {message.encoding!r}, expected one of {list(CHANNELS)}")
        height, width, step = message.height, message.width, message.step
        self._check_size(height, width)
        if step < 3 * width or len(message.data) != step * height:
            raise self._error(f"{len(message.data)} bytes for {height} rows of {step} and {width} pixels of 3 each")
        rows = np.frombuffer(message.data, np.uint8).reshape(height, step)[:, : 3 * width]
        return np.ascontiguousarray(rows.reshape(height, width, 3)[:, :, CHANNELS[message.encoding]])

    def _compressed(self, message: CompressedImage) -> NDArray[np.uint8]:
        try:
            with Picture.open(io.BytesIO(bytes(message.data)), formats=("JPEG", "PNG")) as picture:
                self._check_size(picture.height, picture.width)
                picture.draft("RGB", (self.width, self.height))  # a JPEG is decoded no larger than need be
                if picture.mode not in ("RGB", "RGBA"):
                    raise self._error(f"pixels of mode {picture.mode!r}, expected RGB")
                return np.asarray(picture.convert("RGB"))
        except SafetyError:
            raise
        except Exception as error:  # decoders raise whatever comes to their mind
            raise self._error(f"no whole JPEG or PNG ({error})") from error

    def _check_size(self, height: int, width: int) -> None:
        if not (0 < height <= LARGEST and 0 < width <= LARGEST):
            raise self._error(f"{width} × {height} pixels")

    def _error(self, what: str) -> SafetyError:
        return SafetyError(f"{self.key}: topic {self.topic.name!r}: {what}")


def size_of(message: Image | CompressedImage) -> tuple[int, int]:
    """Height and width of a picture; raises SafetyError where it is none."""
    if isinstance(message, Image):
        return int(message.height), int(message.width)
    try:
        with Picture.open(io.BytesIO(bytes(message.data)), formats=("JPEG", "PNG")) as picture:
            return picture.height, picture.width
    except Exception as error:
        raise SafetyError(f"no JPEG or PNG ({error})") from error


def message_type(topic: CameraTopic) -> type[Image] | type[CompressedImage]:
    return Image if topic.type == "image" else CompressedImage


def image(picture: NDArray[np.uint8], ns: int, topic: CameraTopic) -> Image | CompressedImage:
    """Build the message of a picture [3 H W], stamped [ns]."""
    pixels = np.ascontiguousarray(picture.transpose(1, 2, 0))
    if topic.type == "image":
        message = Image(height=pixels.shape[0], width=pixels.shape[1], encoding="rgb8", step=3 * pixels.shape[1])
        message.data = pixels.tobytes()
    else:
        encoded = io.BytesIO()
        Picture.fromarray(pixels).save(encoded, "PNG")
        message = CompressedImage(format="rgb8; png compressed rgb8", data=encoded.getvalue())
    message.header.stamp, message.header.frame_id = to_time(ns), topic.frame_id
    return message
