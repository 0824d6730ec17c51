"""A run directory: one process at a time, one config for life, resumed by the command that began it.

config.yaml  provenance.json  spec.json  metrics.jsonl  checkpoints/  episodes*.csv  videos/  report.html
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from robopolicy.config import flatten
from robopolicy.errors import ConfigError
from robopolicy.evaluate.provenance import write_provenance
from robopolicy.storage import write_text

CONFIG = "config.yaml"
_MAY_GROW = ("steps", "total_steps")  # a run may be extended
_FREE = ("tracker.", "run_dir", "threads", "keep_checkpoints")  # no influence on what is learned


@contextlib.contextmanager
def open_run(run_dir: Path, config: Mapping[str, Any]) -> Iterator[None]:
    """Claim a run directory for as long as the block lasts, and write down its config and provenance.

    Raises:
        ConfigError: another process works in it, or it belongs to another config (the differing keys are listed).
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"run_dir={run_dir}: is a file, or lies below one. Give a folder, new or of a run.") from None
    with (run_dir / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"run_dir={run_dir}: another process is at work in it. Wait for it, or stop it."
            ) from None
        check_same(run_dir, config)
        write_text(run_dir / CONFIG, dump(config))
        if not (run_dir / "provenance.json").exists():
            write_provenance(run_dir)
        yield


def check_same(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Refuse to go on with another config than the run began with; more steps and other trackers are fine.

    Raises:
        ConfigError: the differing keys, each with its old and its new value.
    """
    before = read_config(run_dir)
    if before is None:
        if any(run_dir.glob("checkpoints/step_*")):
            raise ConfigError(f"run_dir={run_dir}: holds checkpoints but no {CONFIG}; give a new run_dir")
        return
    old, new = flatten(before), flatten(config)
    differ = [k for k in sorted({*old, *new}) if old.get(k) != new.get(k) and not _harmless(k, old.get(k), new.get(k))]
    if differ:
        lines = [f"  - {k}: was {_shown(old, k)}, now {_shown(new, k)}" for k in differ]
        raise ConfigError(
            f"run_dir={run_dir} was begun with another config:\n" + "\n".join(lines) + "\n"
            "Repeat the old values to resume it, or give a new run_dir. Only more steps are accepted."
        )


def read_config(run_dir: Path) -> dict[str, Any] | None:
    """The config of a run, or None where there is none yet."""
    import yaml

    path = run_dir / CONFIG
    if not path.is_file():
        return None
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: is damaged, expected a mapping; restore it or give a new run_dir")
    return found


def dump(config: Mapping[str, Any]) -> str:
    """YAML in the order of the config."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(dict(config)))


def _harmless(key: str, old: Any, new: Any) -> bool:
    if any(key == free or (free.endswith(".") and key.startswith(free)) for free in _FREE):
        return True
    longer = isinstance(old, int | float) and isinstance(new, int | float) and new > old
    return longer and key.startswith(("loop.", "algo.")) and key.rsplit(".", 1)[-1] in _MAY_GROW


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "absent"
