from __future__ import annotations

import subprocess
import sys

import pytest

from robopolicy.reporting.templates import number, render


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (30_000, "30k"), (1_250_000, "1.25M"), (0.25, "0.25"), (3.1e-4, "3.1e-4"), (-2e-5, "-2e-5"), (97, "97")],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_text_is_escaped_and_a_finished_part_is_not() -> None:
    part = render("not_shown.html", name="<b>", reason="a & b")
    assert "Not shown&lt;b&gt;</h2><p class=note>a &amp; b</p>" in part
    facts = dict.fromkeys(("title", "intervals", "command", "version", "hardware"), "")
    values = {"names": ["<i>"], "episodes": 1, "split": "test", "curves": {}, "units": {}, "pairs": {}}
    page = render("robustness.html", **facts, **values, meta=[], charts=[part])
    assert part in page and "Success of &lt;i&gt; under" in page


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(Exception, match="'reason' is undefined"):
        render("not_shown.html", name="")


def test_the_command_line_starts_without_the_libraries_of_reports() -> None:
    code = "import sys, robopolicy.cli.main; print([m for m in ('jinja2', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
