"""State of off-policy training."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from robopolicy.buffers.replay_buffer import Replay
from robopolicy.core.errors import CheckpointError
from robopolicy.core.protocols import OffPolicy
from robopolicy.core.types import Metrics
from robopolicy.core.untrusted import refusing
from robopolicy.training.loop_state import RECENT, LoopState

if TYPE_CHECKING:
    from robopolicy.training.off_policy import OffPolicyCollector


@dataclass(kw_only=True)
class OffPolicyState(LoopState):
    """Everything that a resumed run needs to continue bit for bit."""

    advice = (
        "more to learn from before the policy may change (loop.warmup_steps, loop.critic_only_updates), smaller steps "
        "(algo.actor_lr), a residual that is let out later (algo.penalty, algo.penalty_steps), a chain that stays "
        "nearer to its base (algo.anchor_final of ogpo), or demonstrations (dataset=)"
    )
    algo: OffPolicy
    collector: OffPolicyCollector
    replay: Replay
    generator: torch.Generator = field(default_factory=torch.Generator)  # of the batches
    diverged: int = 0  # transitions of the whole run that were not valid
    sums: Metrics = field(default_factory=dict)  # of the envs' `info`, mean over N, over the last `rounds` env steps
    rounds: int = 0
    recorded: list[int] = field(default_factory=list)  # frames of each dataset
    update_debt: float = 0.0  # updates that are due and not done, a fraction of one
    metrics: dict[str, Any] = field(default_factory=dict)  # of the newest updates
    logged: int = 0  # env step of the latest log

    def begin(self, saved: dict[str, Any] | None) -> None:
        """Continue from a checkpoint; None: start new episodes."""
        if saved is None:
            self.collector.reset()
            return
        self.load_state_dict(saved)
        if not self.collector.env.spec.resumable:  # its episodes are gone: go on with new ones
            self.replay.interrupt()
            self.collector.reset()

    @property
    def lost(self) -> Metrics:
        """`train_diverged`, where it is not 0."""
        return {"train_diverged": self.diverged} if self.diverged else {}

    def state_dict(self) -> dict[str, Any]:
        tally = {name: getattr(self, name) for name in ("diverged", "sums", "rounds")}
        return {
            **super().state_dict(), **self.collector.state_dict(), "algo": self.algo.state_dict(),
            "replay": self.replay.state_dict(), "generator": self.generator.get_state(), "owed": self.update_debt,
            "tally": {"recent": list(self.recent), "decline": self.monitor.state_dict(), **tally},
            "metrics": {k: float(v) for k, v in self.metrics.items()}, "logged": self.logged,
            "recorded": self.recorded,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("recorded", self.recorded) != self.recorded:  # older checkpoints have none
            raise CheckpointError(
                f"dataset, loop.rollouts: hold {self.recorded} frames, those that the run began with held "
                f"{state['recorded']}. Restore them, or give a new run_dir."
            )
        with refusing("checkpoint: state.json"):
            self.algo.load_state_dict(state["algo"])
            self.collector.load_state_dict(state)
            self.replay.load_state_dict(state["replay"])
            self.generator.set_state(state["generator"])
            super().load_state_dict(state)
            tally = state["tally"]
            self.recent = deque(tally["recent"], maxlen=RECENT)
            self.diverged, self.rounds, self.sums = tally["diverged"], tally["rounds"], dict(tally["sums"])
            self.monitor.load_state_dict(tally["decline"])
            self.update_debt, self.logged = float(state["owed"]), int(state["logged"])
            self.metrics = dict(state["metrics"])
