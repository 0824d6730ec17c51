"""Relations, angles and ranges of states."""

from __future__ import annotations

import pytest
import torch

from robopolicy.core.errors import ConfigError, DataError
from robopolicy.core.types import STATE
from robopolicy.datasets.episodes import Episodes
from robopolicy.world_models.models.state_transform import StateTransform
from tests.world_models.point import relative, walk, with_state


def fitted_transform(episodes: Episodes, **kw: object) -> StateTransform:
    return StateTransform(episodes.observation[STATE], episodes.action_spec, **kw).fit(episodes)  # type: ignore[arg-type]


def test_relations_are_found_and_kept_exact() -> None:
    found = fitted_transform(relative([20] * 10))
    assert found.predicted.tolist() == [1, 1, 0, 0, 0], "goals rest within an episode; rel follows; seven is constant"
    assert found.is_derived.tolist() == [False, False, False, True, False]
    torch.testing.assert_close(found.relation[3], torch.tensor([-1.0, 0.0, 1.0, 0.0, 0.0]), atol=1e-4, rtol=0)
    state = torch.tensor([[0.5, 0.2, 0.9, 0.4, 7.0]])
    after = found.advance(state, torch.tensor([[1.0, -1.0, 5.0, 5.0, 5.0]]))
    moved = 0.5 + found.delta_std[0]
    torch.testing.assert_close(after[0, [0, 2, 3, 4]], torch.tensor([moved, 0.9, 0.9 - moved, 7.0]), atol=1e-4, rtol=0)


def test_what_rests_is_predicted_rather_than_its_distance() -> None:
    """A hand moves all the time, a cube seldom: cube is kept and cube − hand follows."""
    generator = torch.Generator().manual_seed(0)
    hand = torch.randn(400, generator=generator).cumsum(0) * 0.1
    cube = (torch.rand(400, generator=generator) < 0.1).float().cumsum(0) * 0.1
    episodes = with_state(walk([400]), torch.stack([cube - hand, hand, cube], 1), ("rel", "hand", "cube"))
    rel, its_hand, the_cube = fitted_transform(episodes).is_derived.tolist()
    assert not the_cube and rel != its_hand


def test_a_clock_advances() -> None:
    """All its steps are alike: their deviation is nothing, their size is not."""
    episodes = walk([10] * 3)
    clock = torch.arange(10.0).repeat(3)[:, None]
    found = fitted_transform(with_state(episodes, torch.cat([episodes.obs[STATE], clock], 1), ("x", "y", "t")))
    assert found.predicted.tolist() == [1, 1, 1] and found.delta_std[2] == 1.0


def test_few_frames_explain_nothing() -> None:
    assert not fitted_transform(relative([4, 4])).is_derived.any()


def test_difference_and_advance_are_inverse_also_for_angles() -> None:
    episodes = walk([50])
    angle = ((torch.arange(50) * 0.3 + 0.513) % 1.0 - 0.5)[:, None]  # a turn of 0.3 a step, folded into [−½, ½)
    episodes = with_state(episodes, torch.cat([episodes.obs[STATE], angle], 1), ("x", "y", "turn"))
    found = fitted_transform(episodes, periods={"turn": 1.0})
    before, after = episodes.obs[STATE][:-1], episodes.obs[STATE][1:]
    torch.testing.assert_close(found.wrap(after - before)[:, 2], torch.full((49,), 0.3), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.advance(before, found.difference(before, after)), after, atol=1e-5, rtol=0)
    with pytest.raises(ConfigError, match=r"world_model\.periods\.turm.*Did you mean 'turn'"):
        fitted_transform(episodes, periods={"turm": 1.0})


def test_angles_that_are_recorded_beyond_half_a_turn_are_refused() -> None:
    """Imagined ones are wrapped, so states of another convention would be left after one step."""
    episodes = walk([50])
    angle = ((torch.arange(50) * 0.3) % 1.0)[:, None]
    episodes = with_state(episodes, torch.cat([episodes.obs[STATE], angle], 1), ("x", "y", "turn"))
    with pytest.raises(DataError, match=r"periods\.turn=1: expected angles from -0\.5 to 0\.5, found up to 0\.9"):
        fitted_transform(episodes, periods={"turn": 1.0})
    noisy = (angle + 0.5) % 1.0 - 0.5
    noisy[7] = 0.51  # by the sensor's noise
    fitted_transform(with_state(episodes, torch.cat([episodes.obs[STATE][:, :2], noisy], 1), ("x", "y", "turn")),
                     periods={"turn": 1.0})  # fmt: skip
    right = with_state(episodes, episodes.obs[STATE] - torch.tensor([0.0, 0.0, 0.5]), ("x", "y", "turn"))
    with pytest.raises(DataError, match=r"periods\.turn=1: expected angles"):
        fitted_transform(right, periods={"turn": 1.0}).widen(episodes)


def test_states_beyond_the_data_are_outside() -> None:
    found = fitted_transform(with_state(walk([3]), torch.tensor([[0.0, 1.0], [1.0, 1.5], [2.0, 2.0]]), ("a", "b")))
    states = torch.tensor([[1.0, 1.5], [2.4, 1.5], [2.6, 1.5], [-0.6, 1.5], [1.0, 2.3]])
    assert found.outside(states).tolist() == [False, False, True, True, True]


def test_data_that_never_moves() -> None:
    with pytest.raises(DataError, match="there are no dynamics to learn"):
        fitted_transform(with_state(walk([5]), torch.ones(5, 2), ("a", "b")))
