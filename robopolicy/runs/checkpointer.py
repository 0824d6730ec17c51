"""Save and load the checkpoints of a run: a policy, and the state that its training resumes from.

A checkpoint is written completely or not at all.

run directory         checkpoints/step_0000001000/ …, and the files `latest` and `best`, each with the name of one
checkpoint            policy/ (policies/io.py) or model/ (world_models/models/world.py) ·
                      state.json · state.safetensors · checkpoint.json · manifest.json
"""

from __future__ import annotations

import json
import logging
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pydantic
import torch

from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.core.rng import generator_state, restore_generators
from robopolicy.core.untrusted import checked, read_json, read_text, refusing
from robopolicy.policies.base import Policy
from robopolicy.policies.find import find_policy
from robopolicy.policies.io import load_policy, save_policy, write_policy
from robopolicy.utils.atomic import remove_leftovers, write_atomically
from robopolicy.utils.provenance import version
from robopolicy.utils.storage import checkpoints_in, new_directory, read_state, verify, write_state

__all__ = ["Checkpointer", "find_policy", "load_policy", "save_policy"]

FORMAT = 4  # of the training state; policies have one of their own
# format found → function that turns a training state into one of the next format. Filled when FORMAT grows.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}

_log = logging.getLogger(__name__)


class _Meta(pydantic.BaseModel):
    """checkpoint.json; unknown keys come from a newer version."""

    model_config = pydantic.ConfigDict(strict=True)
    format: int
    step: pydantic.NonNegativeInt
    robopolicy: str = "unknown"
    threads: int | None = None
    best: bool = False  # of all until then


class Product(Protocol):
    """Result of a training that is no policy, for example a world model; written into a folder of its own name."""

    folder: str

    def write(self, folder: Path) -> None: ...


class Checkpointer:
    """Writes checkpoints atomically, and keeps the newest `keep` and the best one.

    Inside `interruptible()` a first SIGINT or SIGTERM only sets `requested`. The loop saves at its next safe point, and
    `save` raises KeyboardInterrupt once everything is on disk.

    Args:
        run_dir: parent of `checkpoints/`.
        keep: number of newest checkpoints to keep; with 2 or more, a damaged one has a predecessor to fall back to.
    """

    def __init__(self, run_dir: Path | str, *, keep: int = 2) -> None:
        if keep < 1:
            raise ConfigError(f"keep: expected at least 1 checkpoint, found {keep}")
        self.folder = Path(run_dir) / "checkpoints"
        self.keep = keep
        self.requested = False
        if self.writes:
            remove_leftovers(self.folder)
        self._valid: Path | None = None

    @property
    def writes(self) -> bool:
        """Whether this process changes the folder; others only read it."""
        return True

    def save(self, step: int, *, policy: Policy | Product, state: dict[str, Any], best: bool = False) -> Path:
        """Write a checkpoint as `write` does.

        Raises:
            CheckpointError: see `write`. KeyboardInterrupt: a stop was requested; everything is saved.
        """
        path = self.write(step, policy=policy, state=state, best=best)
        if self.requested:
            raise KeyboardInterrupt
        return path

    def write(self, step: int, *, policy: Policy | Product, state: dict[str, Any], best: bool = False) -> Path:
        """Write a checkpoint and move `latest` (and `best`) to it.

        Args:
            policy: the policy to evaluate and deploy, or another product of the training.
            state: of the training: nested dicts, lists and tuples of tensors and JSON values. The state of the global
                torch generators is added.

        Raises:
            CheckpointError: the disk is full, or a value cannot be stored; the previous checkpoint stays.
        """
        previous = self._all()
        repeats = [repeat for saved, repeat in map(_number, previous) if saved == step]
        # A checkpoint of the same step is never overwritten.
        path = self.folder / (f"step_{step:010d}" + (f"_{max(repeats) + 1}" if repeats else ""))
        keeps = f"The previous checkpoint ({previous[0].name}) is intact." if previous else ""
        with new_directory(path, keeps=keeps) as folder:
            inner = folder / ("policy" if isinstance(policy, Policy) else policy.folder)
            inner.mkdir()
            if isinstance(policy, Policy):
                write_policy(policy, inner)
            else:
                policy.write(inner)
            write_state({"training": state, "rng": generator_state()}, folder)
            meta = {"format": FORMAT, "robopolicy": version(), "step": step, "threads": torch.get_num_threads(),
                    "best": best}  # fmt: skip
            (folder / "checkpoint.json").write_text(json.dumps(meta) + "\n", encoding="utf-8")
        try:
            for pointer in ("latest", "best") if best else ("latest",):
                write_atomically(self.folder / pointer, path.name + "\n")
        except OSError as error:
            raise CheckpointError(f"{self.folder.name}: pointer could not be written: {error}. {path.name} is whole.") \
                from error  # fmt: skip
        self._valid = path
        self._prune()
        return path

    def latest(self) -> dict[str, Any] | None:
        """Return the `state` of the newest valid checkpoint, or None; restore the global torch generators.

        A damaged checkpoint is renamed with a warning, and the previous one is used. A warning is also logged where
        the number of threads or of visible GPUs has changed: the last bits of the result may differ then.

        Raises:
            CheckpointError: all are damaged, or written by a newer robopolicy.
        """
        path = self.latest_path()
        if path is None:
            return None
        meta = _meta(path)
        before, now = meta.threads, torch.get_num_threads()
        if before not in (None, now):
            _log.warning(
                "%s: was computed with %d threads, training goes on with %d. Float sums depend on it, so the result "
                "will not equal that of an uninterrupted run bit for bit. Give threads=%d if it shall.",
                path, before, now, before,
            )  # fmt: skip
        state = read_state(path)
        with refusing(f"{path}: state.json"):
            restore_generators(state["rng"])
            return _migrated(state, meta)

    def latest_path(self) -> Path | None:
        """Return the newest checkpoint, verified; None before the first one."""
        if self._valid is not None and self._valid.exists():
            return self._valid
        damaged: list[Path] = []
        for path in self._all():
            try:
                verify(path)
                meta = _meta(path)
            except CheckpointError as error:
                _log.warning("%s. Falling back to the checkpoint before it.", error)
                damaged.append(path)
                continue
            _check_format(path, meta)
            if self.writes:
                self._set_aside(damaged)
                write_atomically(self.folder / "latest", path.name + "\n")
                self._restore_best()
            self._valid = path
            return path
        if damaged:
            raise CheckpointError(
                f"{self.folder}: all {len(damaged)} checkpoints are damaged. "
                "Remove the folder to start from the beginning."
            )
        return None

    @staticmethod
    def _set_aside(damaged: list[Path]) -> None:
        for path in damaged:
            aside = path.with_name("damaged_" + path.name)
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)

    def _restore_best(self) -> None:
        """Move `best` to the newest checkpoint that says it is: a run may have ended before it could."""
        best = next((path for path in self._all() if _is_best(path)), None)
        pointer = self.folder / "best"
        if best is not None and not (pointer.is_file() and read_text(pointer, limit=4096).strip() == best.name):
            write_atomically(pointer, best.name + "\n")

    @property
    def step(self) -> int | None:
        """Step of the newest valid checkpoint."""
        path = self.latest_path()
        return None if path is None else _meta(path).step

    def ask(self) -> None:
        """Ask the loop to save and stop; asked again, it stops at once."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        _log.warning("Stopping at the next safe point and saving. Press Ctrl-C again to stop without saving.")

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Turn the first SIGINT or SIGTERM into `requested`; the second one interrupts at once."""

        before = {number: signal.signal(number, lambda *_: self.ask()) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _all(self) -> list[Path]:
        """Return checkpoints, newest first. Other folders, for example copies, are neither read nor removed."""
        return sorted(checkpoints_in(self.folder), key=_number, reverse=True)

    def _prune(self) -> None:
        best = self.folder / "best"
        kept = {read_text(best, limit=4096).strip()} if best.exists() else set()
        for path in self._all()[self.keep :]:
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


def _meta(checkpoint: Path) -> _Meta:
    return checked(_Meta, read_json(checkpoint / "checkpoint.json"), f"{checkpoint}/checkpoint.json")


def _is_best(checkpoint: Path) -> bool:
    """Return whether a whole checkpoint says that it is the best of all until then."""
    try:
        if not _meta(checkpoint).best:
            return False
        verify(checkpoint)
    except CheckpointError:
        return False
    return True


def _check_format(path: Path, meta: _Meta) -> None:
    if meta.format not in (*MIGRATIONS, FORMAT):
        raise CheckpointError(
            f"{path}: its training state has format {meta.format} (robopolicy {meta.robopolicy}), this one reads "
            f"{FORMAT}. Finish the run with the version that began it; its policy loads anyhow."
        )


def _migrated(state: dict[str, Any], meta: _Meta) -> dict[str, Any]:
    training = dict(state["training"])
    for found in range(meta.format, FORMAT):
        training = MIGRATIONS[found](training)
    return training


def read_training(checkpoint: Path) -> dict[str, Any]:
    """Read the training state of a checkpoint. Random generators keep their state.

    Raises:
        CheckpointError: it is damaged, or written by a newer robopolicy.
    """
    verify(checkpoint)
    meta = _meta(checkpoint)
    _check_format(checkpoint, meta)
    with refusing(f"{checkpoint}: state.json"):
        return _migrated(read_state(checkpoint), meta)


def _number(checkpoint: Path) -> tuple[int, int]:
    """Return the step, and how often it was saved before: step_0000000005_1 → (5, 1)."""
    step, _, repeat = checkpoint.name.removeprefix("step_").partition("_")
    return int(step), int(repeat or 0)
