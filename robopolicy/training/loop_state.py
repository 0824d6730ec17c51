"""Steps that the off-policy and the on-policy loop share: evaluate, save, warn and decide when to stop."""

from __future__ import annotations

import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from robopolicy.core.protocols import Checkpoints, LogsMetrics
from robopolicy.core.types import Metrics, VecEnv
from robopolicy.training.started_episodes import StartedEpisodes
from robopolicy.utils import ranks

_log = logging.getLogger(__name__)

Evaluate = Callable[[Any, int], Metrics]  # policy, env steps → metrics

RECENT = 100  # training episodes whose success is averaged


class RegressionMonitor:
    """Warns once when training episodes succeed far less often than the first ones.

    Rates are over the newest 2 N episodes, at least 100. N envs that start together end in waves, successes first and
    failures at the time limit, so a shorter window would see only one kind. Far means more than four standard errors
    of the difference.

    Args:
        advice: possible remedies, for the warning.
    """

    def __init__(self, advice: str) -> None:
        self.advice = advice
        self.recent: deque[float] = deque()
        self.first: float | None = None  # success rate once every env had time for two episodes
        self.said = False

    def add(self, success: Iterable[float], *, steps: int, env: VecEnv) -> None:
        """Add episodes, and warn if their success rate has dropped.

        Args:
            success: of the episodes that ended since the last call. steps: env steps taken so far.
        """
        num_envs = env.num_envs * ranks.count()
        size = max(100, 2 * num_envs)
        self.recent.extend(success)
        while len(self.recent) > size:
            self.recent.popleft()
        if self.said or len(self.recent) < size or steps < 2 * num_envs * env.spec.horizon:
            return
        now = sum(self.recent) / size
        self.first = now if self.first is None else self.first
        mean = (self.first + now) / 2
        if self.first - now > 4.0 * math.sqrt(2.0 * mean * (1.0 - mean) / size):
            self.said = True
            _log.warning(
                "after %s env steps %.0f%% of the newest %d training episodes succeed, at the beginning %.0f%% did: "
                "this training makes the policy worse. Ctrl-C saves and stops. What may help: %s.",
                f"{steps:,}", 100 * now, size, 100 * self.first, self.advice,
            )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        return {"recent": list(self.recent), "first": self.first, "said": self.said}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.recent, self.first, self.said = deque(state["recent"]), state["first"], state["said"]


@dataclass(kw_only=True)
class LoopState:
    """Counters of a loop; each loop adds the objects that are saved beside them.

    `success`: metrics of StartedEpisodes, over the newest 100.

    `advice`: possible remedies where training makes the policy worse, see RegressionMonitor.
    """

    advice: ClassVar[str]

    steps: int = 0  # primitive env steps, over all envs
    train_s: float = 0.0  # seconds of collecting and learning
    result: Metrics = field(default_factory=dict)  # of the latest evaluation
    evaluated: int = -1  # env step of the latest evaluation
    saved: int = -1  # env step of the latest checkpoint
    best: float = -1.0  # `checkpoint_score` of the best evaluation
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))  # success of the newest episodes
    started: StartedEpisodes = field(default_factory=lambda: StartedEpisodes(RECENT))
    monitor: RegressionMonitor = field(init=False)

    def __post_init__(self) -> None:
        self.monitor = RegressionMonitor(self.advice)

    @property
    def success(self) -> Metrics:
        return self.started.metrics

    def add_episodes(self, success: list[float], elapsed: list[int], env: VecEnv) -> None:
        """Account for the training episodes that ended.

        Args:
            elapsed: primitive steps of one env since the start of each.
        """
        now = self.steps / (env.num_envs * ranks.count())
        for outcome, since in zip(success, elapsed, strict=True):
            self.started.add(outcome, counts_at=now - since + env.spec.horizon)
        self.started.advance(now)
        self.recent.extend(success)
        self.monitor.add(success, steps=self.steps, env=env)

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps, "train_s": self.train_s, "result": self.result, "evaluated": self.evaluated,
            "best": self.best, "started": self.started.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = self.saved = int(state["steps"])
        self.train_s, self.evaluated = float(state["train_s"]), int(state["evaluated"])
        self.result, self.best = dict(state["result"]), float(state["best"])
        if "started" in state:  # older checkpoints have none
            self.started.load_state_dict(state["started"])


def evaluate_and_save(
    state: LoopState,
    policy: Any,
    *,
    evaluate: Evaluate | None,
    tracker: LogsMetrics,
    checkpointer: Checkpoints,
    eval_every: int,
    save_every: int,
    last: bool,
) -> int:
    """Evaluate `policy` where an evaluation is due, and save where a checkpoint is due or the policy is the best yet.

    Args:
        evaluate: called with policy and env steps, never where `eval_every` is 0.
        last: training ends here: what was learned, or taken back, since the latest checkpoint is saved.

    Returns:
        The env step at which it is due again.
    """
    better, at_end = False, last and state.evaluated < state.steps
    tried = evaluate is not None and eval_every > 0 and (due(eval_every, state.evaluated, state.steps) or at_end)
    if evaluate is not None and tried:
        state.result, state.evaluated = evaluate(policy, state.steps), state.steps
        tracker.log({f"eval/{k}": v for k, v in state.result.items()}, state.steps)
        score = checkpoint_score(state.result)
        state.best, better = max(state.best, score), score >= state.best
    ending = last and (state.saved < state.steps or tried)
    if ending or better or checkpointer.requested or due(save_every, max(state.saved, 0), state.steps):
        state.saved = state.steps
        checkpointer.save(state.steps, policy=policy, state=state.state_dict(), best=better)
    return min(next_due(eval_every if evaluate else 0, state.evaluated), next_due(save_every, max(state.saved, 0)))


def solved(recent: deque[float], wanted: float | None, steps: int, env: VecEnv) -> bool:
    """Return True if the newest training episodes succeed as often as `wanted`; False where it is None.

    Every env gets time for two episodes first: the first to end are the short ones, which are successes.
    """
    two_episodes = 2 * env.num_envs * ranks.count() * env.spec.horizon
    if wanted is None or len(recent) < (recent.maxlen or 0) or steps < two_episodes:
        return False
    return sum(recent) >= wanted * len(recent)


def checkpoint_score(result: Metrics) -> float:
    """Score an evaluation for the choice of the best checkpoint: its `rank`, or else its success rate."""
    return result["rank"] if "rank" in result else result["success_rate"]


def next_due(every: int, previous: int) -> int:
    """Return the first multiple of `every` above `previous`: the env step at which something is due; 0: never."""
    return (previous // every + 1) * every if every else sys.maxsize


def due(every: int, previous: int, steps: int) -> bool:
    """Return True if a multiple of `every` lies in (previous, steps]; never where `every` is 0."""
    return steps >= next_due(every, previous)
