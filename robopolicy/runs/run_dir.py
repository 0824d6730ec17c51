"""Open a run directory: for one process at a time, and with one config from its first checkpoint on.

The command that began a run resumes it.

config.yaml  provenance.json  spec.json  metrics.jsonl  checkpoints/  episodes*.csv  videos/  report.html
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic

from robopolicy.config.schema import Fraction, NonNegative, Positive
from robopolicy.core.errors import ConfigError
from robopolicy.core.trees import flatten
from robopolicy.core.untrusted import WANDB, check_links, checked, read_yaml
from robopolicy.datasets.metadata import recorded
from robopolicy.datasets.source import INFO_FILE
from robopolicy.runs.config_changes import compared_keys, default_of, may_change, schedule_keys, shown, with_choices
from robopolicy.runs.finished import FINISHED
from robopolicy.runs.folder_lock import BusyError, claimed
from robopolicy.runs.inputs import INPUTS, changed_inputs, same_input, write_inputs
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.provenance import PROVENANCE, write_provenance
from robopolicy.utils.storage import checkpoints_in

CONFIG = "config.yaml"
_OF_A_START = frozenset({".lock", CONFIG, PROVENANCE, INPUTS, "spec.json"})  # written before any result
_log = logging.getLogger(__name__)

_Place = Annotated[str, pydantic.Field(max_length=4096, pattern=r"^[^\x00]*$")]


class _Read(pydantic.BaseModel):
    """Keys of another run's config that commands read; other keys are only compared."""

    model_config = pydantic.ConfigDict(strict=True, extra="ignore", frozen=True)


class _Loop(_Read):
    data: dict[str, _Place] | None = None
    holdout: Fraction | None = None
    mix_weights: dict[str, NonNegative] | None = None


class _World(_Read):
    model: _Place | None = None
    trust: Positive | None = None
    sampled: bool | None = None


class _Config(_Read):
    task: dict[str, Any] | None = None
    world: _World | None = None
    loop: _Loop | None = None
    algo: dict[str, Any] | None = None
    policy: dict[str, Any] | None = None
    base: _Place | None = None
    dataset: _Place | None = None
    seed: int | None = None


_EVALUATED = ("episodes*.csv", "episodes*.parquet", "comparison*.json", "videos")


def has_checkpoint(run_dir: Path) -> bool:
    """Return whether a training, or the first of its `rounds`, has a checkpoint to resume from."""
    return any(checkpoints_in(folder / "checkpoints") for folder in (run_dir, run_dir / "round_1" / "imagined"))


def has_stage(out: Path) -> bool:
    """Return whether a quickstart has results to resume from: all demonstrations, or a checkpoint."""
    return recorded(out / "data") == "whole" or any(has_checkpoint(out / stage) for stage in ("bc", "residual"))


def check_no_dataset(path: Path, key: str) -> None:
    """Refuse the folder of a dataset: a run would write into it."""
    if (path / INFO_FILE).is_file():
        raise ConfigError(f"{key}={path}: is a dataset. Give another folder: a run would write into it")


@contextlib.contextmanager
def open_run(
    run_dir: Path, config: Mapping[str, Any], *, begun: Callable[[Path], bool] = has_checkpoint, key: str = "run_dir"
) -> Iterator[None]:
    """Lock a run directory while the block lasts, and write its config and the provenance of this start.

    Args:
        begun: tells whether the run has results of its config; before that another config replaces it.
        key: that names the directory on the command line.

    Raises:
        ConfigError: another process has the lock, the run began with another config (the differing keys are listed),
            no run wrote the config, or the folder is a dataset.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{key}={run_dir}: is a file, or lies below one. Give a folder, new or of a run.") from None
    check_no_dataset(run_dir, key)
    check_links(run_dir, apart=WANDB, where=f"{key}={run_dir}", error=ConfigError)
    with claimed(run_dir, key):
        if begun(run_dir):
            config = with_choices(config, read_config(run_dir))
            check_same(run_dir, config, key=key)
        else:
            _forget(run_dir, key)
            (run_dir / PROVENANCE).unlink(missing_ok=True)
        write_provenance(run_dir)
        write_atomically(run_dir / CONFIG, dump(config))
        write_inputs(run_dir, config)  # last: without a config beside them they would stay for another start
        yield


@contextlib.contextmanager
def removed_if_nothing_came(folder: Path) -> Iterator[None]:
    """Remove `folder` and its parents, where they are new and the block fails before it writes any result."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except BusyError:  # the folder belongs to the process that was faster
        raise
    except BaseException:
        if new and all(path.name in _OF_A_START for path in folder.rglob("*") if not path.is_dir()):
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # others work beside it
                for parent in new[1:]:
                    parent.rmdir()
        raise


def _forget(run_dir: Path, key: str) -> None:
    """Remove the files of a run without results; the next run may have another config.

    Raises:
        ConfigError: no run of ours wrote the config.yaml; or there are evaluations of weights that are gone.
    """
    if read_config(run_dir) is None:
        return
    if not (run_dir / PROVENANCE).exists():
        raise ConfigError(f"{key}={run_dir}: holds a {CONFIG} that no run of robopolicy wrote. Give a new folder.")
    if left := sorted(path.name for pattern in _EVALUATED for path in run_dir.glob(pattern)):
        raise ConfigError(
            f"{key}={run_dir}: has no checkpoint any more, and {left[0]} is of weights that are gone. Give a new "
            "folder, or remove this one"
        )
    for name in (CONFIG, "wandb_id", INPUTS, FINISHED):  # the config first: a start killed here is then as none
        (run_dir / name).unlink(missing_ok=True)
    shutil.rmtree(run_dir / "evaluations", ignore_errors=True)


def check_same(run_dir: Path, config: Mapping[str, Any], *, key: str = "run_dir") -> None:
    """Refuse to resume a run with another config.

    Allowed are more steps, other trackers, another path of a dataset or policy with the same contents, and an option
    that only one config names, with its default. A warning is logged where a schedule depends on the number of steps.

    Raises:
        ConfigError: the differing keys, each with its old and its new value; datasets, policies and models whose
            contents changed.
    """
    before = read_config(run_dir)
    if before is None:
        if has_checkpoint(run_dir):
            raise ConfigError(f"{key}={run_dir}: holds checkpoints but no {CONFIG}; give a new {key}")
        return
    config = with_choices(config, before)
    old, new = flatten(compared_keys(before)), flatten(compared_keys(config))
    for a, b, config_of_b in ((old, new, config), (new, old, before)):  # options that only one version writes
        a |= {k: b[k] for k in b.keys() - a.keys() if b[k] is not None and b[k] == default_of(config_of_b, k)}
    pairs = {k: (old.get(k), new.get(k)) for k in sorted({*old, *new})}
    differ = [
        k for k, (a, b) in pairs.items()
        if a != b and not may_change(k, a, b) and not same_input(run_dir, k, a, b, config)
    ]  # fmt: skip
    if differ:
        lines = [f"  - {k}: was {shown(old, k, config)}, now {shown(new, k, before)}" for k in differ]
        longer = " Only more steps are accepted." if "loop" in config else ""
        raise ConfigError(
            f"{key}={run_dir} was begun with another config:\n" + "\n".join(lines) + "\n"
            f"Repeat the old values to resume it, or give a new {key}.{longer}"
        )
    if changed := changed_inputs(run_dir, config):
        lines = [f"  - {name}={new.get(name)}" for name in changed]
        raise ConfigError(
            f"{key}={run_dir} was begun with other contents of\n" + "\n".join(lines) + "\n"
            f"Restore them to resume it, or give a new {key}."
        )
    for steps in schedule_keys(config):
        if old.get(steps) != new.get(steps):
            _log.warning(
                "run_dir=%s: %s was %s, now %s. Learning follows a schedule over it, which jumps back to an earlier "
                "phase: the result differs from that of a run of %s from the beginning. For that one give a new "
                "run_dir.", run_dir, steps, old.get(steps), new[steps], new[steps],
            )  # fmt: skip


def read_config(run_dir: Path) -> dict[str, Any] | None:
    """Read the config of a run as data; None where there is none yet.

    Raises:
        ConfigError: the file is damaged, or a key has another type.
    """
    path = run_dir / CONFIG
    if not path.is_file():
        return None
    found = read_yaml(path, error=ConfigError)
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: is damaged, expected a mapping; restore it or give a new run_dir")
    checked(_Config, found, str(path), error=ConfigError)
    return found


def own_task(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the task of a run's config, for another command: with at most as many processes as there are cores.

    The file starts and joins no cluster: `farm` is for the command line to say.
    """
    task = config.get("task")
    if task is None:
        return None
    own = {key: value for key, value in task.items() if key not in ("farm", "worker_timeout")}
    if isinstance(wanted := own.get("processes"), int):
        own["processes"] = min(wanted, len(os.sched_getaffinity(0)))
    return own


def dump(config: Mapping[str, Any]) -> str:
    """Write a config as YAML, in its order."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(dict(config)))
