"""The generated page of results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from robopolicy.reporting.acceptance import read_goals
from robopolicy.reporting.result_rows import pooled, read_all, write
from robopolicy.reporting.results_page import generate, stale
from tests.reporting.test_result_rows import rate

ROOT = Path(__file__).resolve().parents[2]


def docs_with(tmp_path, rows) -> Path:
    docs = tmp_path / "docs"
    write(rows, root=docs / "results")
    criterion = {"text": "≥ 97%", "setting": "refined", "metric": "success_rate", "min": 0.97}
    criteria = [{"id": "pick", "title": "Pick", "criteria": [criterion]}]
    (docs / "results" / "acceptance_criteria.json").write_text(json.dumps(criteria))
    return docs


def script():
    spec = importlib.util.spec_from_file_location("results_script", ROOT / "scripts" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def test_page_shows_failure_as_plainly_as_success(tmp_path):
    docs = docs_with(tmp_path, [rate(200, 0, setting="base"), rate(480, 0, notes="a|b")])
    page = generate(docs)[docs / "results.md"]
    assert "| [Pick](#pick) | ≥ 97% | 96.0% | **not met** (1 of 1 rows miss it: refined seed 0) |" in page
    assert "| refined | success rate | 0 | 96.0% | 93.9% – 97.4% | 500 |  |  | a\\|b |" in page
    assert "robopolicy train task=pick" in page and "commit abc123, 2 cores" in page
    assert "img/results/pick.svg" in page
    heading, command, rows = (page.index(text) for text in ('id="pick"', "```sh\nrobopolicy train task=pick", "Rows: "))
    assert heading < command < rows < page.index("img/results/pick.svg") and page.count("```sh") == 1
    assert "is called" not in page


def test_renamed_options_are_named(tmp_path):
    page = generate(docs_with(tmp_path, [rate(480, 0, notes="algo=residual_fast, policy=tuned_steps")]))
    text = page[tmp_path / "docs" / "results.md"]
    assert "`algo=residual_fast` is called `algo=residual` now." in text and "policy=finetuned" not in text


def test_check_mode_fails_when_the_page_is_not_what_the_rows_give(tmp_path, capsys):
    docs, main = docs_with(tmp_path, [rate(200, 0, setting="base"), rate(490, 0)]), script()
    assert main(["--check", "--docs", str(docs)]) == 1 and "is missing" in capsys.readouterr().err
    assert main(["--docs", str(docs)]) == 0
    assert main(["--check", "--docs", str(docs)]) == 0
    write([rate(480, 0)], root=docs / "results")
    assert main(["--check", "--docs", str(docs)]) == 1
    assert "results.md is not what the rows give" in capsys.readouterr().err
    main(["--docs", str(docs)])
    (docs / "img" / "results" / "old.svg").write_text("<svg/>")
    assert stale(docs) == [f"{docs.as_posix()}/img/results/old.svg belongs to no experiment"]
    (docs / "results" / "pick.json").write_text("[{}]")
    assert main(["--check", "--docs", str(docs)]) == 2


def test_before_and_after_stand_at_the_head(tmp_path):
    rows = [rate(200, 0, setting="base"), rate(490, 0)]
    docs = docs_with(tmp_path, [*rows, *(pooled([row]) for row in rows)])
    text = generate(docs)[docs / "results.md"]
    before, after = text.split("## Criteria")
    assert "| [Pick](#pick) | 40.0% (35.8–44.4) | 98.0% (96.4–98.9) |" in before
    assert '<a id="pick"></a>' in after


def test_our_own_results_are_valid_and_up_to_date(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert len(read_goals()) >= 10
    read_all()
    assert stale() == []
