"""Corners of boards, whichever way up."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from robopolicy.core.errors import ConfigError
from robopolicy.real.arms.camera_board import Board
from tests.real.arms.camera_rig import CELL, texture


def picture_of(board: Board) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(texture(board))).convert("L"))


@pytest.mark.parametrize("board", [Board(9, 6, 0.02), Board(6, 9, 0.02), Board(7, 5, 0.03, 0.022)])
def test_corners_belong_to_the_same_points_upside_down(board):
    picture = picture_of(board)
    height, width = picture.shape
    one, other = board.detect(picture), board.detect(np.ascontiguousarray(picture[::-1, ::-1]))
    assert one is not None and other is not None
    edge = 2 if board.marker_m is None else 1  # squares from the picture's edge to where points are 0, margin included
    np.testing.assert_allclose(one.pixels, (one.points[:, :2] / board.square_m + edge) * CELL - 0.5, atol=0.6)
    np.testing.assert_allclose(other.points, one.points)
    np.testing.assert_allclose([width - 1, height - 1] - other.pixels, one.pixels, atol=0.6)


def test_a_picture_without_the_board_has_no_corners():
    assert Board(9, 6, 0.02).detect(np.full((120, 160), 128, np.uint8)) is None
    assert Board(7, 5, 0.03, 0.022).detect(np.full((120, 160), 128, np.uint8)) is None


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((8, 6, 0.02), "the same upside down"), ((7, 5, 0.02, 0.02), r"board\.marker_m: .*less than")],
)
def test_boards_that_give_wrong_poses_are_refused(sizes, expected):
    with pytest.raises(ConfigError, match=expected):
        Board(*sizes)
