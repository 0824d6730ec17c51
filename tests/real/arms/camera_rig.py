"""Pictures of a board, rendered by the simulator, with an arm whose poses come from MuJoCo's kinematics."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import cv2
import mujoco
import numpy as np
from PIL import Image
from scipy.spatial.transform import Rotation

from robopolicy.real.arms.camera_board import Board
from robopolicy.real.safety.audit import model_of
from robopolicy.real.safety.profile import Profile
from robopolicy.sim.render import Canvas

SIZE, FOVY = (480, 640), 45.0  # pixels; degrees
CELL = 64  # pixels of a square in the board's texture


def texture(board: Board) -> bytes:
    """Return a PNG of the board with a white margin of one square."""
    shape = (board.rows * CELL, board.columns * CELL)
    if board.marker_m is None:
        row, column = np.mgrid[: shape[0], : shape[1]] // CELL
        squares = np.where((row + column) % 2 == 0, 0, 255).astype(np.uint8)
    else:
        markers = cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, board.dictionary))
        made = cv2.aruco.CharucoBoard((board.columns, board.rows), board.square_m, board.marker_m, markers)
        squares = made.generateImage((shape[1], shape[0]))
    out = io.BytesIO()
    Image.fromarray(np.pad(squares, CELL, constant_values=255)).convert("RGB").save(out, "PNG")
    return out.getvalue()


class Scene:
    """A board and a camera that are put anywhere."""

    def __init__(self, board: Board) -> None:
        wide, high = (0.5 * board.square_m * (n + 2) for n in (board.columns, board.rows))
        xml = f"""<mujoco>
          <visual><global offwidth="{SIZE[1]}" offheight="{SIZE[0]}"/><map znear="0.01" zfar="50"/>
            <headlight ambient="0.9 0.9 0.9" diffuse="0.1 0.1 0.1" specular="0 0 0"/><quality offsamples="8"/></visual>
          <statistic extent="1"/>
          <asset><texture name="board" type="2d" file="board.png"/><material name="board" texture="board"/></asset>
          <worldbody>
            <body name="board" mocap="true"><geom type="plane" size="{wide} {high} 1" material="board"/></body>
            <body name="eye" mocap="true"><camera name="eye" fovy="{FOVY}"/></body>
          </worldbody></mujoco>"""
        self.model = mujoco.MjModel.from_xml_string(xml, {"board.png": texture(board)})
        self.data, self.canvas = mujoco.MjData(self.model), Canvas(self.model, "full")

    def picture(self, camera: np.ndarray, board: np.ndarray) -> np.ndarray:
        """Render [h w 3] from the optical frame `camera` [4 4], with the board's middle at `board` [4 4]."""
        for index, pose in ((0, board), (1, camera @ np.diag([1.0, -1.0, -1.0, 1.0]))):
            self.data.mocap_pos[index] = pose[:3, 3]
            self.data.mocap_quat[index] = Rotation.from_matrix(pose[:3, :3]).as_quat(scalar_first=True)
        mujoco.mj_forward(self.model, self.data)
        return self.canvas.draw(self.data, "eye", *SIZE).transpose(1, 2, 0)


def tool_pose(profile: Profile, q: np.ndarray) -> np.ndarray:
    """Return the tool's pose [4 4] in the base, by MuJoCo."""
    model = model_of(profile)
    data = mujoco.MjData(model)
    data.qpos[:] = q
    mujoco.mj_kinematics(model, data)
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = data.site("tcp").xmat.reshape(3, 3), data.site("tcp").xpos
    return pose


def looking(at: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return an optical frame [4 4] at `place` that looks at `at`."""
    z = (at - place) / np.linalg.norm(at - place)
    x = np.cross(z, [0.0, 0.0, 1.0])
    x /= np.linalg.norm(x)
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = np.stack([x, np.cross(z, x), z], axis=1), place
    return pose


def record(folder: Path, profile: Profile, board: Board, mount: str, *, count: int = 14, spread: float = 0.2,
           axes: tuple[int, ...] | None = None, seed: int = 0) -> np.ndarray:  # fmt: skip
    """Write pictures and joints.csv, and return the camera's true pose [4 4] in the mount's frame.

    Args:
        spread: rad, of the joints around the home pose. axes: joints that move; None: all.
    """
    rng, scene, home = np.random.default_rng(seed), Scene(board), np.array(profile.data["home"])
    tool = tool_pose(profile, home)
    folder.mkdir()
    if mount == "tool":
        camera = np.eye(4)
        camera[:3, :3] = Rotation.from_euler("xyz", [0.1, -0.15, 0.3]).as_matrix()
        camera[:3, 3] = [0.05, -0.03, 0.02]
        eye = tool @ camera
        held = eye @ facing(0.45)
    else:
        camera = looking(tool[:3, 3], tool[:3, 3] + np.array([0.35, 0.25, 0.2]))
        held = np.linalg.inv(tool) @ camera @ facing(0.47)
    rows = [["picture", *profile.joints]]
    for i in range(count):
        move = rng.uniform(-spread, spread, len(home))
        if axes is not None:
            move[[k for k in range(len(home)) if k not in axes]] = 0.0
        q = home + move
        here = tool_pose(profile, q)
        views = (here @ camera, held) if mount == "tool" else (camera, here @ held)
        Image.fromarray(scene.picture(*views)).save(folder / f"{i:02d}.png")
        rows.append([f"{i:02d}.png", *map(repr, q.tolist())])
    with (folder / "joints.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    scene.canvas.close()
    return camera


def facing(distance: float) -> np.ndarray:
    """Return the pose of a board that faces a camera `distance` m away, a little turned, in the optical frame."""
    pose = np.eye(4)
    pose[:3, :3] = (Rotation.from_euler("x", np.pi) * Rotation.from_euler("xyz", [0.15, 0.2, 0.1])).as_matrix()
    pose[2, 3] = distance
    return pose
