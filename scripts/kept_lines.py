"""Lines of JSON that a script keeps, so that the same command goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def kept_lines(file: Path, head: Line) -> list[Line]:
    """Return the lines of a file of this `head`, which is begun where there is none; one that a kill cut goes.

    Raises:
        SystemExit: the file is of another head.
    """
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(head) + "\n")
    text = file.read_text()
    if not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        file.write_text(text)
    found = [json.loads(line) for line in text.splitlines()]
    if found[:1] != [head]:
        raise SystemExit(f"{file}: holds lines of another setting ({found[:1]}, now {head}); choose another --out")
    return found[1:]


def keep_line(file: Path, line: Line) -> None:
    """Append a line."""
    with file.open("a") as out:
        out.write(json.dumps(line) + "\n")
