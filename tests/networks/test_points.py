from __future__ import annotations

import pytest
import torch

from robopolicy.core.errors import SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import POINTS, STATE, Feature
from robopolicy.networks.encoders import ObservationEncoder
from robopolicy.networks.points import PointEncoder, check_cloud, drop_points
from robopolicy.networks.prefix import Prefix
from tests.toy import ACTION

KEY = POINTS + "front"


def spec(**changed: Feature) -> PolicySpec:
    observation = {STATE: Feature((3,)), KEY: changed.get("cloud", Feature((16, 3)))}
    return PolicySpec(observation, ACTION, 0.1, 2, 4, 2, ("go",))


def test_order_and_repetition_of_points_change_nothing():
    torch.manual_seed(0)
    encoder, points = PointEncoder((16, 3), dims=(8, 8), out_dim=5), torch.randn(2, 16, 3)
    want = encoder(points)
    assert want.shape == (2, 5)
    torch.testing.assert_close(encoder(points[:, torch.randperm(16)]), want)
    torch.testing.assert_close(encoder(torch.cat([points, points[:, :7]], dim=1)), want)
    assert not torch.allclose(encoder(points + 0.1), want)


def test_dropped_points_are_the_same_in_all_frames_of_a_sample():
    torch.manual_seed(0)
    points = torch.arange(16.0)[None, None, :, None].expand(4, 2, 16, 3) + torch.tensor([0.0, 100.0])[:, None, None]
    kept = drop_points(points, 0.5)
    assert kept.shape == (4, 2, 8, 3)
    torch.testing.assert_close(kept[:, 1] - kept[:, 0], torch.full((4, 8, 3), 100.0))
    assert all(len(row.unique()) == 8 for row in kept[:, 0, :, 0]) and not torch.equal(kept[0], kept[1])
    assert drop_points(points, 0.0) is points and drop_points(points, 1.0).shape[2] == 1


def test_the_observation_encoder_reads_every_frame_of_a_cloud():
    torch.manual_seed(0)
    encoder = ObservationEncoder(spec(), points_encoder=lambda shape: PointEncoder(shape, dims=(8,), out_dim=5))
    obs = {STATE: torch.randn(3, 2, 3), KEY: torch.randn(3, 2, 16, 3)}
    cond = encoder(obs)
    assert cond.shape == (3, encoder.out_dim) == (3, 2 * 3 + 2 * 5)
    older = {**obs, KEY: obs[KEY] + torch.tensor([1.0, 0.0])[:, None, None]}
    changed = (encoder(older) != cond).any(0)
    assert changed.tolist() == [False] * 6 + [True] * 5 + [False] * 5
    assert not torch.equal(encoder(obs, augment=True), cond)


@pytest.mark.parametrize("cloud", [Feature((16, 4)), Feature((48,)), Feature((16, 3), dtype="uint8"), Feature((0, 3))])
def test_clouds_of_another_shape_are_named(cloud):
    with pytest.raises(SpecError, match=rf"{KEY}.*\(P, 3\).*found {cloud.dtype}"):
        check_cloud(KEY, cloud)
    with pytest.raises(SpecError, match=KEY):
        ObservationEncoder(spec(cloud=cloud))


def test_a_vla_refuses_clouds_by_name():
    with pytest.raises(SpecError, match=f"{KEY}.*points="):
        Prefix(spec(), vision=PointEncoder)
