"""Fill in the templates of reports and plots (assets/) ; text in HTML and SVG is escaped."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

_ASSETS = Path(__file__).parent / "assets"


def render(template: str, **values: Any) -> str:
    """Return the template filled in with `values`; another one does not escape it again. Markdown is not escaped.

    Raises:
        jinja2.UndefinedError: the template reads a value that is not there.
    """
    from jinja2.utils import markupsafe

    text = _environment().get_template(template).render(values)
    return text if template.endswith(".md") else markupsafe.Markup(text)


@functools.cache
def _environment() -> Environment:
    """Build the environment; jinja2 is imported where the first report is written."""
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS), autoescape=lambda name: not (name or "").endswith(".md"),
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    found.filters |= {"number": number, "percent": percent, "px": "{:.1f}".format, "pretty": _pretty, "cell": _cell}
    found.globals |= {"asset": asset, "finite": math.isfinite}
    return found


def asset(name: str) -> str:
    """Return a file of assets/ as it stands."""
    from jinja2.utils import markupsafe

    return markupsafe.Markup((_ASSETS / name).read_text(encoding="utf-8").strip())


def _cell(text: str) -> str:
    """Return text as it may stand in a table of Markdown."""
    return text.replace("|", "\\|").replace("\n", " ")


def _pretty(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False)


def number(value: float) -> str:
    """Short form for ticks and tables: 1200 → 1.2k, 0.00031 → 3.1e-4."""
    size = abs(value)
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.4g}{letter}"
    if size >= 0.001:
        return f"{value:.4g}"
    mantissa, exponent = f"{value:.2g}".split("e") if "e" in f"{value:.2g}" else (f"{value:.1e}").split("e")
    return f"{mantissa}e{int(exponent)}"


def percent(value: float) -> str:
    return f"{100 * value:.4g}%"
