"""Describe targets without importing them: arguments.json, which scripts/describe_arguments.py writes."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import json
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from robopolicy.config import registry, schema
from robopolicy.core.errors import ConfigError, closest
from robopolicy.utils.suite_packages import installed, require

FILE = Path(__file__).with_name("arguments.json")


@functools.cache
def entries() -> dict[str, Any]:
    """Return {"module:attribute": description}."""
    return dict[str, Any](json.loads(FILE.read_text(encoding="utf-8")))


class Described:
    """Stands for a target in checks of its arguments."""

    def __init__(self, place: str) -> None:
        self.place, self.entry = place, entries()[place]
        self.__module__, self.__qualname__ = place.split(":")

    def keys(self, arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return {keyword: {type, default, about}}; some targets have further ones by the value of a keyword."""
        by, more = self.entry.get("further", ("", {}))
        return {**self.entry["keys"], **more.get(str(arguments.get(by)), {})}

    def signature(self, arguments: Mapping[str, Any]) -> schema.Signature:
        """Return the keywords, as `schema.signature` does; classes of ours stand as Any with their name."""
        return _signature(self.place, str(arguments.get(self.entry.get("further", ("", {}))[0])))

    def problems(self, arguments: Mapping[str, Any], where: str) -> list[str]:
        """Find names that a package does not have in the version that was described, and packages that are missing."""
        found = []
        rules = self.entry.get("names", ())
        for rule in rules if rules and not registry.admitted() else ():
            other, wanted = rule["when"]
            if other and arguments.get(other, self.entry["keys"][other].get("default")) != wanted:
                continue
            name, package = arguments.get(rule["key"]), rule["package"]
            own = getattr(sys.modules.get("gymnasium"), "registry", ()) if rule["key"] == "name" else ()
            if isinstance(name, str) and name not in (*rule["known"], *own) and not _has_more(package, rule["version"]):
                whose = f"{package} {rule['version']}" if package else "robopolicy"
                own_package = f" Of your own: {where}.package=<its module> --allow <its module>." * (other == "package")
                found.append(
                    f"{where}.{rule['key']}={name!r}: {whose} has no such name. {closest(name, rule['known'])}"
                    f"{own_package}"
                )
            try:
                require(rule["suite"]) if rule["suite"] else None
            except ConfigError as error:
                found.append(f"{where}: {error}")
        return found


def _has_more(package: str | None, version: str) -> bool:
    """Return whether a package may know names beyond those described: of another version, or of packages beside it."""
    if not package:
        return False
    return installed(package) not in (None, version) or bool(importlib.metadata.entry_points(group=f"{package}.envs"))


@functools.cache
def describe_target(place: str) -> Any:
    """Return the description of "module:attribute", or itself where there is none."""
    return Described(place) if place in entries() else registry.load(place)


resolve = functools.partial(registry.resolve, load=describe_target)


@functools.cache
def _signature(place: str, chosen: str) -> schema.Signature:
    target = describe_target(place)
    by, more = target.entry.get("further", ("", {}))
    keys = target.keys({by: chosen})
    kinds = schema.hints(types.SimpleNamespace(
        __annotations__={key: about["type"] for key, about in keys.items() if "type" in about},
        __globals__={**vars(schema), "Path": Path, "Literal": Literal},
    ))  # fmt: skip
    known = {}
    for key, about in keys.items():
        named = Annotated[Any, pydantic.Field(description=about.get("class"))]
        default = inspect.Parameter.empty if "required" in about else about.get("default")
        known[key] = schema.Parameter(kinds.get(key, named), default)
    full = schema.with_adapters(known, "anything" in target.entry or (bool(by) and chosen not in more))
    for key in [k for k, about in keys.items() if "group" in about]:
        full.known[key] = full.known[key]._replace(group=describe_target(keys[key]["group"]))
    return full
