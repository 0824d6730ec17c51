"""The gate of `robopolicy pipeline`: whether later stages build on what a stage learned."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from robopolicy.cli.run_verb import call
from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose
from robopolicy.config.schema import TARGET
from robopolicy.core.errors import RobopolicyError
from robopolicy.datasets.episodes import held_out, succeeded, take
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.metadata import RecordingMeta
from robopolicy.evaluation.gate_text import text, without_run
from robopolicy.evaluation.off_policy_evaluation import GateResult
from robopolicy.runs.checkpointer import load_policy
from robopolicy.runs.inputs import model_digest
from robopolicy.runs.stages import StageRecord
from robopolicy.world_models.envs.starts import own_starts
from robopolicy.world_models.evaluation.calibration import dynamics_faults
from robopolicy.world_models.evaluation.imagined_evaluation import FEWEST
from robopolicy.world_models.models.world import features_read, load_world

Estimator = Literal["fitted_q", "world_model"]
MODEL = (  # of a world model that judges and that nothing learns in: from a few hundred episodes
    "algo=world_model", "loop.steps=4_000", "loop.success.precision=0.9", "loop.success.min_positives=24",
)  # fmt: skip


def needless(policy: Path, config: Mapping[str, Any], collected: Iterable[Path]) -> list[str]:
    """Return why a world model of this config need not be learned for the gate, one sentence each; []: it may serve.

    It predicts other features than the policy reads, or every recorded episode succeeded.
    """
    observation = load_policy(policy).spec.observation
    node = config["world_model"]
    if unread := sorted(observation.keys() - features_read(node, observation).keys()):
        return [f"the policy reads {', '.join(unread)}, which world_model={node[TARGET]} does not predict."]
    found = [meta.provenance for path in collected if (meta := RecordingMeta.load(path)) is not None]
    if found and all(part.get("successes") == part.get("attempted") for part in found):
        return ["no recorded episode failed."]
    return []


def unusable(model: Path) -> list[str]:
    """Return why no gate can judge in the world model of a run, one sentence each; []: it can."""
    try:
        world = load_world(model)
        starts = len(own_starts(model, world, "held_out"))
    except RobopolicyError as error:
        return [str(error)]
    few = [f"{starts} held-out starts, expected {FEWEST}: raise rollouts or model.loop.holdout."] * (starts < FEWEST)
    return dynamics_faults(world.report) + few


@dataclass
class PipelineGate:
    """Decides by an estimator, with confidence `level`. `held_out`: share of the episodes that fitted_q reads.

    `model`: run of the world model that world_model asks. Where it has none, fitted_q decides.
    """

    estimator: Estimator = "world_model"
    level: float = 0.9
    held_out: float = 0.25
    model: Path | None = None

    @property
    def asked(self) -> Estimator:
        """What decides now."""
        return "fitted_q" if self.model is None else self.estimator

    def decided(self, record: StageRecord) -> bool:
        """Return whether this judge has decided about a stage."""
        same = (record.estimator, record.model) == (self.asked, self._digest())
        return bool(record.note) and record.level in (None, self.level) and same

    def _digest(self) -> str:
        """Return the digest of the world model that is asked; a longer training changes it."""
        return "" if self.model is None else model_digest(self.model, "latest") or ""

    def decide(
        self, record: StageRecord, candidate: Path, base: Path, collected: Mapping[str, Path], common: dict[str, Any]
    ) -> None:
        """Write into `record` whether `candidate` is accepted in place of `base`, and why.

        Args:
            collected: recorded episodes by stage; fitted_q reads the held-out ones of all, the newest first.
            common: seed and threads.
        """
        record.level, record.estimator, record.model = self.level, self.asked, self._digest()
        *before, newest = collected
        if self.asked == "fitted_q" and not before and (why := self.undecidable(collected[newest])):
            record.accepted, record.note = False, f"{why}. So the policy before it stays."
            return
        settings: dict[str, Any] = {
            "candidate": candidate,
            "base": base,
            "level": self.level,
            "out": candidate,
            **common,
        }
        words = list[str]()
        if self.asked == "fitted_q":
            settings |= {"dataset": collected[newest], "rollouts": {earlier: collected[earlier] for earlier in before}}
        else:
            words.append("world=imagined")
            settings |= {"world.model": self.model}
        began = time.monotonic()
        result: GateResult = call(find_verb("gate"), compose(find_verb("gate"), words, settings=settings))
        kept = "" if result.accepted else " So the policy before it stays."
        record.accepted, record.note = result.accepted, "\n".join([text(result) + kept, *without_run(result)])
        record.seconds += time.monotonic() - began

    def undecidable(self, data: Path) -> str:
        """Return why no gate can decide on these episodes: all held-out ones succeeded, or failed. Else ""."""
        episodes = load_episodes(data, needed={})
        good = succeeded(take(episodes, held_out(episodes, self.held_out)))
        if good.any() and not good.all():
            return ""
        ended = "succeeded" if good.any() else "failed"
        return f"{data.parent.name}: all {len(good)} held-out episodes {ended}, so no gate can tell a better policy"
