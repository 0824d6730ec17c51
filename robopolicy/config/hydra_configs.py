"""Compose configs with Hydra: the few calls of its API that are needed, with its errors as UsageError."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import robopolicy
from robopolicy.config.schema import plain
from robopolicy.core.errors import ConfigError

NO_GROUPS = {"robots"}  # folders whose files are not composed: real/ros2/wiring.py reads them


class UsageError(ConfigError):
    """A command line that cannot be carried out; exit code 2."""


def config_folder() -> Path:
    """The config groups, which the package ships."""
    return Path(robopolicy.__file__).resolve().parent / "configs"


class HydraConfigs:
    """The few calls of Hydra's compose API that are needed, with its errors in our words."""

    def __init__(self, config_dirs: Sequence[Path]) -> None:
        folders = ",".join(f"file://{Path(d).resolve()}" for d in config_dirs)
        self.search = [f"hydra.searchpath=[{folders}]"] if config_dirs else []
        self.roots = [config_folder(), *map(Path, config_dirs)]
        self._composed = functools.cache(_composed) if config_dirs else _built_in

    def groups(self) -> set[str]:
        return {f.parent.name for root in self.roots for f in root.glob("*/*.yaml")} - NO_GROUPS

    def options(self, group: str) -> list[str]:
        return [f.stem for root in self.roots for f in (root / group).glob("*.yaml")]

    def choices(self, name: str, overrides: list[str]) -> dict[str, Any]:
        """{group key: chosen option}."""
        found = self._compose(name, overrides).hydra.runtime.choices
        return {k: v for k, v in found.items() if not k.startswith("hydra/")}

    def keys(self, name: str) -> set[str]:
        """Top-level keys and groups of a verb."""
        return {*self._compose(name, []), *self.choices(name, [])} - {"hydra"}

    def compose(self, name: str, overrides: list[str]) -> dict[str, Any]:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        config = self._compose(name, overrides).copy()
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        try:
            return plain(OmegaConf.to_container(config, resolve=True))
        except OmegaConfBaseException as error:
            raise UsageError(f"config: {_first_line(error)}") from error

    def _compose(self, name: str, overrides: list[str]) -> Any:
        return self._composed(name, (*self.search, *overrides))


def _composed(name: str, overrides: tuple[str, ...]) -> Any:
    """Hydra's config of a verb, its own settings included."""
    from hydra import compose
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = compose(name, list(overrides), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        text = _first_line(error).replace("Ambiguous value for argument", "several values given in")
        if "several values" in text:
            text += "; one run takes one value. A list is written key=[a,b]."
        raise UsageError(f"config: {text}") from error
    OmegaConf.set_readonly(config, False)
    return config


_built_in = functools.lru_cache(maxsize=32)(_composed)  # configs/ stays as it is while a process lives


@contextlib.contextmanager
def hydra_configs(config_dirs: Sequence[Path]) -> Iterator[HydraConfigs]:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    for folder in config_dirs:
        if not Path(folder).is_dir():
            raise UsageError(f"--config-dir {folder}: no such folder")
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        yield HydraConfigs(config_dirs)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip() and "full_key" not in line]
    return lines[0].strip() if lines else type(error).__name__
