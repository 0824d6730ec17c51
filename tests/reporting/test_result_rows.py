from __future__ import annotations

import json

import pytest

from robopolicy.core.errors import DataError
from robopolicy.evaluation.statistics import wilson
from robopolicy.reporting.result_rows import Evidence, of_rows, pooled, read, write
from tests.evaluation.points import make_rows

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
        ({"command": 'python a.py "/home/me/x"'}, "a path of one machine"),
    ],
)
def test_bad_rows_are_refused(change, message):
    good = {"id": "pick", "setting": "base", "metric": "success_rate", "value": 0.5, "low": 0.4, "high": 0.6,
            "episodes": 100, "seeds": 0, **WHERE}  # fmt: skip
    Evidence(**good)
    Evidence(**good | {"command": """python a.py "$HOME"/data/x "$HOME"'/data/x y' "${TMPDIR:-/tmp}"/data/x"""})
    with pytest.raises(DataError, match=message):
        Evidence(**good | change)


def test_bad_files_are_named(tmp_path):
    (path,) = write([rate(490)], root=tmp_path)
    data = json.loads(path.read_text())
    path.write_text(json.dumps([{**data[0], "episode": 1}]))
    with pytest.raises(DataError, match=r"pick\.json .*\n  - 0\.episode: unknown key"):
        read(path)
    path.write_text(json.dumps([{k: v for k, v in data[0].items() if k != "commit"}]))
    with pytest.raises(DataError, match=r"0\.commit: Field required"):
        read(path)
    path.rename(tmp_path / "push.json")
    (tmp_path / "push.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match="must have the id 'push'"):
        read(tmp_path / "push.json")
