"""Compose and check a config: Hydra composes, constructors define the valid keys, one message lists all faults.

Overrides are Hydra's: `group=option` chooses a file of configs/<group>/, `a.b=value` sets a key. A key need not be in
the YAML as long as the constructor behind its node takes it; every other key is refused with the closest valid ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robopolicy.config.hydra_configs import NO_GROUPS, UsageError, config_folder, hydra_configs
from robopolicy.config.overrides import forced, parse, sort_overrides
from robopolicy.config.schema import MISSING, plain
from robopolicy.core.errors import ConfigError, closest
from robopolicy.core.trees import flatten


@dataclass(frozen=True)
class Verb:
    """A subcommand: the config that it starts from and the function that it calls with it."""

    name: str
    summary: str
    target: str  # module:function, imported only when it runs
    config: bool = True  # configs/<file>.yaml

    @property
    def file(self) -> str:
        """Name of the config; a verb may have two words."""
        return self.name.replace(" ", "_")

    def load(self) -> Any:
        import importlib

        module, name = self.target.split(":")
        return getattr(importlib.import_module(module), name)


def compose(
    verb: Verb,
    overrides: Sequence[str] = (),
    *,
    settings: Mapping[str, Any] | None = None,
    config_dirs: Sequence[Path] = (),
    checked: bool = True,
) -> dict[str, Any]:
    """Return the resolved config of a verb in plain dicts and lists, checked against all constructors that it names.

    Args:
        settings: keys given as Python values, not as text, e.g. {"loop.steps": 10}; None leaves the default. Paths
            become strings.
        config_dirs: further folders with groups of the user's own, e.g. <dir>/task/mine.yaml for `task=mine`.
        checked: False composes only; for help texts.

    Raises:
        UsageError: an unknown group, option or key, a value of the wrong type, a missing one; all of them are listed.
    """
    with hydra_configs(config_dirs) as hydra:
        chosen, values = sort_overrides(hydra, verb.file, [parse(text) for text in overrides])
        config = hydra.compose(verb.file, [o.text for o in chosen] + [forced(o) for o in values])
        for key, value in (settings or {}).items():
            if value is not None:
                _put(config, key.split("."), str(value) if isinstance(value, Path) else plain(value))
        if checked:
            _check_roots(config, known=hydra.keys(verb.file))
    if checked:
        from robopolicy.config.instantiate import call_problems, raise_all

        found = call_problems(verb.load(), config, supplied=(), name=f"`{verb.name}`")
        raise_all([_with_hint(p, config, group_options(config_dirs)) for p in found], UsageError)
    return config


def task_node(name: str) -> dict[str, Any]:
    """Return the node of an option of the group `task`.

    Raises:
        ConfigError: there is no such option.
    """
    from omegaconf import OmegaConf

    folder = config_folder() / "task"
    if not (file := folder / f"{name}.yaml").is_file():
        raise ConfigError(f"task={name}: no such task. {closest(name, [f.stem for f in folder.glob('*.yaml')])}")
    return plain(OmegaConf.to_container(OmegaConf.load(file)))


def group_options(config_dirs: Sequence[Path] = ()) -> dict[str, dict[str, str]]:
    """Return {group: {option: the first comment line of its file}}."""
    found: dict[str, dict[str, str]] = {}
    for root in (config_folder(), *config_dirs):
        for file in sorted(Path(root).glob("*/*.yaml")):
            if file.parent.name not in NO_GROUPS:
                found.setdefault(file.parent.name, {})[file.stem] = summary(file)
    return found


def summary(file: Path) -> str:
    """Return the comment at the head of a YAML file, up to its first full stop."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            lines.append(line.lstrip("# "))
    return re.split(r"(?<=\.)\s", " ".join(lines))[0]


def _put(config: dict[str, Any], keys: list[str], value: Any) -> None:
    """Set a nested key; a parent that holds no mapping becomes one."""
    for key in keys[:-1]:
        if not isinstance(config.get(key), dict):
            config[key] = {}
        config = config[key]
    config[keys[-1]] = value


def _check_roots(config: Mapping[str, Any], known: set[str]) -> None:
    """Find unknown top-level keys and missing values before heavy imports: configs/<verb>.yaml lists all keys."""
    from robopolicy.config.instantiate import raise_all

    raise_all([f"{key}: unknown key. {closest(key, known)}" for key in config if key not in known], UsageError)
    raise_all([f"{k}: needs a value. Add {k}=…" for k, value in config.items() if value == MISSING], UsageError)


def _with_hint(problem: str, config: Mapping[str, Any], groups: Mapping[str, Mapping[str, str]]) -> str:
    """Add to a problem: for an unknown key, where a key of this name exists; for a group, its options."""
    key, _, what = problem.partition(": ")
    if key in groups and what.startswith(("needs a value", "has no _target_")):
        return f"{key}: must be chosen: {key}=<one of {', '.join(groups[key])}>"
    if not what.startswith("unknown key"):
        return problem
    leaf = key.rsplit(".", 1)[-1]
    there = [k for k in flatten(config) if k.rsplit(".", 1)[-1] == leaf and k != key]
    return f"{problem} There is {' and '.join(there[:3])}." if there else problem
