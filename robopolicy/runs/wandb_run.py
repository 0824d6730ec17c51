"""Show a run in Weights & Biases: curves, films, config, notes and system metrics."""

from __future__ import annotations

import http.client
import logging
import re
import secrets
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Literal

from robopolicy.core.errors import TrackerError
from robopolicy.core.untrusted import read_text
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.install_commands import pip_install

Mode = Literal["auto", "online", "offline", "disabled"]
ID_FILE = "wandb_id"  # in the run directory; a resumed run continues the run of this id
_ANSWER_S = 5.0  # time-out of wandb's server
_STATS_S = 2.0  # seconds between samples of the machine's load
_IDENT = re.compile(r"[A-Za-z0-9_-]{1,64}")  # The id becomes part of a path.
_CHARTS = ("train/*", "eval/*", "report/*", "films/*", "wall_s")  # drawn over the training's own axis
_log = logging.getLogger(__name__)


class WandbRun:
    """One process's part of a wandb run.

    A run that is continued offline gets a second file of the same id. `rewind` makes that file complete, because
    `wandb sync` of a file replaces the server's curves.

    Args:
        folder: run directory; wandb writes below its `wandb/`.
        mode: "auto": online where the user is logged in and the server answers, and else offline.
        axis: name of the step axis, "updates" or "env_steps".
        options: project, group, name, tags and config, as `wandb.init` takes them.

    Raises:
        TrackerError: wandb is not installed, or cannot be online where `mode` is "online".
    """

    name = "wandb"

    def __init__(self, folder: Path, *, mode: str, axis: str, options: dict[str, Any]) -> None:
        self.axis, self.notes, self._wandb = axis, list[str](), import_wandb()
        self.mode = auto_mode(self._wandb) if mode == "auto" else mode
        self._run: Any = None if self.mode == "disabled" else self._start(folder, mode, options)
        if self._run is not None:
            self._run.define_metric(axis)
            for name in _CHARTS:
                self._run.define_metric(name, step_metric=axis)

    @property
    def active(self) -> bool:
        return self._run is not None

    @property
    def place(self) -> str:
        """Mode, and address of the run, or its folder where it is offline."""
        return f"{self.mode}, {self._run.url if self.mode == 'online' else Path(self._run.dir).parent}"

    def rewind(self, step: int | None, rows: list[dict[str, Any]]) -> None:
        """Log the earlier rows of a resumed run again, where this process has a file of its own (offline)."""
        for row in rows if self.mode == "offline" else []:
            self.log({k: v for k, v in row.items() if k != "step"}, row["step"])

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Log numbers, or media, at `step` of the training."""
        self._run.log({self.axis: step, **metrics}, step=step)

    def video(self, name: str, path: Path, step: int, caption: str) -> None:
        """Show an MP4 file."""
        self.log({name: self._wandb.Video(str(path), caption=caption, format="mp4")}, step)

    def note(self, text: str, step: int) -> None:
        """Append a line to the run's notes."""
        self.notes.append(f"- step {step}: {text}")
        self._run.notes = "\n".join(self.notes)

    def close(self, *, failed: bool) -> None:
        """Finish the run, as crashed where `failed`."""
        self._run.finish(exit_code=int(failed))

    def _start(self, folder: Path, asked: str, options: dict[str, Any]) -> Any:
        file, wandb = folder / ID_FILE, self._wandb
        if not file.is_file() or not _IDENT.fullmatch(read_text(file, limit=4096).strip()):
            write_atomically(file, secrets.token_hex(4) + "\n")
        ident = file.read_text(encoding="utf-8").strip()
        settings = wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, x_stats_sampling_interval=_STATS_S
        )

        def init() -> Any:
            if self.mode == "online":
                _check_online(wandb)
            resume = "allow" if self.mode == "online" else None
            return wandb.init(dir=str(folder), id=ident, mode=self.mode, resume=resume, settings=settings, **options)

        try:
            return init()
        except Exception as error:
            if asked != "auto" or self.mode != "online":
                raise
            _log.warning("wandb could not start online (%s: %s); it logs offline.", type(error).__name__, error)
            wandb.teardown()  # wandb's service still holds the run that failed.
            self.mode = "offline"
            return init()


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
    url = str(wandb.setup().settings.base_url).rstrip("/") + "/graphql"  # what wandb.init waits for, without end
    headers = {"Content-Type": "application/json"}
    try:
        request = urllib.request.Request(url, data=b'{"query": "{__typename}"}', headers=headers)
        urllib.request.urlopen(request, timeout=_ANSWER_S).close()
    except urllib.error.HTTPError:
        pass  # The server answers.
    except (OSError, ValueError, http.client.HTTPException) as error:
        if not isinstance(getattr(error, "reason", None), ssl.SSLError):  # wandb uses its own certificates.
            raise TrackerError(f"wandb=online: no answer from {url}: {error}. Give tracker.wandb=offline.") from None


def import_wandb() -> Any:
    """Import wandb, or raise TrackerError with the command that installs it."""
    try:
        import wandb  # The import takes seconds.
    except ModuleNotFoundError as error:
        if error.name != "wandb":
            raise
        fix = pip_install("robopolicy[wandb]")
        raise TrackerError(f"is not installed. Choose tracker=local, or install it: {fix}") from None
    return wandb
