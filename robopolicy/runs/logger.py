"""Log a run: metrics.jsonl, wandb beside it, and one progress bar."""

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
from typing import Any, Literal

from rich.console import Console

from robopolicy.core.errors import CheckpointError, RobopolicyError
from robopolicy.core.protocols import Progress
from robopolicy.core.untrusted import parse_json, read_text
from robopolicy.runs.progress_bars import Silent, progress_bar
from robopolicy.utils.atomic import write_atomically

Wandb = Literal["auto", "online", "offline", "disabled"]
_ANSWER_S = 5.0  # time-out of wandb's server
_IDENT = re.compile(r"[A-Za-z0-9_-]{1,64}")  # The id becomes part of a path.
_log = logging.getLogger(__name__)


class Tracker:
    """Logs numbers and videos of one run.

    Args:
        run_dir: folder of `metrics.jsonl` and `wandb/`; None: nothing is written, only progress is shown.
        wandb: "auto" is online where the user is logged in, and else offline; WANDB_MODE overrules it. Where wandb does
            not start, a warning is logged at once and at `close`, and the run continues without wandb.
        project, group, name, tags: shown by wandb; `name` defaults to the run directory's.
        config: of the run, shown by wandb.
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
        self._began = time.monotonic()  # Moved back on resume, so that wall_s continues.
        self._run: Any = None
        self.failure = ""  # reason why wandb does not log
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
            except OSError as error:  # A full disk also fails the checkpoint, which reports it.
                _log.warning("metrics.jsonl: a line was lost: %s", error)
        if self._run is not None:
            self._guard(lambda: self._run.log({**numbers, "wall_s": wall}, step=step))

    def rewind(self, step: int | None) -> None:
        """Remove lines beyond `step` and an incomplete last one: a resumed run logs them again. `wall_s` continues.

        Args:
            step: of the newest checkpoint; None: the run starts from the beginning, and all lines are removed.
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
        """Upload a video file to wandb."""
        if self._run is not None:
            self._guard(lambda: self._run.log({name: _wandb().Video(str(path))}, step=step))

    @contextlib.contextmanager
    def progress(self, total: int, description: str) -> Iterator[Progress]:
        """Show progress: a bar with rate and time left; without a terminal, a line every few seconds."""
        if self.quiet:
            yield Silent()
            return
        with progress_bar(self.console, total, description) as bar:
            yield bar

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
            wandb.teardown()  # wandb's service still holds the run that failed.
            chosen, self._run = "offline", start("offline")
        if not self.quiet:
            where = self._run.url if chosen == "online" else Path(self._run.dir).parent
            print(f"wandb: {chosen}, {where}", file=self.console.file or sys.stderr, flush=True)

    def _guard(self, action: Any) -> None:
        """Call wandb; its errors become a warning."""
        try:
            action()
        except Exception as error:
            self._run, self.failure = None, _reason(error)
            _log.warning("wandb failed (%s); the run continues with metrics.jsonl alone.", self.failure)


class TrackerError(RobopolicyError):
    """wandb cannot start in the mode that was asked for."""


def auto_mode(wandb: Any) -> str:
    """Return the mode that "auto" stands for: that of wandb's own settings, else online where the user is logged in."""
    mode = str(wandb.setup().settings.mode)  # written by `wandb offline` and `wandb disabled`
    if mode != "online":
        return mode
    return "online" if wandb.api.is_authenticated else "offline"  # wandb.login() would prompt.


def _check_online(wandb: Any) -> None:
    """Check login and server: wandb would prompt for the first and wait for the second without a time-out.

    Raises:
        TrackerError: the user is not logged in, or the server does not answer.
    """
    if not wandb.api.is_authenticated:
        raise TrackerError("wandb=online: not logged in. Run `wandb login`, or give tracker.wandb=offline.")
    url = str(wandb.setup().settings.base_url)
    try:
        urllib.request.urlopen(url, timeout=_ANSWER_S).close()
    except urllib.error.HTTPError:
        pass  # The server answers.
    except (OSError, ValueError, http.client.HTTPException) as error:
        if not isinstance(getattr(error, "reason", None), ssl.SSLError):  # wandb uses its own certificates.
            raise TrackerError(f"wandb=online: no answer from {url}: {error}. Give tracker.wandb=offline.") from None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool | int):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None


def _wandb() -> Any:
    try:
        import wandb  # The import takes seconds.
    except ModuleNotFoundError as error:
        if error.name != "wandb":
            raise
        raise TrackerError("is not installed: pip install 'robopolicy[wandb]', or choose tracker=local") from None
    return wandb
