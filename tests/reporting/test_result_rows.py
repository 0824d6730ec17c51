from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from robopolicy.core.errors import DataError
from robopolicy.evaluation.statistics import wilson
from robopolicy.reporting.acceptance import Criterion, check_criterion, read_goals
from robopolicy.reporting.result_rows import Evidence, measured, of_rows, pooled, read, read_all, write
from robopolicy.reporting.results_page import generate, stale
from tests.evaluation.points import make_rows

ROOT = Path(__file__).resolve().parents[2]
WHERE = {"command": "robopolicy train task=pick", "commit": "abc123", "hardware": "2 cores"}


def rate(successes: int, seed: int | str = 0, *, setting: str = "refined", episodes: int = 500, **extra) -> Evidence:
    value, low, high = wilson(successes, episodes)
    return Evidence(id="pick", setting=setting, metric="success_rate", value=value, low=low, high=high,
                    episodes=episodes, seeds=seed, **WHERE, **extra)  # fmt: skip


def test_rows_are_written_read_and_replaced(tmp_path):
    write([rate(490, 0), rate(480, 1)], root=tmp_path)
    (path,) = write([rate(495, 1), rate(200, 0, setting="base")], root=tmp_path)
    found = {r.key: r.value for r in read(path)}
    assert found == {
        ("refined", "success_rate", "0"): 0.98,
        ("refined", "success_rate", "1"): 0.99,
        ("base", "success_rate", "0"): 0.4,
    }
    assert len(path.read_text().splitlines()) == 5  # one row a line
    write([rate(1, 0)], root=tmp_path, keep=False)
    assert [r.value for r in read(path)] == [0.002]


def test_rows_from_episodes():
    rows = make_rows([True] * 97 + [False] * 3)
    row = of_rows(rows, id="pick", setting="refined", seed=3, env_steps=30_000, wall_s=70.0)
    assert (row.value, row.episodes, row.seeds, row.notes) == (0.97, 100, 3, "")
    assert row.low == wilson(97, 100).low and row.command and row.commit and "cores" in row.hardware
    assert "validation seeds" in of_rows(make_rows([True], split=1), id="pick", setting="base", seed=0).notes


def test_pooled_counts_episodes():
    row = pooled([rate(490, 0, wall_s=50.0), rate(480, 1, wall_s=70.0)])
    assert (row.value, row.episodes, row.seeds, row.wall_s) == (0.97, 1000, "all", 70.0)
    assert row.notes == "2 training seeds, 96.0% to 98.0%"
    with pytest.raises(DataError, match="one a training seed"):
        pooled([rate(1), rate(1, setting="base")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "Pick Fast"}, "id: expected lower-case"),
        ({"value": float("nan")}, "value: expected a finite number"),
        ({"value": 97.0}, "fraction between 0 and 1"),
        ({"low": None}, "give both or neither"),
        ({"low": 0.99}, "low ≤ value ≤ high"),
        ({"episodes": None}, "a success_rate needs them"),
        ({"episodes": 2.5}, "episodes: expected a whole number"),
        ({"seeds": "0-4"}, "seeds: expected a training seed"),
        ({"command": " "}, "command: must not be empty"),
        ({"command": "python /home/me/robopolicy/scripts/a.py"}, "a path of one machine"),
        ({"notes": r"see C:\runs"}, "a path of one machine"),
    ],
)
def test_bad_rows_are_refused(change, message):
    good = {"id": "pick", "setting": "base", "metric": "success_rate", "value": 0.5, "low": 0.4, "high": 0.6,
            "episodes": 100, "seeds": 0, **WHERE}  # fmt: skip
    Evidence(**good)
    with pytest.raises(DataError, match=message):
        Evidence(**good | change)


def test_bad_files_are_named(tmp_path):
    (path,) = write([rate(490)], root=tmp_path)
    data = json.loads(path.read_text())
    path.write_text(json.dumps([{**data[0], "episode": 1}]))
    with pytest.raises(DataError, match=r"pick\.json, row 1: unknown field 'episode'. Did you mean 'episodes'"):
        read(path)
    path.write_text(json.dumps([{k: v for k, v in data[0].items() if k != "commit"}]))
    with pytest.raises(DataError, match=r"\['commit'\] are missing"):
        read(path)
    path.rename(tmp_path / "push.json")
    (tmp_path / "push.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match="must have the id 'push'"):
        read(tmp_path / "push.json")


CRITERION = Criterion(text="", setting="refined", metric="success_rate", min=0.97, count=2, episodes=500)


@pytest.mark.parametrize(
    ("rows", "status", "reason"),
    [
        ([], "not measured", "no such rows"),
        ([rate(490, 0), rate(485, 1)], "met", ""),
        ([rate(490, 0), rate(484, 1)], "not met", "1 of 2 rows miss it: refined seed 1"),
        ([rate(484, 0)], "not met", "1 of 1 rows miss it: refined seed 0"),
        ([rate(490, 0)], "incomplete", "1 of 2 training seeds"),
        ([rate(490, 0), rate(98, 1, episodes=100)], "incomplete", "100 of 500 episodes"),
        ([rate(490, 0), rate(490, 1), rate(484, 2)], "not met", "1 of 3 rows miss it: refined seed 2"),
        ([rate(490, 0), rate(490, 1), rate(480, "all")], "met", ""),  # seeds count one by one
        ([rate(490, 0, setting="base")], "not measured", "no such rows"),
    ],
)
def test_bars(rows, status, reason):
    found = check_criterion(CRITERION, rows)
    assert (found.status, found.reason) == (status, reason)


def test_bars_on_other_fields_and_settings():
    rows = [rate(490, s, setting=f"{t}/refined", env_steps=n) for t, s, n in [("a", 0, 10), ("a", 1, 20), ("b", 0, 30)]]
    steps = Criterion(text="", setting="*/refined", metric="success_rate", field="env_steps", max=30, settings=2)
    assert check_criterion(steps, rows) == ("met", "10 to 30", "")
    assert check_criterion(replace(steps, min=None, max=None), rows).status == "shown"
    every = {"text": "", "setting": "*/refined", "metric": "success_rate"}
    assert check_criterion(Criterion(**every, settings=3), rows).reason == "2 of 3 settings"
    assert check_criterion(Criterion(**every, count=2), rows).reason == "1 of 2 training seeds"
    walls = Criterion(**every, field="wall_s", max=9)
    assert check_criterion(walls, rows) == ("incomplete", "–", "3 rows without wall_s")
    ratio = [measured(id="speed", setting="rollout", metric="ratio", interval=0.9, command="x")]
    assert check_criterion(Criterion(text="", setting="rollout", metric="ratio", min=0.85), ratio) == (
        "met",
        "0.9",
        "",
    )


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


def test_readme_table_stands_between_its_marks(tmp_path):
    rows = [rate(200, 0, setting="base"), rate(490, 0)]
    docs = docs_with(tmp_path, [*rows, *(pooled([row]) for row in rows)])
    readme = tmp_path / "README.md"
    readme.write_text("a\n<!-- results: begin -->\nold\n<!-- results: end -->\nb\n")
    text = generate(docs)[readme]
    assert text.startswith("a\n<!-- results: begin -->\n| task |") and text.endswith("<!-- results: end -->\nb\n")
    assert "| [Pick](docs/results.md#pick) | 40.0% (35.8–44.4) | 98.0% (96.4–98.9) |" in text and "old" not in text


def test_our_own_results_are_valid_and_up_to_date(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert len(read_goals()) >= 10
    read_all()
    assert stale() == []


def test_bars_with_typos_are_named(tmp_path):
    path = tmp_path / "acceptance_criteria.json"
    path.write_text('[{"id": "a", "title": "A", "criteria": [{"text": "", "setting": "s", "metric": "m", "mim": 1}]}]')
    with pytest.raises(
        DataError, match=r"acceptance_criteria\.json, a, criterion 1: unknown key 'mim'. Did you mean 'min'"
    ):
        read_goals(path)
    path.write_text('[{"id": "a", "title": "A", "criteria": [{"text": "", "setting": "s"}]}]')
    with pytest.raises(DataError, match=r"\['metric'\] must be given"):
        read_goals(path)
