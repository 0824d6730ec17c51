"""Intrinsics of a camera, and its pose on an arm or beside it, from pictures of a board (hand–eye calibration).

OpenCV's `calibrateCamera` and `calibrateHandEye` (Park and Martin 1994) give the start. Then the pixels' errors are
minimised over the lens and the poses of camera and board at once, as the arm's joints connect them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

from robopolicy.core.errors import DataError
from robopolicy.real.arms.camera_board import Detection
from robopolicy.real.arms.camera_file import Mount
from robopolicy.real.safety.array_ops import Array
from robopolicy.utils.point_clouds import Intrinsics

PICTURES = 8  # that show the board
TURN = np.deg2rad(5.0)  # rms turn of the tool about a second axis
FOCAL = 0.01  # standard deviation of the focal length, as a fraction
PLACE, ANGLE = 0.005, np.deg2rad(0.5)  # m, rad: standard deviation of the camera's pose
PIXELS = 3.0  # rms error of a picture, with the arm's joints


@dataclass(frozen=True, eq=False)
class HandEye:
    """A calibrated camera.

    Attributes:
        intrinsics: of the lens, with its distortion.
        pose: [4 4] of the optical frame (x right, y down, z forward) in the tool's frame or the base's.
        lens_px, error_px: rms errors of pixels, of the lens alone and with the arm's joints.
        errors_px: [N] rms errors of the pictures, with the arm's joints.
        place_m, angle_rad: standard deviations of the pose. The corners of a picture share the arm's errors.
    """

    intrinsics: Intrinsics
    pose: Array
    lens_px: float
    error_px: float
    errors_px: Array
    place_m: float
    angle_rad: float


def solve(
    tools: Array, seen: Sequence[Detection], size: tuple[int, int], mount: Mount, names: Sequence[str]
) -> HandEye:
    """Calibrate a camera.

    Args:
        tools: [N 4 4] poses of the tool in the base, one a picture.
        seen: N detections of the board. size: (height, width) of the pictures.
        mount: "tool": the camera moves with the tool, the board stands. "base": the camera stands, the tool holds the
            board.
        names: of the pictures, for messages.

    Raises:
        DataError: too few pictures, poses that do not determine the result, or pictures that do not fit the joints.
    """
    if len(seen) < PICTURES:
        raise DataError(f"pictures: {len(seen)} show the board, expected {PICTURES} or more. Take more, of other poses")
    rotations = Rotation.from_matrix(tools[0, :3, :3].T @ tools[:, :3, :3]).as_rotvec()
    second = float(np.linalg.svd(rotations, compute_uv=False)[1] / np.sqrt(len(rotations)))
    if second < TURN:
        raise DataError(
            f"pictures: about a second axis the tool turns by {np.rad2deg(second):.1f}° rms, expected "
            f"{np.rad2deg(TURN):.0f}° or more. Tilt it both ways by 20° and more between pictures"
        )
    lens, lens_px, boards = _lens(seen, size)
    holders: Array = np.asarray(tools if mount == "tool" else np.linalg.inv(tools), dtype=np.float64)
    parts: Any = [list(part) for p in (holders, boards) for part in (p[:, :3, :3], p[:, :3, 3])]
    hand_eye: Any = cv2.calibrateHandEye
    rotation, place = hand_eye(*parts, method=cv2.CALIB_HAND_EYE_PARK)
    if not np.isfinite(rotation).all() or not np.isfinite(place).all():
        raise DataError("pictures: their poses do not determine the camera's. Tilt the tool both ways between them")
    u, _, v = np.linalg.svd(rotation)  # of pictures that do not fit, no rotation comes out
    start = _pose(u @ np.diag([1.0, 1.0, np.linalg.det(u @ v)]) @ v, place)
    lens, pose, errors, place_m, angle_rad = _refine(start, holders @ start @ boards, holders, seen, lens, lens_px)
    if errors.max() > PIXELS:
        worst = int(errors.argmax())
        raise DataError(
            f"pictures: {names[worst]} is off by {errors[worst]:.1f} px where its joints say, expected {PIXELS:g} or "
            "less. Are its joints those of the picture, in rad, the limits those of the arm, and `board` as measured? "
            f"Does the {'board' if mount == 'tool' else 'camera'} stand still (mount={mount})?"
        )
    if not (place_m <= PLACE and angle_rad <= ANGLE):
        raise DataError(
            f"pictures: they determine the camera's pose to {1000 * place_m:.1f} mm and {np.rad2deg(angle_rad):.2f}° "
            f"alone, expected {1000 * PLACE:g} mm and {np.rad2deg(ANGLE):g}°. Take more, tilted further, and closer"
        )
    fx, fy, cx, cy, k1, k2, p1, p2 = map(float, lens)
    total = float(np.sqrt((errors**2).mean()))
    found = Intrinsics(fx, fy, cx, cy, (k1, k2, p1, p2))
    return HandEye(found, pose, lens_px, total, errors, place_m, angle_rad)


def _lens(seen: Sequence[Detection], size: tuple[int, int]) -> tuple[Array, float, Array]:
    """Return the lens [8] as `_project` takes it, its rms error in px, and poses of the board in the camera [N 4 4].

    Raises:
        DataError: the boards are seen too flat to tell the focal length from the distance.
    """
    points = [d.points.astype(np.float32) for d in seen]
    pixels = [d.pixels.astype(np.float32) for d in seen]
    try:
        error, matrix, lens, rotations, places, spread, *_ = cv2.calibrateCameraExtended(
            points,
            pixels,
            size[::-1],
            None,
            None,
            flags=cv2.CALIB_FIX_K3,  # type: ignore[call-overload]
        )
    except cv2.error as failed:
        raise DataError(f"pictures: OpenCV finds no intrinsics from them ({failed.err}). Tilt the board") from failed
    off = float(np.ravel(spread)[0] / matrix[0, 0])
    if not off <= FOCAL:
        raise DataError(
            f"pictures: the focal length is known to {100 * off:.1f}%, expected {100 * FOCAL:g}% or better. Tilt the "
            "board against the camera, by 20° and more, and let it fill the picture"
        )
    boards = np.array([_pose(cv2.Rodrigues(r)[0], t) for r, t in zip(rotations, places, strict=True)])
    found = np.concatenate([np.asarray(matrix)[[0, 1, 0, 1], [0, 1, 2, 2]], np.ravel(lens)[:4]])
    return found.astype(np.float64), float(error), boards


def _refine(
    camera: Array, boards: Array, holders: Array, seen: Sequence[Detection], lens: Array, lens_px: float
) -> tuple[Array, Array, Array, float, float]:
    """Minimise the pixels' errors.

    Args:
        camera: [4 4] where to start from. boards: [N 4 4] of the board, where each picture says that it is.
        holders: [N 4 4] of the frame that the camera is fixed to. lens: [8] to start from. lens_px: its error.

    Returns:
        The lens [8], the camera's pose [4 4], rms errors of the pictures [N] px, and standard deviations of the pose
        [m], [rad].
    """
    owner = np.repeat(np.arange(len(seen)), [len(d.points) for d in seen])
    points, pixels = (np.concatenate(parts) for parts in zip(*seen, strict=True))
    back = np.linalg.inv(holders)
    board = boards[np.argmin(np.linalg.norm(boards[:, :3, 3] - np.median(boards[:, :3, 3], axis=0), axis=1))]

    def residuals(x: Array) -> Array:
        found = np.linalg.inv(_of(x[:6])) @ back @ _of(x[6:12])  # of the board in the camera
        at = np.einsum("kij,kj->ki", found[owner, :3, :3], points) + found[owner, :3, 3]
        return np.asarray(_project(at, x[12:]) - pixels).ravel()

    done = least_squares(residuals, np.concatenate([_vector(camera), _vector(board), lens]), x_scale="jac")
    squares = (done.fun.reshape(-1, 2) ** 2).sum(axis=1)
    errors = np.sqrt(np.bincount(owner, squares) / np.bincount(owner))
    arm = max(0.0, float(squares.mean()) - lens_px**2)  # px², which the corners of a picture share
    noise = 0.5 * (lens_px**2 + arm * len(points) / len(seen))
    variance = np.linalg.pinv(done.jac.T @ done.jac, rcond=1e-16) * noise
    deviation = np.sqrt(np.diag(variance))
    place_m, angle_rad = float(np.linalg.norm(deviation[3:6])), float(np.linalg.norm(deviation[:3]))
    return done.x[12:], _of(done.x[:6]), errors, place_m, angle_rad


def _project(points: Array, lens: Array) -> Array:
    """Return pixels [K 2] of `points` [K 3] m in the optical frame. `lens`: fx, fy, cx, cy, k1, k2, p1, p2."""
    x, y = (points[:, :2] / np.maximum(points[:, 2:], 1e-6)).T
    k1, k2, p1, p2 = lens[4:]
    square = x**2 + y**2
    radial = 1 + k1 * square + k2 * square**2
    bent = np.stack(
        [x * radial + 2 * p1 * x * y + p2 * (square + 2 * x**2), y * radial + p1 * (square + 2 * y**2) + 2 * p2 * x * y]
    )
    return np.asarray(bent.T * lens[:2] + lens[2:4])


def _pose(rotation: Array, place: Array) -> Array:
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation, np.ravel(place)
    return pose


def _of(x: Array) -> Array:
    """Return the pose [4 4] of a rotation vector and a place [6]."""
    return _pose(Rotation.from_rotvec(x[:3]).as_matrix(), x[3:])


def _vector(pose: Array) -> Array:
    return np.concatenate([Rotation.from_matrix(pose[:3, :3]).as_rotvec(), pose[:3, 3]])
