"""Plans in a thread: of the episode that is running, or none."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from robopolicy.real.planning.planner import InlineRunner, PlanningError, ThreadRunner

NOW = 1.0


class Waits:
    """A planner whose plan for step 0 is made once `go` is set; a plan says for which seed and step it is."""

    history = 1

    def __init__(self, error: Exception | None = None) -> None:
        self.go, self.begun, self.seed, self.error = threading.Event(), threading.Event(), -1, error

    def reset(self, seed: int) -> None:
        self.seed = seed

    def plan(self, obs, step, ahead=None):
        if step == 0:
            self.begun.set()
            assert self.go.wait(10.0)
            if self.error is not None:
                raise self.error
        return np.array([[self.seed, step]])


@pytest.fixture
def threaded():
    made = []

    def make(planner: Waits) -> ThreadRunner:
        made.append(ThreadRunner(planner, wait=10.0))
        return made[-1]

    yield make
    for runner in made:
        runner.close()


def idle(runner: ThreadRunner) -> None:
    """Nothing is being planned any more."""
    with runner._changed:
        assert runner._changed.wait_for(lambda: runner._job is None and not runner._busy, timeout=10.0)


@pytest.mark.parametrize("error", [None, ZeroDivisionError("of the episode before")])
def test_a_plan_of_a_finished_episode_is_dropped(error, threaded):
    """It was being made when the next episode began; so was what it raised."""
    planner = Waits(error)
    runner = threaded(planner)
    runner.reset(7)
    runner.request({}, 0, NOW)
    assert planner.begun.wait(10.0)
    runner.reset(8)
    planner.go.set()
    idle(runner)
    assert runner.poll(NOW) is None
    runner.request({}, 1, NOW)
    chunk, _ = runner.poll(NOW)
    assert chunk.tolist() == [[8, 1]], "the next is planned with the new episode's seed"


def test_what_was_ready_or_waited_when_its_episode_ended_is_dropped(threaded):
    planner = Waits()
    planner.go.set()
    runner = threaded(planner)
    runner.reset(7)
    runner.request({}, 1, NOW)
    idle(runner)
    runner.reset(8)
    assert runner.poll(NOW) is None, "it was ready"
    planner.go.clear()
    runner.request({}, 0, NOW)
    assert planner.begun.wait(10.0)
    runner.request({}, 2, NOW)
    runner.reset(9)
    planner.go.set()
    idle(runner)
    assert runner.poll(NOW) is None, "it waited"


def test_an_error_that_was_not_asked_for_ends_with_its_episode(threaded):
    planner = Waits(ZeroDivisionError())
    planner.go.set()
    runner = threaded(planner)
    runner.request({}, 0, NOW)
    idle(runner)
    runner.reset(8)
    assert runner.poll(NOW) is None


def test_a_plan_made_in_the_tick_ends_with_its_episode_too():
    planner = Waits()
    runner = InlineRunner(planner, latency=0.1)
    runner.request({}, 1, NOW)
    runner.reset(8)
    assert runner.poll(NOW + 1.0) is None
    planner.go.set()
    planner.error = PlanningError("of the episode before")
    runner.request({}, 0, NOW)
    runner.reset(9)
    assert runner.poll(NOW + 1.0) is None
