"""What README.md and docs/ promise: every command, option, key, file, name and link that they write down.

The rules are by form alone, so that a new page is read without an entry here. `NOT_RUN` says what stays untried, by
pattern and with its reason; `STANDS_FOR` says what placeholders such as `<id>` are read as.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```(python|yaml|bash)(?: title=\"([\w/.]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROOT = Path(__file__).resolve().parents[1]
GENERATED = ROOT / "docs" / "results.md"  # rows of the past: each command ran at the commit that its row names
PROGRAMS = ("robopolicy", "lerobot-train", "lerobot-eval", "python", "pip", "ros2", "bash", "./scripts/")
ROOTS = (  # keys that hold others in the configs of the verbs
    "algo", "bag", "coevolve", "drive", "expert", "grid", "hdf5", "imitate", "loop", "offline", "one_step", "online",
    "policy", "task", "tracker",
    "variants", "world", "world_model", "world_model_report",
)  # fmt: skip
VERBS = (
    "compare", "convert", "demos", "deploy", "eval", "export", "gate", "pipeline", "quickstart", "refine", "replay",
    "report", "robustness", "serve", "teleop", "train",
)  # fmt: skip
FILES = (".py", ".md", ".yaml", ".sh", ".json", ".in", ".txt", ".toml")
OUTPUT = ("runs/", "data/", "policies/", "bags", "my_", "<", "train/", "eval/", "places/", "rough/", "first_try/",
          "meta/", "model/", "round_")  # fmt: skip

STANDS_FOR = {
    "<experiment>": "metaworld_residual", "--base … --refined …": "--base a --refined b",
    "<verb>": "train", "<id>": "CartPole-v1", "<package>": "gymnasium_robotics", "<suite>": "metaworld",
    "<task>": "push-v3", "<name>": "mujoco_panda", "<folder>": "recorded", "<dataset>": "data",
    "<setting>": "tcp_speed",
    "<run>": "runs", "<lerobot-train run, or hub:owner/name>": "runs/base", "task=…": "task=pick", "…": "somewhere",
    "[key=value …]": "", " … ": " ", "processes=K": "processes=2", "[lockstep=true]": "lockstep=true",
    "residual*": "residual", "$s": "0",
    "suite=metaworld_…": "suite=metaworld_mt10", "suite=libero_…": "suite=libero_10",
}  # fmt: skip

NOT_RUN: tuple[tuple[str, str], ...] = (  # (pattern of the text, why nothing is run); the first that matches counts
    (r"^(\./scripts/|bash |\w+=\S+ \./scripts/)", "sets up or checks a checkout: CI runs these on a fresh clone"),
    (r"^ros2 ", "needs a ROS 2 installation, which no wheel brings"),
    (r"^pip install", "asks a package index"),
    (r"^python -m lerobot\.scripts\.convert_dataset", "LeRobot's own, for a dataset of an older format"),
    (r"^robopolicy gate", "needs rollouts with successes, which a base of twenty updates has not"),
    (r"^python -m pytest", "CI runs the tests"),
    (r"^python -m mkdocs", "CI builds the site; `serve` runs until Ctrl-C"),
)


ELSEWHERE = {  # names that no file writes out as they are
    "joint_trajectory_controller": "ros2_control's",
    "forward_position_controller": "ros2_control's",
    "object_y": "sim makes names of features from an object and an axis",
    "cube_z": "likewise",
    "loop_trailed": "real/ros2/diagnostics.py puts `loop_` before the loop's counts",
}
COMPOSED = (  # commands of blocks that are composed or parsed, and not run
    (r"^robopolicy .*gamepad", "needs a gamepad"),
    (r"^robopolicy .*spacemouse", "needs a SpaceMouse"),
    (r"^robopolicy .*(server=|host=0)", "needs another machine, a certificate and a key"),
    (r"^robopolicy (teleop|.*operator=)", "needs a human at a terminal"),
    (r"^robopolicy .*device=cuda", "needs a GPU and weights from the hub"),
    (r"^robopolicy .*(libero|maniskill|robosuite)", "needs the extra `bench`: a gigabyte, and Vulkan"),
    (r"^robopolicy .*(bag\.wiring|runs/dppo out=policies)", "needs the bag of an arm, or LeRobot's weights"),
    (r"^robopolicy .*risk=", "needs a critic that trains for minutes"),
    (r"^python ", "measures for minutes to hours"),
)


@dataclass(frozen=True)
class Promise:
    page: str
    line: int
    kind: str  # command, option, key, flag, path, link, import, name
    text: str
    block: int = -1  # of commands: which block of the page they stand in; -1: none, they are prose

    @property
    def why_not(self) -> str:
        """Why it is not run; empty where it is."""
        return next((why for pattern, why in NOT_RUN if self.kind == "command" and re.search(pattern, self.text)), "")

    @property
    def ours(self) -> bool:
        """A command of the wheel's own."""
        ours = self.kind == "command" and self.text.startswith(("robopolicy ", *(f"{v} " for v in VERBS)))
        return ours and not (self.block >= 0 and AS_THEY_STAND.fullmatch(self.page))

    @property
    def why_composed(self) -> str:
        """Why a command of a block is composed or parsed alone; empty where it runs."""
        return next((why for pattern, why in COMPOSED if re.search(pattern, self.text)), "")

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.kind} `{self.text}`"


def pages() -> list[Path]:
    return [p for p in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if p != GENERATED]


def collect() -> list[Promise]:
    """Every promise of every page, in order; the same text twice on a page is one."""
    found: dict[tuple[str, str, str], Promise] = {}
    for page in pages():
        for promise in promises(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))):
            found.setdefault((promise.page, promise.kind, promise.text), promise)
    return list(found.values())


AS_THEY_STAND = re.compile(r"docs/(bring_your_own/\w+|lerobot)\.md")  # pages whose blocks run whole


def promises(text: str, page: str) -> Iterator[Promise]:
    """The promises of one page."""
    prose = text
    for match in re.finditer(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
        prose = prose.replace(match[0], re.sub(r"[^\n]", "", match[0]), 1)
        if match[2] in ("bash", "text", ""):
            line = text.count("\n", 0, match.start(3)) + 1
            yield from (Promise(page, line + n, "command", c, line) for n, c in commands(match[3]))
    for match in re.finditer(r"^ {4}\S[^\n]*\n(?: {4,}[^\n]*\n)*", prose, re.MULTILINE):
        if match[0].strip().startswith(PROGRAMS):
            prose = prose.replace(match[0], re.sub(r"[^\n]", "", match[0]), 1)
            line = text.count("\n", 0, text.index(match[0])) + 1
            yield from (Promise(page, line + n, "command", c, line) for n, c in commands(match[0]))
    for match in re.finditer(r"\]\(([^)\s]+)\)", prose):
        if "://" not in match[1]:
            yield Promise(page, prose.count("\n", 0, match.start()) + 1, "link", match[1])
    for match in re.finditer(r"(?<!`)`([^`]+)`(?!`)", prose):
        if "\n\n" not in match[1]:
            span = " ".join(match[1].split())
            if kind := kind_of(span):
                yield Promise(page, prose.count("\n", 0, match.start()) + 1, kind, span)


def programs(text: str) -> Iterator[tuple[str, str]]:
    """("python" | "bash" | file name, code) in the order of execution.

    Python code stands on the lines that it has in the page, so that the numbers in a traceback are the page's.
    """
    lines: list[str] = []
    for match in BLOCK.finditer(text):
        language, file, code = match.groups()
        if language == "bash":
            if any(lines):
                yield "python", "\n".join(lines) + "\n"
                lines = []
            yield "bash", code
        elif file:
            yield file, code
        elif language == "python":
            lines += [""] * (text.count("\n", 0, match.start(3)) - len(lines)) + code.splitlines()
    if any(lines):
        yield "python", "\n".join(lines) + "\n"


def commands(block: str) -> Iterator[tuple[int, str]]:
    """(line, command) of a shell block: continued lines joined, comments gone."""
    held, begin = "", 0
    for number, line in enumerate(block.splitlines()):
        held, begin = (f"{held}\n{line}", begin) if held else (line.strip(), number)
        if held.endswith("\\"):
            held = held[:-1]
            continue
        try:
            split = shlex.split(plain(held), comments=True)
        except ValueError:  # a quotation that goes on
            continue
        if held.startswith(PROGRAMS) and split:
            yield begin, shlex.join(split)
        held = ""


def plain(text: str) -> str:
    """The text with its placeholders filled in."""
    for mark in sorted(STANDS_FOR, key=len, reverse=True):
        text = text.replace(mark, STANDS_FOR[mark])
    return text


def words(text: str) -> list[str]:
    try:
        return shlex.split(plain(text))
    except ValueError:
        return []


def kind_of(span: str) -> str:
    """What a piece of inline code promises; empty: nothing that could be tried."""
    if span.startswith(("./scripts/", *(f"{p} " for p in PROGRAMS))):
        return "command"
    parts = words(span)
    if parts and parts[0] in VERBS and len(parts) > 1 and all("=" in p for p in parts[1:]):
        return "command"
    if span.startswith("--") and not re.search(r"[,…]", span.split("=")[0]):
        return "flag"
    settings = parts and all(re.match(r"(\+\+?|~)?[a-z_][\w.@]*(=|$)", p) for p in parts) and "=" in span
    if settings and not re.search(r"\(|, \w+=", span):  # no call's arguments
        return "key" if span.endswith("=") else "option"
    if re.fullmatch(rf"~?({'|'.join(ROOTS)})(\.[\w<>*]+)+=?", span) and not span.endswith(FILES):
        return "key"
    if re.fullmatch(r"[\w.*<>-]+(/[\w.*<>-]+)+/?", span) and (span.endswith(FILES) or span.startswith("configs/")):
        return "" if span.startswith(OUTPUT) else "path"
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/", span):
        return "" if span.startswith(OUTPUT) else "path"
    if re.fullmatch(r"robopolicy(\.\w+)+(\(.*\))?", span):
        return "import"
    if re.fullmatch(r"[A-Za-z]\w+(\.\w+)*(\(.*\))?", span) and re.search(r"[a-z0-9]_[a-z]|[a-z][A-Z]|\(", span):
        return "" if span.startswith(OUTPUT) else "name"
    return ""
