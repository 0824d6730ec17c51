"""From what scripts/experiments.py ran to docs/results/<id>.json and to every episode in docs/results/rows/."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd

from robopolicy.evaluation.compare import compare, worse_than_base
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.forgetting import forgetting
from robopolicy.evaluation.statistics import Interval, unpaired_difference
from robopolicy.reporting.result_rows import Evidence, measured, of_rows, pooled
from robopolicy.reporting.results_page import CURVE
from scripts.experiment_plan import Experiment, Setting, trains

Job = tuple[Setting, str, int]  # a setting, the name of one of its refinements, a training seed


@dataclass(frozen=True)
class Found:
    """What one refinement of one seed gave."""

    base: EpisodeTable
    rows: EpisodeTable
    evaluations: dict[int, EpisodeTable]  # env step -> validation episodes during training
    seconds: dict[int, float]  # env step of an evaluation -> training time until then
    env_steps: int
    wall_s: float | None  # of training; None: not measured
    jobs: int  # runs that shared the machine
    commits: tuple[str, str]  # that trained the base, and the refinement


def record(
    id: str, experiment: Experiment, work: Sequence[Job], found: Sequence[Found], before: Sequence[Evidence]
) -> list[Evidence]:
    """All rows of the experiment: those of `before` that were not measured again, the new ones, and what pools them.

    A pool or a mean is made only of all training seeds and tasks, so a part that was run alone never stands for all.
    """
    command = f"python scripts/experiments.py {id}"
    labels = {label: s.seeds or experiment.seeds for s in experiment.settings
              for label in (s.base_name, *(f"{s.prefix}{name}" for name in s.refine))}  # fmt: skip
    again = {(f"{s.prefix}{name}", seed) for s, name, seed in work}  # their curves may have had other steps
    rows = {r.key: r for r in before if experiment.kept and r.setting.startswith(experiment.kept)
            or r.seeds in labels.get(_curve_of(r.setting), ())
            and not (r.metric == CURVE and (_curve_of(r.setting), r.seeds) in again)}  # fmt: skip
    for job, result in zip(work, found, strict=True):
        rows |= {row.key: row for row in _of_seed(id, command, experiment, job, result)}
    whole = {}
    for label, seeds in labels.items():
        keys = [(label, "success_rate", str(seed)) for seed in seeds]
        if all(key in rows for key in keys):
            whole[label] = [replace(rows[key], command=command) for key in keys]
    every = [*rows.values(), *(pooled(rates) for rates in whole.values())]
    every += [row for name, pair in experiment.compared.items() if set(pair) <= set(whole)
              for row in _compared(id, command, name, *(whole[label] for label in pair))]  # fmt: skip
    refined = [f"{s.prefix}refined" for s in experiment.settings if s.in_mean and "refined" in s.refine]
    if "mean" in experiment.extra and all(label in whole for label in refined):
        rates = {label: fmean([row.value for row in whole[label]]) for label in refined}
        commits = dict.fromkeys(c for label in refined for row in whole[label] for c in row.commit.split())
        every.append(
            measured(id=id, setting="refined", metric="mean_success_rate", interval=fmean(list(rates.values())),
                     command=command, commit=" ".join(commits),
                     notes=", ".join(f"{k.split('/')[0]} {100 * v:.1f}%" for k, v in rates.items()))
        )  # fmt: skip
    return every


def _compared(id: str, command: str, name: str, a: Sequence[Evidence], b: Sequence[Evidence]) -> Iterator[Evidence]:
    """Yield the success rates `b` less `a`, of each training seed and of all episodes; the episodes are not paired."""
    for before, now in zip([*a, pooled(a)], [*b, pooled(b)], strict=True):
        rates = [Interval(r.value, r.low, r.high) for r in (before, now) if r.low is not None and r.high is not None]
        yield measured(id=id, setting=name, metric="difference", interval=unpaired_difference(*rates), seeds=now.seeds,
                       episodes=now.episodes, command=command, commit=now.commit,
                       notes=f"{now.setting} less {before.setting}; Newcombe")  # fmt: skip


def _curve_of(setting: str) -> str:
    """<route> of <route>/at_<env step>; any other setting as it is."""
    return setting.partition("/at_")[0]


def _of_seed(id: str, command: str, experiment: Experiment, job: Job, result: Found) -> Iterator[Evidence]:
    setting, name, seed = job
    label = f"{setting.prefix}{name}"
    about = f"{setting.base.demos} demonstrations, expert noise {setting.base.expert_noise:g}"
    about += "".join(f"; {change}" for change in setting.task)
    yield of_rows(result.base, id=id, setting=setting.base_name, seed=seed, notes=about, command=command,
                  commit=result.commits[0])  # fmt: skip
    begins = f"after {' '.join(setting.student)}; " if setting.student else ""
    how = f"{begins}{' '.join(setting.refine[name])}; {result.jobs} at a time"
    seconds = None if result.wall_s is None else round(result.wall_s, 1)
    row = of_rows(result.rows, id=id, setting=label, seed=seed, env_steps=result.env_steps, wall_s=seconds, notes=how,
                  command=command, commit=result.commits[1])  # fmt: skip
    yield row
    derived = list(_watched(id, experiment, label, seed, result))
    variant = not trains(setting.refine[name]) and any(o.startswith("task.") for o in setting.refine[name])
    if "scratch" not in name and not variant:
        both = compare(result.base, result.rows, names=("base", "refined"))
        notes = f"McNemar p = {both.p_value:.1e}"
        if len(changes := forgetting(result.base, result.rows)) > 1:
            notes += f"; {sum(c.fell for c in changes)} of {len(changes)} instructions fell by more than noise"
        derived.append(
            measured(id=id, setting=label, metric="difference", interval=both.difference, seeds=seed,
                     episodes=both.pairs.total, notes=notes)
        )  # fmt: skip
    yield from (replace(d, command=command, commit=row.commit) for d in derived)


def _watched(id: str, experiment: Experiment, label: str, seed: int, result: Found) -> Iterator[Evidence]:
    """What evaluations during training show beside their base, which step 0 is."""
    steps = [step for step in result.evaluations if step > 0]
    if not steps:
        return
    base = result.evaluations[0]
    episodes = len(steps) * len(base)
    if "dip" in experiment.extra:
        rate = base.success_rate().value
        dips = {step: 100 * (rate - result.evaluations[step].success_rate().value) for step in steps}
        worst = max(dips, key=dips.__getitem__)
        yield measured(id=id, setting=label, metric="worst_dip_points", interval=dips[worst], seeds=seed,
                       episodes=episodes,
                       notes=f"at env step {worst} of {len(steps)} evaluations, base {100 * rate:.1f}%")  # fmt: skip
    if "curve" in experiment.extra:
        for step, rows in result.evaluations.items():
            yield measured(id=id, setting=f"{label}/at_{step}", metric=CURVE, interval=rows.success_rate(), seeds=seed,
                           episodes=len(rows), env_steps=step, wall_s=round(result.seconds[step], 1),
                           notes=f"{rows.split} seeds")  # fmt: skip
    if "worse" in experiment.extra:
        smallest = min(p for _, p in worse_than_base(base, [result.evaluations[s] for s in steps]))
        yield measured(id=id, setting=label, metric="worse_p_holm", interval=smallest, seeds=seed, episodes=episodes,
                       notes=f"smallest of {len(steps)} evaluations")  # fmt: skip
        before, after = 1 - result.base.success_rate().value, 1 - result.rows.success_rate().value
        yield measured(id=id, setting=label, metric="failure_ratio", interval=after / before, seeds=seed,
                       episodes=len(result.rows), notes=f"{after:.3f} / {before:.3f}")  # fmt: skip


def save_rows(path: Path, work: Sequence[Job], found: Sequence[Found]) -> None:
    """Every evaluated episode, with the training seed, the setting and the env step of the policy.

    Rows in the file stay, but for those of a setting and training seed that was run again.
    """
    frames = []
    for (setting, name, seed), result in zip(work, found, strict=True):
        label = f"{setting.prefix}{name}"
        parts = {(setting.base_name, 0): result.base, (label, result.env_steps): result.rows}
        parts |= {(f"{label}, while training", step): rows for step, rows in result.evaluations.items()}
        for (part, step), rows in parts.items():
            frames.append(rows.frame.drop(columns=["policy", "task", "wall_s", "deterministic"]).assign(
                setting=part, train_seed=seed, env_step=step))  # fmt: skip
    whole = pd.concat(frames, ignore_index=True).drop_duplicates(["setting", "train_seed", "env_step", "seed"])
    if path.exists():
        old = pd.read_parquet(path)
        again = set(zip(whole["setting"].str.partition(",")[0], whole["train_seed"], strict=True))
        stale = [pair in again for pair in zip(old["setting"].str.partition(",")[0], old["train_seed"], strict=True)]
        whole = pd.concat([old[~np.array(stale, dtype=bool)], whole], ignore_index=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole.to_parquet(path, index=False, compression="zstd")
