"""Write `robopolicy <verb> --help`: groups and options of the configs, keys of the constructors."""

from __future__ import annotations

import contextlib
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robopolicy.config import described, schema
from robopolicy.config.compose import compose, group_options, summary
from robopolicy.config.documentation import documentation, sources
from robopolicy.config.hydra_configs import choices, config_folder
from robopolicy.config.schema import PARTIAL, TARGET
from robopolicy.config.verb import Verb
from robopolicy.core.errors import ConfigError
from robopolicy.core.trees import flatten


def verb_help(verb: Verb, overrides: Sequence[str] = (), config_dirs: Sequence[Path] = ()) -> str:
    """List the groups with their options, and every key with its meaning and its value under `overrides`."""
    if not verb.config:
        return f"robopolicy {verb.name}: {verb.summary}"
    config = _with_defaults_of_own(compose(verb, overrides, config_dirs=config_dirs, checked=False))
    used = {group.split("@")[0] for group in choices(verb.file)}
    config = {key: value if key in used else _with_described_defaults(key, value) for key, value in config.items()}
    lines = [f"robopolicy {verb.name} [key=value ...]: {summary(config_folder() / f'{verb.file}.yaml')}", ""]
    for group, options in sorted(group_options(config_dirs).items()) if used else ():
        if group not in used:
            continue
        lines += [f"  {group}"]
        width = max(map(len, options))
        for option, purpose in options.items():
            lines += textwrap.wrap(f"{option:<{width}}  {purpose}", 110, initial_indent="    ",
                                   subsequent_indent=" " * (width + 6))  # fmt: skip
    if used:
        lines[2:] = ["groups (group=option):", *lines[2:], ""]
    lines.append("keys (key=value), with the values that they have now; ??? must be given:")
    about = meanings(verb, config)
    shown = {k: v if isinstance(v, str) else json.dumps(v) for k, v in flatten(config).items() if k in about}
    left, middle = (min(most, max(map(len, column), default=0)) for most, column in ((40, shown), (16, shown.values())))
    lines += [f"  {key:<{left}}  {value:<{middle}}  {about[key]}".rstrip() for key, value in shown.items()]
    lines.append("")
    lines.append(f"The other arguments of a group's class (see {TARGET} in --cfg) can be set the same way.")
    return "\n".join(lines)


def meanings(verb: Verb, config: Mapping[str, Any]) -> dict[str, str]:
    """Return {dotted key: its meaning} of all keys of a config, from the docstrings of their constructors."""
    found: dict[str, str] = {}
    todo: list[tuple[Any, Mapping[str, Any], str]] = [(described.describe_target(verb.target), config, "")]
    for target, node, where in todo:
        known = target.keys(node) if isinstance(target, described.Described) else _documented(target, node)
        for key, value in node.items():
            at, entry = f"{where}{key}", known.get(key, {})
            if key in (TARGET, PARTIAL):
                continue
            found[at] = entry.get("about", "")
            if not isinstance(value, Mapping):
                continue
            if TARGET in value:
                try:
                    todo.append((described.resolve(value, key, at), value, f"{at}."))
                    continue
                except ConfigError:  # a user's own that is not admitted
                    pass
            if "group" in entry:
                todo.append((described.describe_target(entry["group"]), value, f"{at}."))
            else:
                found |= {f"{at}.{inner}": found[at] for inner in flatten(value)}
    return found


def _documented(target: Any, node: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return {key: {"about": meaning}} of the user's own target, from its docstring."""
    about = documentation(sources(target), set(schema.signature(target, node).known))
    return {key: {"about": text} for key, text in about.items()}


def _with_defaults_of_own(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the config with the keywords of the user's own targets that it leaves out, and their defaults."""
    found = dict(config)
    for key, value in config.items():
        if not isinstance(value, Mapping):
            continue
        found[key], at = _with_defaults_of_own(value, f"{above}{key}."), f"{above}{key}"
        with contextlib.suppress(ConfigError):
            target = described.resolve(value, key, at) if TARGET in value else None
            if target is None or isinstance(target, described.Described):
                continue
            known = schema.signature(target, value).known
            left = {k: p.default for k, p in known.items() if k not in value and not p.required}
            found[key] |= {k: schema.plain(v) for k, v in left.items() if isinstance(v, (*schema.SCALARS, tuple, list))}
    return found


def _with_described_defaults(slot: str, node: Any) -> Any:
    """Return a node that no group chooses, with the explained keywords that it leaves out, and their defaults.

    Its YAML cannot hold them: another `_target_=` on the command line would get them too.
    """
    target = None
    with contextlib.suppress(ConfigError):
        target = described.resolve(node, slot, slot) if isinstance(node, Mapping) and TARGET in node else None
    if not isinstance(target, described.Described):
        return node
    known = target.keys(node)
    return {**{k: about["default"] for k, about in known.items() if "about" in about and "default" in about}, **node}
