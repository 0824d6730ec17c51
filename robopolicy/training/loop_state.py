"""Steps that the off-policy and the on-policy loop share: evaluate, save, and decide when to stop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from robopolicy.core.protocols import Checkpoints, LogsMetrics
from robopolicy.core.types import Metrics, VecEnv
from robopolicy.training.regression_monitor import RegressionMonitor

Evaluate = Callable[[Any, int], Metrics]  # policy, env steps → metrics

RECENT = 100  # training episodes whose success is averaged


@dataclass(kw_only=True)
class LoopState:
    """Counters of a loop; each loop adds the objects that are saved beside them.

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
    monitor: RegressionMonitor = field(init=False)

    def __post_init__(self) -> None:
        self.monitor = RegressionMonitor(self.advice)

    @property
    def success_rate(self) -> float:
        """Mean success of the newest training episodes; 0 before any has ended."""
        return sum(self.recent) / max(1, len(self.recent))

    def add_episodes(self, success: list[float], env: VecEnv) -> None:
        """Account for the training episodes that ended."""
        self.recent.extend(success)
        self.monitor.add(success, steps=self.steps, env=env)

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps, "train_s": self.train_s, "result": self.result, "evaluated": self.evaluated,
            "best": self.best,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = self.saved = int(state["steps"])
        self.train_s, self.evaluated = float(state["train_s"]), int(state["evaluated"])
        self.result, self.best = dict(state["result"]), float(state["best"])


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
    save: bool,
) -> None:
    """Evaluate `policy` where an evaluation is due, and save where a checkpoint is due or the policy is the best yet.

    Args:
        evaluate: called with policy and env steps, never where `eval_every` is 0.
        last: training ends here. save: save in any case.
    """
    better, at_end = False, last and state.evaluated < state.steps
    if evaluate is not None and eval_every and (due(eval_every, state.evaluated, state.steps) or at_end):
        state.result, state.evaluated = evaluate(policy, state.steps), state.steps
        tracker.log({f"eval/{k}": v for k, v in state.result.items()}, state.steps)
        score = checkpoint_score(state.result)
        state.best, better = max(state.best, score), score >= state.best
    if save or better or checkpointer.requested or due(save_every, max(state.saved, 0), state.steps):
        state.saved = state.steps
        checkpointer.save(state.steps, policy=policy, state=state.state_dict(), best=better)


def solved(recent: deque[float], wanted: float | None, steps: int, env: VecEnv) -> bool:
    """Return True if the newest training episodes succeed as often as `wanted`; False where it is None.

    Every env gets time for two episodes first: the first to end are the short ones, which are successes.
    """
    if wanted is None or len(recent) < (recent.maxlen or 0) or steps < 2 * env.num_envs * env.spec.horizon:
        return False
    return sum(recent) >= wanted * len(recent)


def checkpoint_score(result: Metrics) -> float:
    """Score an evaluation for the choice of the best checkpoint: its `rank`, or else its success rate."""
    return result["rank"] if "rank" in result else result["success_rate"]


def next_due(*clocks: tuple[int, int]) -> int:
    """Return the env step at which the first of `clocks`, (every, previous), is due; not all of `every` are 0."""
    return min((previous // every + 1) * every for every, previous in clocks if every)


def due(every: int, previous: int, steps: int) -> bool:
    """Return True if a multiple of `every` lies in (previous, steps]; never where `every` is 0."""
    return every > 0 and steps // every > previous // every
