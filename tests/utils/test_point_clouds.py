"""Depth images of shapes whose geometry is known in closed form become the points of these shapes."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError, DataError
from robopolicy.utils.point_clouds import Intrinsics, PointCloud, crop, depth_to_points, farthest_points, thinned

Array = NDArray[np.float64]
VIEW = Intrinsics.of_view(np.deg2rad(60.0), 40, 60)
BALL, RADIUS = np.array([0.1, -0.2, 0.3]), 0.25  # m
TOOL = np.array([0.3, 0.1, 0.4])  # m
POSES = ([0.9, 0.1, 0.5], [0.9, 0.2, 0.5], [-0.4, -0.9, 0.8])  # m, cameras that look at the ball


def looking(position: list[float], target: Array = BALL) -> Array:
    """Return the pose [4 4] of an optical frame (x right, y down, z forward) that looks at `target`."""
    forward = target - position
    forward = forward / np.linalg.norm(forward)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    pose = np.eye(4)
    pose[:3, :3] = np.stack([right, np.cross(forward, right), forward], axis=1)
    pose[:3, 3] = position
    return pose


def rays(view: Intrinsics = VIEW, height: int = 40, width: int = 60) -> Array:
    """Return rays [h w 3] of unit depth in the optical frame."""
    row, column = np.mgrid[:height, :width].astype(float)
    return np.stack([(column - view.cx) / view.fx, (row - view.cy) / view.fy, np.ones_like(row)], axis=-1)


def plane_depth(pose: Array, normal: Array, offset: float) -> Array:
    """Depth [h w] of the plane normal·x = offset; 0 where the ray misses it."""
    direction = rays() @ pose[:3, :3].T
    with np.errstate(divide="ignore"):
        depth = (offset - normal @ pose[:3, 3]) / (direction @ normal)
    return np.where(depth > 0, depth, 0.0)


def ball_depth(pose: Array) -> Array:
    """Depth [h w] of the ball; NaN where the ray misses it."""
    direction, to = rays() @ pose[:3, :3].T, pose[:3, 3] - BALL
    a, b, c = (direction**2).sum(-1), direction @ to, to @ to - RADIUS**2
    with np.errstate(invalid="ignore"):
        return (-b - np.sqrt(b * b - a * c)) / a


def box_depth(pose: Array, low: Array, high: Array) -> Array:
    """Depth [h w] of a box by slabs; infinite where the ray misses it."""
    direction, start = rays() @ pose[:3, :3].T, pose[:3, 3]
    near, far = (low - start) / direction, (high - start) / direction
    first, last = np.minimum(near, far).max(-1), np.maximum(near, far).min(-1)
    return np.where(first <= last, first, np.inf)


def test_one_pixel_by_hand():
    depth = np.zeros((3, 5))
    depth[2, 4] = 2.0
    pose = np.eye(4)
    pose[:3, :3] = [[0, 0, 1], [-1, 0, 0], [0, -1, 0]]  # optical z is the base's x, optical x its −y, optical y its −z
    pose[:3, 3] = [0.5, 0.0, 1.0]
    # x = (4 − 2)/10·2 = 0.4 right, y = (2 − 1)/20·2 = 0.1 down, z = 2 forward.
    np.testing.assert_allclose(depth_to_points(depth, Intrinsics(10, 20, 2, 1), pose), [[2.5, -0.4, 0.9]], rtol=1e-6)


def test_the_middle_of_the_picture_lies_on_the_axis():
    view = Intrinsics.of_view(np.deg2rad(90.0), 2, 4)
    points = depth_to_points(np.ones((2, 4)), view, np.eye(4))
    np.testing.assert_allclose(points.mean(0), [0, 0, 1], atol=1e-7)
    assert points[:, 1].tolist() == pytest.approx([-0.5] * 4 + [0.5] * 4)  # 90°: two pixels span ±1 at depth 1


@pytest.mark.parametrize("position", POSES)
def test_a_plane(position: list[float]):
    normal = np.array([0.1, -0.2, 1.0])
    pose = looking(position)
    depth = plane_depth(pose, normal, 0.05)
    points = depth_to_points(depth, VIEW, pose)
    assert len(points) == (depth > 0).sum() > 1000
    np.testing.assert_allclose(points @ normal, 0.05, atol=2e-6 * np.abs(points).max())


@pytest.mark.parametrize("position", POSES)
def test_a_ball_is_at_the_same_place_for_every_camera(position: list[float]):
    pose = looking(position)
    points = depth_to_points(ball_depth(pose), VIEW, pose)
    assert len(points) > 200
    np.testing.assert_allclose(np.linalg.norm(points - BALL, axis=1), RADIUS, atol=1e-6)
    assert ((points - BALL) @ (pose[:3, 3] - BALL) > 0).all()  # the half that the camera sees


@pytest.mark.parametrize("position", POSES)
def test_a_box(position: list[float]):
    low, high = BALL - [0.1, 0.2, 0.05], BALL + [0.1, 0.2, 0.05]
    pose = looking(position)
    points = depth_to_points(box_depth(pose, low, high), VIEW, pose)
    assert len(points) > 50
    assert len(crop(points, (tuple(low - 1e-6), tuple(high + 1e-6)))) == len(points)
    assert np.minimum(abs(points - low), abs(points - high)).min(1).max() < 1e-6  # on a face


def test_points_of_the_farthest_kind_spread_and_are_a_function_of_the_cloud():
    line = np.zeros((101, 3), dtype=np.float32)
    line[:, 0] = np.linspace(0, 1, 101)
    assert sorted(farthest_points(line, 5)[:, 0].tolist()) == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    dense = np.concatenate([np.random.default_rng(0).normal(0, 0.01, (900, 3)), line]).astype(np.float32)
    assert (farthest_points(dense, 30)[:, 0] > 0.1).sum() > 15  # nine tenths of the points are at one end
    np.testing.assert_array_equal(farthest_points(dense, 64)[:32], farthest_points(dense, 32))


@pytest.mark.parametrize("sampling", ["farthest", "random"])
def test_a_cloud_has_its_size_and_lies_in_the_box(sampling):
    pose = looking(POSES[0])
    box = ((-0.2, -0.3, 0.2), (0.4, 0.1, 0.45))
    make = PointCloud(box, count=64, sampling=sampling)
    points = make(ball_depth(pose), VIEW, pose, tool=TOOL, seed=3, step=1)
    assert points.shape == (64, 3) and points.dtype == np.float32
    assert len(crop(points, box)) == 64 and len(np.unique(points, axis=0)) == 64
    np.testing.assert_array_equal(points, make(ball_depth(pose), VIEW, pose, tool=TOOL, seed=3, step=1))
    same = [
        np.array_equal(points, make(ball_depth(pose), VIEW, pose, tool=TOOL, seed=s, step=t))
        for s, t in ((4, 1), (3, 2))
    ]
    assert same == [sampling == "farthest"] * 2


def test_the_frame_of_the_tool_moves_the_origin_alone():
    pose, options = looking(POSES[0]), {"box": ((-0.2, -0.3, 0.2), (0.4, 0.1, 0.45)), "count": 32}
    base, tool = (PointCloud(**options, frame=f)(ball_depth(pose), VIEW, pose, tool=TOOL, seed=0, step=0)
                  for f in ("base", "tool"))  # fmt: skip
    np.testing.assert_allclose(base - TOOL, tool, atol=1e-6)


def test_few_points_are_repeated_whole():
    few = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32)
    assert PointCloud(count=5).sample(few, seed=0, step=0).tolist() == [*few.tolist(), *few.tolist(), [1, 2, 3]]


def test_pixels_without_depth_have_no_points():
    depth = np.array([[1.0, 0.0, -1.0], [np.nan, np.inf, 2.0]])
    assert depth_to_points(depth, VIEW, np.eye(4))[:, 2].tolist() == [1.0, 2.0]


def test_an_empty_cloud_names_the_box_and_what_was_seen():
    pose = looking(POSES[0])
    wrong = PointCloud(((2.0, 0.0, 0.0), (3.0, 1.0, 1.0)))
    with pytest.raises(DataError, match=r"box from \(2, 0, 0\) to \(3, 1, 1\) m holds none of \d+ points.*saw x, y, z"):
        wrong(ball_depth(pose), VIEW, pose, tool=TOOL, seed=0, step=0)
    with pytest.raises(DataError, match="no depth at all"):
        wrong(np.zeros((40, 60)), VIEW, pose, tool=TOOL, seed=0, step=0)


@pytest.mark.parametrize(
    ("depth", "pose", "named"),
    [
        (np.ones((2, 3, 1)), np.eye(4), "depth"),
        (np.ones((2, 3), dtype=np.uint16), np.eye(4), "depth.*uint16"),
        (np.ones((2, 3)), np.full((4, 4), np.nan), "pose"),
        (np.ones((2, 3)), np.eye(3), "pose"),
    ],
)
def test_bad_images_and_poses_are_named(depth, pose, named):
    with pytest.raises(DataError, match=named):
        depth_to_points(depth, VIEW, pose)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"box": ((0.0, 0.0, 0.0), (1.0, 0.0, 1.0))}, "cloud.box"),
        ({"box": ((0.0, 0.0, 0.0), (1.0, float("nan"), 1.0))}, "cloud.box"),
        ({"box": (1.0, 2.0)}, "cloud.box"),
        ({"count": 0}, "cloud.count"),
        ({"sampling": "nearest"}, "cloud.sampling"),
        ({"frame": "camera"}, "cloud.frame"),
    ],
)
def test_bad_options_are_named(options, named):
    with pytest.raises(ConfigError, match=named):
        PointCloud(**options)


@pytest.mark.parametrize("numbers", [(0.0, 1.0, 1.0, 1.0), (1.0, 1.0, float("nan"), 1.0)])
def test_bad_intrinsics_are_named(numbers):
    with pytest.raises(ConfigError, match="intrinsics"):
        Intrinsics(*numbers)


BENT = (0.2, -0.05, 0.003, -0.002)


def test_the_points_of_a_distorted_picture_are_those_of_opencv():
    """Pixels of OpenCV's projection of a plane come back as the plane."""
    lens = Intrinsics(50.0, 52.0, 31.0, 22.0, BENT)
    row, column = (g.ravel() for g in np.mgrid[:48, :64])
    matrix = np.array([[50.0, 0, 31.0], [0, 52.0, 22.0], [0, 0, 1]])
    pixels = np.stack([column, row], axis=-1).astype(np.float64)[:, None]
    x, y = lens.rays(column, row)
    seen, _ = cv2.projectPoints(np.stack([x, y, np.ones_like(x)], axis=-1), np.zeros(3), np.zeros(3), matrix, BENT)
    np.testing.assert_allclose(seen, pixels, atol=1e-6)
    np.testing.assert_allclose(np.stack(lens.pixels(x, y), axis=-1), seen[:, 0], atol=1e-9)
    lens.check((48, 64))
    points = depth_to_points(np.full((48, 64), 2.0), lens, np.eye(4))
    np.testing.assert_allclose(points, 2 * np.stack([x, y, np.ones_like(x)], axis=-1), atol=1e-6)


def test_a_lens_that_folds_over_is_refused():
    with pytest.raises(ConfigError, match=r"distortion: .* cannot be undone in all of 64 × 48 pixels"):
        Intrinsics(50.0, 52.0, 31.0, 22.0, (-2.0, 0.0, 0.0, 0.0)).check((48, 64))
    Intrinsics(50.0, 52.0, 31.0, 22.0).check((48, 64))


@pytest.mark.parametrize(("most", "k"), [(40 * 60, 1), (1000, 1), (600, 2), (100, 4), (1, 48)])
def test_a_thinned_image_shows_the_same_points(most, k):
    pose = looking([0.9, 0.1, 0.5])
    depth = ball_depth(pose)
    all_points = depth_to_points(depth, VIEW, pose)
    small, lens = thinned(depth, VIEW, most)
    assert small.shape == (len(range((k - 1) // 2, 40, k)), len(range((k - 1) // 2, 60, k)))
    found = depth_to_points(small, lens, pose)
    apart = np.abs(found[:, None] - all_points[None]).max(-1)
    assert not len(found) or apart.min(1).max() < 1e-6


def test_a_cloud_of_too_few_points_is_refused():
    points = np.zeros((15, 3), np.float32)
    assert len(PointCloud(count=4).sample(points, seed=0, step=0, fewest=15)) == 4
    with pytest.raises(DataError, match="point cloud has 15 points, expected 16 or more"):
        PointCloud(count=4).sample(points, seed=0, step=0, fewest=16)
