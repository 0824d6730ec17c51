"""Log a run: metrics.jsonl, wandb and TensorBoard beside it, and one progress bar."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from rich.console import Console

from robopolicy.config.schema import TARGET, Natural
from robopolicy.core.errors import CheckpointError
from robopolicy.core.protocols import Progress
from robopolicy.core.untrusted import parse_json
from robopolicy.runs.progress_bars import Silent, progress_bar
from robopolicy.runs.tensorboard_run import TensorBoardRun
from robopolicy.runs.wandb_run import Mode, WandbRun
from robopolicy.utils.atomic import write_atomically

Axis = Literal["step", "updates", "env_steps"]
_NOTES, _NOTE_LENGTH = 100, 1_000  # of a run; letters of one
_log = logging.getLogger(__name__)


class Sink(Protocol):
    """A service that shows a run.

    `name`: of the config's key. `active`: False where the user's settings disable it. `place`: where to see the run.
    """

    @property
    def name(self) -> str: ...
    @property
    def active(self) -> bool: ...
    @property
    def place(self) -> str: ...
    def rewind(self, step: int | None, rows: list[dict[str, Any]]) -> None: ...
    def log(self, metrics: dict[str, Any], step: int) -> None: ...
    def video(self, name: str, path: Path, step: int, caption: str) -> None: ...
    def note(self, text: str, step: int) -> None: ...
    def close(self, *, failed: bool) -> None: ...


class Tracker:
    """Logs numbers, films and notes of one run.

    wandb and TensorBoard continue the run of the folder. Where one of them fails, a warning is logged at once and at
    `close`, and the run continues without it. Warnings of robopolicy's own code become notes.

    Args:
        run_dir: folder of `metrics.jsonl`, `wandb/` and `tensorboard/`; None: nothing is written, only progress is
            shown.
        wandb: "auto" is online where the user is logged in, and else offline; WANDB_MODE overrules all but "disabled".
        tensorboard: write events for TensorBoard.
        films: episodes that each evaluation during training films for wandb and TensorBoard, failures first; 0: none.
        project, group, name, tags: shown by wandb; `name` defaults to the run directory's.
        config: of the run, shown by wandb and TensorBoard.
        axis: unit of the steps: updates or env steps.
        quiet: no progress at all.
    """

    def __init__(
        self,
        run_dir: Path | str | None = None,
        *,
        wandb: Mode = "auto",
        tensorboard: bool = False,
        films: Natural = 2,
        project: str = "robopolicy",
        group: str | None = None,
        name: str | None = None,
        tags: tuple[str, ...] = (),
        config: dict[str, Any] | None = None,
        axis: Axis = "step",
        quiet: bool = False,
        console: Console | None = None,
    ) -> None:
        self.path = None if run_dir is None else Path(run_dir) / "metrics.jsonl"
        self.console, self.quiet, self.films = console or Console(stderr=True), quiet, films
        self._began = time.monotonic()  # Moved back on resume, so that wall_s continues.
        self._step, self._notes = 0, 0  # of the newest log; notes so far
        self.sinks: list[Sink] = []
        self.failure = ""  # reason why wandb or TensorBoard does not log
        self._warnings = _Warnings(self)
        if self.path is None:
            return
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        mode = wandb if wandb == "disabled" else os.environ.get("WANDB_MODE") or wandb  # not for tracker=local
        options = {"project": project, "group": group, "name": name or folder.resolve().name, "tags": list(tags),
                   "config": config}  # fmt: skip
        if mode != "disabled":
            self._start("wandb", lambda: WandbRun(folder, mode=mode, axis=axis, options=options))
        if tensorboard:
            self._start("tensorboard", lambda: TensorBoardRun(folder, config=config))
        if self.sinks:
            logging.getLogger("robopolicy").addHandler(self._warnings)

    @property
    def shows_films(self) -> bool:
        """Whether films of evaluations are wanted and can be shown."""
        return self.films > 0 and bool(self.sinks)

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Append one line {"step", "wall_s", **metrics}; numbers that are not finite become null."""
        wall, self._step = round(time.monotonic() - self._began, 3), step
        numbers = {k: _number(v) for k, v in metrics.items()}
        row = {"step": step, "wall_s": wall, **numbers}
        if self.path is not None:
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            except OSError as error:  # A full disk also fails the checkpoint, which reports it.
                _log.warning("metrics.jsonl: a line was lost: %s", error)
        self._each(lambda sink: sink.log({**numbers, "wall_s": wall}, step))

    def rewind(self, step: int | None) -> None:
        """Remove lines beyond `step` and an incomplete last one: a resumed run logs them again. `wall_s` continues.

        Args:
            step: of the newest checkpoint; None: the run starts from the beginning, and all lines are removed.
        """
        if self.path is None or not self.path.exists():
            return
        kept, rows, wall = [], list[dict[str, Any]](), 0.0
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(CheckpointError, KeyError, TypeError, ValueError, OverflowError):
                row = parse_json(line, self.path.name, finite=False)
                if step is not None and row["step"] <= step:
                    kept.append(line + "\n")
                    rows.append({k: v for k, v in row.items() if v is None or isinstance(v, int | float)})
                    wall = max(wall, float(row["wall_s"]))
        write_atomically(self.path, "".join(kept))
        self._began = time.monotonic() - wall
        self._each(lambda sink: sink.rewind(step, rows))

    def video(self, name: str, path: Path | str, step: int, caption: str = "") -> None:
        """Show an MP4 file in wandb and TensorBoard."""
        self._each(lambda sink: sink.video(name, Path(path), step, caption))

    def note(self, text: str) -> None:
        """Add a sentence to the run's notes in wandb and TensorBoard, which keep the first hundred."""
        self._notes += 1
        if self._notes <= _NOTES:
            self._each(lambda sink: sink.note(text[:_NOTE_LENGTH], self._step))

    @contextlib.contextmanager
    def progress(self, total: int, description: str) -> Iterator[Progress]:
        """Show progress: a bar with rate and time left; without a terminal, a line every few seconds."""
        if self.quiet:
            yield Silent()
            return
        with progress_bar(self.console, total, description) as bar:
            yield bar

    def close(self, *, failed: bool = False) -> None:
        """Finish wandb's run and TensorBoard's file; call it once at the end.

        Args:
            failed: the training ended by an error.
        """
        logging.getLogger("robopolicy").removeHandler(self._warnings)
        self._each(lambda sink: sink.close(failed=failed))
        self.sinks = []
        if self.failure:
            _log.warning("This run was not shown to its end: %s. %s has all numbers.", self.failure, self.path)

    def _start(self, name: str, make: Callable[[], Sink]) -> None:
        try:
            sink = make()
        except Exception as error:
            self._fail(name, error)
            return
        if not sink.active:
            return
        self.sinks.append(sink)
        if not self.quiet:
            print(f"{name}: {sink.place}", file=self.console.file or sys.stderr, flush=True)

    def _each(self, action: Callable[[Sink], None]) -> None:
        """Call wandb and TensorBoard; an error becomes a warning, and the run continues without the failed one."""
        for sink in list(self.sinks):
            try:
                action(sink)
            except Exception as error:
                self.sinks.remove(sink)
                self._fail(sink.name, error)

    def _fail(self, name: str, error: Exception) -> None:
        self.failure = f"{name}: {type(error).__name__}: {error}"
        _log.warning("%s failed (%s: %s); the run continues without it.", name, type(error).__name__, error)


def grouped(node: Mapping[str, Any], group: str, name: str | None = None) -> dict[str, Any]:
    """Return the node of a tracker for one of several runs, shown in `group` unless the node names another.

    Args:
        name: of this run; None: as the node says.
    """
    if node.get(TARGET) != "tracker":  # a user's own may take neither
        return dict(node)
    return {**node, "group": node.get("group") or group, "name": name or node.get("name")}


class _Warnings(logging.Handler):
    """Adds warnings to the notes of a run."""

    def __init__(self, tracker: Tracker) -> None:
        super().__init__(logging.WARNING)
        self.tracker = tracker

    def emit(self, record: logging.LogRecord) -> None:
        self.tracker.note(f"{record.levelname.lower()}: {record.getMessage()}")


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool | int):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None
