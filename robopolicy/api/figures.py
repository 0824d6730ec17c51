"""Figures of runs and results, for notebooks and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from robopolicy.core.errors import ConfigError, DataError
from robopolicy.evaluation.compare import Comparison
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.training_seeds import PooledComparison
from robopolicy.reporting.curves import learning_curves, success_intervals, training_charts
from robopolicy.reporting.plots import Whisker, interval_chart, styled
from robopolicy.reporting.run_reader import Evaluation, read_run
from robopolicy.reporting.templates import percent
from robopolicy.utils.atomic import write_atomically

Shown = Path | str | EpisodeTable | Comparison | PooledComparison | Sequence[Path | str] | Mapping[str, EpisodeTable]


@dataclass(frozen=True, repr=False)
class Charts:
    """Drawings in SVG; a notebook shows them below one another."""

    svg: tuple[str, ...]
    about: str  # one line for each figure that is drawn

    def __repr__(self) -> str:
        return self.about

    def _repr_html_(self) -> str:
        return "".join(f"<div>{svg}</div>" for svg in self.svg)

    def save(self, path: Path | str) -> list[Path]:
        """Write the drawings to `path`, an .svg file; further ones get a number behind the name.

        Raises:
            ConfigError: `path` does not end in .svg.
        """
        path = Path(path)
        if path.suffix != ".svg":
            raise ConfigError(f"path: expected a file that ends in .svg, got {path.name!r}. Name it {path.stem}.svg.")
        files = [path.with_stem(f"{path.stem}{f'-{i}' if i else ''}") for i in range(len(self.svg))]
        return [write_atomically(file, svg) for file, svg in zip(files, self.svg, strict=True)]


def plot(shown: Shown, out: Path | str | None = None) -> Charts:
    """Draw success rates with their intervals, and the learning curves of runs.

    Args:
        shown: a run directory or several: success against env steps and against minutes, every evaluation, and two
            losses. Rows, or {name: rows}: their success rates. A comparison: both rates, of every training seed.
        out: an .svg file to write as well.

    Returns:
        The drawings, which a notebook shows; `.save("a.svg")` writes them. Rates are fractions of episodes; bands and
        whiskers are 95% Wilson intervals.

    Raises:
        DataError: no such run directory, or it holds neither curves nor evaluations. ConfigError: nothing to draw.

    Example:
        >>> rp.plot(rp.evaluate(rp.load_policy("runs/base"), task="reach", episodes=4))
        reach: ...% (...–...%), 4 episodes
    """
    if isinstance(shown, Comparison | PooledComparison):
        compared = [shown] if isinstance(shown, Comparison) else shown.seeds
        rows = [Whisker(name, *rate, percent(rate.value)) for c in compared for name, rate in
                ((c.a, c.rate_a), (c.b, c.rate_b))]  # fmt: skip
        charts = Charts((interval_chart(rows, title=compared[0].env),), shown.text())
    elif isinstance(shown, EpisodeTable | Mapping):
        charts = _rates({"": shown} if isinstance(shown, EpisodeTable) else shown)
    else:
        charts = _curves([shown] if isinstance(shown, Path | str) else list(shown))
    charts = Charts(tuple(styled(svg) for svg in charts.svg), charts.about)
    if out is not None:
        charts.save(out)
    return charts


def _rates(rows: Mapping[str, EpisodeTable]) -> Charts:
    if not rows:
        raise ConfigError("shown: got no rows, expected at least one result. Give {name: rows}.")
    found = [Evaluation(name or ", ".join(dict.fromkeys(r.frame["env"])), r) for name, r in rows.items()]
    lines = []
    for e in found:
        rate = e.rows.success_rate()
        limits = f"{100 * rate.low:.1f}–{100 * rate.high:.1f}%"
        lines.append(f"{e.name}: {100 * rate.value:.1f}% ({limits}), {len(e.rows)} episodes")
    return Charts((interval_chart(success_intervals(found)),), "\n".join(lines))


def _curves(paths: Sequence[Path | str]) -> Charts:
    runs = [read_run(path) for path in paths]
    evaluations = success_intervals([e for run in runs for e in run.evaluations])
    rates = [interval_chart(evaluations, title="Evaluations")] if evaluations else []
    charts = [*learning_curves(runs), *rates, *training_charts(runs, limit=2)]
    if not charts:
        names = ", ".join(run.name for run in runs)
        raise DataError(f"{names or 'no runs'}: found no curves and no evaluations. Train there, or give another run.")
    return Charts(tuple(charts), f"{len(charts)} charts of {', '.join(run.name for run in runs)}")
