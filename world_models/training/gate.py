"""Keep an update made in imagination only where the evaluation by the model shows an improvement.

A loop uses the gate as `evaluate` and `checkpointer`. At every evaluation the world evaluates the policy from held-out
starts; the gate accepts a significant improvement over the last accepted policy. Learning may continue from refused
policies for `patience` evaluations; the training returns the accepted policy. The gate takes no real env step. Success
in the true task, if measured, is logged and never used.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robopolicy.config.schema import Count, Fraction, Natural
from robopolicy.core.errors import CheckpointError, RobopolicyError
from robopolicy.core.protocols import Checkpoints
from robopolicy.core.types import Metrics
from robopolicy.evaluation.gate_checks import DIVERGED
from robopolicy.evaluation.statistics import Interval
from robopolicy.policies.base import Policy
from robopolicy.utils.atomic import write_atomically
from robopolicy.world_models.envs.imagined import ImaginedEnv
from robopolicy.world_models.evaluation.imagined_evaluation import (
    ImaginedEvaluation,
    ImaginedScores,
    crossed_bootstrap,
    evaluate_in_imagination,
)

LEVEL = 0.95  # of the intervals that are shown


class Gate:
    """Accept or reject the updates of `algo` since the last accepted policy.

    Args:
        algo: its `state_dict` is restored: weights, critics and optimisers.
        env: its world dreams the episodes that policies are compared on, the same ones every time.
        truth: evaluation in the true env, for the log; None: without.
        run_dir: where gate.json lists the decisions and their reasons; None: nowhere.
        starts: of held-out episodes; each is dreamed by every member.
        level: of the interval of the gain, whose lower end must be above 0.
        enforce: False decides and logs, and restores nothing.
        patience: refused policies in a row from which learning continues; the next one is restored. None: any number.
            Off-policy critics must see failures, and off-policy learning starts again after a restore.
    """

    def __init__(
        self,
        *,
        algo: Any,
        env: ImaginedEnv,
        truth: Callable[[Policy, int], Metrics] | None = None,
        run_dir: Path | None = None,
        starts: Count = 100,
        level: Fraction = 0.8,
        resamples: Count = 2_000,
        enforce: bool = True,
        patience: Natural | None = None,
    ) -> None:
        self.algo, self.truth, self.run_dir = algo, truth, run_dir
        self.evaluation = ImaginedEvaluation.crossed(env, starts)
        self.level, self.resamples, self.enforce, self.patience = level, resamples, enforce, patience
        self.refused = 0  # refused policies in a row
        self.accepted: dict[str, Any] | None = None  # state of the algorithm
        self.scores: ImaginedScores | None = None  # of the policy that was accepted last
        self.true: Metrics = {}  # of that policy too
        self.records: list[dict[str, Any]] = []

    def __call__(self, policy: Policy, step: int) -> Metrics:
        """Evaluate `policy`, which must be the algorithm's, and accept it, continue from it or restore.

        Returns:
            `rank`: imagined success of the algorithm's policy, now accepted; −1 where it was not and learning goes on
            from it. Success of the accepted one as the truth has it, where it was asked.

        Raises:
            RobopolicyError: already the first policy leaves what the model can compute.
        """
        scores = evaluate_in_imagination(policy, self.evaluation)
        gain, refusal = self._decide(scores)
        if self.scores is None and refusal:
            raise RobopolicyError(f"world.gate: {refusal}. Train the world model longer, at a lower rate, or on more.")
        accepted = not refusal
        if accepted or not self.enforce:
            self.accepted, self.scores, self.refused = copy.deepcopy(self.algo.state_dict()), scores, 0
            self.true = {} if self.truth is None else self.truth(policy, step)
        else:
            self.refused += 1
            if self.patience is not None and self.refused > self.patience:
                self.go_back()
        return self._write(step, scores, gain, accepted, refusal)

    def go_back(self) -> None:
        """Restore the algorithm's last accepted state."""
        self.algo.load_state_dict(copy.deepcopy(self.accepted))
        self.refused = 0

    def _decide(self, scores: ImaginedScores) -> tuple[Interval | None, str]:
        """Return the gain over the last accepted policy, and the reason of a refusal or ""."""
        lost = float(scores.diverged.double().mean())
        if lost > DIVERGED:
            return None, f"the model has diverged: its numbers are not finite in {100 * lost:.0f}% of the episodes"
        if self.scores is None:
            return None, ""
        difference = scores.success.double() - self.scores.success.double()
        gain = crossed_bootstrap(difference, level=self.level, resamples=self.resamples)
        if gain.low > 0.0:
            return gain, ""
        points = f"{100 * gain.value:+.1f} points ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
        uncertain, before = (float(m.uncertain.double().mean()) for m in (scores, self.scores))
        why = "is not surely better" if gain.value > 0.0 else "is not better"
        if uncertain > before:
            why += f", the model is too uncertain in {100 * uncertain:.0f}% of the episodes (was {100 * before:.0f}%)"
        return gain, f"{why}: {points}"

    def _write(self, step: int, scores: ImaginedScores, gain: Interval | None, accepted: bool, refusal: str) -> Metrics:
        assert self.scores is not None
        imagined = scores.interval(level=LEVEL, resamples=self.resamples)
        kept = self.scores.interval(level=LEVEL, resamples=self.resamples)
        said = "the first policy" if gain is None and accepted else "" if gain is None else (
            f"{100 * gain.value:+.1f} points ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
        )  # fmt: skip
        back = "" if accepted or not self.enforce or self.refused else f"; back to step {self._last()}"
        reason = f"accepted: {said}" if accepted else f"refused: {refusal}{back}"
        true = [self.true.get(k) for k in ("success_rate", "success_low", "success_high")] if self.true else None
        self.records.append({
            "step": step, "accepted": accepted, "reason": reason, "imagined": list(imagined), "kept": list(kept),
            "gain": None if gain is None else list(gain), "uncertain": float(scores.uncertain.double().mean()),
            "true": true,
        })  # fmt: skip
        self._save()
        print(f"gate, step {step}: {100 * imagined.value:.1f}% in imagination, {reason}")
        numbers = {
            "rank": -1.0 if self.refused else kept.value, "accepted": float(accepted),
            "imagined_success": imagined.value, "imagined_low": imagined.low, "imagined_high": imagined.high,
            "uncertain": self.records[-1]["uncertain"],
        }  # fmt: skip
        numbers |= {} if gain is None else {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
        if self.true:
            numbers["gap"] = kept.value - self.true["success_rate"]
        return {**self.true, **numbers}

    def _last(self) -> int:
        return next(r["step"] for r in reversed(self.records) if r["accepted"])

    def _save(self) -> None:
        if self.run_dir is not None:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            write_atomically(self.run_dir / "gate.json", json.dumps(self.records, indent=1) + "\n")

    def keeping(self, checkpointer: Checkpoints) -> Keeping:
        """Return `checkpointer` that saves the gate's state too."""
        return Keeping(checkpointer, self)

    def state_dict(self) -> dict[str, Any]:
        if self.scores is None:
            return {"accepted": None, "scores": None, "true": {}, "records": [], "refused": 0}
        scores = {k: getattr(self.scores, k) for k in ("success", "uncertain", "diverged")}
        return {"accepted": self.accepted, "scores": scores, "true": self.true, "records": self.records,
                "refused": self.refused}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.accepted, self.true, self.records = state["accepted"], dict(state["true"]), list(state["records"])
        self.refused = state["refused"]
        self.scores = None if state["scores"] is None else ImaginedScores(**state["scores"])
        self._save()


class Keeping:
    """Checkpoints of a run with the gate's state beside the loop's own."""

    def __init__(self, inner: Checkpoints, gate: Gate) -> None:
        self.inner, self.gate = inner, gate
        self._step = 0  # of the newest

    @property
    def requested(self) -> bool:
        return self.inner.requested

    def save(self, step: int, *, policy: Any, state: dict[str, Any], best: bool = False) -> Any:
        self._step = step
        return self.inner.save(step, policy=policy, state={**state, "gate": self.gate.state_dict()}, best=best)

    def finish(self) -> None:
        """After the loop, restore the last accepted policy where the newest was refused."""
        state = self.inner.latest() if self.gate.refused else None
        if state is not None:
            self.gate.go_back()
            state = {k: v for k, v in state.items() if k != "gate"} | {"algo": self.gate.algo.state_dict()}
            self.save(self._step, policy=self.gate.algo.policy, state=state, best=True)

    def latest(self) -> dict[str, Any] | None:
        state = self.inner.latest()
        if state is None:
            return None
        if "gate" not in state:
            raise CheckpointError("world.gate: the checkpoint was written without one. Resume with world.gate=null.")
        self.gate.load_state_dict(state["gate"])
        self._step = int(state["steps"])
        return {k: v for k, v in state.items() if k != "gate"}
