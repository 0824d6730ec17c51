"""Point clouds of native tasks are where the scene is, for every camera that sees it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from robopolicy import sim
from robopolicy.core.errors import ConfigError, DataError
from robopolicy.core.types import IMAGES, POINTS
from robopolicy.sim.env import SimEnv
from robopolicy.sim.tasks.pick import Pick
from robopolicy.utils.point_clouds import crop

SEED = torch.tensor([7])
HALF = 0.02  # m, of the cube
AROUND = 0.03  # m from the cube's centre, in which its points are looked for; the hand stays above
MOVED = (0.0, 0.1, 0.0)  # m


def make(num_envs: int = 1, **options) -> SimEnv:
    return sim.make("pick", num_envs, **{"points": ("front",), "range_yaw": 0.0, "threads": 1, **options})


def first(camera: str = "front", **options) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the first cloud [P 3] of an episode, and the place [3] of its cube."""
    env = make(points=(camera,), **options)
    obs = env.reset(SEED)
    cube = env.layout.unpack(obs["observation.state"].numpy())["cube"][0]
    env.close()
    return obs[POINTS + camera][0].numpy(), cube


def on_cube(points: NDArray[np.float32], cube: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return how far [M] each point near the cube is from the nearest of its (upright, unturned) faces, m."""
    near = crop(points, (cube - AROUND, cube + AROUND))
    return np.abs(np.abs(near - cube).max(axis=1) - HALF)


@pytest.mark.parametrize("camera", ["front", "side", "wrist"])
@pytest.mark.parametrize("offset", [(0.0, 0.0, 0.0), MOVED])
def test_a_cube_is_where_the_physics_has_it_wherever_the_camera_stands(camera, offset):
    points, cube = first(camera, camera_offset=offset)
    distance = on_cube(points, cube)
    assert len(distance) >= 10 and distance.max() < 0.002  # m; a depth buffer of 24 bits, 1 m away


@pytest.mark.parametrize("of", ["reach panda", "reach ur5e", "reach so101", "push panda"])
def test_a_target_that_is_no_body_is_drawn_where_it_is(of):
    task, arm = of.split()
    env = sim.make(task, 1, arm=arm, threads=1)
    env.reset(SEED)

    def green(camera: str) -> torch.Tensor:
        """Return the middle [2] of what is green, pixels; NaN where nothing is, e.g. behind the hand."""
        picture = env.render(0, camera=camera, width=320, height=240).int()  # [3 h w]
        seen = torch.nonzero(picture[1] > picture[[0, 2]].amax(0) + 40).float()
        return seen.mean(0)

    before = [green(camera) for camera in ("front", "side")]
    env._extra[0, 1] += 0.03  # m
    after = [green(camera) for camera in ("front", "side")]
    assert any((b - a).norm() > 2 for a, b in zip(before, after, strict=True)), (before, after)  # pixels
    env.close()


def test_a_moved_camera_takes_another_picture_of_the_same_scene():
    (here, cube), (there, same) = first(), first(camera_offset=MOVED)
    assert cube.tolist() == same.tolist() and not np.array_equal(here, there)
    pictures = [make(cameras=("front",), camera_offset=o).reset(SEED)[IMAGES + "front"] for o in ((0, 0, 0), MOVED)]
    assert not torch.equal(*pictures)
    wrist = [first("wrist", camera_offset=o)[0] for o in ((0, 0, 0), MOVED)]
    np.testing.assert_array_equal(*wrist)  # rides on the arm


@pytest.mark.parametrize("sampling", ["farthest", "random"])
def test_clouds_are_functions_of_the_episode_alone(sampling):
    cloud = {"sampling": sampling, "count": 64}
    alone, three = make(cloud=cloud), make(3, cloud=cloud)
    a, b = alone.reset(SEED)[POINTS + "front"], three.reset(torch.tensor([5, 7, 9]))[POINTS + "front"]
    assert a.shape == (1, 64, 3) and torch.equal(a[0], b[1])
    act = torch.zeros(3, 5)
    assert torch.equal(alone.step(act[:1]).obs[POINTS + "front"][0], three.step(act).obs[POINTS + "front"][1])


def test_the_default_box_leaves_out_the_table_and_holds_the_hand_and_the_cube():
    points, _ = first()
    assert points[:, 2].min() >= 0.005 and points[:, 2].max() > 0.2


def test_clouds_of_the_tools_frame_are_centred_at_the_observed_tool():
    base, tool = make(2), make(2, cloud={"frame": "tool"})
    seeds, lift = torch.tensor([5, 7]), torch.tensor([[0.01, 0.0, 0.02, 0.0, 1.0]] * 2)
    for a, b in ((base.reset(seeds), tool.reset(seeds)), (base.step(lift).next_obs, tool.step(lift).next_obs)):
        tcp = base.layout.unpack(a["observation.state"].numpy())["tcp"]
        here, there = (obs[POINTS + "front"].numpy() for obs in (a, b))
        np.testing.assert_allclose(here - tcp[:, None], there, atol=1e-6)


def test_what_is_not_requested_is_zero():
    env = make(2, cloud={"count": 16})
    env.reset(torch.tensor([5, 7]))
    env.request_images(torch.tensor([True, False]))
    cloud = env.step(torch.zeros(2, 5)).obs[POINTS + "front"]
    assert cloud[0].abs().sum() > 0 and not cloud[1].any()


def test_the_digest_tells_clouds_apart_and_other_envs_keep_theirs():
    def digest(**options) -> str:
        return sim.make("pick", 1, threads=1, **options).spec.digest

    plain, front = digest(), digest(points=("front",))
    assert digest(camera_offset=MOVED) == plain  # no camera is looked through
    others = [front, digest(points=("front",), cloud={"count": 64}), digest(points=("front",), camera_offset=MOVED)]
    assert len({plain, *others}) == 4
    assert digest(cameras=("front",)) != digest(cameras=("front",), camera_offset=MOVED)


def test_an_empty_box_is_named_with_episode_and_camera():
    with pytest.raises(DataError, match=r"points\.front, episode seed \d+, step 0: point cloud is empty.*task.cloud"):
        make(cloud={"box": ((2.0, 2.0, 2.0), (3.0, 3.0, 3.0))})


def test_an_episode_that_loses_sight_goes_on_with_zeros_and_says_so_once(caplog):
    env = make(cloud={"box": ((0.3, -0.3, 0.1), (0.7, 0.3, 0.21))})  # the finger tips alone, which rise
    env.reset(SEED)
    clouds = [env.step(torch.tensor([[0.0, 0.0, 1.0, 0.0, 1.0]])).next_obs[POINTS + "front"] for _ in range(30)]
    assert clouds[0].any() and not clouds[-1].any()
    assert len([r for r in caplog.records if "point cloud is empty" in r.getMessage()]) == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [({"points": ("frnot",)}, "frnot.*front"), ({"camera_offset": (0.0, float("inf"), 0.0)}, "camera_offset")],
)
def test_bad_options_are_named(options, named):
    with pytest.raises(ConfigError, match=named):
        make(**options)


@pytest.mark.parametrize("arm", Pick.arms)
def test_the_default_box_is_around_the_workspace_of_the_arm(arm):
    points, cube = first("front", arm=arm)
    assert (np.abs(points - cube).max(axis=1) < AROUND).any(), "the cube's points are in the cloud"


def test_another_thread_is_told_where_pictures_were_drawn(monkeypatch):
    """Drivers differ in what they allow; this one refuses."""
    env = make(points=())
    env.render(0)
    canvas = env._camera._canvas

    def refuse() -> None:
        raise RuntimeError("EGL_BAD_ACCESS")

    with monkeypatch.context() as patch:
        patch.setattr(canvas._gl, "make_current", refuse)
        with pytest.raises(RuntimeError, match="EGL_BAD_ACCESS"):
            env.render(0)
        patch.setattr(canvas, "_thread", threading.get_ident() + 1)
        with pytest.raises(ConfigError, match=r"drew in another thread before, and GL refuses this one .RuntimeError"):
            env.render(0)
    env.close()
