"""A run directory: one process at a time, one config from its first checkpoint on, resumed by the command it began by.

config.yaml  provenance.json  spec.json  metrics.jsonl  checkpoints/  episodes*.csv  videos/  report.html
"""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic

from robopolicy.atomic import write_atomically
from robopolicy.build import resolve
from robopolicy.config import flatten
from robopolicy.data.meta import recorded
from robopolicy.errors import ConfigError
from robopolicy.evaluate.provenance import write_provenance
from robopolicy.run_inputs import INPUTS, same_input, write_inputs
from robopolicy.schema import TARGET, Fraction, NonNegative, Positive, is_node, parameters
from robopolicy.storage import checkpoints_in
from robopolicy.untrusted import WANDB, check_links, checked, read_yaml

CONFIG = "config.yaml"
PROVENANCE = "provenance.json"
_MAY_GROW = ("steps", "total_steps", "rounds")  # a run may be extended; `_check_schedule` warns where that shows
# What may change in a run. `threads` changes the last bits of float sums, no more; Checkpointer.latest warns of it.
# `incomplete` says what data may be; those that the run began with are checked by themselves.
_FREE = ("tracker.", "run_dir", "threads", "keep_checkpoints", "incomplete")
_log = logging.getLogger(__name__)

_Place = Annotated[str, pydantic.Field(max_length=4096, pattern=r"^[^\x00]*$")]


class _Read(pydantic.BaseModel):
    """Keys of another run's config that commands read; what else stands there is data that is only compared."""

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


def has_checkpoint(run_dir: Path) -> bool:
    """A training has left something to resume from."""
    return bool(checkpoints_in(run_dir / "checkpoints"))


def has_stage(out: Path) -> bool:
    """A quickstart has left something to go on with: all demonstrations, or a checkpoint of its trainings."""
    return recorded(out / "data") == "whole" or any(has_checkpoint(out / stage) for stage in ("bc", "residual"))


@contextlib.contextmanager
def open_run(
    run_dir: Path, config: Mapping[str, Any], *, begun: Callable[[Path], bool] = has_checkpoint
) -> Iterator[None]:
    """Claim a run directory for as long as the block lasts, and write down its config and provenance.

    Args:
        begun: the run has produced something that belongs to its config; until then another config replaces it.

    Raises:
        ConfigError: another process works in it, it belongs to another config (the differing keys are listed), or
            holds a config that no run wrote.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"run_dir={run_dir}: is a file, or lies below one. Give a folder, new or of a run.") from None
    check_links(run_dir, apart=WANDB, where=f"run_dir={run_dir}", error=ConfigError)
    with claimed(run_dir, "run_dir"):
        if begun(run_dir):
            check_same(run_dir, config)
        else:
            _forget(run_dir)
        write_inputs(run_dir, config)
        if not (run_dir / PROVENANCE).exists():
            write_provenance(run_dir)
        write_atomically(run_dir / CONFIG, dump(config))
        yield


@contextlib.contextmanager
def claimed(folder: Path, key: str) -> Iterator[None]:
    """No other process works in `folder` for as long as the block lasts.

    Raises:
        ConfigError: one does; `key` is what the user named it by.
    """
    try:  # a link would be followed, and what it leads to be emptied
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"{key}={folder}: its .lock cannot be opened ({error}). Remove it.") from error
    with os.fdopen(handle, "r") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{key}={folder}: another process is at work in it. Wait for it, or stop it.") from None
        yield


def _forget(run_dir: Path) -> None:
    """Remove what a run that came to nothing says of itself: the next one begins anew, perhaps with another config.

    Raises:
        ConfigError: there is a config.yaml, but no provenance beside it: somebody else's folder.
    """
    if read_config(run_dir) is None:
        return
    if not (run_dir / PROVENANCE).exists():
        raise ConfigError(f"run_dir={run_dir}: holds a {CONFIG} that no run of robopolicy wrote. Give a new folder.")
    (run_dir / PROVENANCE).unlink()
    for name in ("wandb_id", INPUTS):
        (run_dir / name).unlink(missing_ok=True)
    shutil.rmtree(run_dir / "evaluations", ignore_errors=True)


def check_same(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Refuse to go on with another config than the run began with.

    Fine are more steps, other trackers, an option that only one of them names, with the value that it has by itself,
    and another path of a dataset or policy with the same contents.

    Warns where more steps change what is learned in all of them.

    Raises:
        ConfigError: the differing keys, each with its old and its new value.
    """
    before = read_config(run_dir)
    if before is None:
        if has_checkpoint(run_dir):
            raise ConfigError(f"run_dir={run_dir}: holds checkpoints but no {CONFIG}; give a new run_dir")
        return
    old, new = flatten(_used(before)), flatten(_used(config))
    for a, b, config_of_b in ((old, new, config), (new, old, before)):  # options that the other version does not write
        a |= {k: b[k] for k in b.keys() - a.keys() if b[k] is not None and b[k] == _default(config_of_b, k)}
    pairs = {k: (old.get(k), new.get(k)) for k in sorted({*old, *new})}
    differ = [
        k for k, (a, b) in pairs.items() if a != b and not _harmless(k, a, b) and not same_input(run_dir, k, a, b)
    ]
    if differ:
        lines = [f"  - {k}: was {_shown(old, k, config)}, now {_shown(new, k, before)}" for k in differ]
        raise ConfigError(
            f"run_dir={run_dir} was begun with another config:\n" + "\n".join(lines) + "\n"
            "Repeat the old values to resume it, or give a new run_dir. Only more steps are accepted."
        )
    for key in _scheduled(config):
        if old.get(key) != new.get(key):
            _log.warning(
                "run_dir=%s: %s was %s, now %s. Learning follows a schedule over it, which jumps back to an earlier "
                "phase: the result differs from that of a run of %s from the beginning. For that one give a new "
                "run_dir.", run_dir, key, old.get(key), new[key], new[key],
            )  # fmt: skip


def read_config(run_dir: Path) -> dict[str, Any] | None:
    """The config of a run, or None where there is none yet. Data: nothing in it is built here.

    Raises:
        ConfigError: it is damaged, or a key that others read holds another type.
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
    """The task of a run's config, for another command: it starts no more processes than there are cores."""
    task = config.get("task")
    if task is None or not isinstance(wanted := task.get("processes"), int):
        return task
    return {**task, "processes": min(wanted, len(os.sched_getaffinity(0)))}


def dump(config: Mapping[str, Any]) -> str:
    """YAML in the order of the config."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(dict(config)))


def _used(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What counts: without rounds not how they would be carried out, of which older runs say nothing."""
    return config if config.get("rounds") else {k: v for k, v in config.items() if k not in ("rounds", "coevolve")}


def _default(config: Mapping[str, Any], key: str) -> Any:
    """What the constructor takes where `key`, "node.option", is not given; None where there is none."""
    *path, option = key.split(".")
    node: Any = config
    for part in path:
        node = node.get(part) if isinstance(node, Mapping) else None
    if not is_node(node):
        return None
    known, _ = parameters(resolve(node, path[-1], ".".join(path)), node)
    return known[option].default if option in known else None


def _harmless(key: str, old: Any, new: Any) -> bool:
    if any(key == free or (free.endswith(".") and key.startswith(free)) for free in _FREE):
        return True
    longer = isinstance(old, int | float) and isinstance(new, int | float) and new > old
    return longer and (key == "rounds" or key.startswith(("loop.", "algo."))) and key.rsplit(".", 1)[-1] in _MAY_GROW


def _scheduled(config: Mapping[str, Any]) -> list[str]:
    """Keys that say how long the run is, where the algorithm follows a schedule over them (learning rates do)."""
    algo, loop = config.get("algo") or {}, config.get("loop") or {}
    if TARGET not in algo:
        return []
    if "steps" in algo:
        return ["algo.steps"]
    target = resolve(algo, "algo")
    known, _ = parameters(target, algo)
    asks = "steps" in known  # supplied by the loop's number of steps
    if "progress" in inspect.signature(getattr(target, "update", lambda: None)).parameters:
        kinds = [
            algo.get(k, p.default if isinstance(p.default, str) else "constant")
            for k, p in known.items()
            if k.endswith("_schedule")
        ]
        asks |= not kinds or any(kind != "constant" for kind in kinds) or bool(algo.get("progressive"))
    return [f"loop.{name}" for name in _MAY_GROW if name in loop] if asks else []


def _shown(values: Mapping[str, Any], key: str, other: Mapping[str, Any]) -> str:
    """A value, or what its absence means to the constructor that `other` gives the option to."""
    if key in values:
        return repr(values[key])
    meant = _default(other, key)
    return "absent" if meant is None or meant is inspect.Parameter.empty else f"absent, which means {meant!r}"
