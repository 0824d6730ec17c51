"""validation.py and calibration.py: open-loop errors by hand, baselines, calibration, a model worse than none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from robopolicy.core.types import STATE
from robopolicy.world_models.evaluation.calibration import faults, no_better
from robopolicy.world_models.evaluation.validation import (
    copy_last,
    dream,
    episode_scores,
    fit_linear,
    open_loop,
    per_episode,
    scores,
    succeeded,
    uncertainties,
)
from robopolicy.world_models.models.state_transform import StateTransform
from tests.fakes import POINT_ACTION
from tests.world_models.point import FEATURES, point_world, walk


def missed(predicted: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    return (predicted - true).abs()


def test_open_loop_by_hand() -> None:
    """One number that grows by 1 a frame, in episodes of 4 and 3 frames: copying is k off."""
    episodes = walk([4, 3])
    state = torch.tensor([[0.0, 5], [1, 5], [2, 5], [3, 5], [10, 5], [11, 5], [12, 5]])
    episodes.obs[STATE] = state
    found = open_loop(copy_last, episodes, missed, horizons=(1, 2, 3, 4), stride=1)
    assert [len(found[k]) for k in (1, 2, 3, 4)] == [5, 3, 1, 0]
    assert [found[k].mean(0).tolist() for k in (1, 2, 3)] == [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]
    assert len(open_loop(copy_last, episodes, missed, horizons=(1,), stride=2)[1]) == 3  # 0, 2 and 4


def test_angles_count_by_the_nearest_turn() -> None:
    episodes = walk([2])
    episodes.obs[STATE] = torch.tensor([[0.4, 0.0], [-0.4, 0.0]])
    wrap = StateTransform(FEATURES[STATE], POINT_ACTION, periods={"x": 1.0}).wrap
    found = open_loop(copy_last, episodes, lambda a, b: wrap(a - b).abs(), horizons=(1,))
    assert found[1][0, 0] == pytest.approx(0.2)


def test_the_true_model_makes_no_error_and_the_linear_one_finds_it() -> None:
    episodes = walk([30, 40, 12])
    exact = open_loop(dream(point_world(), likeliest=True), episodes, missed, horizons=(1, 5, 20))
    assert all(exact[k].mean() < 1e-6 for k in exact)
    linear = open_loop(fit_linear(episodes, wrap=lambda x: x), episodes, missed, horizons=(1, 20))
    assert linear[20].mean() < 1e-3 < open_loop(copy_last, episodes, missed, horizons=(20,))[20].mean()


def test_drawn_rollouts_are_drawn() -> None:
    episodes, world = walk([30]), point_world(drift=1.0)
    assert open_loop(dream(world, likeliest=True), episodes, missed, horizons=(1,))[1].mean() < 1e-6
    drawn = open_loop(dream(world, likeliest=False), episodes, missed, horizons=(1,), stride=1)[1].mean()
    assert 0.2 < drawn < 0.8, "one step in two drifts by 1"


def test_an_angle_that_turns_on_across_its_fold_is_linear() -> None:
    wrap = StateTransform(FEATURES[STATE], POINT_ACTION, periods={"x": 1.5}).wrap
    episodes = walk([60])
    turned = torch.arange(60.0)[:, None] * torch.tensor([0.1, 0.0])
    episodes.obs[STATE] = wrap(turned)
    found = open_loop(fit_linear(episodes, wrap=wrap), episodes, lambda a, b: wrap(a - b).abs(), horizons=(1, 20))
    assert found[1].max() < 1e-3 and found[20].max() < 1e-2


def test_the_error_of_a_step_across_a_fold_is_that_of_the_nearest_turn() -> None:
    episodes, world = walk([3]), point_world(drift=0.0)
    world.dynamics.state_transform = StateTransform(FEATURES[STATE], POINT_ACTION, periods={"x": 1.0})
    episodes.obs[STATE] = torch.tensor([[0.3, 0.0], [0.49, 0.0], [-0.49, 1.0]])
    episodes.action[:] = torch.tensor([[0.19, 0.0], [0.0, 0.0], [0.0, 0.0]])
    _, error = uncertainties(world, episodes)
    x, y = episodes.obs[STATE].std(0).tolist()
    assert error[1] == pytest.approx((0.02 / x + 1.0 / y) / 2, abs=1e-5), "not 0.98"


def test_uncertainty_and_error_belong_to_frames() -> None:
    episodes = walk([3, 2])
    uncertainty, error = uncertainties(point_world(), episodes)
    torch.testing.assert_close(uncertainty, episodes.obs[STATE][:, 1].abs())
    assert error.isnan().tolist() == [False, False, True, False, True] and error[~error.isnan()].max() < 1e-5


def test_a_number_that_stays_the_same_does_not_rule_the_error() -> None:
    """x follows its action; y is predicted 0.02 too far, and has no deviation in these episodes."""
    episodes = walk([37])
    episodes.obs[STATE] = torch.stack([0.1 * torch.arange(37), torch.full((37,), 0.3)], dim=1)
    assert episodes.obs[STATE][:, 1].std() > 0, "by rounding"
    episodes.action[:] = torch.tensor([0.1, 0.02])
    _, error = uncertainties(point_world(), episodes)
    torch.testing.assert_close(error[:36], torch.full((36,), 0.01))


def test_scores_see_the_window_of_their_own_episode() -> None:
    """Near the origin at the last two latents and after the action; first frames stand for those before."""
    episodes = walk([2, 2])
    episodes.obs[STATE] = torch.tensor([[0.5, 0], [0.0, 0], [0.01, 0], [0.5, 0]])
    episodes.action.zero_()
    assert scores(point_world(), episodes).tolist() == [0, 1, 1, 0]


def test_per_episode_and_rank_correlation() -> None:
    episodes = walk([2, 3], success=[False, True])
    assert per_episode(torch.tensor([1.0, 3, -5, -2, -9]), episodes).tolist() == [3.0, -2.0]
    assert succeeded(episodes).tolist() == [False, True]


def test_scores_before_success_are_apart_from_those_since() -> None:
    """A failure, a success in its second of four frames, which ends later, and one in its first."""
    episodes = walk([2, 4, 1], success=[False, True, True])
    episodes = replace(episodes, success=torch.tensor([False, False, False, True, False, True, True]))
    found = episode_scores(torch.tensor([1.0, 3.0, -5.0, -2.0, 4.0, -1.0, 7.0]), episodes)
    assert found.before.tolist() == [3.0, -5.0, -torch.inf]
    assert found.since.tolist() == [-torch.inf, 4.0, 7.0]
    assert found.success.tolist() == [False, True, True]


def test_a_model_that_is_not_to_be_learned_in_is_named() -> None:
    good = {"precision": 0.97, "recall": 0.5, "wanted": 0.97, "positives": 40}
    report = {"success": good, "open_loop": {
        "1": {"model": 0.1, "copy_last": 0.2, "windows": 9},
        "20": {"model": 0.9, "copy_last": 0.8, "windows": 9},
        "50": {"model": float("nan"), "copy_last": 0.8, "windows": 9},
        "99": {"model": None, "copy_last": None, "windows": 0},
    }}  # fmt: skip
    assert [line.split(":")[0] for line in faults(report)] == ["20 steps", "50 steps"]
    sharp, blurred = ({"model": {"mse": m}, "copy_last": {"mse": 0.2}, "windows": 9} for m in (0.1, 0.3))
    for later, found in ((sharp, 2), (blurred, 3)):
        assert len(faults({**report, "pictures": {"front": {"1": blurred, "50": later}}})) == found
    assert "front: its pictures are no better" in faults({**report, "pictures": {"front": {"1": blurred}}})[-1]
    report["open_loop"] = {}
    for classifier in ({**good, "precision": 0.96}, {**good, "recall": 0.0}):
        assert [line.split(":")[0] for line in faults({**report, "success": classifier})] == ["success"]
    early = {**good, "precision": 0.9, "early": 0.07}
    assert "early alarms 0.07" in faults({**report, "success": early})[0]


def test_numbers_that_are_no_better_than_copied_are_named() -> None:
    report = {"names": ["tcp", "cube", "goal"], "by_number": {
        "1": {"model": [0.1, 0.1, 0.0], "copy_last": [0.2, 0.2, 0.0]},
        "50": {"model": [0.1, 0.4, 0.0], "copy_last": [0.2, 0.2, 0.0]},
        "99": {"model": None, "copy_last": None},
    }}  # fmt: skip
    assert no_better(report) == "50 steps: cube"
