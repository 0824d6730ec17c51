"""loop.stop_success: a training ends once it succeeds often enough, and not on the short episodes that end first."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from robopolicy.cli.main import main
from robopolicy.training.loop_state import LoopState, RegressionMonitor, due, next_due, solved
from robopolicy.training.train import _shown

ENV: Any = SimpleNamespace(num_envs=4, spec=SimpleNamespace(horizon=10))


def newest(successes: int, of: int = 100) -> deque[float]:
    return deque([0.0] * (of - successes) + [1.0] * successes, maxlen=100)


@pytest.mark.parametrize(
    ("recent", "wanted", "steps", "expected"),
    [
        (newest(100), None, 10**6, False),  # off
        (newest(97), 0.97, 10**6, True),
        (newest(96), 0.97, 10**6, False),
        (newest(99, of=99), 0.97, 10**6, False),  # not enough episodes
        (newest(100), 1.0, 79, False),  # every failure so far may still be under way: 2 · 4 envs · 10 steps
        (newest(100), 1.0, 80, True),
    ],
)
def test_solved(recent: deque[float], wanted: float | None, steps: int, expected: bool) -> None:
    assert solved(recent, wanted, steps, ENV) is expected


@pytest.mark.parametrize(
    ("every", "previous", "first"), [(10, -1, 0), (10, 0, 10), (10, 9, 10), (10, 10, 20), (10, 25, 30), (1, 7, 8)]
)
def test_something_is_due_from_the_next_multiple_on(every: int, previous: int, first: int) -> None:
    assert next_due(every, previous) == first
    assert due(every, previous, first) and due(every, previous, first + 3) and not due(every, previous, first - 1)
    assert not due(0, previous, 10**9), "never"


class State(LoopState):
    advice = ""


def test_success_in_training_is_no_higher_while_only_short_episodes_have_ended() -> None:
    """Half of the starts succeed after 2 steps, the others fail at the horizon of 10."""
    state = State()
    for t in range(1, 11):
        state.steps = 4 * t  # four envs, which began together
        ended = {2: ([1.0, 1.0], [2, 2]), 4: ([1.0], [2]), 10: ([0.0, 0.0], [10, 10])}.get(t, ([], []))
        state.add_episodes(*ended, ENV)
        assert t == 10 or state.success == {}, "no env had time for a failure"
    assert state.success == {"success": 0.5, "success_episodes": 4}
    state.steps = 48
    state.add_episodes([], [], ENV)
    assert state.success == {"success": 0.6, "success_episodes": 5}, "the one that began at step 2"


def test_success_in_training_resumes_and_older_checkpoints_load() -> None:
    state, again = State(), State()
    state.steps = 60
    state.add_episodes([1.0, 0.0, 1.0], [15, 10, 3], ENV)
    again.load_state_dict(state.state_dict())
    assert again.success == state.success == {"success": 0.5, "success_episodes": 2}
    again.steps = 4 * 22
    again.add_episodes([], [], ENV)
    assert again.success["success_episodes"] == 3
    older = {k: v for k, v in state.state_dict().items() if k != "started"}
    fresh = State()
    fresh.load_state_dict(older)
    assert fresh.success == {}


def test_steps_are_written_in_full() -> None:
    assert [_shown(v) for v in (12000, 12000.0, 0.123456, 1234567)] == ["12000", "12000", "0.1235", "1234567"]


@pytest.mark.slow
def test_both_loops_end_early_and_stay_ended(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any success rate is at least 0: the training ends as soon as there are enough episodes; repeated, at once.

    Until then both keep looking whether the policy gets worse.
    """
    seen: list[float] = []
    monkeypatch.setattr(RegressionMonitor, "add", lambda self, success, *, steps, env: seen.extend(success))
    common = ["train", "task=reach", "tracker=quiet", "threads=1", "num_envs=32", "task.horizon=8"]
    data, base = f"dataset={tmp_path / 'data'}", f"base={tmp_path / 'bc'}"
    assert main(["demos", "task=reach", f"out={tmp_path / 'data'}", "episodes=3", "num_envs=4"]) == 0
    bc = ["policy=diffusion", "loop.steps=5", "loop.eval_every=0", "horizon=4", "n_action_steps=2"]
    assert main([*common, data, *bc, f"run_dir={tmp_path / 'bc'}"]) == 0
    for name, options in {
        "dppo": ("algo=dppo", "loop.rollout_steps=8", "algo.epochs=1", "policy.finetuned_steps=2"),
        "residual": ("algo=residual", "loop.warmup_steps=320", "loop.batch_size=16", "loop.critic_only_updates=20",
                     data),
    }.items():  # fmt: skip
        length = ["loop.total_steps=20000", "loop.stop_success=0"]
        command = [*common, base, *options, *length, f"run_dir={tmp_path / name}"]
        seen.clear()
        for _ in range(2):
            assert main(command) == 0
            assert len(seen) >= 100 and set(seen) <= {0.0, 1.0}, "every episode is looked at"
            rows = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
            assert 800 <= int(rows[-1].split('"step": ')[1].split(",")[0]) < 2000, "100 episodes of 8 steps in 32 envs"
    capsys.readouterr()
