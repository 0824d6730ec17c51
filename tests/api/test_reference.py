"""The table of docs/api.md, for readers of the clone, says what the code says."""

from __future__ import annotations

import inspect
from pathlib import Path

import robopolicy as rp

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def row(name: str) -> str:
    """Return the signature without types, and the first line of the docstring."""
    function = getattr(rp, name)
    bare = [p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()]
    about = inspect.cleandoc(function.__doc__).splitlines()[0]
    return f"| `rp.{name}{inspect.Signature(bare)}` | {about} |"


def test_the_table_of_functions_is_that_of_the_code() -> None:
    functions = [name for name in rp.__all__ if name != "RobopolicyError"]
    wanted = [row(name) for name in functions]
    found = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `rp.")]
    assert found == wanted, "docs/api.md: the table is to be\n" + "\n".join(wanted)
