"""Table with one row an episode, the source of all published numbers."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
from pandas.api.types import is_bool_dtype, is_integer_dtype, is_numeric_dtype

from robopolicy.core.errors import DataError
from robopolicy.core.rng import SPLIT_BITS, SPLITS
from robopolicy.core.types import Metrics
from robopolicy.core.untrusted import read_bytes, refusing
from robopolicy.evaluation.statistics import Interval, wilson
from robopolicy.utils.atomic import write_atomically

# Column → pandas dtype; the order is that of the file.
COLUMNS = {
    "seed": "int64",  # the episode's; which split it belongs to follows from its value (rng.episode_seeds)
    "env": "str",
    "digest": "str",  # hash of every parameter that defines the task
    "task": "str",  # instruction
    "success_once": "bool",  # the success condition held after some step
    "success_at_end": "bool",  # … after the last step
    "return": "float64",  # undiscounted sum of rewards
    "length": "int64",  # primitive steps
    "ended_by": "str",  # success | terminated | truncated | diverged
    "policy": "str",  # checkpoint id
    "deterministic": "bool",  # mode instead of a sample
    "version": "str",  # of the code
    "wall_s": "float64",  # from the episode's start to its end, among its neighbours
}
ENDED_BY = ("success", "terminated", "truncated", "diverged")
CRITERIA = ("success_once", "success_at_end")
OWN = ".own"  # in a version, before a digest of the user's own modules
_LARGEST, _MOST = 2**28, 10**7  # bytes and rows of a file


@dataclass(frozen=True, eq=False, repr=False)
class EpisodeTable:
    """Episodes in the order of their seeds. A diverged episode (physics went non-finite) counts as a failure.

    Raises:
        DataError: a column is missing, an episode occurs twice, or a diverged episode claims success.
    """

    frame: pd.DataFrame

    def __post_init__(self) -> None:
        missing = [name for name in COLUMNS if name not in self.frame.columns]
        if missing:
            raise DataError(f"episode rows: columns {missing} are missing, found {list(self.frame.columns)}")
        _check_kinds(self.frame)
        frame = self.frame[list(COLUMNS)].astype({k: v for k, v in COLUMNS.items() if v != "str"})
        frame = frame.assign(**{k: frame[k].fillna("").astype(str) for k, v in COLUMNS.items() if v == "str"})
        object.__setattr__(self, "frame", frame.reset_index(drop=True))
        unknown = sorted(set(frame["ended_by"]) - set(ENDED_BY))
        if unknown:
            raise DataError(f"episode rows: ended_by must be one of {ENDED_BY}, found {unknown}")
        twice = frame["seed"][frame["seed"].duplicated()].tolist()
        if twice:
            raise DataError(f"episode rows: {len(twice)} seeds occur twice, the first is {twice[0]}")
        if bool((self._diverged & (frame["success_once"] | frame["success_at_end"])).any()):
            raise DataError("episode rows: a diverged episode claims success; it must count as a failure")

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"EpisodeTable({', '.join(dict.fromkeys(self.frame['env']))}: {self.summary()})"

    def _repr_html_(self) -> str:
        """Return the success rates with their intervals for a notebook: of all episodes, and of each instruction."""
        rates = {"all": self.success_rate(), **(found if len(found := self.by_task()) > 1 else {})}
        counts = {**self.frame["task"].value_counts(), "all": len(self)}
        return rates_html(
            [(task, rate, counts[task]) for task, rate in rates.items()],
            caption=f"{', '.join(dict.fromkeys(self.frame['env']))}, {self.split} seeds",
        )

    @property
    def commits(self) -> list[str]:
        """Commits of the code that evaluated them, "+dirty" where it differed from the commit."""
        found = (str(v).partition("+g")[2].partition(OWN)[0] for v in dict.fromkeys(self.frame["version"]))
        return [v.replace(".dirty", "+dirty") for v in found if v]

    @property
    def _diverged(self) -> pd.Series:
        return self.frame["ended_by"] == "diverged"

    @property
    def seeds(self) -> list[int]:
        return self.frame["seed"].tolist()

    @property
    def diverged(self) -> int:
        """Episodes whose physics went non-finite."""
        return int(self._diverged.sum())

    @property
    def split(self) -> str:
        """Return the split of all seeds: "test" and so on, "mixed", or "none" without episodes."""
        found = {seed >> SPLIT_BITS for seed in self.seeds}
        if len(found) != 1:
            return "mixed" if found else "none"
        return next((name for name, number in SPLITS.items() if number in found), "mixed")

    def successes(self, criterion: str = "success_once") -> list[bool]:
        """Return [E] bool in the order of `seeds`."""
        if criterion not in CRITERIA:
            raise DataError(f"criterion must be one of {CRITERIA}, found {criterion!r}")
        return self.frame[criterion].tolist()

    def success_rate(self, criterion: str = "success_once", *, level: float = 0.95) -> Interval:
        """Success rate with its Wilson interval."""
        return wilson(sum(self.successes(criterion)), len(self), level=level)

    def by_task(self) -> dict[str, Interval]:
        """Success rate of each instruction."""
        groups = self.frame.groupby("task", sort=True)["success_once"]
        return {str(task): wilson(int(part.sum()), len(part)) for task, part in groups}

    def task_table(self) -> str:
        """Return a line for each instruction, each after a line break; "" for a single instruction."""
        found = self.by_task()
        if len(found) < 2:
            return ""
        counts = self.frame["task"].value_counts()
        return "".join(f"\n  {100 * rate.value:5.1f}% of {counts[task]:3d}  {task}" for task, rate in found.items())

    def metrics(self) -> Metrics:
        """Return the metrics that training logs under `eval/`."""
        rate = self.success_rate()
        return {
            "success_rate": rate.value,
            "success_low": rate.low,
            "success_high": rate.high,
            "success_at_end": self.success_rate("success_at_end").value,
            "return": float(self.frame["return"].mean()),
            "length": float(self.frame["length"].mean()),
            "episodes": float(len(self)),
            "diverged": float(self.diverged),
        }

    def summary(self) -> str:
        """Return one line: `success 97.0% (95% CI 95.1–98.2), at end 96.4%, 500 episodes of 38 steps`."""
        rate, end = self.success_rate(), self.success_rate("success_at_end")
        if not len(self):
            return "no episodes"
        text = (
            f"success {100 * rate.value:.1f}% (95% CI {100 * rate.low:.1f}–{100 * rate.high:.1f}), "
            f"at end {100 * end.value:.1f}%, {len(self)} episodes of {self.frame['length'].mean():.0f} steps"
        )
        return text + (f", {self.diverged} diverged (counted as failures)" if self.diverged else "")

    def save(self, path: Path | str) -> Path:
        """Write .csv or .parquet, whole or not at all."""
        path = Path(path)
        if path.suffix == ".csv":
            return write_atomically(path, self.frame.to_csv(index=False, lineterminator="\n"))
        if path.suffix == ".parquet":
            buffer = io.BytesIO()
            self.frame.to_parquet(buffer, index=False)
            return write_atomically(path, buffer.getvalue())
        raise DataError(f"episode rows are written as .csv or .parquet, found {path.name!r}")

    @classmethod
    def load(cls, path: Path | str) -> EpisodeTable:
        """Read what `save` wrote.

        Raises:
            DataError: no such file, or not episode rows; names the file.
        """
        path = Path(path)
        if not path.is_file():
            raise DataError(f"{path.name}: no such file of episode rows in {path.parent.name or '.'}/")
        data = read_bytes(path, limit=_LARGEST, error=DataError)
        with refusing(f"{path.name}: not readable as episode rows", DataError), _naming(path):
            if path.suffix == ".parquet":
                with pq.ParquetFile(io.BytesIO(data)) as file:
                    if file.metadata.num_rows > _MOST:
                        raise DataError(f"{path.name}: has {file.metadata.num_rows} rows, expected {_MOST} at most")
                    return cls(file.read(columns=list(COLUMNS)).to_pandas(ignore_metadata=True))
            text = [name for name, kind in COLUMNS.items() if kind == "str"]
            return cls(
                pd.read_csv(
                    io.StringIO(data.decode("utf-8")), float_precision="round_trip", dtype=dict.fromkeys(text, str),
                    keep_default_na=False,
                )
            )  # fmt: skip

    @classmethod
    def concat(cls, parts: Sequence[EpisodeTable]) -> EpisodeTable:
        """Rows of disjoint seeds as one."""
        return cls(pd.concat([part.frame for part in parts], ignore_index=True))


def rates_html(rows: Iterable[tuple[str, Interval, int]], *, caption: str, level: float = 0.95) -> str:
    """Return an HTML table of (name, success rate with its interval of `level`, episodes)."""
    body = "".join(
        f"<tr><td>{escape(name)}</td><td>{100 * rate.value:.1f}%</td><td>{100 * rate.low:.1f}–{100 * rate.high:.1f}%"
        f"</td><td>{episodes}</td></tr>"
        for name, rate, episodes in rows
    )
    head = f"<tr><th></th><th>success</th><th>{100 * level:g}% interval</th><th>episodes</th></tr>"
    return f"<table><caption>{escape(caption)}</caption>{head}{body}</table>"


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        said = str(error)
        raise DataError(said if path.name in said else f"{path.name}: {said}. Is it cut? Evaluate again") from None


def _check_kinds(frame: pd.DataFrame) -> None:
    """Raise DataError where a column holds something else: the text "False" is true, and 0.25 is no success."""
    wanted = {"bool": is_bool_dtype, "int64": is_integer_dtype, "float64": is_numeric_dtype}
    for name, kind in COLUMNS.items():
        if kind in wanted and len(frame) and not wanted[kind](frame[name].dtype):
            raise DataError(f"episode rows: {name}: expected {kind}, found {frame[name].iloc[0]!r} and the like")
