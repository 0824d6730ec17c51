"""data.py: sequences end where episodes end, sources are drawn by weight, nothing leaks between the parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robopolicy.core.errors import ConfigError, DataError, SpecError
from robopolicy.core.types import STATE, ActionSpec, Feature
from robopolicy.datasets.episodes import take
from robopolicy.world_models.training import data
from robopolicy.world_models.training.data import (
    WorldModelBatches,
    check_learnable,
    concatenate,
    mix,
    sequences,
    split,
)
from tests.world_models.point import walk


def test_sequences_at_episode_ends_by_hand() -> None:
    """Episodes of 4, 1 and 2 frames; windows of 2 transitions."""
    frames, valid = sequences(walk([4, 1, 2]), 2)
    assert frames.tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 3], [5, 6, 6]]
    assert valid.tolist() == [[True, True], [True, True], [True, False], [True, False]]


def test_every_transition_is_learned_from_as_first_step_once() -> None:
    episodes = walk([7, 3, 12])
    frames, valid = sequences(episodes, 5)
    assert frames[:, 0].tolist() == [*range(6), 7, 8, *range(10, 21)]
    assert valid[:, 0].all()
    owner = episodes.episode_of[frames]
    assert (owner == owner[:, :1]).all(), "no window crosses an episode"
    steps = frames[:, 1:] - frames[:, :-1]
    assert torch.equal(steps == 1, valid), "valid is where the next frame is another one"


def test_vectors_that_the_model_does_not_predict_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    features = {STATE: Feature((2,)), "observation.goal": Feature((3,)), "observation.images.top": Feature((3, 8, 8))}
    monkeypatch.setattr(data, "dataset_features", lambda path: features)
    monkeypatch.setattr(data, "load_episodes", lambda path, needed, incomplete: needed)
    assert list(data.load_source(Path("play"), "dataset")) == [STATE]
    assert "dataset=play: the world model predicts no observation.goal; a policy that reads" in caplog.text


def batches(mixture, **changes):
    given = {"heads": 3, "unroll": 2, "batch_size": 40, "window": 3, "labelled": 8, "seed": 5, **changes}
    return WorldModelBatches(mixture, **given)


def test_batches_are_transitions_of_the_data_and_a_function_of_the_step() -> None:
    episodes = walk([6, 9, 4], success=[True, False, True])
    drawn = batches(mix({"a": episodes}, {}))
    batch = drawn[3]
    assert batch[STATE].shape == (3, 40, 3, 2) and batch["action"].shape == (3, 40, 2, 2)
    after = batch[STATE][:, :, :-1] + batch["action"]
    torch.testing.assert_close(after[batch["valid"]], batch[STATE][:, :, 1:][batch["valid"]])
    assert not torch.equal(batch[STATE][0], batch[STATE][1]), "members see different sequences"
    again = batches(mix({"a": episodes}, {}))
    assert all(torch.equal(v, again[3][k]) for k, v in batch.items() if k != "success_history")
    assert torch.equal(again[3]["success_history"].obs[STATE], batch["success_history"].obs[STATE])
    assert not torch.equal(again[4][STATE], batch[STATE])


def test_half_of_the_labelled_pairs_are_successes_with_the_window_before_them() -> None:
    episodes = walk([6, 9, 2], success=[True, False, True])
    batch = batches(mix({"a": episodes}, {}), labelled=40)[0]
    assert batch["label"].sum() == 20 and len(batch["label"]) == 40
    windows = batch["success_history"].obs[STATE]
    assert windows.shape == (40, 3, 2)
    wins = [episodes.obs[STATE][[3, 4, 5]], episodes.obs[STATE][[15, 15, 16]]]  # an episode's first frame is repeated
    for window in windows[batch["label"] > 0]:
        assert any(torch.equal(window, w) for w in wins)


def test_sources_are_drawn_by_weight_and_by_frames_without() -> None:
    small, large = walk([11]), walk([11] * 9, seed=1)
    for weights, share in (
        ({"small": 0.5, "large": 0.5}, 0.5), ({}, 0.1), ({"large": 0.0}, 1.0), ({"small": 1 / 3}, 0.25),
    ):  # fmt: skip
        drawn = batches(mix({"small": small, "large": large}, weights), batch_size=2000)[0][STATE][:, :, 0]
        known = {tuple(s.tolist()) for s in small.obs[STATE]}
        found = sum(tuple(s.tolist()) in known for s in drawn.reshape(-1, 2)) / 6000
        assert found == pytest.approx(share, abs=0.02)


def test_parts_share_no_seed_and_depend_on_it_alone() -> None:
    episodes = walk([3] * 400)
    train, calibration, validation = split(episodes, 0.2)
    assert (train.long() + calibration.long() + validation.long() == 1).all()
    assert 20 <= calibration.sum() <= 60 and 20 <= validation.sum() <= 60
    some = take(episodes, torch.arange(400) % 3 == 0)
    assert torch.equal(split(some, 0.2)[1], calibration[::3])


def test_episodes_in_a_row_and_taken_out_again() -> None:
    a, b = walk([3, 4]), walk([5], seed=1)
    both = concatenate([a, b])
    assert both.starts.tolist() == [0, 3, 7, 12]
    back = take(both, torch.tensor([False, False, True]))
    assert torch.equal(back.obs[STATE], b.obs[STATE]) and back.starts.tolist() == [0, 5]


def test_data_that_do_not_belong_together() -> None:
    a = walk([5])
    other = ActionSpec(**{**a.action_spec.__dict__, "high": (0.2, 0.1)})
    with pytest.raises(SpecError, match=r"action\.high: a has \(0\.1, 0\.1\), b has \(0\.2, 0\.1\)"):
        mix({"a": a, "b": replace(a, action_spec=other)}, {})
    with pytest.raises(SpecError, match=r"dt: a has a step every 0\.1 s, b every 0\.05 s"):
        mix({"a": a, "b": replace(a, dt=0.05)}, {})
    with pytest.raises(ConfigError, match=r"loop\.mix_weights\.bb.*Did you mean 'b'"):
        mix({"a": a, "b": a}, {"bb": 1.0})
    with pytest.raises(ConfigError, match="must not be negative nor all 0"):
        mix({"a": a}, {"a": 0.0})
    with pytest.raises(DataError, match=r"b: has neither rewards nor successes"):
        mix({"a": a, "b": replace(a, outcomes=False)}, {})
    with pytest.raises(ConfigError, match=r"dataset=<path>"):
        mix({}, {})


def test_episodes_that_cannot_teach() -> None:
    with pytest.raises(
        DataError,
        match=r"takes 7 frames \(6 steps\), the longest .* 5.*world_model\.unroll so that it takes 5",
    ):
        check_learnable(walk([5, 4]), unroll=6)
    check_learnable(walk([5, 7]), unroll=6)
    dense = walk([8])
    with pytest.raises(DataError, match=r"frame 2 has reward 0\.5 with success False"):
        check_learnable(replace(dense, reward=torch.tensor([0, 0, 0.5, 0, 0, 0, 0, 0])), unroll=2)
    failed = torch.arange(8) == 7
    with pytest.raises(DataError, match="terminated without success"):
        check_learnable(replace(dense, terminated=failed), unroll=2)
    with pytest.raises(SpecError, match="has 2 tasks"):
        check_learnable(replace(dense, tasks=("a", "b")), unroll=2)
    with pytest.raises(SpecError, match=r"reads 'observation\.state'"):
        check_learnable(replace(dense, obs={}), unroll=2)
