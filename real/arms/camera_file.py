"""The file of a calibrated camera: written by `robopolicy arm camera`, read where depth images become points."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
import pydantic

from robopolicy.core.errors import ConfigError, DataError
from robopolicy.core.untrusted import checked, read_json
from robopolicy.real.control.arm_kinematics import kinematics_of
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.profile import Profile
from robopolicy.sim.kinematics import forward
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.point_clouds import Intrinsics

if TYPE_CHECKING:
    from robopolicy.real.arms.hand_eye import HandEye

FORMAT = 1
CAMERA_NAME = r"^[^\x00-\x1f]{1,256}$"
SAME = 1e-4  # m, by which the tool's point may differ from that of the calibration
Mount = Literal["base", "tool"]
_Row = tuple[float, float, float, float]


class _Lens(TypedDict):
    fx: float
    fy: float
    cx: float
    cy: float


@pydantic.with_config(pydantic.ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class CameraFile(TypedDict):
    """Keys of the file; lengths in m, pixels with whole coordinates at their centres."""

    format: Literal[1]
    camera: NotRequired[Annotated[str, pydantic.Field(pattern=CAMERA_NAME)]]
    made: NotRequired[datetime.date]
    size: tuple[Annotated[int, pydantic.Field(ge=1)], Annotated[int, pydantic.Field(ge=1)]]
    intrinsics: _Lens
    distortion: _Row
    mount: Mount
    pose: tuple[_Row, _Row, _Row, _Row]
    robot: str
    kinematics: NotRequired[str]
    tcp: NotRequired[tuple[float, float, float]]
    quality: dict[str, float]


@dataclass(frozen=True, eq=False)
class CameraCalibration:
    """A camera of an arm.

    Attributes:
        size: (height, width) of its pictures.
        intrinsics: of its lens, with distortion.
        mount: the frame in which its pose is fixed.
        pose: [4 4] of the optical frame (x right, y down, z forward) in this frame.
        robot: whose limits held the arm's kinematics.
        quality: `pictures`, and errors as in HandEye.
        camera: `frame_id` or serial number of the camera. None, as for those that follow: the file does not say.
        made: day of the calibration.
        kinematics: of the arm then, see `kinematics_digest`.
        tcp: [3] m, the tool's point in the last link's frame then.
    """

    size: tuple[int, int]
    intrinsics: Intrinsics
    mount: Mount
    pose: Array
    robot: str
    quality: dict[str, float]
    camera: str | None = None
    made: datetime.date | None = None
    kinematics: str | None = None
    tcp: tuple[float, float, float] | None = None

    def in_base(self, q: Array, profile: Profile) -> Array:
        """Return the pose [4 4] of the optical frame in the base, at joint angles `q` [n] rad.

        Raises:
            DataError: the profile is of another arm than the calibration.
        """
        if profile.robot != self.robot:
            raise DataError(f"camera: calibrated on {self.robot!r}, the limits are of {profile.robot!r}. Calibrate it")
        return self.pose.copy() if self.mount == "base" else np.asarray(tool_poses(q[None], profile)[0] @ self.pose)

    def problems(self, camera: str, profile: Profile, changed: datetime.date | None) -> Iterator[str]:
        """Name each reason why it is not the calibration of `camera` on this arm, as it is now.

        Args:
            profile: the arm's limits, with its kinematics and its tool.
            changed: day of the last mechanical change of arm or camera; None: unknown.
        """
        if self.camera is None:
            yield f"camera: the file does not say which camera it is of. Where it is {camera!r}, write that there"
        elif self.camera != camera:
            yield f"camera: expected {camera!r}, the file is of {self.camera!r}. Name that camera's own file"
        if self.robot != profile.robot:
            yield f"robot: calibrated on {self.robot!r}, the limits are of {profile.robot!r}. {_AGAIN}"
        elif self.kinematics != (expected := kinematics_digest(profile)):
            yield (
                f"kinematics: expected {expected!r}, found {self.kinematics!r}: the limits {profile.robot!r} had other "
                f"links then. {_AGAIN}"
            )
        tcp = profile.chain.tcp
        if self.mount == "tool" and not (self.tcp is not None and np.abs(tcp - self.tcp).max() <= SAME):
            yield f"tcp: expected {tcp.tolist()} m, found {self.tcp}: the arm had another tool then. {_AGAIN}"
        if changed is not None and not (self.made is not None and self.made >= changed):
            yield f"made: {self.made}, before the arm's last change (`changed` of the wiring: {changed}). {_AGAIN}"


_AGAIN = "Calibrate the camera again: robopolicy arm camera"


def kinematics_digest(profile: Profile) -> str:
    """Name the arm's links by a hash, the tool left out."""
    found = profile.data["kinematics"]
    links = {k: (np.array(found[k], float).round(9) + 0.0).tolist() for k in ("offsets", "turns", "rpy") if k in found}
    return hashlib.sha256(json.dumps(links, sort_keys=True).encode()).hexdigest()[:16]


def tool_poses(q: Array, profile: Profile) -> Array:
    """Return the poses [N 4 4] of the tool in the base at joint angles `q` [N n] rad; its axes are the last link's."""
    frame = forward(q, kinematics_of(profile))
    poses = np.tile(np.eye(4), (len(q), 1, 1))
    poses[:, :3, :3], poses[:, :3, 3] = frame.axes.transpose(0, 2, 1), frame.pos
    return poses


def write_camera(
    path: Path, found: HandEye, *, size: tuple[int, int], mount: Mount, profile: Profile, pictures: int,
    camera: str | None,
) -> None:  # fmt: skip
    """Write a calibration as JSON."""
    lens = found.intrinsics
    data: dict[str, Any] = {
        "format": FORMAT, "camera": camera, "made": datetime.date.today().isoformat(), "size": list(size),
        "intrinsics": {k: getattr(lens, k) for k in _Lens.__annotations__}, "distortion": list(lens.distortion),
        "mount": mount, "pose": found.pose.tolist(), "robot": profile.robot,
        "kinematics": kinematics_digest(profile), "tcp": profile.chain.tcp.tolist(),
        "quality": {"pictures": float(pictures), "lens_px": found.lens_px, "error_px": found.error_px,
                    "place_m": found.place_m, "angle_rad": found.angle_rad},
    }  # fmt: skip
    rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items() if value is not None)
    write_atomically(path, f"{{\n{rows}\n}}\n")


def read_camera(path: Path) -> CameraCalibration:
    """Read a calibration.

    Raises:
        DataError: no such file, a key that is wrong, or a pose that is none; named.
    """
    data: Any = checked(CameraFile, read_json(path, error=DataError), path.name, error=DataError)
    pose = np.array(data["pose"])
    turn = pose[:3, :3]
    if not (np.allclose(turn @ turn.T, np.eye(3), atol=1e-6) and np.linalg.det(turn) > 0
            and (pose[3] == [0, 0, 0, 1]).all()):  # fmt: skip
        raise DataError(f"{path.name}: pose: expected a rotation and a place [4 4], found {pose.tolist()}")
    lens = Intrinsics(**data["intrinsics"], distortion=data["distortion"])
    try:
        lens.check(data["size"])
    except ConfigError as error:
        raise DataError(f"{path.name}: {error}") from error
    rest = {k: v for k, v in data.items() if k not in ("format", "intrinsics", "distortion", "pose")}
    return CameraCalibration(intrinsics=lens, pose=pose, **rest)
