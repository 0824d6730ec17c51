"""Compose and check a config: Hydra composes, constructors define the valid keys, one message lists all faults.

Overrides are Hydra's: `group=option` chooses a file of configs/<group>/, `a.b=value` sets a key. A key need not be in
the YAML as long as the constructor behind its node takes it; every other key is refused with the closest valid ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robopolicy.config import described
from robopolicy.config.hydra_configs import config_folder, group_files, hydra_config
from robopolicy.config.instantiate import raise_all
from robopolicy.config.plan import plan_call
from robopolicy.config.schema import plain
from robopolicy.config.verb import Verb
from robopolicy.core.errors import CheckpointError, ConfigError, DataError, UsageError, closest
from robopolicy.core.trees import flatten

# Keys of datasets, policies and recordings that a verb reads, and their values that name no path.
_READ = frozenset({"a", "b", "base", "checkpoint", "dataset", "memory", "model", "recording", "starts", "teacher"})
_NO_PATHS = ("none", "zero_action")
_DATASETS = re.compile(r"(loop\.rollouts|loop\.data|rollouts)\.")  # by names that the user chose
_TEXTS = re.compile(r"(rename|.*\.(inputs|entities))\.")  # the same, of values that are no paths


def compose(
    verb: Verb,
    overrides: Sequence[str] = (),
    *,
    settings: Mapping[str, Any] | None = None,
    config_dirs: Sequence[Path] = (),
    checked: bool = True,
) -> dict[str, Any]:
    """Return the resolved config of a verb in plain dicts and lists, checked against the descriptions of all it names.

    Nothing is imported for the check; the constructors themselves check once more when they are called.

    Args:
        settings: keys given as Python values, not as text, e.g. {"loop.steps": 10}; None leaves the default. Paths
            become strings.
        config_dirs: further folders with groups of the user's own, e.g. <dir>/task/mine.yaml for `task=mine`.
        checked: False composes only; for help texts.

    Raises:
        UsageError: an unknown group, option or key, a value of the wrong type, a missing one; all of them are listed.
    """
    config = hydra_config(verb.file, overrides, config_dirs)
    for key, value in (settings or {}).items():
        if value is not None:
            _put(config, key.split("."), plain(value))
    if checked:
        target = described.describe_target(verb.target)
        _, found = plan_call(target, config, "", (), f"`{verb.name}`", described.resolve, converts=True)
        raise_all([_with_hint(problem, config, config_dirs) for problem in found], UsageError)
    return config


def input_of(key: str) -> str:
    """Return what a key names that a verb reads, by the name of such a key, e.g. "dataset"; "": nothing."""
    name = "dataset" if _DATASETS.match(key) else "" if _TEXTS.match(key) else key.rpartition(".")[2]
    return name if name in _READ else ""


def check_paths(config: Mapping[str, Any]) -> None:
    """Refuse datasets, policies and recordings that do not exist, before anything is imported to read them.

    A run that is resumed may have lost what it began with; its training decides what it still needs.

    Raises:
        DataError, CheckpointError: of the first; names the key.
    """
    if os.path.isdir(os.path.join(str(config.get("run_dir") or ""), "checkpoints")):
        return
    found = [(key, text) for key, value in flatten(config).items() for text in
             (value if isinstance(value, list) else [value])]  # fmt: skip
    for key, text in found:
        if not isinstance(text, str) or not text or not (name := input_of(key)) or os.path.exists(text):
            continue
        path = Path(text)
        if text in _NO_PATHS or text.startswith("hub:") or (config.get("suite") and "@" in text):
            continue
        if name in ("dataset", "memory"):
            if not list(path.parent.glob(f".{path.name}.recording-*")):  # left by a recording that was killed
                hub = "" if path.parent.is_dir() else " A dataset of the hub is hub:<owner>/<name>."
                raise DataError(
                    f"{key}={text}: no dataset here. Expected the directory of a LeRobotDataset v3; `robopolicy demos` "
                    f"records one.{hub}"
                )
        elif name == "recording":
            raise DataError(f"{key}={text}: no such file or directory; `robopolicy deploy … record=<folder>` makes one")
        else:
            raise CheckpointError(
                f"{key}={text}: no such file or directory; expected a run directory, checkpoint or policy"
            )


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
    return {g: {name: summary(file) for name, file in files.items()} for g, files in group_files(config_dirs).items()}


def summary(file: Path) -> str:
    """Return the comment at the head of a YAML file, up to its first full stop."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            lines.append(line.lstrip("# "))
    return re.split(r"(?<!e\.g\.)(?<=\.)\s", " ".join(lines))[0]


def _put(config: dict[str, Any], keys: list[str], value: Any) -> None:
    """Set a nested key; a parent that holds no mapping becomes one."""
    for key in keys[:-1]:
        if not isinstance(config.get(key), dict):
            config[key] = {}
        config = config[key]
    config[keys[-1]] = value


def _with_hint(problem: str, config: Mapping[str, Any], config_dirs: Sequence[Path]) -> str:
    """Add to a problem: for an unknown key, where a key of this name exists; for a group, its options."""
    key, _, what = problem.partition(": ")
    if what.startswith(("needs a value", "has no _target_")) and key in (groups := group_files(config_dirs)):
        return f"{key}: must be chosen: {key}=<one of {', '.join(groups[key])}>"
    if not what.startswith("unknown key"):
        return problem
    if key in group_files(config_dirs):
        return f"{key}: its file holds keys of the whole config. Begin it with the line `# @package _global_`."
    leaf = key.rsplit(".", 1)[-1]
    there = [k for k in flatten(config) if k.rsplit(".", 1)[-1] == leaf and k != key]
    return f"{problem} There is {' and '.join(there[:3])}." if there else problem
