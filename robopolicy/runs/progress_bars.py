"""Progress bars: one on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

_LINE_EVERY_S = 5.0  # without a terminal: at most one line in this time


@contextlib.contextmanager
def progress_bar(console: Console, total: int, description: str) -> Iterator[RichBar | PlainLines]:
    """Show a bar with rate and time left; without a terminal, a line every few seconds."""
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            _Rate(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
        )
        with Progress(*columns, console=console, refresh_per_second=4) as bar:
            yield RichBar(bar, total, description)
    else:
        lines = PlainLines(console, total, description)
        try:
            yield lines
        finally:
            lines.close()


class Silent:
    """Shows nothing."""

    def update(self, step: int, **numbers: float) -> None:
        pass


class RichBar:
    """Bar on a terminal."""

    def __init__(self, bar: Progress, total: int, description: str) -> None:
        self.bar = bar
        self.first: int | None = None
        self.task = bar.add_task(description, total=total, numbers="", first=0)

    def update(self, step: int, **numbers: float) -> None:
        if self.first is None:  # A resumed run starts in the middle: rate and time left count from there.
            self.first = step
            self.bar.reset(self.task, completed=step, numbers="", first=step)
        self.bar.update(self.task, completed=step, numbers=_text(numbers))


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        done, seconds = task.completed - task.fields["first"], task.elapsed or 0.0
        return Text(_per_second(done / seconds if seconds else 0.0))


class PlainLines:
    """Prints one plain line every few seconds, and the last state at the end."""

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
        line = f"{self.description}: {step:,}/{self.total:,}, {_per_second(rate)}, {now - self.began:.0f} s{left}  "
        print((line + _text(numbers)).rstrip(), file=self.console.file or sys.stderr, flush=True)


def _per_second(rate: float) -> str:
    """Format a rate: two digits of a slow one, so that 0.3/s is not shown as 0/s."""
    if rate <= 0:
        return "–/s"
    return f"{rate:.2g}/s" if rate < 10 else f"{rate:,.0f}/s"


def _text(numbers: dict[str, float]) -> str:
    return "  ".join(f"{k} {v:.4g}" for k, v in numbers.items())
