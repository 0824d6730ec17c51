"""Statistics of the training envs, for the log."""

from __future__ import annotations

from collections import deque
from typing import Any

from robopolicy.core.types import Metrics, Step, VecEnv
from robopolicy.training.loop_state import RECENT, success_rate
from robopolicy.training.regression_monitor import RegressionMonitor


class EnvStatistics:
    """Tracks the training envs: newest successes, divergences of the whole run, `info` since the last log."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=RECENT)  # success of the newest training episodes
        self.diverged = 0  # transitions that were not valid
        self.monitor = RegressionMonitor(
            "more to learn from before the policy may change (loop.warmup_steps, loop.critic_only_updates), smaller "
            "steps (algo.actor_lr), a residual that is let out later (algo.penalty, algo.penalty_steps), or "
            "demonstrations (dataset=)"
        )
        self.sums: Metrics = {}  # of `info`, mean over N, over the last `rounds` env steps
        self.rounds = 0

    def add(self, step: Step, *, steps: int, env: VecEnv) -> None:
        """Account for one env step.

        Args:
            steps: env steps so far, this one included.
        """
        ended = step.success[step.ended & step.valid].float().tolist()
        self.recent.extend(ended)
        self.monitor.add(ended, steps=steps, env=env)
        self.diverged += int((~step.valid & (step.steps > 0)).sum())  # a step of no length is an env that reset
        self.sums = {k: self.sums.get(k, 0.0) + float(v.float().mean()) for k, v in step.info.items()}
        self.rounds += 1

    @property
    def lost(self) -> Metrics:
        """`train_diverged`, where it is not 0."""
        return {"train_diverged": self.diverged} if self.diverged else {}

    def numbers(self) -> Metrics:
        """Return the numbers to log, and clear the sums of `info`."""
        found = {k: v / self.rounds for k, v in self.sums.items()} | {"diverged": self.diverged}
        if len(self.recent) == self.recent.maxlen:  # the first to end are the short ones, which are successes
            found["success"] = success_rate(self.recent)
        self.sums, self.rounds = {}, 0
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"recent": list(self.recent), "diverged": self.diverged, "sums": self.sums, "rounds": self.rounds,
                "decline": self.monitor.state_dict()}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.recent = deque(state["recent"], maxlen=self.recent.maxlen)
        self.diverged, self.rounds, self.sums = state["diverged"], state["rounds"], dict(state["sums"])
        self.monitor.load_state_dict(state["decline"])
