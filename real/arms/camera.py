"""`robopolicy arm camera`: intrinsics and pose of a camera, from pictures of a board and the arm's joints."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

import numpy as np
import pydantic
from numpy.typing import NDArray
from PIL import Image

from robopolicy.core.errors import DataError, closest
from robopolicy.core.untrusted import inside, read_bytes, read_text
from robopolicy.real.arms.camera_board import Board
from robopolicy.real.arms.camera_file import CAMERA_NAME, Mount, tool_poses, write_camera
from robopolicy.real.arms.hand_eye import solve
from robopolicy.real.safety import load_profile, read_profile
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.profile import Profile

JOINTS = "joints.csv"
LARGEST = 40_000_000  # pixels of a picture
MOST = 1000  # pictures
SLACK = 0.1  # rad, by which an arm may stand beyond its range


CameraName = Annotated[str, pydantic.Field(pattern=CAMERA_NAME)]


def arm_camera(
    *, pictures: Path, limits: str, board: Board, mount: Mount, out: Path, camera: CameraName | None = None
) -> Path:
    """Calibrate a camera, on the tool or beside the arm, and write its intrinsics and its pose.

    Args:
        pictures: folder of PNG or JPEG files with joints.csv: a column `picture`, and one a joint of the limits, rad.
        limits: whose kinematics the arm has: a name, or the path of a JSON file.
        board: that the pictures show.
        mount: tool: the camera is fixed to the tool, and the board stands still. base: the camera stands still, and the
            gripper holds the board.
        out: the new JSON file.
        camera: its name, by which a wiring tells it from others: `frame_id` of its messages, or its serial number. A
            file without it cannot be deployed.

    Returns:
        The file's path.

    Raises:
        DataError: too few pictures, poses that do not determine the result, or a file that cannot be used; named.
    """
    if out.exists():
        raise DataError(f"out: {out} exists. Expected a new file")
    profile = read_profile(Path(limits)) if limits.endswith(".json") else load_profile(limits)
    names, q = read_joints(pictures / JOINTS, profile)
    seen, missed, size = {}, list[str](), (0, 0)
    for i, name in enumerate(names):
        picture = read_picture(inside(pictures, name, where=f"{JOINTS}: picture", error=DataError))
        if i and picture.shape != size:
            raise DataError(f"{name}: {_said(picture.shape)} pixels, the pictures before have {_said(size)}")
        size = (picture.shape[0], picture.shape[1])
        if (corners := board.detect(picture)) is None:
            missed.append(name)
        else:
            seen[i] = corners
    print(f"board: in {len(seen)} of {len(names)} pictures" + f"; not found in {', '.join(missed)}" * bool(missed))
    shown = [names[i] for i in seen]
    found = solve(tool_poses(q[list(seen)], profile), list(seen.values()), size, mount, shown)
    write_camera(out, found, size=size, mount=mount, profile=profile, pictures=len(seen), camera=camera)
    lens, worst = found.intrinsics, int(found.errors_px.argmax())
    print(
        f"lens: fx {lens.fx:.1f}, fy {lens.fy:.1f}, cx {lens.cx:.1f}, cy {lens.cy:.1f}; {found.lens_px:.2f} px rms",
        f"pose in the {mount}'s frame: {np.round(found.pose[:3, 3], 4).tolist()} m, standard deviation "
        f"{1000 * found.place_m:.1f} mm and {np.rad2deg(found.angle_rad):.2f}°",
        f"with the joints: {found.error_px:.2f} px rms, at most {found.errors_px[worst]:.2f} px in {shown[worst]}",
        f"{out}: name it in a wiring, as depth_cameras.<feature>.calibration"
        + ("" if camera else ". It needs the camera's name first: give camera="), sep="\n",
    )  # fmt: skip
    return out


def read_joints(path: Path, profile: Profile) -> tuple[list[str], Array]:
    """Return names of pictures, and joint angles [N n] rad in the order of the limits.

    Raises:
        DataError: a column is missing or unknown, or a value is no angle within the arm's range; named.
    """
    low, high = profile.maker["low"], profile.maker["high"]
    text = read_text(path, limit=2**22, error=DataError)
    try:
        header, *rows = csv.reader(io.StringIO(text), strict=True)
    except (csv.Error, ValueError) as error:
        raise DataError(f"{path.name}: is no table of commas ({error})") from error
    expected = ["picture", *profile.joints]
    if sorted(header) != sorted(expected):
        unknown = [name for name in header if name not in expected]
        hint = f" {closest(unknown[0], expected)}" if unknown else ""
        raise DataError(f"{path.name}: expected the columns {expected}, found {header}.{hint}")
    if len(rows) > MOST:
        raise DataError(f"{path.name}: {len(rows)} pictures. Expected {MOST} at most: a selection of them")
    names, q = list[str](), list[list[float]]()
    for number, row in enumerate(rows, 2):
        by_name = dict(zip(header, row, strict=False))
        try:
            values = [float(by_name[joint]) for joint in profile.joints]
            names.append(by_name["picture"])
        except (KeyError, ValueError):
            raise DataError(f"{path.name}: line {number}: expected an angle in rad a joint, found {row}") from None
        off = [j for j, v in enumerate(values) if not low[j] - SLACK <= v <= high[j] + SLACK]  # NaN is off too
        if off:
            j = off[0]
            raise DataError(
                f"{path.name}: line {number}: {profile.joints[j]}={values[j]:g}, the arm's range is {low[j]:.2f} to "
                f"{high[j]:.2f} rad. Are these degrees?"
            )
        q.append(values)
    if len(set(names)) < len(names):
        raise DataError(f"{path.name}: a picture stands there twice. Expected one line a picture")
    return names, np.array(q).reshape(-1, len(profile.joints))


def read_picture(path: Path) -> NDArray[np.uint8]:
    """Read a picture as grey [h w].

    Raises:
        DataError: no PNG or JPEG, damaged, or beyond LARGEST.
    """
    data = read_bytes(path, error=DataError)
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
            if image.width * image.height > LARGEST:
                raise DataError(f"{path.name}: {image.width} × {image.height} pixels, expected {LARGEST} at most")
            return np.array(image.convert("L"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path.name}: is no PNG or JPEG that can be read ({error})") from error


def _said(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} × {shape[0]}"
