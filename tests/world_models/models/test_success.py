"""success.py: the contrastive loss by hand, thresholds over episodes, too few positives."""

from __future__ import annotations

import math

import pytest
import torch

from robopolicy.core.errors import DataError
from robopolicy.world_models.models.success import (
    EpisodeScores,
    SuccessClassifier,
    choose_threshold,
    supervised_contrast,
    verdict,
)


def classifier(**kw: object) -> SuccessClassifier:
    torch.manual_seed(0)
    return SuccessClassifier(2, **{"window": 2, "width": 16, "depth": 1, **kw})  # type: ignore[arg-type]


def test_contrast_by_hand() -> None:
    """Two of one class that point the same way, one of the other class at a right angle; temperature ½."""
    z = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    label = torch.tensor([1.0, 1.0, 0.0])
    expected = -math.log(math.exp(2) / (math.exp(2) + 1))  # of both; the third has no partner and does not count
    assert float(supervised_contrast(z, label, temperature=0.5)) == pytest.approx(expected, rel=1e-5)
    apart = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 3.0]])
    assert supervised_contrast(apart, label, temperature=0.5) > 1.0
    assert float(supervised_contrast(z[1:], label[1:], temperature=0.5)) == 0.0


NEVER = -torch.inf


def on_time(score: torch.Tensor, success: torch.Tensor) -> EpisodeScores:
    """Episodes whose highest `score` [E] comes with or after success, where they have one."""
    return EpisodeScores(torch.where(success, NEVER, score), torch.where(success, score, NEVER), success)


def test_verdict_counts_episodes() -> None:
    success = torch.tensor([True, False, True, True, False])
    scores = on_time(torch.tensor([0.9, 0.8, 0.7, 0.2, 0.1]), success)
    found = verdict(scores, 0.5)
    assert (found.precision, found.recall) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert (found.predicted, found.actual, found.episodes, found.positives) == (0.6, 0.6, 5, 3)
    assert found.early == 0.0 and verdict(scores, 2.0).precision == 0.0


def test_an_alarm_before_the_success_is_a_false_one() -> None:
    """Four alarms: on time; early, and again on time; early alone; in a failure. The fifth success has none."""
    success = torch.tensor([True, True, True, False, True])
    scores = EpisodeScores(
        torch.tensor([0.1, 0.8, 0.6, 0.7, NEVER]), torch.tensor([0.9, 0.9, 0.2, NEVER, 0.3]), success
    )
    found = verdict(scores, 0.5)
    assert (found.precision, found.early, found.recall) == (0.25, 0.5, 0.25)
    assert (found.predicted, found.actual) == (0.8, 0.8)
    high = verdict(scores, 0.85)
    assert (high.precision, high.early, high.recall) == (1.0, 0.0, 0.5), "a higher one lets the second wait"
    assert choose_threshold(scores, 0.9) == pytest.approx(0.85)


def test_threshold_reaches_the_precision_with_the_most_recall() -> None:
    score = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    success = torch.tensor([False, False, True, False, True, True])
    assert choose_threshold(on_time(score, success), 0.99) == pytest.approx(3.5)
    assert choose_threshold(on_time(score, success), 0.75) == pytest.approx(1.5), "3 of 4 are right, none is missed"
    clean = torch.tensor([False, False, False, True, True, True])
    assert choose_threshold(on_time(score, clean), 0.9) == pytest.approx(2.5)
    inverted = on_time(score, torch.tensor([True, True, True, False, False, False]))
    assert verdict(inverted, choose_threshold(inverted, 0.9)).precision == 0.5, "the best there is"


def test_too_few_positives_say_how_many_are_needed() -> None:
    model = classifier(min_positives=40)
    model.check_enough({"train": 40, "calibration": 10, "validation": 10})
    with pytest.raises(DataError, match=r"needed 40 for train \(found 39\), 10 for validation \(found 2\)\. Record"):
        model.check_enough({"train": 39, "calibration": 10, "validation": 2})


@pytest.mark.learning
def test_it_learns_what_only_a_window_shows() -> None:
    """Success is "near the origin now and one step ago": single frames do not tell, and the oldest is of no account."""
    generator = torch.Generator().manual_seed(0)

    def pairs(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = 2 * torch.rand(n, 3, 2, generator=generator) - 1
        return window, (window[:, 1:, 0].abs() < 0.5).all(1).float()

    model = classifier(width=32)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(400):
        loss, _ = model.loss(*pairs(256), torch.zeros(0, 3, 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    window, label = pairs(2000)
    assert ((model(window) > 0).float() == label).float().mean() > 0.95
    swapped = window[:, [0, 2, 1]]
    assert ((model(swapped) > 0) == (model(window) > 0)).float().mean() > 0.9, "one network for both steps"


@pytest.mark.learning
def test_what_was_never_seen_is_no_success() -> None:
    """Success is x > 0.5, and in the data y = x: half of each would pass for it."""
    generator = torch.Generator().manual_seed(0)

    def pairs(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.rand(n, 1, 1, generator=generator).expand(n, 3, 1)
        return torch.cat([x, x], dim=-1), (x[:, 0, 0] > 0.5).float()

    model = classifier(width=32, alike=0.95)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(400):
        window, label = pairs(256)
        good, other = window[label > 0.5], window[label < 0.5]
        n = min(len(good), len(other))
        swap = torch.rand(n, 1, 2, generator=generator) < 0.5
        loss, _ = model.loss(window, label, torch.where(swap, other[:n], good[:n]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    apart = torch.tensor([0.3, 0.9]).expand(1, 3, 2)
    assert model(apart).item() > 0.0, "what is learned of the data alone"
    held, label = pairs(2_000)
    model.calibrate(held[label > 0.5])
    assert model(apart).item() < -100.0, "but not like a success"
    accepted = (model(held) > 0.0).float()
    assert accepted[label > 0.5].mean() > 0.9 and accepted[label < 0.5].mean() < 0.05
