"""Datasets, HDF5 files and vector envs of strangers, each with one thing changed: the right values or a named refusal.

    python scripts/foreign_data.py [--only WORD] [--record]

A case is right where the public reader gives exactly the values of the untouched form, or refuses by an error of ours
that names the key. `robopolicy data check` must name each defect too, and never end in another exception. Changes of
vector envs are those of scripts/foreign_envs.py.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from robopolicy.cli.main import main as command_line
from robopolicy.core.errors import RobopolicyError
from robopolicy.datasets.episodes import Episodes
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.real.datasets.convert import convert
from robopolicy.reporting.result_rows import measured, write
from scripts import foreign_datasets, foreign_hdf5
from scripts.foreign_datasets import Case

METRICS = ("cases", "wrong_values", "foreign_exceptions", "unfound_by_data_check")


@dataclass
class Templates:
    """Untouched forms by name, made once, and what is read of them."""

    root: Path
    made: dict[str, tuple[Path, Episodes]] = field(default_factory=dict)

    def get(self, kind: str) -> tuple[Path, Episodes]:
        if kind not in self.made:
            path = self.root / kind
            if kind in foreign_hdf5.OPTIONS:
                foreign_hdf5.write(path, kind)
            else:
                foreign_datasets.write(path, film=kind == "film")
            self.made[kind] = path, read(path, kind, self.root / f"{kind}-out")
        return self.made[kind]


def read(path: Path, kind: str, out: Path) -> Episodes:
    """By the public reader."""
    if kind not in foreign_hdf5.OPTIONS:
        return load_episodes(path)
    with contextlib.redirect_stdout(io.StringIO()):
        convert(recording=path, out=out, hdf5=foreign_hdf5.OPTIONS[kind])
    return load_episodes(out)


def same(a: Episodes, b: Episodes, chosen: int | None = None) -> bool:
    """Whether `a` holds exactly what `b` does, or what its episode `chosen` does."""
    rows = slice(None) if chosen is None else slice(*b.starts[chosen : chosen + 2].tolist())
    pairs = [(a.obs[k], b.obs[k][rows]) for k in b.obs if k in a.obs]
    pairs += [(getattr(a, k), getattr(b, k)[rows]) for k in ("action", "reward", "terminated", "success")]
    alike = a.obs.keys() == b.obs.keys() and a.tasks == b.tasks and a.dt == b.dt
    return alike and all(x.shape == y.shape and torch.equal(x, y) for x, y in pairs)


def problems(case: Case, templates: Templates, scratch: Path) -> Iterator[tuple[str, str]]:
    """(metric, what happened) of everything that is not as it should be."""
    untouched, expected = templates.get(case.of)
    path = scratch / "it"
    shutil.copytree(untouched, path)
    case.change(path)
    try:
        if not same(read(path, case.of, scratch / "out"), expected):
            yield "wrong_values", "other values were read"
        elif not case.works:
            yield "wrong_values", "was taken, expected a refusal"
    except RobopolicyError as error:
        if case.works or case.key not in str(error):
            yield "wrong_values", f"refused without naming {case.key!r}: {error}"
    except Exception as error:
        yield "foreign_exceptions", f"reading: {error!r}"
    for episode in (0, 1, 3) if case.of not in foreign_hdf5.OPTIONS else ():
        try:
            if not same(load_episodes(path, episodes=[episode]), expected, episode):
                yield "wrong_values", f"other values were read of episode {episode}"
        except RobopolicyError:
            pass
        except Exception as error:
            yield "foreign_exceptions", f"reading episode {episode}: {error!r}"
    yield from _checked(case, path)


def _checked(case: Case, path: Path) -> Iterator[tuple[str, str]]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            code = command_line(["data", "check", f"dataset={path}"])
    except Exception as error:
        yield "foreign_exceptions", f"data check: {error!r}"
        return
    if case.clean and code != 0:
        yield "wrong_values", f"data check blames what is right: {said.getvalue()}"
    elif not case.clean and (code != 1 or case.key not in said.getvalue()):
        yield "unfound_by_data_check", f"data check does not name {case.key!r}: {said.getvalue()}"


def envs() -> Iterator[tuple[str, Callable[[], None]]]:
    """Cases of scripts/foreign_envs.py."""
    from scripts import foreign_envs

    yield from foreign_envs.cases()


def run_env(play: Callable[[], None]) -> Iterator[tuple[str, str]]:
    try:
        play()
    except AssertionError as error:
        yield "wrong_values", str(error)
    except Exception as error:
        yield "foreign_exceptions", repr(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--record", action="store_true", help="write docs/results/foreign_data.json too")
    args = parser.parse_args()
    counts: dict[str, Counter[str]] = {name: Counter() for name in ("datasets", "hdf5", "envs")}

    def note(setting: str, name: str, found: Iterator[tuple[str, str]]) -> None:
        counts[setting]["cases"] += 1
        for metric in {metric: print(f"{setting}, {name}: {metric}: {text}") for metric, text in found}:
            counts[setting][metric] += 1

    with tempfile.TemporaryDirectory() as folder:
        templates = Templates(Path(folder))
        for setting, cases in (("datasets", foreign_datasets.cases()), ("hdf5", foreign_hdf5.cases())):
            for case in (c for c in cases if args.only in c.name):
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    note(setting, case.name, problems(case, templates, Path(scratch)))
    for name, play in envs():
        if args.only in name:
            note("envs", name, run_env(play))
    whole: Counter[str] = sum(counts.values(), Counter())
    rows = [
        measured(id="foreign_data", setting=setting, metric=metric, interval=float(found[metric]))
        for setting, found in {**counts, "all": whole}.items()
        for metric in METRICS
        if not (setting == "envs" and metric == "unfound_by_data_check")
    ]
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in rows), sep="\n")
    if args.record:
        print(*write(rows, keep=False), file=sys.stderr)
    sys.exit(any(whole[m] for m in METRICS[1:]))


if __name__ == "__main__":
    main()
