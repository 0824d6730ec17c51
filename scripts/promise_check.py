"""Run by scripts/promises.py with the Python of an environment that has the wheel alone: composes and looks up.

`verdict`: reads promises as JSON on stdin; its last line is JSON, {promise: "" where it holds, else why not}.
`keys`: {promise: the keys of its composed command, with their values}.

An option holds where it composes in a context: a command of its own page first, then each verb with each of its groups'
options. A key written without its path (`penalty=3`) is read as every key that ends so.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from robopolicy.cli.verbs import VERBS, find_verb
from robopolicy.config.compose import compose, group_options
from robopolicy.config.hydra_configs import config_folder
from robopolicy.config.sweeps import first_job
from robopolicy.core.errors import RobopolicyError
from robopolicy.core.trees import flatten

TRIES = 12  # contexts that an option may be tried in, where many know its keys
FILLED = {"mount": "tool", "board.columns": "7", "board.rows": "4", "board.square_m": "0.03"}  # keys that must be given
OPEN = "=somewhere"  # how scripts/promise_list.py reads `key=…`
Context = tuple[str, ...]  # verb, then overrides
ALONE = ("--config-dir", "--allow")  # options of the command line with a value


def main() -> None:
    asked = json.load(sys.stdin)
    for promise in asked:
        promise["words"] = [without_gpu(word) for word in promise["words"]]
    own: dict[str, list[Context]] = {}  # contexts of a page: its own commands
    for promise in asked:
        if promise["kind"] == "command" and (context := split(promise["words"])):
            own.setdefault(promise["page"], []).append(context)
    if sys.argv[1] == "keys":
        answers: dict[str, Any] = {p["id"]: flat(split(p["words"])) for p in asked}
    else:
        answers = {p["id"]: verdict(p, own.get(p["page"], [])) for p in asked}
    print("\n" + json.dumps(answers, default=str))


def without_gpu(word: str) -> str:
    """`device=cuda` is refused where there is no GPU; the rest of a command can be checked all the same."""
    return "device=cpu" if word == "device=cuda" and not torch.cuda.is_available() else word


def verdict(promise: dict[str, Any], own: list[Context]) -> str:
    kind, words = promise["kind"], promise["words"]
    try:
        if kind == "command":
            context = split(words)
            return "" if context is None else problem(context)
        if kind == "option":
            return option(words, own)
        if kind == "key":
            return key(words[0].strip("~=").rstrip("."), own)
        if kind == "import":
            return imported(promise["text"].split("(")[0])
        if kind == "name":
            name = promise["text"].split("(")[0].split(".")[-1]
            return "" if name in vocabulary() else f"{name}: nothing in the wheel is called so"
    except RobopolicyError as error:
        return str(error)
    return f"unknown kind {kind}"


# ---- options and keys --------------------------------------------------------------------------------------------


def split(words: Sequence[str]) -> Context | None:
    """(verb, overrides) of a `robopolicy` command; None where it has none to compose."""
    words = list(words[1:] if words and words[0] == "robopolicy" else words)
    for option in ALONE:
        while option in words:
            at = words.index(option)
            del words[at : at + 2]
    if "--multirun" in words:
        words = one_job(words)
    words = [w for w in words if not w.startswith(("--", "$"))]
    if not words:
        return None
    verb = " ".join(words[:2]) if " ".join(words[:2]) in VERBS else words[0]
    overrides = words[len(verb.split()) :]
    if verb not in VERBS:
        raise RobopolicyError(f"unknown verb {verb!r}")
    return None if not VERBS[verb].config else (verb, *overrides)


def one_job(words: Sequence[str]) -> list[str]:
    """Return the words of a sweep's first job, without those for launcher and sweeper."""
    first = iter(first_job([w for w in words if "=" in w]))
    return [w if "=" not in w else next(first) for w in words if not w.lstrip("+").startswith("hydra")]


@functools.cache
def problem(context: Context, also: str = "") -> str:
    """Why a context does not compose; empty where it does."""
    verb = find_verb(context[0])
    given = list(context[1:])
    for name in needed(context[0]):
        if not any(o.split("=")[0].lstrip("+~") == name for o in given):
            given.append(f"{name}={FILLED.get(name, 'somewhere')}")
    try:
        compose(verb, given)
    except RobopolicyError as error:
        return str(error)
    return ""


@functools.cache
def needed(verb: str) -> list[str]:
    return [k for k, v in flat((verb,)).items() if v == "???"]


@functools.cache
def flat(context: Context | None) -> dict[str, Any]:
    """Return the keys of a composed command; none where it has no config, or does not compose."""
    if context is None:
        return {}
    try:
        return flatten(compose(find_verb(context[0]), context[1:], checked=False))
    except RobopolicyError:
        return {}


@functools.cache
def contexts() -> list[Context]:
    """Each verb, with each option of its groups, and the pairs that belong together."""
    groups = group_options()
    found: list[Context] = [(verb,) for verb, about in VERBS.items() if about.config]
    for algo in groups["algo"]:
        found += [("train", f"algo={algo}", "task=pick"), ("train", f"algo={algo}", "world=imagined")]
    found += [("train", "algo=bc", f"policy={policy}") for policy in groups["policy"]]
    found += [
        ("train", f"algo={a}", f"world_model={m}")
        for a in ("world_model", "trajectories")
        for m in groups["world_model"]
    ]
    found += [("train", f"policy={p}", f"network={n}") for p in ("diffusion", "flow") for n in groups["network"]]
    found += [("eval", f"task={task}") for task in groups["task"]]
    found += [(verb, "task=pick") for verb in ("demos", "robustness")]
    found += [("eval", f"suite={suite}") for suite in groups["suite"]]
    found += [("train", "world=recorded"), ("eval", "task=tabletop", "variants=language")]
    found += [("train", f"tracker={tracker}") for tracker in groups["tracker"]]
    return found


def likely(keys: Sequence[str], own: list[Context]) -> list[Context]:
    """Contexts that know most of the keys, or at least what holds them; those of the page first."""
    both = list(dict.fromkeys([*own, *contexts()]))

    def known(context: Context) -> int:
        return sum(2 * holds(context, key) + holds(context, key.rpartition(".")[0]) for key in keys)

    scores = {context: known(context) for context in both}
    most = max(scores.values())
    found = [c for c in both if scores[c] == most]
    return found[:TRIES] if most >= 2 * len(keys) else found  # keys that no YAML writes out: any may take them


def holds(context: Context, key: str) -> bool:
    return key in nodes(context)


@functools.cache
def nodes(context: Context) -> frozenset[str]:
    """Keys of a composed command, and what holds them."""
    parts = [key.split(".") for key in flat(context)]
    return frozenset(".".join(names[:n]) for names in parts for n in range(1, len(names) + 1))


def joined(context: Context, words: Sequence[str]) -> Context:
    """The context with further words in place of those that set the same keys."""
    mine = {w.lstrip("+~").split("=")[0] for w in words}
    return (*(w for w in context if "=" not in w or w.lstrip("+~").split("=")[0] not in mine), *words)


def option(words: Sequence[str], own: list[Context]) -> str:
    """Why no context takes the words together; empty where one does."""
    open_ones = [w for w in words if w.endswith(OPEN)]
    if open_ones:  # `task.horizon=…`: a key, without a value to try
        words = [w for w in words if w not in open_ones]
        why = next(filter(None, (key(w.lstrip("+~").split("=")[0], own) for w in open_ones)), "")
        if why or not words:
            return why
    words = one_job(words)
    keys = [w.lstrip("+~").split("=")[0] for w in words]
    if not any("." in k or top(k) for k in keys):
        return ending(words, keys)
    first = ""
    for context in likely(keys, own):
        why = problem(joined(context, words))
        if not why:
            return ""
        first = first or f"{' '.join(context)}: {why}"
    return first


def ending(words: Sequence[str], keys: Sequence[str]) -> str:
    """Why nothing takes keys that are written without their path (`penalty=3`), or as those of a Python call."""
    for context in contexts():
        paths = {k: [p for p in flat(context) if p.endswith(f".{k}")] for k in keys}
        if all(paths.values()):
            full = [w.replace(k, paths[k][0], 1) for w, k in zip(words, keys, strict=True)]
            if not problem(joined(context, full)):
                return ""
    unknown = [k for k in keys if k not in keywords()]
    return f"unknown: {', '.join(unknown)}" if unknown else ""


def top(name: str) -> bool:
    """A key at the top of a verb's config, or a group."""
    return name in group_options() or any(name in flat((verb,)) for verb, about in VERBS.items() if about.config)


def key(name: str, own: list[Context]) -> str:
    """Why no context takes a key."""
    if top(name):
        return ""
    if "." not in name:
        return "" if name in keywords() else f"unknown: {name}"
    first = ""
    for context in likely([name], own):
        if holds(context, name):
            return ""
        why = problem(joined(context, [f"{name}=null"]))
        if f"{name}: expected" in why or not why:
            return ""
        first = first or f"{' '.join(context)}: {why}"
    return first


# ---- names -------------------------------------------------------------------------------------------------------


def imported(path: str) -> str:
    """Why a dotted path cannot be imported."""
    parts = path.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:n]))
        except ImportError:
            continue
        for part in parts[n:]:
            if not hasattr(found, part):
                return f"{path}: no {part}"
            found = getattr(found, part)
        return ""
    return f"{path}: no such module"


@functools.cache
def sources(*names: str) -> list[Path]:
    """Files of the installed packages, and of others by name."""
    package = config_folder().parent
    inside = [p for p in package.iterdir() if p.is_dir()]  # links too, which rglob does not follow
    roots = (*inside, *(package.parent / name for name in names))
    return [p for root in roots for p in root.rglob("*") if p.suffix in (".py", ".yaml", ".json")]


@functools.cache
def vocabulary() -> frozenset[str]:
    """Every word of the installed packages and of those that pages speak of: names, and text of theirs."""
    found: set[str] = set()
    for path in sources("lerobot", "gymnasium"):
        found |= {path.stem, *re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    return frozenset(found)


@functools.cache
def keywords() -> frozenset[str]:
    """Every parameter and field of the installed packages."""
    found: set[str] = set()
    for path in sources():
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.arg):
                    found.add(node.arg)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found.add(node.target.id)
    return frozenset(found)


if __name__ == "__main__":
    main()
