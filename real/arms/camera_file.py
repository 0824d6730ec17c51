"""The file of a calibrated camera: written by `robopolicy arm camera`, read where depth images become points."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
import pydantic

from robopolicy.core.errors import DataError
from robopolicy.core.untrusted import checked, read_json
from robopolicy.real.arms.hand_eye import HandEye, Mount
from robopolicy.real.control.arm_kinematics import kinematics_of
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.profile import Profile
from robopolicy.sim.kinematics import forward
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.point_clouds import Intrinsics

FORMAT = 1
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
    size: tuple[Annotated[int, pydantic.Field(ge=1)], Annotated[int, pydantic.Field(ge=1)]]
    intrinsics: _Lens
    distortion: _Row
    mount: Mount
    pose: tuple[_Row, _Row, _Row, _Row]
    robot: str
    quality: dict[str, float]


@dataclass(frozen=True, eq=False)
class CameraCalibration:
    """A camera of an arm.

    Attributes:
        size: (height, width) of its pictures.
        intrinsics, distortion: of its lens; k1, k2, p1, p2 as OpenCV has them.
        mount: the frame in which its pose is fixed.
        pose: [4 4] of the optical frame (x right, y down, z forward) in this frame.
        robot: whose limits held the arm's kinematics.
        quality: `pictures`, and errors as in HandEye.
    """

    size: tuple[int, int]
    intrinsics: Intrinsics
    distortion: tuple[float, float, float, float]
    mount: Mount
    pose: Array
    robot: str
    quality: dict[str, float]

    def in_base(self, q: Array, profile: Profile) -> Array:
        """Return the pose [4 4] of the optical frame in the base, at joint angles `q` [n] rad.

        Raises:
            DataError: the profile is of another arm than the calibration.
        """
        if profile.robot != self.robot:
            raise DataError(f"camera: calibrated on {self.robot!r}, the limits are of {profile.robot!r}. Calibrate it")
        return self.pose.copy() if self.mount == "base" else np.asarray(tool_poses(q[None], profile)[0] @ self.pose)


def tool_poses(q: Array, profile: Profile) -> Array:
    """Return the poses [N 4 4] of the tool in the base at joint angles `q` [N n] rad; its axes are the last link's."""
    frame = forward(q, kinematics_of(profile))
    poses = np.tile(np.eye(4), (len(q), 1, 1))
    poses[:, :3, :3], poses[:, :3, 3] = frame.axes.transpose(0, 2, 1), frame.pos
    return poses


def write_camera(path: Path, found: HandEye, *, size: tuple[int, int], mount: Mount, robot: str, pictures: int) -> None:
    """Write a calibration as JSON."""
    lens = found.intrinsics
    data: dict[str, Any] = {
        "format": FORMAT, "size": list(size), "intrinsics": vars(lens), "distortion": list(found.distortion),
        "mount": mount, "pose": found.pose.tolist(), "robot": robot,
        "quality": {"pictures": float(pictures), "lens_px": found.lens_px, "error_px": found.error_px,
                    "place_m": found.place_m, "angle_rad": found.angle_rad},
    }  # fmt: skip
    rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items())
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
    return CameraCalibration(
        data["size"], Intrinsics(**data["intrinsics"]), data["distortion"], data["mount"], pose, data["robot"],
        data["quality"],
    )  # fmt: skip
