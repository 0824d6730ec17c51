"""Evaluate a policy during its training, on the same episodes at every step, and film some of them."""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path
from typing import Any

from robopolicy.config.instantiate import build
from robopolicy.core.rng import episode_seeds, kept_generators
from robopolicy.core.types import Metrics, VecEnv
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.rollout import evaluate
from robopolicy.evaluation.video import choose, film
from robopolicy.policies.base import Policy
from robopolicy.runs.logger import Tracker
from robopolicy.training.ranked import gather_episodes
from robopolicy.utils import ranks

_ENVS = 100  # envs that validation episodes are run in; outcomes do not depend on it
_FILMS = 50  # of a run, at most
_FILM_SHARE = 0.1  # of the run's time that filming may take; the first evaluation is always filmed
_log = logging.getLogger(__name__)


class Validation:
    """Evaluates a policy on `episodes` validation episodes. Rows are saved as `evaluations/<step>.parquet`.

    Each rank runs a part of the episodes, and has the metrics of all. The global random state is unchanged. Episodes
    are filmed where `tracker`, which is set when the training begins, shows films.

    Args:
        task: node of the task.
    """

    def __init__(self, task: dict[str, Any], *, episodes: int, run_dir: Path) -> None:
        self.task, self.run_dir = task, run_dir
        seeds = episode_seeds("validation", 0, episodes)
        self.seeds = seeds[ranks.own_part(episodes)]
        self.tracker: Tracker | None = None
        self._env: VecEnv | None = None  # made at the first evaluation
        self._filmed: VecEnv | None = None  # made at the first film
        self._films, self._film_s, self._began = 0, 0.0, time.monotonic()

    def __call__(self, policy: Policy, step: int) -> Metrics:
        """Evaluate `policy` at `step` of its training."""
        if self._env is None:
            self._env = build(self.task, "task", num_envs=max(1, min(_ENVS, len(self.seeds))), seed=0)
        with kept_generators(policy):
            rows = gather_episodes(evaluate(policy, self._env, self.seeds, policy_id=f"step_{step}"))
            if ranks.rank():
                return rows.metrics()
            rows.save(self.run_dir / "evaluations" / f"{step:09d}.parquet")
            if self.tracker is not None and self.tracker.shows_films and self._may_film():
                self._film(policy, rows, step, self.tracker)
        return rows.metrics()

    def _may_film(self) -> bool:
        spent = self._film_s / max(1e-9, time.monotonic() - self._began)
        return self._films < _FILMS and (not self._films or spent < _FILM_SHARE)

    def _film(self, policy: Policy, rows: EpisodeTable, step: int, tracker: Tracker) -> None:
        """Film a few episodes again, failures first. A machine that cannot render gets one warning."""
        began, seeds = time.monotonic(), choose(rows, min(tracker.films, _FILMS - self._films))
        outcome = dict(zip(rows.seeds, rows.successes(), strict=True))
        try:
            if self._filmed is None:
                self._filmed = build(self.task, "task", num_envs=len(seeds), seed=0)
            with tempfile.TemporaryDirectory() as folder:
                paths = film(policy, self._filmed, rows, folder, seeds=seeds, label=f"step {step}", strict=False)
                for number, path in enumerate(paths):
                    seed = int(path.stem.rsplit("-", 1)[1])
                    caption = f"step {step}, seed {seed}: {'success' if outcome[seed] else 'failure'}"
                    tracker.video(f"films/{number}", path, step, caption)
        except Exception as error:  # no display driver, or an env without pictures
            tracker.films = 0
            _log.warning(
                "no films: %s: %s. `robopolicy doctor` explains how to repair rendering; tracker.films=0 films none.",
                type(error).__name__, error,
            )  # fmt: skip
        self._films, self._film_s = self._films + len(seeds), self._film_s + time.monotonic() - began
