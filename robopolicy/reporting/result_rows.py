"""Read and write docs/results/<id>.json: measurements with command and hardware, negative results too.

A file is a list of rows, one a line. Experiments write it themselves; docs/results.md is generated from it alone.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pydantic

from robopolicy.core.errors import DataError
from robopolicy.core.untrusted import checked, parse_json, read_text
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.statistics import Interval, wilson
from robopolicy.utils import provenance
from robopolicy.utils.atomic import write_atomically

ROOT = Path("docs/results")
ALL = "all"  # in `seeds`: the row pools every training seed
_NAMED_HOME = r"""(?<!HOME")(?<!HOME"')(?<!\}")(?<!\}"')"""  # not after "$HOME" or "${TMPDIR:-/tmp}", as in provenance
_MACHINE_PATH = re.compile(
    rf"(?<![\w.~$:/]){_NAMED_HOME}/(?:home|root|work|tmp|Users|mnt|data|opt|var|usr|media)/|\b[A-Za-z]:\\"
)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One measured number.

    id: the experiment, which names the file. setting: `base`, `refined`, the route's or the task's name.
    metric: `success_rate` (a fraction), `ratio`, `env_steps_to_target`, `minutes`, …; its unit is part of the name.
    value, low, high: estimate and 95% limits, in the metric's unit; limits None where there are none.
    seeds: the training seed of this row, or "all". episodes: evaluated for this row; for "all" those of every seed.
    env_steps, wall_s: primitive env steps and seconds that the *training* behind this row took, None where none did.
    """

    id: str
    setting: str
    metric: str
    value: int | float
    low: int | float | None = None
    high: int | float | None = None
    episodes: int | None = None
    seeds: int | str = ALL
    env_steps: int | None = None
    wall_s: int | float | None = None
    command: str
    commit: str
    hardware: str
    notes: str = ""
    __pydantic_config__ = pydantic.ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise DataError(
                f"evidence {self.id!r}, setting {self.setting!r}, metric {self.metric!r}:\n  - "
                + "\n  - ".join(problems)
            )

    @property
    def key(self) -> tuple[str, str, str]:
        """Key of a row; a new row with the same key replaces the old one."""
        return self.setting, self.metric, str(self.seeds)


_ROWS = pydantic.TypeAdapter(list[Evidence])


def _problems(row: Evidence) -> list[str]:
    found = []
    for name in ("id", "setting", "metric"):
        if not re.fullmatch(r"[a-z0-9][a-z0-9_./+-]*", str(getattr(row, name))) or (name == "id" and "/" in row.id):
            found.append(f"{name}: expected lower-case letters, digits and _ . + -, found {getattr(row, name)!r}")
    numbers = {n: getattr(row, n) for n in ("value", "low", "high", "episodes", "env_steps", "wall_s")}
    for name, value in numbers.items():
        if value is None and name != "value":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            found.append(f"{name}: expected a finite number, found {value!r}. Say in `notes` that nothing came out.")
        elif name in ("episodes", "env_steps") and (not isinstance(value, int) or value < 0):
            found.append(f"{name}: expected a whole number, found {value!r}")
    if found:
        return found
    if (row.low is None) != (row.high is None):
        found.append(f"low and high: give both or neither, found {row.low!r} and {row.high!r}")
    elif row.low is not None and row.high is not None and not row.low <= row.value <= row.high:
        found.append(f"expected low ≤ value ≤ high, found {row.low}, {row.value}, {row.high}")
    if row.metric == "success_rate":
        if not 0 <= row.value <= 1:
            found.append(f"value: a success_rate is a fraction between 0 and 1, found {row.value}")
        if not row.episodes or row.low is None:
            found.append("episodes, low and high: a success_rate needs them; Evidence.of_rows fills them in")
    if not (row.seeds == ALL or (isinstance(row.seeds, int) and not isinstance(row.seeds, bool))):
        found.append(f"seeds: expected a training seed or {ALL!r}, found {row.seeds!r}")
    for name in ("command", "commit", "hardware"):
        if not str(getattr(row, name)).strip():
            found.append(f"{name}: must not be empty; robopolicy.utils.provenance has it")
    for name in ("command", "hardware", "notes"):
        if _MACHINE_PATH.search(str(getattr(row, name))):
            found.append(f"{name}: holds a path of one machine; write it relative to the repository")
    return found


def of_rows(
    rows: EpisodeTable,
    *,
    id: str,
    setting: str,
    seed: int,
    command: str | None = None,
    commit: str | None = None,
    env_steps: int | None = None,
    wall_s: float | None = None,
    notes: str = "",
    criterion: str = "success_once",
) -> Evidence:
    """Return the `success_rate` row of one training seed, with its Wilson interval.

    `commit`: of the training; those that the rows were evaluated at are added, this process's is not.
    """
    rate = rows.success_rate(criterion)
    commits = [*([commit] if commit else []), *rows.commits]
    extra = [notes] if notes else []
    extra += [f"{rows.split} seeds"] if rows.split != "test" else []
    extra += [f"{rows.diverged} episodes diverged, counted as failures"] if rows.diverged else []
    return measured(
        id=id, setting=setting, metric="success_rate", interval=rate, episodes=len(rows), seeds=seed, command=command,
        commit=" ".join(dict.fromkeys(commits)) or None, env_steps=env_steps, wall_s=wall_s, notes="; ".join(extra),
    )  # fmt: skip


def measured(
    *, id: str, setting: str, metric: str, interval: Interval | float, seeds: int | str = ALL,
    episodes: int | None = None, command: str | None = None, commit: str | None = None, env_steps: int | None = None,
    wall_s: float | None = None, notes: str = "",
) -> Evidence:  # fmt: skip
    """Build a row of any metric; command and commit default to those of this process."""
    value, low, high = interval if isinstance(interval, Interval) else (interval, None, None)
    return Evidence(
        id=id, setting=setting, metric=metric, value=value, low=low, high=high, episodes=episodes, seeds=seeds,
        env_steps=env_steps, wall_s=wall_s, command=command or provenance.command(),
        commit=commit or provenance.commit(), hardware=provenance.hardware(), notes=notes,
    )  # fmt: skip


def pooled(rows: Sequence[Evidence]) -> Evidence:
    """Return the row with seeds "all" of the `success_rate` rows of one setting: the mean, and its interval.

    The interval is for *these* policies, not for a new seed; the note gives the range over seeds. It is Wilson's of as
    many episodes as one seed has: all seeds meet the same ones, so those of a further seed are not new ones. env_steps
    and wall_s are the largest of any seed.
    """
    if len({(r.id, r.setting, r.metric, r.command) for r in rows}) != 1 or rows[0].metric != "success_rate":
        raise DataError("pooled: expected success_rate rows of one id, setting and command, one a training seed")
    episodes, fewest = sum(r.episodes or 0 for r in rows), min(r.episodes or 0 for r in rows)
    mean = sum(r.value * (r.episodes or 0) for r in rows) / episodes
    interval = wilson(round(mean * fewest), fewest)
    rates = [100 * r.value for r in rows]
    return replace(
        rows[0],
        value=mean,
        low=min(interval.low, mean),
        high=max(interval.high, mean),
        episodes=episodes,
        seeds=ALL,
        env_steps=max((r.env_steps for r in rows if r.env_steps is not None), default=None),
        wall_s=max((r.wall_s for r in rows if r.wall_s is not None), default=None),
        commit=" ".join(dict.fromkeys(c for r in rows for c in r.commit.split())),
        notes=f"{len(rows)} training seeds, {min(rates):.1f}% to {max(rates):.1f}%",
    )


def read(path: Path | str) -> list[Evidence]:
    """Return the rows of one file.

    Raises:
        DataError: not a list of rows, or a row with missing, unknown or mistyped fields; names file and row.
    """
    path = Path(path)
    data = parse_json(read_text(path, error=DataError), path.name, error=DataError)
    rows = checked(_ROWS, data, path.name, error=DataError)
    wrong = sorted({r.id for r in rows} - {path.stem})
    if wrong:
        raise DataError(f"{path.name}: rows must have the id {path.stem!r}, found {wrong}")
    return rows


def write(rows: Sequence[Evidence], *, root: Path | str = ROOT, keep: bool = True) -> list[Path]:
    """Write rows into their files under `root`.

    A row takes the place of one with the same setting, metric and seeds; other rows stay unless `keep` is False.
    """
    paths = []
    for id in dict.fromkeys(row.id for row in rows):
        path = Path(root) / f"{id}.json"
        merged = {row.key: row for row in (read(path) if keep and path.is_file() else [])}
        merged |= {row.key: row for row in rows if row.id == id}
        lines = ",\n".join("  " + json.dumps(asdict(row), ensure_ascii=False) for row in merged.values())
        paths.append(write_atomically(path, f"[\n{lines}\n]\n"))
    return paths


def read_all(root: Path | str = ROOT) -> dict[str, list[Evidence]]:
    """Return every file of evidence under `root`, by id; `acceptance_criteria.json` is not evidence."""
    return {path.stem: read(path) for path in sorted(Path(root).glob("*.json")) if path.stem != "acceptance_criteria"}
