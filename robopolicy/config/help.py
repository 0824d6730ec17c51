"""`robopolicy <verb> --help`: what can be chosen and what can be set, read from the configs themselves."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robopolicy.config.compose import Verb, compose, group_options, summary
from robopolicy.config.hydra_configs import config_folder
from robopolicy.config.overrides import ALIASES
from robopolicy.config.schema import TARGET
from robopolicy.core.trees import flatten


def verb_help(verb: Verb, overrides: Sequence[str] = (), config_dirs: Sequence[Path] = ()) -> str:
    """Groups with their options, and every key with the value that it has under `overrides`."""
    if not verb.config:
        return f"robopolicy {verb.name}: {verb.summary}"
    file = config_folder() / f"{verb.file}.yaml"
    config = compose(verb, overrides, config_dirs=config_dirs, checked=False)
    groups = {g: o for g, o in group_options(config_dirs).items() if g in config or _inside(config, ALIASES.get(g, ""))}
    groups |= {g: o for g, o in group_options(config_dirs).items() if f"- {g}:" in file.read_text(encoding="utf-8")}
    lines = [f"robopolicy {verb.name} [key=value ...]: {summary(file) or verb.summary}", ""]
    if groups:
        lines.append("groups (group=option):")
        for group, options in sorted(groups.items()):
            lines.append(f"  {group}")
            width = max(map(len, options))
            for option, about in options.items():
                lines += textwrap.wrap(f"{option:<{width}}  {about}", 110, initial_indent="    ",
                                       subsequent_indent=" " * (width + 6))  # fmt: skip
        lines.append("")
    keys = {k: v for k, v in flatten(config).items() if not k.endswith(TARGET) and not k.endswith("_partial_")}
    width = min(44, max(map(len, keys), default=0))
    lines.append("keys (key=value), with the values that they have now; ??? must be given:")
    lines += [f"  {key:<{width}}  {_shown(value)}" for key, value in keys.items()]
    lines.append("")
    lines.append(f"The other arguments of a group's class (see {TARGET} in --cfg) can be set the same way.")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _inside(config: Any, path: str) -> bool:
    for part in path.split("."):
        if not isinstance(config, dict) or part not in config:
            return False
        config = config[part]
    return bool(path)
