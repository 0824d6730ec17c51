"""The language scene: the instruction says what to do, and nothing else does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import STATE, TASK
from robopolicy.sim.tasks.tabletop import _WORDS, GOALS

SEEDS = episode_seeds("validation", 1, 28)


def obey(**options) -> tuple[torch.Tensor, np.ndarray]:
    """Success [E] and told goals [E] of the expert that does what it is told."""
    env = sim.make("tabletop", len(SEEDS), **options)
    obs, expert = env.reset(SEEDS), env.make_expert()
    expert.reset(None, episode_seed=SEEDS)
    told = env.task.goal_of(obs[TASK].numpy())
    done, success = (torch.zeros(len(SEEDS), dtype=torch.bool) for _ in range(2))
    for _ in range(env.spec.horizon):
        step = env.step(expert.act(obs))
        success |= step.success & ~done
        done |= step.ended
        obs = step.obs
    return success, told


def test_the_scene_does_not_tell_what_to_do():
    many = sim.make("tabletop", 50)
    index = many.reset(episode_seeds("train", 0, 50))[TASK]
    assert len(index.unique()) == len(GOALS), "50 episodes have every goal"
    states = [sim.make("tabletop", 4, only=(g,)).reset(SEEDS[:4])[STATE] for g in ("pick_red", "press")]
    assert torch.equal(*states)


def test_success_is_of_what_was_told():
    """Whoever obeys a wrong instruction succeeds at what he was told and not at what the episode is about."""
    wrong, told = obey(told="other")
    right, told_again = obey(told="other", judged="told")
    assert (told == told_again).all() and len(set(told.tolist())) >= 5
    assert wrong.float().mean() <= 0.1
    assert right.float().mean() >= 0.9


def test_controls_change_one_thing_each():
    plain = sim.make("tabletop", 28)
    before = plain.reset(SEEDS)
    other = sim.make("tabletop", 28, told="other").reset(SEEDS)
    assert torch.equal(before[STATE], other[STATE]) and bool((before[TASK] != other[TASK]).all())
    words = sim.make("tabletop", 28, wording="unseen")
    again = words.reset(SEEDS)
    assert torch.equal(before[STATE], again[STATE])
    assert (words.task.goal_of(again[TASK].numpy()) == plain.task.goal_of(before[TASK].numpy())).all()
    assert len(again[TASK].unique()) > len(GOALS), "both sentences occur"
    moved = sim.make("tabletop", 28, positions="unseen").reset(SEEDS)
    assert torch.equal(before[TASK], moved[TASK]) and not torch.equal(before[STATE], moved[STATE])
    full = sim.make("tabletop", 4, distractors=2)
    assert full.spec.observation[STATE].names == plain.spec.observation[STATE].names, "nobody is told of them"
    assert full.model.nq == plain.model.nq + 14
    digests = {e.spec.digest for e in (plain, words, full)}
    assert len(digests) == 3


def test_unseen_positions_and_distractors_can_be_solved():
    success, _ = obey(positions="unseen", distractors=2)
    assert success.float().mean() >= 0.85


def test_distractors_move_nothing_else():
    """A seed's scene is the same with them and without: evaluations are paired."""
    plain, more = (sim.make("tabletop", len(SEEDS), distractors=n) for n in (0, 2))
    names, others = (env.spec.observation[STATE].names for env in (plain, more))
    assert torch.equal(plain.reset(SEEDS)[STATE], more.reset(SEEDS)[STATE][:, [others.index(n) for n in names]])


def test_unseen_sentences_are_new():
    for verb, texts in _WORDS["unseen"].items():
        assert not set(texts) & {*_WORDS["varied"][verb], *_WORDS["plain"][verb]}
        assert _WORDS["plain"][verb][0] in _WORDS["varied"][verb]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ("pick_rde",)}, "no goal. Did you mean 'pick_red'"),
        ({"wording": "vareid"}, "Did you mean 'varied'"),
        ({"told": "wrong"}, "told='wrong' is unknown"),
        ({"distractors": 3}, "from 0 to 2"),
        ({"told": "other", "only": ("press",)}, "two goals at least"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        sim.make("tabletop", 1, **options)
