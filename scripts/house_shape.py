"""Measures the shape of the source: circles, imports upwards, long modules and functions, doubled names, words, size.

    python scripts/house_shape.py                      # prints the figures and every place that counts
    python scripts/house_shape.py --record             # writes docs/results/house_shape.json
    python scripts/house_shape.py --before 7502b92 --record     # and house_size.json: lines now beside those of then

Two figures are measured by running: files that one off-policy step and update touch, and calls of this project from an
override on the command line to the constructor that it reaches.
"""

from __future__ import annotations

import argparse
import ast
import functools
import io
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.algos.residual import ResidualTD3
from robopolicy.cli.main import invoke
from robopolicy.reporting.result_rows import measured, write
from robopolicy.training import off_policy

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("robopolicy", "sim", "real", "world_models", "configs")
MODULE, FUNCTION = 250, 60  # lines
ROOMS = (  # a room may import those before it, and itself
    "core", "utils", "config", "datasets", "networks", "policies", "envs", "buffers", "runs", "evaluation", "algos",
    "reporting", "training", "doctor", "sim", "world_models", "real", "cli", "api",
    "lerobot_plugin",
)  # fmt: skip
KEPT = {("sim/arm.py", "hand"), ("sim/suites/metaworld.py", "hand")}  # the hand of a robot
WORDS = frozenset((  # private words that the field's have replaced, as names anywhere
    "doubters", "doubt", "exam", "Exam", "Marks", "behave", "decline", "Decline", "tee", "turns", "coordinates",
    "Coordinates", "Place", "deal", "remind", "remember", "told", "instruct", "sees", "hand", "Hand", "Order",
    "sight", "Sight", "operated", "brain", "Brain", "ledger", "Ledger", "propose", "governor", "Governor", "ladder",
    "sighted", "tuned", "judge", "Scores", "standing", "owed", "imperfection", "company",
))  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="commit whose lines are counted too")
    parser.add_argument("--record", action="store_true", help="write docs/results/house_shape.json, house_size.json")
    options = parser.parse_args()
    shape = {name: sorted(places()) for name, places in (COUNTED | RAN).items()}
    for name, places in shape.items():
        print(f"{name}: {len(places)}", *(places if name != "calls_to_constructor" else ()), sep="\n    ")
    rows = [measured(id="house_shape", setting="source", metric=k, interval=len(v)) for k, v in shape.items()]
    size = [measured(id="house_size", setting="now", metric="lines", interval=lines(ROOT))]
    if options.before:
        with tempfile.TemporaryDirectory() as folder:
            command = ["git", "archive", options.before, *FOLDERS]
            packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(folder, filter="data")
            size.append(measured(id="house_size", setting="before", metric="lines", interval=lines(Path(folder))))
    for row in size:
        print(f"{row.setting}: {row.value:.0f} lines")
    if options.record:
        write(rows, root=ROOT / "docs" / "results")
        write(size, root=ROOT / "docs" / "results")
    return 0


# ---- files and imports -------------------------------------------------------------------------------------------


def sources(root: Path = ROOT) -> dict[str, Path]:
    """{module: file} of everything that is installed."""
    found = {}
    for folder in FOLDERS:
        for path in (root / folder).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join(parts if folder == "robopolicy" else ("robopolicy", *parts))] = path
    return found


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports() -> dict[str, set[str]]:
    """{module: modules that it imports}, at the top or in functions; not for types alone."""
    modules, found = sources(), {}
    for module, path in modules.items():
        whole, names = tree(path), set()
        typing = {id(n) for i in ast.walk(whole) if isinstance(i, ast.If) and ast.unparse(i.test) == "TYPE_CHECKING"
                  for n in ast.walk(i)}  # fmt: skip
        for node in ast.walk(whole):
            if id(node) in typing:
                continue
            if isinstance(node, ast.Import):
                names |= {a.name for a in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = [f"{node.module}.{a.name}" for a in node.names]
                names |= {name if name in modules else node.module for name in inner}
        found[module] = {n for n in names if n in modules} - {module}
    return found


def circles() -> Iterator[str]:
    """Sets of modules that import one another (Tarjan 1972)."""
    graph, index, low = imports(), dict[str, int](), dict[str, int]()
    stack: list[str] = []

    def visit(v: str) -> Iterator[str]:
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in graph[v]:
            if w not in index:
                yield from visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            circle = stack[stack.index(v) :]
            del stack[stack.index(v) :]
            if len(circle) > 1:
                yield " ".join(sorted(circle))

    for module in graph:
        if module not in index:
            yield from visit(module)


def upwards() -> Iterator[str]:
    rank = {room: number for number, room in enumerate(ROOMS)}
    for module, others in imports().items():
        for other in others:
            here, there = (rank.get((m.split(".") + [""])[1]) for m in (module, other))
            if here is not None and there is not None and there > here:
                yield f"{module} imports {other}"


# ---- lengths, names, words ---------------------------------------------------------------------------------------


def long_modules() -> Iterator[str]:
    for path in sources().values():
        if (count := len(path.read_text().splitlines())) > MODULE:
            yield f"{path.relative_to(ROOT)}: {count}"


def long_functions() -> Iterator[str]:
    for path in sources().values():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef) and (count := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION:
                yield f"{path.relative_to(ROOT)}: {node.name}: {count}"


def doubled_names() -> Iterator[str]:
    """Classes that share a name."""
    where = defaultdict(list)
    for path in sources().values():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                where[node.name].append(str(path.relative_to(ROOT)))
    yield from (f"{name}: {', '.join(paths)}" for name, paths in where.items() if len(paths) > 1)


def words() -> Iterator[str]:
    for path in sources().values():
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        counts = Counter(t.string for t in tokens if t.type == tokenize.NAME and t.string in WORDS)
        counts.update({path.stem} & WORDS)
        here = str(path.relative_to(ROOT))
        yield from (f"{here}: {word} ({count})" for word, count in counts.items() if (here, word) not in KEPT)


def lines(root: Path) -> int:
    """Lines of code: no blank ones, no comments, no docstrings."""
    total = 0
    for path in sources(root).values():
        text = path.read_text()
        kept: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
                                  tokenize.ENDMARKER):  # fmt: skip
                kept |= set(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
                kept -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        total += len(kept)
    return total


COUNTED: dict[str, Callable[[], Iterator[str]]] = {
    "circles": circles, "upward_imports": upwards, "long_modules": long_modules, "long_functions": long_functions,
    "doubled_class_names": doubled_names, "private_words": words,
}  # fmt: skip


# ---- by running --------------------------------------------------------------------------------------------------

TRAIN = ("algo=residual", "task=reach", "base=zero_action", "num_envs=8", "validation_episodes=0", "tracker=quiet",
         "threads=1", "loop.total_steps=2_000", "loop.warmup_steps=800", "loop.critic_only_updates=1",
         "algo.actor_lr=1e-3")  # fmt: skip
CONFIG_ROOMS = ("robopolicy/cli", "robopolicy/config", "robopolicy/training", "robopolicy/runs")


@functools.cache
def ours(name: str) -> str:
    """The path of a file of this project from its root; "" for other files."""
    path = Path(name).resolve()
    inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in FOLDERS
    return str(path.relative_to(ROOT)) if inside else ""


class Calls:
    """Calls of this project's functions while it is entered, or until `until` is called: how many, by file."""

    def __init__(self, until: Callable[..., Any] | None = None) -> None:
        self.files: Counter[str] = Counter()
        self.until = None if until is None else until.__code__

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        if frame.f_code is self.until:
            sys.setprofile(None)
            return
        if file := ours(frame.f_code.co_filename):
            self.files[file] += 1

    def __enter__(self) -> Calls:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


def files_to_gradient() -> Iterator[str]:
    """Files that one env step and the updates after it touch, but for the simulator's own."""
    counts: list[Counter[str]] = []
    collect = off_policy.collect

    def counted(state: Any, *, warmup: bool) -> int:
        nonlocal calls
        calls.__exit__()
        if calls.files:
            counts.append(calls.files)
        calls = Calls()
        if not warmup:
            calls.__enter__()
        return collect(state, warmup=warmup)

    calls = Calls()
    off_policy.collect = counted
    try:
        with tempfile.TemporaryDirectory() as folder:
            invoke("train", *TRAIN, run_dir=Path(folder) / "run")
    finally:
        calls.__exit__()
        off_policy.collect = collect
    middle = sorted(counts, key=lambda c: c.total())[len(counts) // 2]
    yield from (f"{file}: {count} calls" for file, count in middle.items() if not file.startswith("sim/"))


def calls_to_constructor() -> Iterator[str]:
    """Calls from the command line to the constructor that `algo.actor_lr` reaches, in the rooms that read configs."""
    with tempfile.TemporaryDirectory() as folder, Calls(until=ResidualTD3.__init__) as calls:
        invoke("train", *TRAIN, run_dir=Path(folder) / "run")
    for file, count in calls.files.items():
        if file.startswith(CONFIG_ROOMS):
            yield from (f"{file} {n}" for n in range(count))


RAN: dict[str, Callable[[], Iterator[str]]] = {
    "files_to_gradient": files_to_gradient, "calls_to_constructor": calls_to_constructor,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
