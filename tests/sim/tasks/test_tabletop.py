"""The language scene: the instruction says what to do, and nothing else does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import STATE, TASK
from robopolicy.sim.tasks.tabletop_goals import GOALS, SENTENCES

SEEDS = episode_seeds("validation", 1, 28)


def obey(**options) -> tuple[torch.Tensor, np.ndarray]:
    """Return success [E] and instructed goals [E] of the expert, which follows the instruction."""
    env = sim.make("tabletop", len(SEEDS), **options)
    obs, expert = env.reset(SEEDS), env.make_expert()
    expert.reset(None, episode_seed=SEEDS)
    goals = env.task.goal_of(obs[TASK].numpy())
    done, success = (torch.zeros(len(SEEDS), dtype=torch.bool) for _ in range(2))
    for _ in range(env.spec.horizon):
        step = env.step(expert.act(obs))
        success |= step.success & ~done
        done |= step.ended
        obs = step.obs
    return success, goals


def test_the_scene_does_not_show_the_goal():
    many = sim.make("tabletop", 50)
    index = many.reset(episode_seeds("train", 0, 50))[TASK]
    assert len(index.unique()) == len(GOALS), "50 episodes have every goal"
    states = [sim.make("tabletop", 4, only=(g,)).reset(SEEDS[:4])[STATE] for g in ("pick_red", "press")]
    assert torch.equal(*states)


def test_success_goal_chooses_the_goal_that_counts():
    """An expert that follows a wrong instruction reaches the instructed goal, not the episode's own."""
    wrong, goals = obey(instruction_goal="other")
    right, goals_again = obey(instruction_goal="other", success_goal="instructed")
    assert (goals == goals_again).all() and len(set(goals.tolist())) >= 5
    assert wrong.float().mean() <= 0.1
    assert right.float().mean() >= 0.9


def test_controls_change_one_thing_each():
    plain = sim.make("tabletop", 28)
    before = plain.reset(SEEDS)
    other = sim.make("tabletop", 28, instruction_goal="other").reset(SEEDS)
    assert torch.equal(before[STATE], other[STATE]) and bool((before[TASK] != other[TASK]).all())
    paraphrases = sim.make("tabletop", 28, wording="unseen")
    again = paraphrases.reset(SEEDS)
    assert torch.equal(before[STATE], again[STATE])
    assert (paraphrases.task.goal_of(again[TASK].numpy()) == plain.task.goal_of(before[TASK].numpy())).all()
    assert len(again[TASK].unique()) > len(GOALS), "both sentences occur"
    moved = sim.make("tabletop", 28, positions="unseen").reset(SEEDS)
    assert torch.equal(before[TASK], moved[TASK]) and not torch.equal(before[STATE], moved[STATE])
    full = sim.make("tabletop", 4, distractors=2)
    assert full.spec.observation[STATE].names == plain.spec.observation[STATE].names, "distractors are not observed"
    assert full.model.nq == plain.model.nq + 14
    digests = {e.spec.digest for e in (plain, paraphrases, full)}
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
    for verb, texts in SENTENCES["unseen"].items():
        assert not set(texts) & {*SENTENCES["varied"][verb], *SENTENCES["plain"][verb]}
        assert SENTENCES["plain"][verb][0] in SENTENCES["varied"][verb]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ("pick_rde",)}, "no goal. Did you mean 'pick_red'"),
        ({"wording": "vareid"}, "Did you mean 'varied'"),
        ({"instruction_goal": "wrong"}, "instruction_goal='wrong' is unknown"),
        ({"distractors": 3}, "from 0 to 2"),
        ({"instruction_goal": "other", "only": ("press",)}, "two goals at least"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        sim.make("tabletop", 1, **options)
