"""The model of the lens, beside OpenCV's."""

from __future__ import annotations

import cv2
import numpy as np

from robopolicy.real.arms.hand_eye import _project


def test_pixels_are_those_of_opencv():
    rng = np.random.default_rng(0)
    points = np.append(rng.uniform(-0.3, 0.3, (20, 2)), rng.uniform(0.5, 1.0, (20, 1)), axis=1)
    lens = np.array([610.0, 590.0, 321.0, 243.0, -0.21, 0.07, 0.003, -0.002])
    matrix = np.array([[lens[0], 0, lens[2]], [0, lens[1], lens[3]], [0, 0, 1]])
    expected, _ = cv2.projectPoints(points, np.zeros(3), np.zeros(3), matrix, lens[4:])
    np.testing.assert_allclose(_project(points, lens), expected[:, 0], atol=1e-9)
