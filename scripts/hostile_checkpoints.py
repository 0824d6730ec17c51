"""Load thousands of hostile checkpoints, configs, recordings and wire messages: nothing may run, change or crash.

Valid inputs of every kind are made, and each of their nodes, names and bytes is changed (hostile_mutations.py); what
comes of it is read as the program reads it (hostile_inputs.py), in processes of its own. Python's audit hooks say what
was started, opened for writing, moved or removed. Every outcome must be success or an error of ours.

    scripts/hostile_checkpoints.py --record
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import io
import itertools
import json
import logging
import multiprocessing
import os
import queue
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent.parent))

PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty",
             "pty.spawn", "os.startfile")  # fmt: skip
WRITES = {"os.remove": 1, "os.rename": 2, "os.rmdir": 1, "os.mkdir": 1, "os.link": 2, "os.symlink": 2, "os.truncate": 1,
          "os.chmod": 1, "os.chown": 1, "os.utime": 1, "os.setxattr": 1, "shutil.rmtree": 1,
          "shutil.move": 2}  # fmt: skip
BESIDE = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link")  # whose last arguments are folders' numbers
HERE = ("127.0.0.1", b"127.0.0.1", "localhost", b"localhost", None)  # hosts that may be looked up
SECONDS, BYTES = 60.0, 2**30  # that a case may take


class Result(NamedTuple):
    """What came of one case."""

    kind: str
    label: str
    outcome: str  # loaded | refused | foreign | slow | large | crashed
    detail: str = ""
    processes: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        return self.outcome not in ("loaded", "refused") or bool(self.processes or self.outside)


class TooSlowError(BaseException):
    """The case's time is up."""


class Watch:
    """Python's audit hook, which can never be taken off again: it looks while `inside` is set."""

    def __init__(self) -> None:
        self.inside: Path | None = None
        self.processes: list[str] = []
        self.outside: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.inside is None:
            return
        if event in PROCESSES:
            self.processes.append(f"{event} {args[:2]!r}"[:200])
        elif event == "open":
            path, mode, flags = args
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if isinstance(path, str | bytes) and (writes or (isinstance(mode, str) and set(mode) & set("wax+"))):
                self._touch(event, path)
        elif event in WRITES:
            count = WRITES[event]
            for path, place in zip(args[:count], [*args[-count:]], strict=True):
                if isinstance(path, str | bytes | os.PathLike):
                    beside = isinstance(place, int) and place >= 0 and event in BESIDE
                    self._touch(event, os.path.join(f"/proc/self/fd/{place}", os.fsdecode(path)) if beside else path)
        elif event == "socket.connect" and args[1][0] != "127.0.0.1":
            self.processes.append(f"{event} {args[1]!r}")
        elif event == "urllib.Request" or (event == "socket.getaddrinfo" and args[0] not in HERE):
            self.processes.append(f"{event} {args[:2]!r}"[:200])

    def _touch(self, event: str, path: Any) -> None:
        inside, self.inside = self.inside, None  # do not count the calls made here
        try:
            found = os.path.realpath(os.fsdecode(path))
            if inside is not None and not Path(found).is_relative_to(inside) and found != os.devnull:
                self.outside.append(f"{event} {found}")
        finally:
            self.inside = inside


watch = functools.cache(Watch)  # one a process: hooks add up


class Worker:
    """Makes a kind's valid input once, and runs its cases."""

    def __init__(self, kind: str, root: Path, seed: int) -> None:
        from scripts.hostile_inputs import KINDS

        self.name, self.kind, self.root = kind, KINDS[kind], root.resolve()
        self.outside, self.valid, self.case = (self.root / n for n in ("outside", "valid", "case"))
        for folder in (self.outside, self.valid):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        (self.outside / "kept").write_text('{"kept": 1}')
        with silent():
            warm()
            self.kind.make(self.valid)
            for use in self.kind.uses:  # compiled, imported and warm; and valid, or nothing would be shown
                self._copy()
                use(self.case)
        self.before = self._digest()
        self.watch = watch()
        self.stream = self.kind.changes(self.valid, self.outside, random.Random(seed))
        signal.signal(signal.SIGALRM, self._late)

    def run(self, number: int, mutation: Any) -> Result:
        self._copy()
        label, detail, outcome = mutation.label, "", "loaded"
        from scripts.hostile_inputs import sign

        mutation.change(self.case)
        if self.kind.signed:
            sign(self.case, mutation.file)
        use = self.kind.uses[number % len(self.kind.uses)]
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.watch.processes, self.watch.outside = [], []
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        self.watch.inside = self.case
        try:
            with silent():
                use(self.case)
        except TooSlowError:
            outcome = "slow"
        except BaseException as error:
            from robopolicy.core.errors import RobopolicyError

            outcome = "refused" if isinstance(error, RobopolicyError) else "foreign"
            where = traceback.extract_tb(error.__traceback__)[-1]
            detail = f"{type(error).__name__}: {str(error)[:300]!a}"
            if outcome == "foreign":
                frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
                where = frames[-1] if frames else where
                detail += f" at {Path(where.filename).name}:{where.lineno}"
        finally:
            self.watch.inside = None
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        if 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - grown) > BYTES:
            outcome, detail = "large", detail
        outside = list(self.watch.outside)
        if self._digest() != self.before:
            outside.append("files outside differ")
            self.before = self._digest()
        return Result(self.name, f"{label} [{use.__name__}]", outcome, detail, tuple(self.watch.processes),
                      tuple(outside))  # fmt: skip

    def _late(self, number: int, frame: FrameType | None) -> None:
        raise TooSlowError

    def _copy(self) -> None:
        shutil.rmtree(self.case, ignore_errors=True)
        shutil.copytree(self.valid, self.case, symlinks=True)

    def _digest(self) -> str:
        found = {str(p): p.read_bytes() if p.is_file() else b"" for p in sorted(self.outside.rglob("*"))}
        return hashlib.sha256(repr(found).encode()).hexdigest()


def warm() -> None:
    """Import all that a node may name: libraries make folders of their own when they are imported."""
    from robopolicy.config import registry
    from robopolicy.core.errors import RobopolicyError

    for slot in registry._SLOTS:
        for name in registry.names(slot):
            with contextlib.suppress(ImportError, RobopolicyError):  # what is not installed
                registry.resolve({"_target_": name}, slot)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def work(kind: str, root: Path, seed: int, first: int, count: int, line: Connection) -> None:
    """Run cases `first` to `count` of a kind; say which before each, and what came of it after."""
    _quiet()
    worker = Worker(kind, root, seed)
    for number, mutation in enumerate(itertools.islice(worker.stream, count)):
        if number >= first:
            line.send((number, mutation.label))
            line.send(worker.run(number, mutation))
    line.send(None)


def run_kind(kind: str, root: Path, seed: int, count: int) -> Iterator[Result]:
    """All cases of a kind; a process that ends, or does not answer, is a result too, and another takes its place."""
    first, context = 0, multiprocessing.get_context("spawn")
    while first < count:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(kind, root, seed, first, count, there), daemon=True)
        process.start()
        there.close()
        case: tuple[int, str] | None = None
        ended = False
        try:
            while wait([here], timeout=3 * SECONDS + (0 if case else 600)):
                message = here.recv()
                if message is None:
                    ended = True
                    break
                if isinstance(message, Result):
                    yield message
                    first, case = first + 1, None
                else:
                    case = message
        except EOFError:
            pass
        process.kill()
        process.join()
        if ended:
            return
        if case is None:
            raise RuntimeError(f"{kind}: its valid input cannot be made or read; see above")
        yield Result(kind, case[1], "crashed", f"exit status {process.exitcode}")
        first = case[0] + 1


def attack(kinds: list[str], count: int, seed: int, root: Path, jobs: int) -> Iterator[Result]:
    """All kinds, `jobs` at a time; 0: in this process, without protection from what crashes or hangs it."""
    each = -(-count // len(kinds))
    if not jobs:
        _quiet()
        for kind in kinds:
            worker = Worker(kind, root / kind, seed)
            yield from (worker.run(i, m) for i, m in enumerate(itertools.islice(worker.stream, each)))
        return
    found: queue.SimpleQueue[Result | BaseException | None] = queue.SimpleQueue()

    def one(kind: str) -> None:
        try:
            for result in run_kind(kind, root / kind, seed, each):
                found.put(result)
        except BaseException as error:
            found.put(error)
        found.put(None)

    with ThreadPoolExecutor(jobs) as pool:
        for kind in kinds:
            pool.submit(one, kind)
        left = len(kinds)
        while left:
            message = found.get()
            if isinstance(message, BaseException):
                pool.shutdown(cancel_futures=True)
                raise message
            left -= message is None
            if isinstance(message, Result):
                yield message


def _quiet() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)


def table(results: list[Result]) -> str:
    """Failures first, then a line for each kind."""
    lines = [
        f"{r.kind}: {r.outcome}: {r.label}\n    {r.detail}" + "".join(f"\n    {x}" for x in (*r.processes, *r.outside))
        for r in results if r.bad
    ]  # fmt: skip
    outcomes = ("loaded", "refused", "foreign", "slow", "large", "crashed")
    lines.append(f"{'kind':18}" + "".join(f"{name:>9}" for name in ("cases", *outcomes)) + "  processes  outside")
    for kind in dict.fromkeys(r.kind for r in results):
        own = [r for r in results if r.kind == kind]
        found = Counter(r.outcome for r in own)
        lines.append(
            f"{kind:18}{len(own):9}" + "".join(f"{found[name]:9}" for name in outcomes)
            + f"{sum(len(r.processes) for r in own):11}{sum(len(r.outside) for r in own):9}"
        )  # fmt: skip
    return "\n".join(lines)


def rows(results: list[Result], seconds: float) -> list[Any]:
    from robopolicy.reporting.result_rows import measured

    kinds = Counter(r.kind for r in results)
    loaded = sum(r.outcome == "loaded" for r in results)
    notes = f"{', '.join(f'{k} {n}' for k, n in kinds.items())}; {loaded} loaded, the others refused; {seconds:.0f} s"
    counts = {
        "cases": len(results),
        "processes_started": sum(len(r.processes) for r in results),
        "files_outside": sum(len(r.outside) for r in results),
        "foreign_exceptions": sum(r.outcome not in ("loaded", "refused") for r in results),
    }
    return [measured(id="hostile_checkpoints", setting="all", metric=k, interval=float(v), notes=notes if k == "cases"
                     else "") for k, v in counts.items()]  # fmt: skip


def main() -> None:
    from scripts.hostile_inputs import KINDS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="cases, of all kinds together")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="kinds at a time; 0: all in this process")
    parser.add_argument("--record", action="store_true", help="write docs/results/hostile_checkpoints.json too")
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    results, begun = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hostile-") as root:
        for result in attack(args.kinds, args.count, args.seed, Path(root), args.jobs):
            results.append(result)
            if result.bad or len(results) % 500 == 0:
                print(len(results), result if result.bad else "", file=sys.stderr, flush=True)
    print(table(results))
    found = rows(results, time.monotonic() - begun)
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in found), sep="\n")
    if args.record:
        from robopolicy.reporting.result_rows import write

        print(*write(found), file=sys.stderr)
    sys.exit(any(r.bad for r in results))


if __name__ == "__main__":
    main()
