"""The decision in a world model, in a world whose true answer is known: going to the origin succeeds."""

from __future__ import annotations

import pytest
import torch

from robopolicy.core.errors import ConfigError
from robopolicy.evaluation.gate_text import text
from robopolicy.evaluation.statistics import wilson
from robopolicy.world_models.envs.imagined import ImaginedEnv
from robopolicy.world_models.evaluation import imagined_gain
from robopolicy.world_models.evaluation.imagined_evaluation import ImaginedScores
from robopolicy.world_models.evaluation.imagined_gain import LOOSER, TRIES, decide_in_imagination
from tests.world_models.point import at, point_env
from tests.world_models.training.test_gate import STARTS, Walker


def env(starts: list[list[float]] = STARTS, *, bound: float = 1.0) -> ImaginedEnv:
    made = point_env(starts, 1, bound=bound)
    made.held_out = lambda: at(starts)
    return made


def test_where_all_imagined_episodes_end_alike_the_interval_is_that_of_the_starts() -> None:
    every, none = torch.ones(5, 40, dtype=torch.bool), torch.zeros(5, 40, dtype=torch.bool)
    for success in (every, none):
        found = ImaginedScores(success, none, none).interval(level=0.9, resamples=100)
        assert found == wilson(40 * int(success[0, 0]), 40, level=0.9)
    unsure = ImaginedScores(none, every, none).interval(level=0.9, resamples=100)
    assert (unsure.value, unsure.low, unsure.high) == (0.0, 0.0, 1.0), "what the model does not believe may succeed"


def test_a_policy_that_succeeds_more_often_is_accepted() -> None:
    found = decide_in_imagination(Walker(1.0), Walker(0.0), env())
    assert found.accepted and (found.gain, found.low, found.high) == (1.0, 1.0, 1.0)
    assert (found.episodes, found.uncertain, found.estimator, found.level) == (20, 0.0, "world_model", 0.9)


@pytest.mark.parametrize(("candidate", "base", "gain"), [(1.0, 1.0, 0.0), (0.0, 1.0, -1.0)])
def test_a_policy_that_does_not_is_refused(candidate: float, base: float, gain: float) -> None:
    found = decide_in_imagination(Walker(candidate), Walker(base), env())
    assert not found.accepted and found.gain == gain


def test_a_gain_at_one_start_of_twenty_is_not_sure() -> None:
    """The base is too slow from one start. A resample leaves it out with probability 0.36."""
    starts = [[0.1, 0.0]] * 19 + [[0.29, 0.0]]
    sure, unsure = (decide_in_imagination(Walker(1.0), Walker(0.25), env(starts), level=level) for level in (0.6, 0.9))
    assert sure.gain == unsure.gain == pytest.approx(0.05)
    assert sure.accepted and not unsure.accepted


def test_what_the_model_does_not_believe_is_a_failure() -> None:
    found = decide_in_imagination(Walker(1.0, lift=0.1), Walker(0.0), env(bound=0.05))
    assert not found.accepted and (found.gain, found.uncertain, found.trust) == (0.0, 1.0, 1.0)


def test_a_base_that_the_model_does_not_believe_does_not_help_the_candidate() -> None:
    found = decide_in_imagination(Walker(1.0), Walker(1.0, lift=0.1), env(bound=0.01))
    assert not found.accepted and (found.gain, found.uncertain, found.base_uncertain) == (0.0, 0.0, 1.0)
    assert found.trust == LOOSER**TRIES


def test_the_bound_is_raised_until_the_base_is_believed() -> None:
    """The base rises by 0.01 a step, six steps at most, and the candidate by 0.02."""
    found = decide_in_imagination(Walker(1.0, lift=0.01), Walker(0.0, lift=0.01), env(bound=0.03))
    assert found.accepted and found.base_uncertain == 0.0 and 1.0 < found.trust < 4.0
    bolder = decide_in_imagination(Walker(1.0, lift=0.02), Walker(0.0, lift=0.01), env(bound=0.03))
    assert bolder.trust == found.trust and bolder.uncertain > 0.0


@pytest.mark.parametrize("lost", ["candidate", "base"])
def test_neither_policy_may_leave_what_the_model_can_compute(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    none = torch.zeros(1, 20, dtype=torch.bool)
    diverged = {name: none if name != lost else torch.arange(20)[None] == 0 for name in ("candidate", "base")}
    scores = [ImaginedScores(~none, none, diverged["candidate"]), ImaginedScores(none, none, diverged["base"])]
    monkeypatch.setattr(imagined_gain, "evaluate_in_imagination", lambda *_: scores.pop())
    found = decide_in_imagination(Walker(), Walker(), env())
    assert found.low == 1.0 and not found.accepted
    assert "not finite in 5.0% of the candidate's or the base's episodes, expected at most 1%" in text(found)


def test_a_candidate_that_the_model_cannot_compute_is_refused() -> None:
    """Four of a hundred starts lead to numbers that are not finite; the others succeed."""
    starts = [[-6.0, 0.0]] * 4 + [[0.1 + 0.001 * i, 0.0] for i in range(96)]
    found = decide_in_imagination(Walker(1.0), Walker(0.0), env(starts))
    assert found.low > 0.0 and not found.accepted


@pytest.mark.parametrize("level", [0.4, 1.0])
def test_a_level_that_is_none_is_refused(level: float) -> None:
    with pytest.raises(ConfigError, match=r"level=.*from 0\.5 to below 1"):
        decide_in_imagination(Walker(), Walker(), env(), level=level)


def test_too_few_starts_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 10; there are 9"):
        decide_in_imagination(Walker(), Walker(), env(STARTS[:9]))
