"""Read the files of a run, complete or not, so that failed runs have a report too."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from robopolicy.core.errors import ConfigError, DataError, RobopolicyError
from robopolicy.core.untrusted import WANDB, check_links, parse_json, read_bytes, read_json, refusing
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.video import INDEX
from robopolicy.reporting.played import holds_evaluations_alone, older_checkpoint, played_run
from robopolicy.runs.inputs import unchanged_input
from robopolicy.runs.run_dir import read_config
from robopolicy.utils.provenance import PROVENANCE

# Files of a complete run directory, and the purpose of each.
PIECES = {
    "config.yaml": "the resolved configuration",
    "spec.json": "the policy's observation and action spec",
    "metrics.jsonl": "learning curves",
    PROVENANCE: "command, commit, versions and hardware",
}

_LARGEST = 2**30  # bytes of metrics.jsonl
_MARKS = ("best", "deterministic", "validation")


def label(name: str = "", *, checkpoint: str = "", deterministic: bool = False, split: str = "test") -> str:
    """Label of `episodes-<label>.csv`: `name`, and the differences from the usual evaluation.

    The usual one is of the newest checkpoint, sampled, on test episodes; without a name it is "" (`episodes.csv`).

    Args:
        checkpoint: "" for the newest, else "best" or its own name.

    Raises:
        ConfigError: `name` is no name of a file, or would be taken for one of another evaluation.
    """
    marks = [checkpoint, "deterministic" if deterministic else "", split if split != "test" else ""]
    parts = name.split("-")
    for part in parts:
        if part not in marks and (part in _MARKS or part.startswith("step_")):
            raise ConfigError(f"name {name!r}: {part!r} marks evaluations of another kind. Give another name.")
    if Path(name).name != name or name == "..":  # the folder of its films would be the run's own
        raise ConfigError(f"name {name!r}: becomes part of a file name. Give one without '/', and not '..'.")
    return "-".join(p for p in (name, *(m for m in marks if m not in parts)) if p)


@dataclass(frozen=True)
class Evaluation:
    """One file of rows: `episodes-<label>.csv` is named <label>, `episodes.csv` after the run, or its policy's."""

    name: str
    rows: EpisodeTable
    aside: bool = False  # not of the newest checkpoint, or not sampled: see `label`
    label: str = ""  # of the file; "" for episodes.csv


@dataclass(frozen=True)
class Video:
    path: Path
    kind: str  # single | pair
    label: str
    outcome: str  # success | failure | "" where no index says so; pairs: "failure | success"
    seed: int | None


@dataclass(frozen=True)
class Run:
    """A run directory in memory; absent pieces are empty and named in `missing`."""

    path: Path
    config: str = ""
    spec: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    videos: list[Video] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    parents: int = 0  # folders before its own in its name: see `distinct_runs`

    @property
    def name(self) -> str:
        return "/".join(self.path.resolve().parts[-1 - self.parents :])

    @property
    def base(self) -> Path | None:
        """Directory of the run that this one refined, where it still lies there unchanged."""
        return self._named_in_config("base")

    @property
    def demonstrations(self) -> Path | None:
        """Directory of the dataset that this run learned from, where it still lies there unchanged."""
        return self._named_in_config("dataset")

    def _named_in_config(self, key: str) -> Path | None:
        with contextlib.suppress(RobopolicyError):
            path = (read_config(self.path) or {}).get(key)
            return unchanged_input(self.path, key, path) if isinstance(path, str) else None
        return None

    @property
    def warmup_steps(self) -> int:
        """Env steps before the first update; 0 where the loop has no warm-up."""
        with contextlib.suppress(RobopolicyError):
            loop = (read_config(self.path) or {}).get("loop")
            steps = loop.get("warmup_steps") if isinstance(loop, dict) else 0
            return steps if is_finite(steps) and isinstance(steps, int) else 0
        return 0

    def curve(self, key: str, x: str = "step") -> tuple[list[float], list[float]]:
        """Finite values of `key` against `x`, in the order logged."""
        pairs = [(m[x], m[key]) for m in self.metrics if is_finite(m.get(key)) and is_finite(m.get(x))]
        return [float(a) for a, _ in pairs], [float(b) for _, b in pairs]


def read_run(path: Path | str) -> Run:
    """Everything under a run directory, or a folder of evaluations, that can be read.

    Raises:
        DataError: no such directory.
    """
    path = Path(path)
    if not path.is_dir():
        raise DataError(f"{path.name}: no such run directory. A run directory holds {', '.join(PIECES)}.")
    check_links(path, apart=WANDB, where=path.name, error=DataError)
    pieces = {PROVENANCE: PIECES[PROVENANCE]} if holds_evaluations_alone(path) else PIECES
    missing = [f"{name} ({meaning})" for name, meaning in pieces.items() if not (path / name).is_file()]
    metrics, torn = _metrics(path / "metrics.jsonl")
    if torn:
        missing.append(f"metrics.jsonl: {torn} unreadable line{'s' * (torn > 1)} left out")
    evaluations, broken = _evaluations(path)
    missing += broken
    if not evaluations:
        missing.append("episodes*.csv or episodes*.parquet (evaluated episodes)")
    videos = _videos(path)
    if not videos:
        missing.append("videos/ (filmed episodes)")
    config = _text(path / "config.yaml") if (path / "config.yaml").is_file() else ""
    try:
        read_config(path)
    except RobopolicyError as error:
        missing.append(str(error))
    spec, provenance = (_json(path / name, missing) for name in ("spec.json", "provenance.json"))
    return Run(path, config, spec, provenance, metrics, evaluations, videos, missing)


def distinct_runs(runs: Sequence[Run]) -> list[Run]:
    """Return `runs`, each once, those of one name with as many parent folders in it as tell them apart."""
    found = list({run.path.resolve(): run for run in runs}.values())
    deepest = max((len(run.path.resolve().parts) for run in runs), default=0)
    for _ in range(deepest):
        repeated = Counter(run.name for run in found)
        found = [replace(run, parents=run.parents + 1) if repeated[run.name] > 1 else run for run in found]
    return [_renamed(run) if run.parents else run for run in found]


def _renamed(run: Run) -> Run:
    """Return a run whose own episodes have its name."""
    folder = run.path.resolve().name
    own = [replace(e, name=run.name + e.name.removeprefix(folder)) if not e.label and e.name.startswith(folder) else e
           for e in run.evaluations]  # fmt: skip
    return replace(run, evaluations=own)


def _json(path: Path, missing: list[str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return read_json(path, error=DataError, finite=False)
    except DataError:
        missing.append(f"{path.name}: not readable as a JSON object")
        return {}


def _text(path: Path) -> str:
    """Return the readable part of a text file."""
    try:
        return read_bytes(path, limit=_LARGEST, error=DataError).decode("utf-8", errors="replace")
    except DataError as error:
        return f"not readable: {error}"


def _metrics(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Objects of a JSON-lines file and the number of lines that are none (a kill can tear the last one)."""
    rows, torn = list[dict[str, Any]](), 0
    for line in _text(path).splitlines() if path.is_file() else []:
        row = None
        with contextlib.suppress(DataError):
            row = parse_json(line, path.name, error=DataError, finite=False)
        if isinstance(row, dict):
            rows.append(row)
        else:
            torn += bool(line.strip())
    return rows, torn


def _evaluations(path: Path) -> tuple[list[Evaluation], list[str]]:
    found, broken = [], []
    files = [f for pattern in ("episodes*.csv", "episodes*.parquet") for f in path.glob(pattern)]
    for file in sorted(files, key=lambda f: ("base" not in f.stem, f.stem)):  # the base comes first
        try:
            rows = EpisodeTable.load(file)
        except DataError as error:
            broken.append(str(error))
            continue
        if len(rows):
            name = label = re.sub("^[-_ ]", "", file.stem.removeprefix("episodes"))
            aside = any(p in ("best", "deterministic") or p.startswith("step_") for p in name.split("-"))
            if not aside and (older := older_checkpoint(path, set(rows.frame["policy"]), own=not name)):
                name, aside = f"{name or path.resolve().name}, {older}", True
                broken.append(f"{file.name}: of {older}, which is not the newest checkpoint. Evaluate again")
            own = played_run(rows.frame["policy"]) if len(files) > 1 and holds_evaluations_alone(path) else ""
            found.append(Evaluation(name or own or path.resolve().name, rows, aside, label))
    return found, broken


def _videos(path: Path) -> list[Video]:
    """Return the films of a run; those of an older checkpoint than its newest say so."""
    found, folder = list[Video](), path / "videos"
    for file in sorted(folder.rglob("*.mp4")) if folder.is_dir() else []:
        if any(part.startswith(".") for part in file.relative_to(folder).parts):
            continue
        entry = _index(file.parent).get(file.name, {})
        label = entry.get("label") or (file.parent.name if file.parent != folder else "")
        label = ", ".join(filter(None, (str(label), older_checkpoint(path, [entry.get("policy", "")]))))
        seed = entry["seed"] if isinstance(entry.get("seed"), int) else None
        found.append(Video(file, str(entry.get("kind", "single")), label, str(entry.get("outcome", "")), seed))
    return found


def _index(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        with refusing(INDEX, DataError):
            data = read_bytes(folder / INDEX, error=DataError)
            return {str(e["file"]): dict(e) for e in parse_json(data, INDEX, error=DataError)}
    except DataError:
        return {}


def is_finite(value: Any) -> bool:
    """Return whether a logged value is a number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
