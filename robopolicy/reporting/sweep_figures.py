"""Compute the figures of many runs: success of each setting, aggregates over tasks, comparisons with the first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from robopolicy.evaluation.aggregates import (
    improvement,
    iqm,
    pooled_difference,
    pooled_rate,
    seeds_rate,
    stratified_bootstrap,
)
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.statistics import Interval
from robopolicy.evaluation.training_seeds import ENOUGH, verdict
from robopolicy.reporting.settings import Source, SweepRun, copies_of, grouped, outcomes, source_of

_LEVEL = 0.95
_MOST_SETTINGS = 20  # that are compared with the first


@dataclass(frozen=True)
class Setting:
    """Success of one setting in training's end.

    Args:
        tables: {task: outcomes [S E]}. seeds: {task: training seeds [S]}. episodes: of each run.
        rates: {task: success with its interval}.
    """

    name: str
    tables: dict[str, np.ndarray]
    seeds: dict[str, list[int | None]]
    episodes: int
    rates: dict[str, Interval]

    @property
    def fewest(self) -> int:
        """Training seeds of the task that has the fewest."""
        return min((len(seeds) for seeds in self.seeds.values()), default=0)

    @property
    def scores(self) -> list[np.ndarray]:
        """Return the success of each training, [S] for each task."""
        return [table.mean(axis=1) for table in self.tables.values()]

    @cached_property
    def total(self) -> Interval:
        """Return the mean over tasks."""
        return next(iter(self.rates.values())) if len(self.rates) == 1 else pooled_rate(list(self.tables.values()))

    @cached_property
    def iqm(self) -> Interval:
        """Return the interquartile mean over all trainings of all tasks."""
        return stratified_bootstrap([self.scores], iqm)


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


@dataclass(frozen=True)
class SweepFigures:
    """Figures of many runs.

    Args:
        source: test episodes of the newest checkpoints, or the last validation in training.
        level: of the intervals of comparisons, such that all hold together with 95% (Bonferroni).
        left_out: {folder of a run: why it does not count}.
    """

    source: Source
    tasks: list[str]
    settings: list[Setting]
    comparisons: list[SettingComparison] = field(default_factory=list)
    level: float = _LEVEL
    left_out: dict[Path, str] = field(default_factory=dict)

    @property
    def few(self) -> bool:
        """Return whether a setting has fewer training seeds than its interval needs."""
        return any(setting.fewest < ENOUGH for setting in self.settings)

    @property
    def best(self) -> Setting | None:
        """Return the setting with the highest mean, of those that were trained on every task."""
        return max(self.whole, key=lambda setting: setting.total.value, default=None)

    @property
    def whole(self) -> list[Setting]:
        """Return the settings that were trained on every task."""
        return [setting for setting in self.settings if len(setting.tables) == len(self.tasks)]

    def text(self) -> str:
        """Return a line for each setting, and one for each comparison."""
        if not self.settings:
            return "no run has evaluated episodes yet"
        width = max(len(setting.name) for setting in self.settings)
        kind = "test episodes" if self.source == "test" else "the last validation in training"
        lines = [f"success_once on {kind}, mean over training seeds, {100 * _LEVEL:g}% intervals:"]
        for setting in self.settings:
            r = setting.total
            lines.append(f"  {setting.name:<{width}}  {100 * r.value:5.1f}%  ({100 * r.low:.1f}–{100 * r.high:.1f})  "
                         f"{setting.fewest} training seed{'s' * (setting.fewest != 1)}")  # fmt: skip
        lines += [f"  {sentence(c)}" for c in self.comparisons]
        return "\n".join(lines + [f"  left out: {path.name}: {why}" for path, why in self.left_out.items()])


def sentence(c: SettingComparison) -> str:
    """Return a comparison in plain words."""
    d = c.difference
    return f"{c.b} − {c.a}: {100 * d.value:+.1f} points ({100 * d.low:+.1f} to {100 * d.high:+.1f}); {c.verdict}"


def summarize(members: Sequence[SweepRun]) -> SweepFigures:
    """Compute the figures of runs that ended and were evaluated; the others, and copies, are named in `left_out`."""
    left_out = {path: _is_copy(path, twin) for path, twin in copies_of(members).items()}
    members = [member for member in members if member.run.path not in left_out]
    source, settings, all_tasks = source_of(members), list[Setting](), dict[str, None]()
    for name, runs in grouped(members).items():
        found: dict[str, list[tuple[SweepRun, EpisodeTable]]] = defaultdict(list)
        for member in runs:
            if (rows := member.rows(source)) is not None and len(rows):
                found[member.task].append((member, rows))
            else:
                left_out[member.run.path] = _why(member)
        for task, pairs in list(found.items()):
            found[task], strangers = _of_one_env(pairs)
            left_out |= strangers
        if found:
            settings.append(_setting(name, found))
            all_tasks |= dict.fromkeys(found)
    figures = SweepFigures(source, sorted(all_tasks), settings, left_out=left_out)
    others = figures.whole[1:] if len(figures.whole) <= _MOST_SETTINGS else []
    level = 1 - (1 - _LEVEL) / max(1, len(others))
    comparisons = [_comparison(figures.whole[0], other, level) for other in others]
    return SweepFigures(source, figures.tasks, settings, comparisons, level, left_out)


def _of_one_env(
    pairs: list[tuple[SweepRun, EpisodeTable]],
) -> tuple[list[tuple[SweepRun, EpisodeTable]], dict[Path, str]]:
    """Split the runs of a setting and task: those with episodes of the most frequent env, and {folder: why not}."""
    envs = [(*sorted(set(zip(rows.frame["env"], rows.frame["digest"], strict=True))),) for _, rows in pairs]
    usual = Counter(envs).most_common(1)[0][0]
    kept = [pair for pair, env in zip(pairs, envs, strict=True) if env == usual]
    others = {member.run.path: f"its episodes are of another env, {env[0][0]}: evaluate it again"
              for (member, _), env in zip(pairs, envs, strict=True) if env != usual}  # fmt: skip
    return kept, others


def _setting(name: str, found: dict[str, list[tuple[SweepRun, EpisodeTable]]]) -> Setting:
    tables, seeds, rates = {}, {}, {}
    for task, pairs in sorted(found.items()):
        tables[task] = outcomes([rows for _, rows in pairs])
        seeds[task] = [member.seed for member, _ in pairs]
        rates[task] = seeds_rate(tables[task]) if tables[task].shape[1] > 1 else pooled_rate([tables[task]])
    return Setting(name, tables, seeds, max(len(rows) for pairs in found.values() for _, rows in pairs), rates)


def _comparison(a: Setting, b: Setting, level: float) -> SettingComparison:
    same = all(a.seeds[t] == b.seeds[t] and a.tables[t].shape == b.tables[t].shape for t in a.tables)
    difference = pooled_difference(list(a.tables.values()), list(b.tables.values()), paired=same, level=level)
    few = min(a.fewest, b.fewest)
    better = stratified_bootstrap([a.scores, b.scores], improvement) if few > 1 else None
    return SettingComparison(a.name, b.name, difference, better, same, few)


def _is_copy(path: Path, twin: SweepRun) -> str:
    name = twin.name if twin.name != path.name else str(twin.run.path)
    return f"has the config and training seed of {name}: a training counts once"


def _why(member: SweepRun) -> str:
    job = member.job
    if job is not None and job.state == "failed":
        return f"failed: {job.error}"
    if member.state != "finished":
        return f"has not ended: the {'sweep' if job else 'training'}'s command goes on with it"
    return "no evaluated episodes: robopolicy eval, or evaluations in training (loop.eval_every)"
