"""Compose configs with Hydra, with its errors as UsageError."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import robopolicy
from robopolicy.config.overrides import read_overrides
from robopolicy.core.command_line import hydra_text
from robopolicy.core.errors import UsageError, closest

_SEVERAL = "; one run takes one value. A list is written key=[a,b]; --multirun trains once for each."
NO_GROUPS = {"robots", "lerobot"}  # folders whose files are not composed: wiring.py of real/ros2 and real/lerobot


def config_folder() -> Path:
    """Return the folder of the config groups that the package ships."""
    return Path(robopolicy.__file__).resolve().parent / "configs"


def group_files(config_dirs: Sequence[Path] = ()) -> dict[str, dict[str, Path]]:
    """Return {group: {option: its file}}, of the package's folder and the user's."""
    found = {group: dict(files) for group, files in _shipped().items()}
    for root in config_dirs:
        if not root.is_dir():
            raise UsageError(f"--config-dir {root}: no such folder")
        _add_groups(found, root)
    return found


@functools.cache
def _shipped() -> dict[str, dict[str, Path]]:
    """Groups of the package's folder, which stays as it is while a process lives."""
    found: dict[str, dict[str, Path]] = {}
    _add_groups(found, config_folder())
    return found


def _add_groups(found: dict[str, dict[str, Path]], root: Path) -> None:
    for file in sorted(root.glob("*/*.yaml")):
        if file.parent.name not in NO_GROUPS:
            found.setdefault(file.parent.name, {})[file.stem] = file


def hydra_config(verb: str, overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> dict[str, Any]:
    """Compose the config of a verb in plain dicts and lists; nothing is checked against constructors.

    Raises:
        UsageError: an unknown group or option, or an override that cannot be read.
    """
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    at = ""
    groups, values = read_overrides(overrides, group_files(config_dirs))
    folders = tuple(f"file://{Path(d).resolve()}" for d in config_dirs)
    try:
        config = _compose(verb, tuple(groups), folders)[0]
        config = copy.deepcopy(config) if values else config  # the copy takes longer than the rest
        for at in values:
            _set_value(config, at)
        at = ""
        return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        with contextlib.suppress(HydraException, YAMLError):  # the fault is a file's, not the command's
            _check_groups(verb, groups, folders)
        text = _reason(error).replace("Ambiguous value for argument", "several values given in")
        if "several values" in text:
            text += _SEVERAL
        where = f"{at.lstrip('+')}: " if at and isinstance(error, OmegaConfBaseException) else ""
        raise UsageError(f"config: {where}{text}") from error


def choices(verb: str, overrides: Sequence[str] = (), folders: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return {group: its option} as a verb has them under `overrides` of groups."""
    return _compose(verb, tuple(overrides), folders)[1]


def _compose(verb: str, groups: tuple[str, ...], folders: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    return _uncached(verb, groups, folders) if folders else _composed(verb, groups, folders)


def _uncached(verb: str, groups: tuple[str, ...], folders: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """Compose options of groups. Return (config without Hydra's own settings, {group: its option})."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    GlobalHydra.instance().clear()
    search = [f"hydra.searchpath={hydra_text(folders)}"] if folders else []
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        config = compose(verb, [*search, *groups], return_hydra_config=True)
    OmegaConf.set_readonly(config, False)
    OmegaConf.set_struct(config, False)
    chosen = config.pop("hydra").runtime.choices
    return config, {group: option for group, option in chosen.items() if not group.startswith("hydra/")}


_composed = functools.lru_cache(maxsize=256)(_uncached)  # configs/ stays as it is while a process lives


def _set_value(config: Any, text: str) -> None:
    """Set a key to its value, or delete it, as Hydra does with `++key=value` and `~key`."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    override = OverridesParser.create().parse_override(text)
    key, value = override.key_or_group, override.value()
    if override.package is not None:
        raise UsageError(
            f"config: {text.lstrip('+~')}: there is no group {key!r}; only options of groups are put elsewhere"
        )
    if override.is_sweep_override():
        raise UsageError(f"config: several values given in {text.lstrip('+~')!r}{_SEVERAL}")
    if not override.is_delete():
        OmegaConf.update(config, key, value, merge=True)
        return
    present = OmegaConf.select(config, key)
    if present is None or value not in (None, present):
        is_now = "it is not there" if present is None else f"it is {present}"
        raise UsageError(f"config: {text}: {key} cannot be left out, as {is_now}")
    holder, _, name = key.rpartition(".")
    del (OmegaConf.select(config, holder) if holder else config)[name]


def _check_groups(verb: str, groups: Sequence[str], folders: tuple[str, ...]) -> None:
    """Raise UsageError where a group that was chosen is not one of the verb."""
    before = choices(verb, (), folders)
    keys = {text: text.split("=")[0] for text in groups}
    used = choices(verb, [text for text, key in keys.items() if key in before and "@" not in key], folders)
    for text, key in keys.items():
        if key in used or key[0] in "+~":
            continue
        group, inside, _ = key.partition("@")
        if inside:
            raise UsageError(f"{group}: nothing here takes a {group}. Groups in use: {', '.join(sorted(used))}.")
        raise UsageError(f"{text}: `{verb.replace('_', ' ')}` has no group {group!r}. {closest(group, used)}")


def _reason(error: Exception) -> str:
    """Return why a config did not compose, without Hydra's advice, which is for its own command line."""
    from hydra.errors import MissingConfigException
    from yaml import YAMLError

    if isinstance(error, YAMLError):
        return " ".join(str(error).split())
    if isinstance(error, MissingConfigException) and error.options and error.missing_cfg_file:
        option = error.missing_cfg_file.rpartition("/")[2]
        return f"a file chooses {error.missing_cfg_file}, which is not there. {closest(option, error.options)}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and "full_key" not in line]
    said = [line for line in lines if line is lines[0] or line.startswith("Overrides must be")]
    return " ".join(said) or type(error).__name__
