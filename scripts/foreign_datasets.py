"""LeRobot datasets as strangers leave them, each with one thing about it changed; for scripts/foreign_data.py."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robopolicy.core.types import IMAGES, STATE, ActionSpec, Feature
from robopolicy.datasets.lerobot_writer import DatasetWriter

LENGTHS = (5, 4, 6, 4)  # frames of the episodes; two are of one length, so that they can be swapped
TOP, FPS = f"{IMAGES}top", 10
ACTION = ActionSpec(
    names=("dx", "dy"), units=("m", "m"), low=(-0.1, -0.1), high=(0.1, 0.1), frame="world", tcp="point",
    rotation="none", reference="measured", gripper=None, gripper_meaning="",
)  # fmt: skip
NESTED = "[" * 100_000


@dataclass(frozen=True)
class Case:
    """A change and its outcome.

    of: the untouched form. key: what a refusal and `data check` must name. works: the right values come out all the
    same. clean: `data check` finds nothing wrong with it.
    """

    name: str
    of: str
    change: Callable[[Path], None]
    key: str
    works: bool = False
    clean: bool = False


def write(path: Path, *, film: bool, lengths: tuple[int, ...] = LENGTHS) -> None:
    """Four episodes; on film every picture is of one shade, by episode and frame."""
    rng = np.random.default_rng(0)
    observation = {STATE: Feature((3,), names=("x", "y", "z"))}
    observation |= {TOP: Feature((3, 16, 24), "uint8")} if film else {"observation.force": Feature((2, 2))}
    observation |= {"task_index": Feature((), "int64")}
    with DatasetWriter(path, observation=observation, action=ACTION, dt=1 / FPS, tasks=("push", "pull")) as writer:
        for e, length in enumerate(lengths):
            obs: dict[str, Any] = {STATE: rng.normal(size=(length, 3))}
            if film:
                shade = 20 + 55 * e + 10 * np.arange(length)
                obs[TOP] = np.broadcast_to(shade[:, None, None, None], (length, 3, 16, 24)).astype(np.uint8)
            else:
                obs["observation.force"] = rng.normal(size=(length, 2, 2))
            last = np.arange(length) == length - 1
            writer.add_episode(
                obs=obs, action=rng.uniform(-0.1, 0.1, size=(length, 2)), reward=last, success=last, terminated=True,
                task=("push", "pull")[e % 2], seed=100 + e,
            )  # fmt: skip


# -- changes -----------------------------------------------------------------------------------------------------------
def text(file: str, content: str | bytes) -> Callable[[Path], None]:
    return lambda root: (root / file).write_bytes(content.encode() if isinstance(content, str) else content) and None


def put(file: str, *keys: str, to: Any = None, gone: bool = False) -> Callable[[Path], None]:
    """Set or remove a value of a JSON file."""

    def change(root: Path) -> None:
        data = json.loads((root / file).read_text())
        inner = data
        for key in keys[:-1]:
            inner = inner[key]
        if gone:
            del inner[keys[-1]]
        else:
            inner[keys[-1]] = to
        (root / file).write_text(json.dumps(data))

    return change


def rows(folder: str, change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    """Change the table of the one parquet file of a folder."""

    def apply(root: Path) -> None:
        (file,) = [root / folder] if folder.endswith(".parquet") else (root / folder).glob("*/*.parquet")
        table = pq.read_table(file)
        pq.write_table(change(table), file)

    return apply


def column(folder: str, key: str, change: Callable[[list[Any]], Any], kind: Any = None) -> Callable[[Path], None]:
    """Change the values of a column, and its type where `kind` is given."""

    def apply(table: pa.Table) -> pa.Table:
        values = table[key].to_pylist()
        new = change(values)
        array = pa.array(values if new is None else new, type=kind or table.schema.field(key).type)
        return table.set_column(table.column_names.index(key), key, array)

    return rows(folder, apply)


def at(row: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [value if i == row else v for i, v in enumerate(values)]


def each(to: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [to(v) for v in values]


def both(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        for change in changes:
            change(root)

    return apply


def merged(root: Path, *, film: bool) -> None:
    """As by copying a dataset's files beside themselves: every number of an episode is there twice."""
    for folder in ("data", "meta/episodes"):
        file = next((root / folder).glob("*/*.parquet"))
        shutil.copy(file, file.with_name("file-001.parquet"))
    info = json.loads((root / "meta/info.json").read_text())
    info["total_frames"] *= 2
    info["total_episodes"] *= 2
    (root / "meta/info.json").write_text(json.dumps(info))


def pipe(file: str) -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        (root / file).unlink()
        os.mkfifo(root / file)

    return apply


def the_film(change: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda root: change(next(root.glob("videos/**/*.mp4")))


# -- cases -------------------------------------------------------------------------------------------------------------
INFO, NOTE, STATS, TASKS = "meta/info.json", "meta/robopolicy.json", "meta/stats.json", "meta/tasks.parquet"
DATA, TABLE = "data", "meta/episodes"
BEGIN, END = f"videos/{TOP}/from_timestamp", f"videos/{TOP}/to_timestamp"
CHUNK, FILE = f"videos/{TOP}/chunk_index", f"videos/{TOP}/file_index"


def cases() -> Iterator[Case]:
    """Every change of a dataset."""
    yield from _info()
    yield from _note()
    yield from _statistics()
    yield from _tasks()
    yield from _frames()
    yield from _episodes()
    yield from _films()


def _info() -> Iterator[Case]:
    for name, value in {"0": 0, "null": None, "text": "10", "NaN": math.nan, "negative": -10, "true": True,
                        "infinite": math.inf, "a list": [10]}.items():  # fmt: skip
        yield Case(f"fps {name}", "state", put(INFO, "fps", to=value), "fps")
    yield Case("fps missing", "state", put(INFO, "fps", gone=True), "fps")
    for name, value in {"null": None, "text": "19", "a fraction": 19.5, "negative": -1}.items():
        yield Case(f"total_frames {name}", "state", put(INFO, "total_frames", to=value), "total_frames")
    yield Case("more frames than there are", "state", put(INFO, "total_frames", to=40), "40")
    yield Case("total_episodes null", "state", put(INFO, "total_episodes", to=None), "total_episodes")
    yield Case("more episodes than there are", "state", put(INFO, "total_episodes", to=9), "total_episodes", works=True)
    for name, value in {"a list": [], "null": None, "a number": 3}.items():
        yield Case(f"features {name}", "state", put(INFO, "features", to=value), "features")
        yield Case(f"a feature {name}", "state", put(INFO, "features", STATE, to=value), STATE)
    for key, values in {
        "dtype": {"null": None, "unknown": "float33", "a number": 3, "code": "__import__"},
        "shape": {"null": None, "80-dimensional": [3] + [1] * 79, "negative": [-3], "of fractions": [3.0], "text": "3",
                  "another": [4], "huge": [10**15]},
        "names": {"a number": 3, "nested": [["x"], ["y"]], "of nulls": [None, None, None]},
    }.items():  # fmt: skip
        for name, value in values.items():
            yield Case(f"{key} {name}", "state", put(INFO, "features", STATE, key, to=value), STATE)
    yield Case("no dtype", "state", put(INFO, "features", STATE, "dtype", gone=True), f"features.{STATE}.dtype")
    yield Case("no shape", "state", put(INFO, "features", STATE, "shape", gone=True), f"features.{STATE}.shape")
    yield Case("action without dtype", "state", put(INFO, "features", "action", "dtype", gone=True), "features.action")
    yield Case("no action", "state", put(INFO, "features", "action", gone=True), "'action'")
    yield Case("names of a picture, two", "film", put(INFO, "features", TOP, "names", to=["height", "width"]), "names")
    axes = {"axes": ["height", "width", "channels"]}
    yield Case("names of a picture, a dict", "film", put(INFO, "features", TOP, "names", to=axes), "", works=True,
               clean=True)  # fmt: skip
    sizes = {"height": 16, "width": 24, "channels": 3}
    yield Case("names of a picture, sizes", "film", put(INFO, "features", TOP, "names", to=sizes), "", works=True,
               clean=True)  # fmt: skip
    yield Case("a picture of two axes", "film", put(INFO, "features", TOP, "shape", to=[16, 24]), TOP)
    yield Case("a picture of other size", "film", put(INFO, "features", TOP, "shape", to=[24, 16, 3]), TOP)
    for name, value in {
        "of v2.1": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4", "null": None,
        "absolute": "/{video_key}/{chunk_index}/{file_index}", "a number": 3,
        "leading out": "../{video_key}/{chunk_index}/{file_index}",
        "with attributes": "{video_key.__class__}/{chunk_index}/{file_index}",
    }.items():  # fmt: skip
        yield Case(f"video_path {name}", "film", put(INFO, "video_path", to=value), "video_path")
    yield Case("codebase_version null", "state", put(INFO, "codebase_version", to=None), "codebase_version")
    yield Case("codebase_version 3", "state", put(INFO, "codebase_version", to=3), "codebase_version")
    yield Case("codebase_version v2.1", "state", put(INFO, "codebase_version", to="v2.1"), "v2.1")
    for name, content in {"a list": "[]", "null": "null", "empty": "", "nested": NESTED, "not UTF-8": b"\xff\xfe{",
                          "a surrogate": '{"fps": "\\ud800"}', "cut off": '{"fps": 10, '}.items():  # fmt: skip
        yield Case(f"info.json {name}", "state", text(INFO, content), "info.json")
    yield Case("info.json a pipe", "state", pipe(INFO), "info.json")


def _note() -> Iterator[Case]:
    changes: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
        "action": (("action",), {"null": None, "a list": []}),
        "low": (("action", "low"), {"null": None, "text": ["a", "b"], "NaN": [math.nan, -0.1], "above high": [1.0, 1.0],
                                    "short": [-0.1]}),
        "gripper": (("action", "gripper"), {"beyond the channels": 9, "text": "last"}),
        "dt": (("dt",), {"0": 0, "null": None, "NaN": math.nan, "of another rate": 0.05}),
        "tasks": (("tasks",), {"null": None, "numbers": [1, 2], "others": ["fold"]}),
        "version": (("version",), {"text": "1", "null": None, "newer": 99}),
        "outcomes": (("outcomes",), {"unknown": "maybe"}),
        "rename": (
            ("rename",), {"a list": [1], "onto another": {STATE: "observation.force"}, "of nothing": {"x": "y"}},
        ),
    }  # fmt: skip
    named = {"tasks others": "task", "rename onto another": "observation.force", "rename of nothing": "'x'"}
    for key, (place, values) in changes.items():
        for name, value in values.items():
            called = f"{key} {name}"
            yield Case(called, "state", put(NOTE, *place, to=value), named.get(called, key))
    yield Case("robopolicy.json a list", "state", text(NOTE, "[]"), "robopolicy.json")
    yield Case("robopolicy.json nested", "state", text(NOTE, NESTED), "robopolicy.json")
    beyond = both(put(NOTE, "action", "low", to=[-math.inf, -0.1]), column(DATA, "action", at(3, [5.0, 0.0])))
    yield Case("beyond the one limit that is finite", "state", beyond, "action")
    within = put(NOTE, "action", "low", to=[-math.inf, -math.inf])
    yield Case("limits with an infinite end", "state", within, "", works=True, clean=True)


def _statistics() -> Iterator[Case]:
    for name, content in {"a list": "[]", "cut off": "{", "nested": NESTED}.items():
        yield Case(f"stats.json {name}", "state", text(STATS, content), "stats", works=True)
    for name, value in {
        "null": None, "nulls": [None, None], "texts": ["a", "b"], "ragged": [[1.0], [1.0, 2.0]], "objects": {"a": 1},
        "short": [0.0], "infinite": [math.inf, 0.1], "others'": [5.0, 5.0],
    }.items():  # fmt: skip
        yield Case(f"statistics {name}", "state", put(STATS, "action", "max", to=value), "stats: action", works=True)
    yield Case("statistics of a key null", "state", put(STATS, "action", to=None), "stats: action", works=True)
    yield Case("statistics of a key missing", "state", put(STATS, "action", gone=True), "stats: action", works=True)
    yield Case("no stats.json", "state", lambda root: (root / STATS).unlink(), "stats.json", works=True)
    gone = rows(TABLE, lambda t: t.drop_columns(["stats/action/mean"]))
    yield Case("statistics of episodes missing", "state", gone, "stats/action/mean", works=True)


def _tasks() -> Iterator[Case]:
    yield Case("task null", "state", column(TASKS, "task", at(0, None)), "task")
    yield Case("task empty", "state", column(TASKS, "task", at(0, " ")), "task")
    yield Case("tasks are numbers", "state", column(TASKS, "task", lambda v: [1, 2], pa.int64()), "task")
    yield Case("a task_index of tasks null", "state", column(TASKS, "task_index", at(0, None)), "task_index")
    yield Case("a task_index of tasks twice", "state", column(TASKS, "task_index", at(0, 1)), "task_index")
    yield Case("task_index of tasks float", "state", column(TASKS, "task_index", each(float), pa.float64()),
               "task_index")  # fmt: skip
    yield Case("tasks without text", "state", rows(TASKS, lambda t: t.drop_columns(["task"])), "task")
    yield Case("no tasks.parquet", "state", lambda root: (root / TASKS).unlink(), "tasks.parquet")
    yield Case("tasks.parquet damaged", "state", text(TASKS, b"PAR1nonsense"), "tasks.parquet")


def _frames() -> Iterator[Case]:
    for row in (0, 6):
        for name, value in {"NaN": math.nan, "infinite": math.inf, "null": None}.items():
            yield Case(f"timestamp {row} {name}", "state", column(DATA, "timestamp", at(row, value)), "timestamp")
    yield Case("all timestamps NaN", "state", column(DATA, "timestamp", each(lambda v: math.nan)), "timestamp")
    yield Case("timestamps of film NaN", "film", column(DATA, "timestamp", each(lambda v: math.nan)), "timestamp")
    yield Case("timestamps are text", "state", column(DATA, "timestamp", each(str), pa.string()), "timestamp")
    late = column(DATA, "timestamp", lambda v: [t + 0.5 * (5 <= i < 9) for i, t in enumerate(v)])
    yield Case("timestamps of an episode begin late", "film", late, "timestamp")
    for key in ("episode_index", "frame_index", "task_index"):
        yield Case(f"{key} null", "state", column(DATA, key, at(2, None)), key)
        yield Case(f"{key} float", "state", column(DATA, key, each(float), pa.float64()), key)
        yield Case(f"{key} text", "state", column(DATA, key, each(str), pa.string()), key)
        yield Case(f"{key} missing", "state", rows(DATA, lambda t, k=key: t.drop_columns([k])), key)
    yield Case("task_index unknown", "state", column(DATA, "task_index", at(3, 7)), "task_index")
    yield Case("frame_index with a gap", "state", column(DATA, "frame_index", at(3, 4)), "frame_index")
    again = column(DATA, "episode_index", each(lambda e: 0 if e == 2 else e))
    yield Case("an episode twice", "state", again, "episode_index")
    yield Case("an episode twice, on film", "film", again, "episode_index")
    swapped = column(DATA, "episode_index", each(lambda e: {1: 3, 3: 1}.get(e, e)))
    yield Case("episodes swapped", "film", swapped, "episode_index")
    far = column(DATA, "episode_index", each(lambda e: 9 if e == 3 else e))
    yield Case("an episode of another number", "state", far, "episode_index")
    yield Case("merged by copying", "state", lambda root: merged(root, film=False), "episode_index")
    yield Case("merged by copying, on film", "film", lambda root: merged(root, film=True), "episode_index")
    for name, value in {"NaN": [math.nan, 0.0], "infinite": [0.0, math.inf], "too large": [0.2, 0.0]}.items():
        yield Case(f"action {name}", "state", column(DATA, "action", at(3, value)), "action")
    yield Case("an action too short", "state", column(DATA, "action", at(3, [0.0]), pa.list_(pa.float32())), "action")
    yield Case("an action null", "state", column(DATA, "action", at(3, None), pa.list_(pa.float32())), "action")
    yield Case("actions are text", "state", column(DATA, "action", each(str), pa.string()), "action")
    yield Case("no actions", "state", rows(DATA, lambda t: t.drop_columns(["action"])), "action")
    yield Case("state NaN", "state", column(DATA, STATE, at(3, [math.nan] * 3)), STATE)
    yield Case("state null", "state", column(DATA, STATE, at(3, None)), STATE)
    texts = column(DATA, STATE, each(lambda v: [str(x) for x in v]), pa.list_(pa.string()))
    yield Case("state of texts", "state", texts, STATE)
    doubles = column(DATA, STATE, lambda v: None, pa.list_(pa.float64()))
    yield Case("state in doubles", "state", doubles, "", works=True, clean=True)
    for key in ("next.reward", "next.success", "next.done"):
        yield Case(f"{key} null", "state", column(DATA, key, at(2, None)), key)
        yield Case(f"{key} text", "state", column(DATA, key, each(str), pa.string()), key)
    yield Case("reward NaN", "state", column(DATA, "next.reward", at(2, math.nan)), "next.reward")
    yield Case("no rows", "state", rows(DATA, lambda t: t.slice(0, 0)), "frames")
    nothing = both(rows(DATA, lambda t: t.slice(0, 0)), put(INFO, "total_frames", to=0),
                   put(INFO, "total_episodes", to=0))  # fmt: skip
    yield Case("empty, as it says", "state", nothing, "frames")
    yield Case("no data", "state", lambda root: shutil.rmtree(root / DATA), "data")
    yield Case("data damaged", "state", text("data/chunk-000/file-000.parquet", b"PAR1nonsense"), "file-000.parquet")

    def halved(root: Path) -> None:
        file = next((root / DATA).glob("*/*.parquet"))
        table = pq.read_table(file)
        pq.write_table(table.slice(0, 9), file)
        other = table.slice(9)
        index = other["frame_index"].cast(pa.int32())
        pq.write_table(other.set_column(other.column_names.index("frame_index"), "frame_index", index),
                       file.with_name("file-001.parquet"))  # fmt: skip

    yield Case("files of other types", "state", halved, "frame_index")
    for folder in (DATA, TABLE):
        yield Case(f"an AppleDouble in {folder}", "state",
                   text(f"{folder}/chunk-000/._file-000.parquet", b"\x00\x05\x16\x07"), "._file-000.parquet",
                   works=True)  # fmt: skip


def _episodes() -> Iterator[Case]:
    for of in ("state", "film"):
        for name, change in {
            "null": column(TABLE, "episode_index", at(1, None)),
            "float": column(TABLE, "episode_index", each(float), pa.float64()),
            "twice": column(TABLE, "episode_index", at(1, 0)),
            "out of order": column(TABLE, "episode_index", lambda v: [0, 2, 1, 3]),
            "missing": rows(TABLE, lambda t: t.drop_columns(["episode_index"])),
        }.items():
            yield Case(f"episode_index of meta {name} ({of})", of, change, "episode_index")
    yield Case("no row of an episode", "film", rows(TABLE, lambda t: t.slice(1)), "episode_index")
    more = rows(TABLE, lambda t: pa.concat_tables([t, t.slice(3)]))
    yield Case("a row of an episode twice", "film", more, "episode_index")
    yield Case("length wrong", "state", column(TABLE, "length", at(1, 9)), "length")
    yield Case("length null", "state", column(TABLE, "length", at(1, None)), "length")
    other = column(TABLE, "dataset_from_index", at(1, 0))
    yield Case("rows of another episode", "state", other, "dataset_from_index", works=True)
    yield Case("no meta/episodes", "state", lambda root: shutil.rmtree(root / TABLE), "meta/episodes")
    damaged = text("meta/episodes/chunk-000/file-000.parquet", b"PAR1nonsense")
    yield Case("meta/episodes damaged", "state", damaged, "meta/episodes")


def _films() -> Iterator[Case]:
    for name, change in {
        "null": column(TABLE, BEGIN, at(1, None)), "NaN": column(TABLE, BEGIN, at(1, math.nan)),
        "text": column(TABLE, BEGIN, each(str), pa.string()), "negative": column(TABLE, BEGIN, at(0, -0.1)),
        "missing": rows(TABLE, lambda t: t.drop_columns([BEGIN])),
        "a frame early": column(TABLE, BEGIN, lambda v: [v[0], v[1] - 0.1, *v[2:]]),
        "a frame late": column(TABLE, BEGIN, lambda v: [v[0], v[1] + 0.1, *v[2:]]),
    }.items():  # fmt: skip
        yield Case(f"from_timestamp {name}", "film", change, "from_timestamp" if "late" not in name else "timestamp")
    for name, value in {"null": None, "NaN": math.nan, "infinite": math.inf, "before the begin": 0.1, "0": 0.0,
                        "late": 1.4}.items():  # fmt: skip
        yield Case(f"to_timestamp {name}", "film", column(TABLE, END, at(1, value)), "timestamp")
    yield Case("to_timestamp missing", "film", rows(TABLE, lambda t: t.drop_columns([END])), "to_timestamp")

    def spans(order: list[int], by: float = 0.0) -> Callable[[Path], None]:
        return both(*(column(TABLE, k, lambda v: [v[i] + by for i in order]) for k in (BEGIN, END)))

    yield Case("spans swapped", "film", spans([0, 3, 2, 1]), "from_timestamp")
    yield Case("spans of another episode", "film", spans([0, 3, 2, 3]), "from_timestamp")
    yield Case("all spans a frame late", "film", spans([0, 1, 2, 3], 0.1), TOP)
    yield Case("all spans a frame early", "film", spans([0, 1, 2, 3], -0.1), "from_timestamp")
    shifted = both(*(column(TABLE, k, lambda v: [*v[:2], v[2] - 0.1, v[3]]) for k in (BEGIN, END)))
    yield Case("a span shifted", "film", shifted, "from_timestamp")
    for key in (CHUNK, FILE):
        yield Case(f"{key} float", "film", column(TABLE, key, each(float), pa.float64()), key)
        yield Case(f"{key} null", "film", column(TABLE, key, at(2, None)), key)
        yield Case(f"{key} negative", "film", column(TABLE, key, at(0, -1)), "file_index")
        yield Case(f"{key} of no film", "film", column(TABLE, key, at(3, 7)), "7")
    yield Case("no film", "film", the_film(Path.unlink), TOP)
    yield Case("film cut off", "film", the_film(lambda f: f.write_bytes(f.read_bytes()[:-900]) and None), TOP)
    yield Case("film is text", "film", the_film(lambda f: f.write_text("not a film") and None), TOP)
    yield Case("film is a pipe", "film", the_film(both(Path.unlink, os.mkfifo)), TOP)
    yield Case("film of fewer pictures", "film", _shorter, TOP)


def _shorter(root: Path) -> None:
    """The film of an equal dataset whose last episode is missing."""
    other = root.with_name(f"{root.name}-shorter")
    write(other, film=True, lengths=LENGTHS[:-1])
    shutil.copy(next(other.glob("videos/**/*.mp4")), next(root.glob("videos/**/*.mp4")))
    shutil.rmtree(other)
