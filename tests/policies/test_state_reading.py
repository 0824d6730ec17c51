from __future__ import annotations

import pytest
import torch

from robopolicy.core.errors import SpecError
from robopolicy.core.types import Feature
from robopolicy.policies.state_reading import StateReading, places
from robopolicy.policies.state_vectors import joined

NAMES = (*(f"{thing}_{axis}" for thing in ("hand", "cube") for axis in "xyz"), "grip", "disc_x", "disc_y", "cup-rim")
STATE = Feature((len(NAMES),), names=NAMES)


def reading(*names: str) -> StateReading:
    return StateReading(STATE, names or None, where="policy.state")


def test_a_difference_is_the_vector_between_two_places_in_deviations_of_its_own():
    read = reading("grip", "cube-hand")
    assert read.dim == 4 and reading().dim == len(NAMES)
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(500, len(NAMES), generator=generator)
    states[:, 3:6] = states[:, :3] + torch.tensor([0.1, 0.0, -0.2]) + 0.01 * torch.randn(500, 3, generator=generator)
    read.fit(states, torch.ones(len(NAMES)))
    normalized = states / 7.0
    found = read(states, normalized)
    assert torch.equal(found[:, 0], normalized[:, NAMES.index("grip")])
    assert found[:, 1:].mean(dim=0).abs().max() < 1e-4 and (found[:, 1:].std(dim=0) - 1.0).abs().max() < 0.01
    nearer = states.clone()
    nearer[:, 3] -= 0.01  # the cube moves by one deviation along x, against the axis
    assert (found - read(nearer, normalized))[:, 1].mean() == pytest.approx(1.0, abs=0.05)
    both = states + torch.tensor([1.0] * 6 + [0.0] * 4)
    assert torch.allclose(read(both, normalized), found, atol=1e-4), "both moved alike: nothing to see"


def test_without_demonstrations_the_deviations_of_the_places_are_taken():
    read = reading("cube-hand")
    scale = torch.ones(len(NAMES))
    scale[0], scale[3] = 3.0, 4.0
    read.fit(None, scale)
    state = torch.zeros(1, len(NAMES))
    state[0, 3] = 10.0
    assert read(state, state)[0, 0] == pytest.approx(2.0)


def test_a_difference_has_the_axes_that_both_places_have():
    assert reading("disc-hand").dim == 2
    assert reading("cup-rim").dim == 1, "an element of that name comes first"
    assert reading("cube-hand", "cube-hand", "hand-cube").dim == 6, "each once; the other way round is another one"
    assert places(NAMES) == ["hand", "cube"]


@pytest.mark.parametrize("name", ["cube-tool", "lid-hand", "cube-grip", "-hand"])
def test_a_place_that_the_state_lacks_is_named(name: str):
    with pytest.raises(SpecError, match=rf"policy\.state: '{name}' is the difference .* places are: hand, cube\."):
        reading("grip", name)


def test_statistics_of_differences_are_saved_and_a_reading_without_any_has_nothing_to_save():
    fitted, again = reading("cube-hand"), reading("cube-hand")
    fitted.fit(None, torch.full((len(NAMES),), 2.0))
    again.load_state_dict(fitted.state_dict())
    state = torch.randn(3, len(NAMES))
    assert torch.equal(again(state, state), fitted(state, state))
    assert not reading("grip").state_dict(), "checkpoints from before differences load"


def test_vectors_without_names_are_counted_beside_named_ones():
    parts = {"observation.state": STATE, "observation.environment_state": Feature((2,))}
    assert joined(parts).names == (*NAMES, "environment_state_0", "environment_state_1")
    assert joined({key: Feature(part.shape) for key, part in parts.items()}).names is None
    assert StateReading(joined(parts), ("cube-hand", "environment_state_1"), where="policy.state").dim == 4


def test_what_is_magnified_fills_the_range_near_zero_and_ends_at_its_edge():
    read = reading("grip", "cube-hand", "cube-hand/0.01", "disc_*/0.5")
    assert read.dim == 1 + 3 + 3 + 2
    read.fit(None, torch.ones(len(NAMES)))
    state = torch.zeros(2, len(NAMES))
    state[:, NAMES.index("cube_x")] = torch.tensor([0.305, 0.32])
    state[:, NAMES.index("hand_x")] = 0.3
    state[:, NAMES.index("disc_y")] = torch.tensor([-0.25, -8.0])
    found = read(state, state)[:, 4:]
    assert torch.allclose(found, torch.tensor([[0.5, 0.0, 0.0, 0.0, -0.5], [1.0, 0.0, 0.0, 0.0, -1.0]]), atol=1e-4)
    assert not reading("grip", "cube_*/0.01").state_dict(), "its unit is in the config"


@pytest.mark.parametrize(
    "name", ["cube-hand/0", "cube_x/-1", "cube_x/", "cube_x/5mm", "cube_x/nan", "cube_x/inf", "cube_x/1e-50"]
)
def test_a_unit_that_is_none_is_named(name: str):
    with pytest.raises(SpecError, match=rf"policy\.state: '{name}': expected 1e-9 to 1e9 after the slash"):
        reading("grip", name)


def test_what_is_magnified_must_be_in_the_state():
    with pytest.raises(SpecError, match=r"policy\.state: 'lid-hand' is the difference"):
        reading("lid-hand/0.01")
    with pytest.raises(SpecError, match=r"policy\.state.*lid_x"):
        reading("lid_x/0.01")
