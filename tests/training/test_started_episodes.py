"""Success of training episodes: unbiased where many episodes start together."""

from __future__ import annotations

import pytest

from robopolicy.training.started_episodes import StartedEpisodes

WAVES, HORIZON = 60, 100


@pytest.mark.parametrize("together", [16, 64, 128, 256])
def test_failures_that_end_last_do_not_take_the_places_of_successes(together: int) -> None:
    """Half of the episodes that start together succeed early, the others end at the time limit, all at once."""
    rates, started = [], StartedEpisodes(100)
    for wave in range(WAVES):
        for outcome in (1.0, 0.0):  # in the order of their ends
            for _ in range(together // 2):
                started.add(outcome, counts_at=(wave + 1.0) * HORIZON)
        started.advance((wave + 1.0) * HORIZON)
        rates.append(started.metrics["success"])
    assert sum(rates) / WAVES == pytest.approx(0.5, abs=0.03)


def test_a_resumed_count_keeps_the_order() -> None:
    one, other = StartedEpisodes(10), StartedEpisodes(10)
    for number in range(40):
        one.add(float(number), counts_at=5.0)
    other.load_state_dict(one.state_dict())
    for count in (one, other):
        count.add(40.0, counts_at=5.0)
        count.advance(5.0)
    assert list(other.counted) == list(one.counted)
