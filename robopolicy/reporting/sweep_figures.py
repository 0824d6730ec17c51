"""Compute the figures of many runs: success of each setting, aggregates over tasks, comparisons with the first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.training_seeds import ENOUGH
from robopolicy.reporting.run_reader import Run
from robopolicy.reporting.setting_figures import (
    Setting,
    SettingComparison,
    compare_settings,
    sentence,
    setting_of,
    why_apart,
)
from robopolicy.reporting.settings import Source, SweepRun, copies_of, grouped, source_of

_LEVEL = 0.95
_MOST_SETTINGS = 20  # that are compared with the first
_MOST_NAMES = 5  # of runs in a sentence


@dataclass(frozen=True)
class SweepFigures:
    """Figures of many runs.

    Args:
        source: test episodes of the newest checkpoints, or the last validation in training.
        level: of the intervals of comparisons, such that all hold together with 95% (Bonferroni).
        left_out: {folder of a run: why it does not count}.
        uncompared: {setting: why it is not compared with the first}.
        untested: finished runs without test episodes, where others have some.
    """

    source: Source
    tasks: list[str]
    settings: list[Setting]
    comparisons: list[SettingComparison] = field(default_factory=list)
    level: float = _LEVEL
    left_out: dict[Path, str] = field(default_factory=dict)
    uncompared: dict[str, str] = field(default_factory=dict)
    untested: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """Return a sentence about each comparison that is left out."""
        first = self.whole[0].name if self.whole else ""
        found = [f"{name} is not compared with {first}: {why}." for name, why in self.uncompared.items()]
        if (count := len(self.whole)) > _MOST_SETTINGS:
            found.append(f"{count} settings are more than {_MOST_SETTINGS}, so none is compared. Name fewer runs.")
        return found

    @property
    def why_validation(self) -> str:
        """Return why validation episodes count although some runs have test episodes; "" elsewhere."""
        if self.source == "test" or not self.untested:
            return ""
        names = ", ".join(self.untested[:_MOST_NAMES]) + " …" * (len(self.untested) > _MOST_NAMES)
        lack = "run has" if len(self.untested) == 1 else "runs have"
        return (
            f"Validation counts, as {len(self.untested)} finished {lack} no usable test episodes: {names}. "
            "Evaluate with robopolicy eval."
        )

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
        lines += [self.why_validation] * bool(self.why_validation)
        if self.comparisons:
            together = f", so that all hold together with {100 * _LEVEL:g}% (Bonferroni)"
            lines.append(f"differences with {100 * self.level:.4g}% intervals{together * (self.level > _LEVEL)}:")
        lines += [f"  {said}" for said in (*map(sentence, self.comparisons), *self.notes)]
        return "\n".join(lines + [f"  left out: {path.name}: {why}" for path, why in self.left_out.items()])


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
            settings.append(setting_of(name, found))
            all_tasks |= dict.fromkeys(found)
    figures = SweepFigures(source, sorted(all_tasks), settings, left_out=left_out, untested=_untested(members))
    if not 2 <= len(figures.whole) <= _MOST_SETTINGS:
        return figures
    first, *others = figures.whole
    uncompared = {other.name: why for other in others if (why := why_apart(first, other))}
    others = [other for other in others if other.name not in uncompared]
    level = 1 - (1 - _LEVEL) / max(1, len(others))
    comparisons = [compare_settings(first, other, level) for other in others]
    return replace(figures, comparisons=comparisons, level=level, uncompared=uncompared)


def _untested(members: Sequence[SweepRun]) -> list[str]:
    """Return the finished runs without test episodes, where others have some."""
    ended = [member for member in members if member.state == "finished"]
    without = [member.name for member in ended if member.rows("test") is None]
    return without if len(without) < len(ended) else []


def faults_of_rows(run: Run) -> list[str]:
    """Return what is wrong with a run's evaluated episodes: cut files, and rows of older checkpoints."""
    return [said for said in run.missing if said.startswith(("episodes.", "episodes-", "evaluations/"))]


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


def _is_copy(path: Path, twin: SweepRun) -> str:
    name = twin.name if twin.name != path.name else str(twin.run.path)
    return f"has the config and training seed of {name}: a training counts once"


def _why(member: SweepRun) -> str:
    job = member.job
    if job is not None and job.state == "failed":
        return f"failed: {job.error}"
    if member.state != "finished":
        return f"has not ended: the {'sweep' if job else 'training'}'s command goes on with it"
    own = [said for said in faults_of_rows(member.run) if not said.startswith("episodes-")]
    if own:
        return f"no usable episodes: {own[0]}"
    return "no evaluated episodes: robopolicy eval, or evaluations in training (loop.eval_every)"
