"""Compute the figures of one setting over its training seeds and tasks, and of one setting against another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from robopolicy.evaluation.aggregates import (
    improvement,
    pooled_difference,
    seeds_rate,
    stratified_bootstrap,
    tasks_iqm,
    tasks_rate,
)
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.statistics import Interval
from robopolicy.evaluation.training_seeds import verdict
from robopolicy.reporting.settings import SweepRun, common_seeds, outcomes


class TaskEpisodes(NamedTuple):
    """Episodes that the training seeds of a setting met in one task.

    Args:
        envs: (id, digest) of their envs. seeds: of the episodes that all training seeds met. counts: of each.
    """

    envs: tuple[tuple[str, str], ...]
    seeds: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, tables: Sequence[EpisodeTable]) -> TaskEpisodes:
        envs = {pair for rows in tables for pair in zip(rows.frame["env"], rows.frame["digest"], strict=True)}
        return cls((*sorted(envs),), (*common_seeds(tables),), (*map(len, tables),))

    @property
    def fewest(self) -> int | None:
        """Return the fewest episodes of a training seed, where all of them share none; else None."""
        return None if self.seeds else min(self.counts)


@dataclass(frozen=True)
class Setting:
    """Success of one setting in training's end.

    Args:
        tables: {task: outcomes [S E]}. seeds: {task: training seeds [S]}. met: {task: episodes}.
    """

    name: str
    tables: dict[str, np.ndarray]
    seeds: dict[str, list[int | None]]
    met: dict[str, TaskEpisodes]

    @property
    def fewest(self) -> int:
        """Training seeds of the task that has the fewest."""
        return min((len(seeds) for seeds in self.seeds.values()), default=0)

    @property
    def episodes(self) -> str:
        """Return how many episodes the runs have; where these differ also how many count: those in common."""
        counts = {n for met in self.met.values() for n in met.counts}
        text = str(min(counts)) if len(counts) == 1 else f"{min(counts)}–{max(counts)}"
        common = min(len(met.seeds) for met in self.met.values())
        differ = any(len(met.seeds) < max(met.counts) for met in self.met.values())
        return text + (f", {common or 'none'} in common" if differ else "")

    @property
    def scores(self) -> list[np.ndarray]:
        """Return the success of each training, [S] for each task."""
        return [table.mean(axis=1) for table in self.tables.values()]

    @cached_property
    def rates(self) -> dict[str, Interval]:
        """Return {task: success with its interval}."""
        return {task: seeds_rate(table, episodes=self.met[task].fewest) for task, table in self.tables.items()}

    @cached_property
    def total(self) -> Interval:
        """Return the mean over tasks."""
        return tasks_rate(list(self.tables.values()), episodes=self._fewest)

    @cached_property
    def iqm(self) -> Interval:
        """Return the interquartile mean over all trainings of all tasks."""
        return tasks_iqm(list(self.tables.values()), episodes=self._fewest)

    @property
    def _fewest(self) -> list[int | None]:
        return [self.met[task].fewest for task in self.tables]


@dataclass(frozen=True)
class SettingComparison:
    """A setting B against the first one, A.

    Args:
        difference: B − A, mean over tasks. improvement: probability that a training of B ends above one of A.
        paired: by training seed and episode. seeds: of the one that has fewer.
    """

    a: str
    b: str
    difference: Interval
    improvement: Interval | None
    paired: bool
    seeds: int

    @property
    def verdict(self) -> str:
        return verdict(self.difference, self.a, self.b, self.seeds)


def sentence(c: SettingComparison) -> str:
    """Return a comparison in plain words."""
    d = c.difference
    return f"{c.b} − {c.a}: {100 * d.value:+.1f} points ({100 * d.low:+.1f} to {100 * d.high:+.1f}); {c.verdict}"


def setting_of(name: str, found: dict[str, list[tuple[SweepRun, EpisodeTable]]]) -> Setting:
    """Return a setting from {task: its runs and their episodes}."""
    tables, seeds, met = {}, {}, {}
    for task, pairs in sorted(found.items()):
        rows = [table for _, table in pairs]
        tables[task], met[task] = outcomes(rows), TaskEpisodes.of(rows)
        seeds[task] = [member.seed for member, _ in pairs]
    return Setting(name, tables, seeds, met)


def why_apart(a: Setting, b: Setting) -> str:
    """Return the reason that two settings cannot be compared, or ""."""
    for task in a.tables:
        where = f"{task}: " if task else ""
        if a.met[task].envs != b.met[task].envs:
            return f"{where}they were evaluated on different envs or parameters. Evaluate both on one"
        for setting in (a, b):
            if not setting.met[task].seeds:
                return f"{where}the runs of {setting.name} share no episodes. Evaluate them on the same"
    return ""


def compare_settings(a: Setting, b: Setting, level: float) -> SettingComparison:
    """Compare setting B with A on their common tasks' episodes; see `why_apart`."""
    same = all(a.seeds[t] == b.seeds[t] and a.met[t].seeds == b.met[t].seeds for t in a.tables)
    difference = pooled_difference(list(a.tables.values()), list(b.tables.values()), paired=same, level=level)
    few = min(a.fewest, b.fewest)
    better = stratified_bootstrap([a.scores, b.scores], improvement) if few > 1 else None
    return SettingComparison(a.name, b.name, difference, better, same, few)
