"""Find the corners of a chessboard or ChArUco board in a picture, by OpenCV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import cv2
import numpy as np
import pydantic
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError
from robopolicy.real.safety.array_ops import Array

Squares = Annotated[int, pydantic.Field(ge=3, le=100, description="int from 3 to 100")]
Metres = Annotated[float, pydantic.Field(gt=0.0, le=1.0, description="m, at most 1")]
ENOUGH = 8  # corners of a ChArUco board that a picture must show
FLAGS = cv2.CALIB_CB_EXHAUSTIVE | cv2.CALIB_CB_ACCURACY | cv2.CALIB_CB_NORMALIZE_IMAGE


class Detection(NamedTuple):
    """Corners of the board in one picture."""

    points: Array  # [K 3] m, on the board, z = 0
    pixels: Array  # [K 2]


@dataclass(frozen=True)
class Board:
    """A flat board of black and white squares.

    Args:
        columns, rows: squares, those at the edge included.
        square_m: m, side of a square, as measured on the print.
        marker_m: m, side of a marker of a ChArUco board; None: a chessboard.
        dictionary: of the markers, by OpenCV's name.

    Raises:
        ConfigError: a chessboard that looks the same upside down, or markers as large as squares.
    """

    columns: Squares
    rows: Squares
    square_m: Metres
    marker_m: Metres | None = None
    dictionary: Literal["DICT_4X4_50", "DICT_4X4_250", "DICT_5X5_100", "DICT_5X5_250", "DICT_6X6_250"] = "DICT_5X5_100"

    def __post_init__(self) -> None:
        if self.marker_m is None and (self.columns + self.rows) % 2 == 0:
            raise ConfigError(
                f"board: {self.columns} × {self.rows} squares look the same upside down, which gives wrong poses. "
                "Expected an even number one way and an odd one the other, or a ChArUco board (board.marker_m)"
            )
        if self.marker_m is not None and self.marker_m >= self.square_m:
            raise ConfigError(f"board.marker_m: expected less than square_m={self.square_m}, found {self.marker_m}")

    def detect(self, picture: NDArray[np.uint8]) -> Detection | None:
        """Return the corners in a grey picture [h w]; None: the board is not there, or not whole."""
        return self._chess(picture) if self.marker_m is None else self._charuco(picture)

    def _chess(self, picture: NDArray[np.uint8]) -> Detection | None:
        columns, rows = self.columns - 1, self.rows - 1
        found, corners = cv2.findChessboardCornersSB(picture, (columns, rows), flags=FLAGS)
        if not found:
            return None
        grid: Array = np.asarray(corners, dtype=np.float64).reshape(rows, columns, 2)
        centres = (grid[:-1, :-1] + grid[1:, :-1] + grid[:-1, 1:] + grid[1:, 1:]) / 4  # of the squares between
        shade = picture[tuple(np.rint(centres[..., ::-1]).astype(np.int64).reshape(-1, 2).T)].reshape(rows - 1, -1)
        dark = np.add.outer(np.arange(rows - 1), np.arange(columns - 1)) % 2 == 0
        if shade[dark].mean() > shade[~dark].mean():  # OpenCV began at the other end
            grid = np.flip(grid, (0, 1))
        column, row = np.meshgrid(np.arange(columns), np.arange(rows))
        points = self.square_m * np.stack([column, row, 0 * row], axis=-1)
        return Detection(points.reshape(-1, 3).astype(np.float64), grid.reshape(-1, 2))

    def _charuco(self, picture: NDArray[np.uint8]) -> Detection | None:
        markers = cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, self.dictionary))
        board: Any = cv2.aruco.CharucoBoard((self.columns, self.rows), self.square_m, self.marker_m, markers)  # type: ignore[arg-type]
        corners, ids, *_ = cv2.aruco.CharucoDetector(board).detectBoard(picture)
        if ids is None or len(ids) < ENOUGH:
            return None
        points = np.asarray(board.getChessboardCorners(), dtype=np.float64)[np.ravel(ids)]
        return Detection(points, np.asarray(corners, dtype=np.float64).reshape(-1, 2))
