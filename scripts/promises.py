"""Keeps every promise of README.md and docs/ by the built wheel in an empty environment, away from the checkout.

    python scripts/promises.py                      # all; about half an hour of one core
    python scripts/promises.py --only look pages    # look: compose, parse and look up, nothing runs
    python scripts/promises.py --jobs 2 --record    # writes docs/results/promises.json

Pages of docs/bring_your_own and docs/lerobot.md run as they stand. Commands of other blocks run small
(scripts/promise_runs.py), each block in a folder of its own. What prose says in passing is composed or looked up
(scripts/promise_check.py). scripts/promise_list.py says what counts as a promise, and what is not run and why.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.reporting.result_rows import measured, write
from scripts.promise_list import AS_THEY_STAND, ELSEWHERE, Promise, collect, plain, programs, words
from scripts.promise_runs import Failed, Sandbox, Wheel, small

ROOT = Path(__file__).resolve().parents[1]
Work = Callable[[], None]
PARTS = ("entry", "look", "pages", "run")
GYMNASIUM = "import gymnasium as g; g.make('{0}').reset(seed=0); g.make_vec('{0}', 2).reset(seed=0)"
LEROBOT = (
    "from lerobot.configs.parser import load_plugin as load; from lerobot.envs.configs import EnvConfig as Env; "
    "load('robopolicy.lerobot_plugin'); assert 'robopolicy' in Env.get_known_choices()"
)
PARSED = """
import argparse, runpy, sys
real = argparse.ArgumentParser.parse_known_args
def parse(self, *a, known=False, **k):
    _, rest = real(self, *a, **k)
    sys.exit(0 if known or not rest else f"unknown: {rest}")
argparse.ArgumentParser.parse_args = parse
argparse.ArgumentParser.parse_known_args = lambda self, *a, **k: parse(self, *a, known=True, **k)
sys.argv = sys.argv[1:]
if sys.argv[0] == "-m":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
sys.exit("it reads no arguments")
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--pages", default="", help="a part of the names of pages")
    parser.add_argument("--timeout", type=float, default=600, help="of one command, in seconds")
    parser.add_argument("--jobs", type=int, default=1, help="blocks that run at the same time")
    parser.add_argument("--record", action="store_true", help="write docs/results/promises.json")
    options = parser.parse_args()
    if options.record and (set(options.only) != set(PARTS) or options.pages):
        parser.error("--record: a record is of all promises; leave --only and --pages out")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leaves no process behind
    promises = [p for p in collect() if options.pages in p.page]
    with tempfile.TemporaryDirectory(prefix="promises") as name:
        kept = Keeper(Wheel(Path(name)), promises, options.timeout)
        with ThreadPoolExecutor(options.jobs) as pool:
            for part in options.only:
                list(pool.map(lambda work: work(), getattr(kept, part)()))
    for promise, why in kept.failed.items():
        print(f"FAILED {promise}\n       {why}")
    for promise, why in kept.not_run.items():
        print(f"not run: {promise}: {why}")
    total = len(kept.seen | set(kept.failed) | set(kept.not_run))
    print(f"{total} promises, {len(kept.failed)} failed, {len(kept.not_run)} not run")
    if options.record:
        whys = "; ".join(sorted(set(kept.not_run.values())))
        counts = {"promises": total, "failed": len(kept.failed), "not_run": len(kept.not_run)}
        rows = [
            measured(id="promises", setting="docs", metric=m, interval=n, notes=whys if m == "not_run" else "")
            for m, n in counts.items()
        ]
        write(rows, root=ROOT / "docs" / "results")
    return bool(kept.failed)


class Keeper:
    """Tries promises, part by part, and remembers what came of them.

    A part yields what may run at the same time.
    """

    def __init__(self, wheel: Wheel, promises: list[Promise], timeout: float) -> None:
        self.wheel, self.promises, self.timeout = wheel, promises, timeout
        self.seen: set[str] = set()
        self.failed: dict[str, str] = {}
        self.not_run: dict[str, str] = {}
        self._boxes = itertools.count(1)
        (wheel.folder / "shelf").mkdir()

    def box(self) -> Sandbox:
        folder = self.wheel.folder
        return Sandbox(folder / f"box{next(self._boxes)}", folder / "shelf", self.wheel.env, self.timeout)

    def judge(self, promise: object, why: str) -> None:
        self.seen.add(str(promise))
        if why:
            self.failed[str(promise)] = why
            print(f"FAILED {promise}: {why}", file=sys.stderr, flush=True)

    def attempt(self, promise: object, box: Sandbox, command: list[str]) -> None:
        began = time.monotonic()
        try:
            box.run(command)
        except Failed as error:
            self.judge(promise, str(error))
        else:
            self.judge(promise, "")
            print(f"{time.monotonic() - began:4.0f} s {promise}", file=sys.stderr, flush=True)

    # ---- the parts -------------------------------------------------------------------------------------------

    def entry(self) -> Iterator[Work]:
        """Console script, module, help of every verb, and what other packages find by entry points."""
        box = self.box()
        said = subprocess.run(["robopolicy", "--help"], env=self.wheel.env, capture_output=True, text=True, check=True)
        verbs = re.findall(r"^  ([a-z]+(?: [a-z]+)?)  ", said.stdout, re.MULTILINE)
        table = re.findall(r"^\| `([a-z ]+)` \|", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE)
        self.judge("docs/commands.md: its table of verbs", " ".join(sorted(set(verbs) ^ set(table))))
        page = (ROOT / "docs" / "bring_your_own" / "gym_env.md").read_text()
        ids = dict.fromkeys(re.findall(r"[\w.]+:robopolicy/\w+-v\d+", page))
        for command in (
            ["robopolicy", "--version"], ["robopolicy", "doctor"], ["python", "-m", "robopolicy", "--help"],
            *(["robopolicy", *verb.split(), "--help"] for verb in verbs),
            *(["python", "-c", GYMNASIUM.format(id)] for id in ids),
            ["python", "-c", LEROBOT],
        ):  # fmt: skip
            yield functools.partial(self.attempt, f"entry point: {shlex.join(command)}", box, command)

    def look(self) -> Iterator[Work]:
        """Compose, parse and look up, without running anything."""
        inside = [p for p in self.promises if p.kind in ("option", "key", "import", "name") or p.ours]
        answers = self.wheel.ask(inside, "verdict")
        known = evidence_words() | ELSEWHERE.keys()
        for promise in inside:
            why = answers[str(promise)]
            if promise.kind == "name" and promise.text.split("(")[0].split(".")[-1] in known:
                why = ""
            if "which is not installed" in why:
                self.not_run[str(promise)] = "needs the extra `bench`: a gigabyte, and Vulkan"
            else:
                self.judge(promise, why)
        for promise in self.promises:
            if promise.kind == "path":
                self.judge(promise, missing_path(promise))
            elif promise.kind == "link":
                self.judge(promise, missing_link(promise))
            elif promise.kind == "flag":
                self.judge(promise, self.flag(promise))
            elif promise.kind == "command" and promise.why_not:
                self.not_run[str(promise)] = promise.why_not
            elif promise.kind == "command" and promise.text.startswith("python "):
                yield functools.partial(self.parse, promise)

    def parse(self, promise: Promise) -> None:
        """The arguments of a script are parsed, and it stops there."""
        command = words(promise.text)[1:]
        command[0] = str(ROOT / command[0]) if command[0] != "-m" else command[0]
        box = self.box()
        (box.folder / "parsed.py").write_text(PARSED)
        self.attempt(promise, box, ["python", "parsed.py", *command])

    def flag(self, promise: Promise) -> str:
        """Why no program of the page takes a flag."""
        flags = re.findall(r"--([\w.-]+)", promise.text)
        page = (ROOT / promise.page).read_text()
        scripts = [ROOT / p for p in set(re.findall(r"scripts/\w+\.py", page)) if (ROOT / p).exists()]
        known = {f for p in scripts for f in re.findall(r'"--([\w-]+)"', p.read_text())}
        known |= {
            "allow",
            "config-dir",
            "help",
            "cfg",
            "debug",
            "multirun",
            "options",
            "ros-args",
            "checkpoint",
            "wiring",
        }
        known |= set(re.findall(r"--([\w.-]+)", "\n".join(p.text for p in self.promises if p.kind == "command")))
        if "lerobot-" in page:  # LeRobot's options are fields of its configs
            known |= {f for f in flags if f.split(".")[-1] in self.wheel.words("lerobot")}
        missing = [f for f in flags if f not in known]
        return f"unknown: {missing}" if missing else ""

    def pages(self) -> Iterator[Work]:
        """Pages that run as they stand: their Python, files and commands, in order."""
        for page in dict.fromkeys(p.page for p in self.promises if AS_THEY_STAND.fullmatch(p.page)):
            yield functools.partial(self.page, page)

    def page(self, page: str) -> None:
        box = self.box()
        box.env["PYTHONPATH"] = str(box.folder)
        for number, (kind, code) in enumerate(programs((ROOT / page).read_text())):
            if kind not in ("python", "bash"):
                (box.folder / kind).parent.mkdir(parents=True, exist_ok=True)
                (box.folder / kind).write_text(code)
                continue
            program = box.folder / f"program{number}"
            program.write_text(code if kind == "python" else f"set -e\n{code}")
            self.attempt(f"{page}: {kind} {number}: {code.strip().splitlines()[-1]}", box, [kind, program.name])

    def run(self) -> Iterator[Work]:
        """Commands of blocks, small."""
        chosen = [p for p in self.promises if p.ours and p.block >= 0]
        keys = self.wheel.ask(chosen, "keys")
        for _, block in itertools.groupby(chosen, lambda p: (p.page, p.block)):
            yield functools.partial(self.block, list(block), keys)

    def block(self, promises: Sequence[Promise], keys: Mapping[str, Mapping[str, object]]) -> None:
        box = self.box()
        for promise in promises:
            if promise.why_composed:
                self.not_run[str(promise)] = f"composed alone: {promise.why_composed}"
                continue
            command = words(promise.text)
            try:
                box.provide(command)
            except Failed as error:
                self.judge(promise, f"what it names could not be made: {error}")
                continue
            self.attempt(promise, box, small(command, keys[str(promise)]))


def missing_path(promise: Promise) -> str:
    """Why a path is none: from the top, or below a package (`networks/language.py`)."""
    text = re.sub(r"<\w+>", "*", plain(promise.text)).rstrip("/")
    tried = (text, f"robopolicy/{text}", f"real/{text}", f"tests/real/{text}")
    return "" if any(next(ROOT.glob(t), None) for t in tried) else "no such file"


def missing_link(promise: Promise) -> str:
    """Why a link leads nowhere."""
    name, _, anchor = promise.text.partition("#")
    page = ROOT / promise.page
    target = (page.parent / name).resolve() if name else page
    if not target.exists():
        return f"{name}: no such file"
    return f"#{anchor}: no such heading" if anchor and anchor not in anchors(target) else ""


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    """What links may name: headings as GitHub spells them, and ids."""
    text = page.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ +(.+?) *$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.MULTILINE)
    linked = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    names = [re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in linked]
    return frozenset([*names, *re.findall(r'(?:id|name)="([^"]+)"', text)])


@functools.cache
def evidence_words() -> frozenset[str]:
    """Words of recorded results, scripts and tests, which pages name beside those of the packages."""
    found: set[str] = set()
    for folder, pattern in (("docs/results", "*.json"), ("scripts", "*.py"), ("tests", "**/*.py")):
        for path in (ROOT / folder).glob(pattern):
            found |= {path.stem, *re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    return frozenset(found)


if __name__ == "__main__":
    sys.exit(main())
