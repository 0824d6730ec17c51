"""What a run tells people while it works: metrics.jsonl, wandb beside it, and one progress bar."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import math
import os
import re
import secrets
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from robopolicy.core.errors import CheckpointError, RobopolicyError
from robopolicy.core.untrusted import parse_json, read_text
from robopolicy.utils.atomic import write_atomically

Wandb = Literal["auto", "online", "offline", "disabled"]
_ANSWER_S = 5.0  # for wandb's server to answer at all
_LINE_EVERY_S = 5.0  # without a terminal: at most one line in this time
_IDENT = re.compile(r"[A-Za-z0-9_-]{1,64}")  # it becomes part of a path
_log = logging.getLogger(__name__)


class ProgressBar(Protocol):
    def update(self, step: int, **numbers: float) -> None: ...


class Tracker:
    """Logs numbers and videos of one run.

    Args:
        run_dir: `metrics.jsonl` and `wandb/` go here; None: nothing is written, only progress is shown.
        wandb: "auto" is online where the user is logged in, offline otherwise; WANDB_MODE overrules it. A wandb that
            does not start is a warning at once and again at `close`; the run goes on without it.
        project, group, name, tags: as wandb shows them; `name` defaults to the run directory's.
        quiet: no progress at all.
    """

    def __init__(
        self,
        run_dir: Path | str | None = None,
        *,
        wandb: Wandb = "auto",
        project: str = "robopolicy",
        group: str | None = None,
        name: str | None = None,
        tags: tuple[str, ...] = (),
        config: dict[str, Any] | None = None,
        quiet: bool = False,
        console: Console | None = None,
    ) -> None:
        self.path = None if run_dir is None else Path(run_dir) / "metrics.jsonl"
        self.console = console or Console(stderr=True)
        self.quiet = quiet
        self._began = time.monotonic()  # moved back on resume, so that wall_s goes on
        self._run: Any = None
        self.failure = ""  # why wandb does not log, or logs no longer
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            mode = os.environ.get("WANDB_MODE") or wandb
            if mode != "disabled":
                self._guard(lambda: self._start_wandb(mode, project, group, name, tags, config))

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Append one line {"step", "wall_s", **metrics}; numbers that are not finite become null."""
        wall = round(time.monotonic() - self._began, 3)
        numbers = {k: _number(v) for k, v in metrics.items()}
        row = {"step": step, "wall_s": wall, **numbers}
        if self.path is not None:
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            except OSError as error:  # a full disk: the checkpoint will say so; a lost line must not end the run
                _log.warning("metrics.jsonl: a line was lost: %s", error)
        if self._run is not None:
            self._guard(lambda: self._run.log({**numbers, "wall_s": wall}, step=step))

    def rewind(self, step: int | None) -> None:
        """Drop lines beyond `step` and a torn last one: a resumed run logs them again. `wall_s` goes on from there.

        None: a run that ended before its first checkpoint begins anew, and all lines go.
        """
        if self.path is None or not self.path.exists():
            return
        kept, wall = [], 0.0
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(CheckpointError, KeyError, TypeError, ValueError, OverflowError):
                row = parse_json(line, self.path.name, finite=False)
                if step is not None and row["step"] <= step:
                    kept.append(line + "\n")
                    wall = max(wall, float(row["wall_s"]))
        write_atomically(self.path, "".join(kept))
        self._began = time.monotonic() - wall

    def video(self, name: str, path: Path | str, step: int) -> None:
        """Show a video file in wandb; the file itself stays where it is."""
        if self._run is not None:
            self._guard(lambda: self._run.log({name: _wandb().Video(str(path))}, step=step))

    @contextlib.contextmanager
    def progress(self, total: int, description: str) -> Iterator[ProgressBar]:
        """A bar with rate and time left; without a terminal, a line every few seconds."""
        if self.quiet:
            yield _Silent()
        elif self.console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
                _Rate(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[numbers]}"),
            )
            with Progress(*columns, console=self.console, refresh_per_second=4) as bar:
                yield _RichBar(bar, total, description)
        else:
            lines = _Lines(self.console, total, description)
            try:
                yield lines
            finally:
                lines.close()

    def close(self) -> None:
        """Finish wandb's run; call it once at the end."""
        run, self._run = self._run, None
        if run is not None:
            self._guard(lambda: run.finish())
        elif self.failure:
            _log.warning("wandb did not log this run to its end: %s. %s has all numbers.", self.failure, self.path)

    def _start_wandb(
        self, mode: str, project: str, group: str | None, name: str | None, tags: tuple[str, ...], config: Any
    ) -> None:
        assert self.path is not None
        folder, wandb = self.path.parent, _wandb()
        file = folder / "wandb_id"
        if not file.is_file() or not _IDENT.fullmatch(read_text(file, limit=4096).strip()):
            write_atomically(file, secrets.token_hex(4) + "\n")
        settings = wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True)

        def start(mode: str) -> Any:
            if mode == "online":
                _check_online(wandb)
            return wandb.init(
                dir=str(folder), id=file.read_text(encoding="utf-8").strip(), mode=mode,
                resume="allow" if mode == "online" else None, project=project, group=group,
                name=name or folder.resolve().name, tags=list(tags), config=config, settings=settings,
            )  # fmt: skip

        chosen = auto_mode(wandb) if mode == "auto" else mode
        if chosen == "disabled":
            return
        try:
            self._run = start(chosen)
        except Exception as error:
            if mode != "auto" or chosen != "online":
                raise
            _log.warning("wandb could not start online (%s); this run is logged offline.", _reason(error))
            wandb.teardown()  # its service still holds the run that failed
            chosen, self._run = "offline", start("offline")
        if not self.quiet:
            where = self._run.url if chosen == "online" else Path(self._run.dir).parent
            print(f"wandb: {chosen}, {where}", file=self.console.file or sys.stderr, flush=True)

    def _guard(self, action: Any) -> None:
        """Whatever wandb does, the run goes on."""
        try:
            action()
        except Exception as error:
            self._run, self.failure = None, _reason(error)
            _log.warning("wandb failed (%s); the run goes on with metrics.jsonl alone.", self.failure)


class TrackerError(RobopolicyError):
    """wandb cannot start as it was told to."""


def auto_mode(wandb: Any) -> str:
    """Return the mode that "auto" stands for: that of wandb's own settings, else online where the user is logged in."""
    mode = str(wandb.setup().settings.mode)  # `wandb offline` and `wandb disabled` write it
    if mode != "online":
        return mode
    return "online" if wandb.api.is_authenticated else "offline"  # wandb.login() would ask in a terminal


def _check_online(wandb: Any) -> None:
    """Check what wandb would ask for in a terminal, or wait for without end.

    Raises:
        TrackerError: the user is not logged in, or the server does not answer.
    """
    if not wandb.api.is_authenticated:
        raise TrackerError("wandb=online: not logged in. Run `wandb login`, or give tracker.wandb=offline.")
    url = str(wandb.setup().settings.base_url)
    try:
        urllib.request.urlopen(url, timeout=_ANSWER_S).close()
    except urllib.error.HTTPError:
        pass  # an answer
    except (OSError, ValueError, http.client.HTTPException) as error:
        if not isinstance(getattr(error, "reason", None), ssl.SSLError):  # wandb has certificates of its own
            raise TrackerError(f"wandb=online: no answer from {url}: {error}. Give tracker.wandb=offline.") from None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class _Silent:
    def update(self, step: int, **numbers: float) -> None:
        pass


class _RichBar:
    def __init__(self, bar: Progress, total: int, description: str) -> None:
        self.bar = bar
        self.first: int | None = None
        self.task = bar.add_task(description, total=total, numbers="", first=0)

    def update(self, step: int, **numbers: float) -> None:
        if self.first is None:  # a resumed run starts in the middle: rate and ETA count from there
            self.first = step
            self.bar.reset(self.task, completed=step, numbers="", first=step)
        self.bar.update(self.task, completed=step, numbers=_text(numbers))


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        done, seconds = task.completed - task.fields["first"], task.elapsed or 0.0
        return Text(f"{done / seconds:,.0f}/s" if seconds and done else "–/s")


class _Lines:
    """One plain line every few seconds, and the last state at the end."""

    def __init__(self, console: Console, total: int, description: str) -> None:
        self.console, self.total, self.description = console, total, description
        self.began = self.printed = time.monotonic()
        self.first: int | None = None
        self.state: tuple[int, dict[str, float]] | None = None

    def update(self, step: int, **numbers: float) -> None:
        now = time.monotonic()
        self.first = step if self.first is None else self.first
        self.state = step, numbers
        if now - self.printed >= _LINE_EVERY_S:
            self._print(now)

    def close(self) -> None:
        if self.state is not None:
            self._print(time.monotonic())

    def _print(self, now: float) -> None:
        assert self.state is not None
        assert self.first is not None
        (step, numbers), self.state, self.printed = self.state, None, now
        rate = (step - self.first) / max(1e-9, now - self.began)
        left = f", {(self.total - step) / rate:.0f} s left" if rate > 0 and step < self.total else ""
        line = f"{self.description}: {step:,}/{self.total:,}, {rate:,.0f}/s, {now - self.began:.0f} s{left}  "
        print((line + _text(numbers)).rstrip(), file=self.console.file or sys.stderr, flush=True)


def _text(numbers: dict[str, float]) -> str:
    return "  ".join(f"{k} {v:.4g}" for k, v in numbers.items())


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool | int):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None


def _wandb() -> Any:
    import wandb  # seconds to import; only where it is used

    return wandb
