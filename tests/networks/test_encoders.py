from __future__ import annotations

from functools import partial

import pytest
import torch

from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.types import STATE, TASK, Feature
from robopolicy.networks.encoders import ObservationEncoder
from robopolicy.networks.mlp import MLP
from robopolicy.networks.vision import ConvEncoder, ConvTokens, KeypointTokens, ViTEncoder, keypoints, random_shift
from tests.toy import spec

FRONT, WRIST = "observation.images.front", "observation.images.wrist"


def test_states_are_flattened_over_history_and_keys():
    observation = {STATE: Feature((3,)), "observation.environment_state": Feature((2,))}
    encoder = ObservationEncoder(spec(observation=observation, n_obs_steps=2))
    state, other = torch.randn(4, 2, 3), torch.randn(4, 2, 2)
    cond = encoder({STATE: state, "observation.environment_state": other})
    assert encoder.out_dim == 10
    assert torch.equal(cond, torch.cat([state[:, 0], state[:, 1], other[:, 0], other[:, 1]], dim=1))


@pytest.mark.parametrize("image_encoder", [None, ViTEncoder, partial(ConvEncoder, out_dim=10)])
def test_cameras_tasks_and_states_together(image_encoder: object):
    observation = {
        STATE: Feature((3,)), FRONT: Feature((3, 32, 48), "uint8"), WRIST: Feature((3, 24, 24), "uint8"),
        TASK: Feature((), "int64"),
    }  # fmt: skip
    torch.manual_seed(0)
    encoder = ObservationEncoder(
        spec(observation=observation, n_obs_steps=2, tasks=("a", "b")),
        state_encoder=lambda size: MLP(size, 7, width=8),
        image_encoder=image_encoder,
    )
    per_camera = encoder.images[0].out_dim
    assert encoder.out_dim == 7 + 4 * per_camera + 16
    obs = {
        STATE: torch.randn(5, 2, 3),
        FRONT: torch.rand(5, 2, 3, 32, 48) * 2 - 1,
        WRIST: torch.rand(5, 2, 3, 24, 24) * 2 - 1,
        TASK: torch.tensor([[0, 0], [1, 1], [0, 0], [1, 1], [0, 0]]),
    }
    cond = encoder(obs)
    assert cond.shape == (5, encoder.out_dim)
    assert torch.equal(cond, encoder(obs)), "no augmentation unless asked for"
    assert not torch.equal(cond, encoder(obs, augment=True))
    cond.square().sum().backward()
    assert all(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in encoder.parameters())
    for key in obs:  # each input reaches the output, in its own columns only
        changed = {**obs, key: 1 - obs[key]}
        assert not torch.equal(encoder(changed), cond)
    swapped = encoder({**obs, FRONT: obs[FRONT].flip(1)})
    first, second = cond[:, 7 : 7 + per_camera], cond[:, 7 + per_camera : 7 + 2 * per_camera]
    torch.testing.assert_close(swapped[:, 7 : 7 + 2 * per_camera], torch.cat([second, first], 1), rtol=1e-4, atol=1e-4)


def test_a_key_of_unknown_kind_is_named():
    with pytest.raises(SpecError, match=r"observation\.counter"):
        ObservationEncoder(spec(observation={STATE: Feature((3,)), "observation.counter": Feature((1,), "int64")}))
    with pytest.raises(SpecError, match="none at all"):
        ObservationEncoder(spec(observation={}))


def test_keypoints_find_a_peak():
    maps = torch.full((1, 2, 5, 9), -50.0)
    maps[0, 0, 1, 2] = 50.0  # row 1 of 0…4 is y = −0.5, column 2 of 0…8 is x = −0.5
    maps[0, 1, 4, 8] = 50.0
    torch.testing.assert_close(keypoints(maps), torch.tensor([[-0.5, 1.0, -0.5, 1.0]]))  # x x y y


def test_random_shift_moves_a_sample_as_one_and_repeats_its_edge():
    torch.manual_seed(0)
    y, x = torch.meshgrid(torch.arange(9.0), torch.arange(12.0), indexing="ij")
    image = torch.stack([y, x, y])[None, None].expand(64, 2, 3, 9, 12)
    moved = random_shift(image, 3)
    assert moved.shape == image.shape
    assert torch.equal(moved[:, 0], moved[:, 1]), "both frames of a sample move alike"
    seen = set()
    for sample in moved[:, 0]:
        dy, dx = int(sample[0, 4, 4]) - 4, int(sample[1, 4, 4]) - 4
        seen.add((dy, dx))
        assert torch.equal(sample[0], (y + dy).clamp(0, 8))
        assert torch.equal(sample[1], (x + dx).clamp(0, 11))
    assert {d for d, _ in seen} == {d for _, d in seen} == set(range(-3, 4))
    assert len(seen) > 20, "samples move independently"


@pytest.mark.parametrize("tower", [ConvEncoder, partial(ConvTokens, width=8), partial(KeypointTokens, width=8)])
def test_convolutions_get_channels_first(tower):
    """Shifted pictures have them last in memory, where GroupNorm takes up to ten times as long on a CPU."""
    made, found = tower((3, 16, 24)), []
    made.net[1].register_forward_pre_hook(lambda _, x: found.append(x[0].is_contiguous()))
    shifted = random_shift(torch.rand(4, 1, 3, 16, 24), 2)[:, 0]
    assert not shifted.is_contiguous()
    made(shifted)
    assert found == [True]


def test_vit_names_a_side_that_is_no_multiple():
    with pytest.raises(ConfigError, match="patch: expected a divisor of the picture's sides 30×32, found 8"):
        ViTEncoder((3, 30, 32))


def test_each_of_several_tasks_has_weights_of_its_own_for_the_state():
    told = {STATE: Feature((2,)), TASK: Feature((), "int64")}
    obs = {STATE: torch.tensor([[[3.0, 4.0]], [[5.0, 6.0]]]), TASK: torch.tensor([[1], [0]])}
    two = spec(observation=told, n_obs_steps=1, tasks=("left", "right"))
    cond = ObservationEncoder(two, task_dim=1, task_weights=True)(obs)
    expected = torch.tensor([[3.0, 4.0, 0.0, 0.0, 3.0, 4.0], [5.0, 6.0, 5.0, 6.0, 0.0, 0.0]])
    assert torch.equal(cond[:, :6], expected) and cond.shape == (2, 7)
    one = spec(observation=told, n_obs_steps=1, tasks=("left",))
    assert ObservationEncoder(one, task_dim=1, task_weights=True).out_dim == 3, "nothing to tell apart"
