"""Numbers that the pages quote beside a link to recorded rows are numbers of these rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import pytest

from robopolicy.reporting.result_rows import ALL, Evidence, read_all

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {"results.md", "changelog.md"}
PAGES = [ROOT / "README.md", *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.name not in GENERATED)]
ROWS = read_all(ROOT / "docs" / "results")
LINK = re.compile(r"\[([^]]+)\]\([./a-z]*results\.md#(\w+)\)")
QUOTE = re.compile(r"((?:\d[\d.]*(?:, | to |–| · | and ))*\d[\d.]*) ?(%|times|ms|min\b|minutes|GiB|GB|s\b)")
COLUMNS = {"before", "after", "from", "to", "cost", "time on two cores"}  # of a table whose rows link to results
ONE = (1.0,)
FACTORS = {"%": (100.0,), "times": ONE, "ms": ONE, "GiB": ONE, "GB": (1e-3,), "min": (1.0, 1 / 60), "s": ONE}
OTHERS = {  # of other settings of the same experiment, or of an earlier record, as the page says
    ("suites.md", "metaworld_residual"): "the mean of eight of nine tasks",
    ("suites.md", "farm_speed"): "beside an earlier record",
}


def quotes(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (id, number, unit) of each number in a link's text, and in the columns of a table beside a link."""
    header: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        header = header or cells if cells else []
        for words, found in LINK.findall(line):
            yield from ((found, *quote) for quote in numbers(words))
        if links := LINK.findall(line):
            for name, cell in zip(header, cells, strict=False):
                if name in COLUMNS:
                    yield from ((links[0][1], *quote) for quote in numbers(cell))


def numbers(words: str) -> Iterator[tuple[str, str]]:
    for found, unit in QUOTE.findall(words):
        for number in re.findall(r"\d[\d.]*", found):
            yield number.rstrip("."), "min" if unit == "minutes" else unit


def recorded(rows: list[Evidence], unit: str) -> Iterator[float]:
    """Yield what may be quoted in a unit: values, training times, means over tasks, percentages of notes."""
    for row in rows:
        yield from (factor * row.value for factor in FACTORS[unit])
        if unit == "%":
            yield from (float(found) for found in re.findall(r"([\d.]+)%", row.notes))
        if unit in ("min", "s") and row.wall_s:
            yield row.wall_s / (60 if unit == "min" else 1)
    pooled = [row for row in rows if row.seeds == ALL and row.metric == "success_rate"]
    for last in {row.setting.rpartition("/")[2] for row in pooled}:
        yield FACTORS[unit][0] * mean(row.value for row in pooled if row.setting.rpartition("/")[2] == last)


def wrong(text: str) -> list[str]:
    """Return the quoted numbers that no row rounds to."""
    found = []
    for name, number, unit in quotes(text):
        half = 0.5 * 10.0 ** -len(number.partition(".")[2]) + 1e-6
        if not any(abs(value - float(number)) <= half for value in recorded(ROWS[name], unit)):
            found.append(f"{name}: {number} {unit}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_quoted_numbers_are_recorded(page: Path) -> None:
    known = {name for where, name in OTHERS if where == page.name}
    assert [quote for quote in wrong(page.read_text(encoding="utf-8")) if quote.partition(":")[0] not in known] == []


def test_a_wrong_quote_is_found() -> None:
    table = "| task | before | after |\n| --- | --- | --- |\n| [Pick](results.md#pick_residual_fast) | 48.7% | {}% |\n"
    assert wrong(table.format("99.8")) == [] and wrong(table.format("99.7")) == ["pick_residual_fast: 99.7 %"]
    assert wrong("[43.4% to 99.0%](results.md#quickstart)") == [], "its notes"
    assert wrong("[58 s](results.md#pick_residual_fast)") == []
    assert wrong("[3 min](results.md#pick_residual_sample_efficient)") == ["pick_residual_sample_efficient: 3 min"]
