from __future__ import annotations

import json
from dataclasses import replace

import pytest

from robopolicy.core.errors import DataError, SpecError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.specs import PolicySpec
from robopolicy.evaluation.mp4 import read_mp4
from robopolicy.evaluation.rollout import evaluate
from robopolicy.evaluation.video import INDEX, choose, film, film_pairs, filmed
from tests.evaluation.points import FilmedPoint, make_rows
from tests.fakes import PointEnv, PointPolicy

SEEDS = episode_seeds("test", 0, 30)
SIZE = {"width": 96, "height": 64}


def test_failures_come_first():
    rows = make_rows([True, False, True, False, False])
    seeds = rows.seeds
    assert choose(rows, 3) == [seeds[1], seeds[3], seeds[0]]  # one success is kept
    assert choose(rows, 1) == [seeds[1]]
    assert choose(rows, 9) == [seeds[i] for i in (1, 3, 4, 0, 2)]
    assert choose(make_rows([False] * 4), 2) == make_rows([False] * 4).seeds[:2]
    assert choose(make_rows([]), 2) == []


def test_films_are_the_episodes_on_record(tmp_path):
    policy = PointPolicy(noise=0.075)
    rows = evaluate(policy, PointEnv(9), SEEDS)
    paths = film(policy, FilmedPoint(3), rows, tmp_path, count=4, label="base", **SIZE)
    index = json.loads((tmp_path / INDEX).read_text())
    assert [p.name for p in paths] == [e["file"] for e in index]
    assert [e["outcome"] for e in index] == ["failure"] * 3 + ["success"]
    assert {e["policy"] for e in index} == set(rows.frame["policy"])
    lengths = dict(zip(rows.seeds, rows.frame["length"], strict=True))
    for path, entry in zip(paths, index, strict=True):
        frames = list(read_mp4(path))
        assert len(frames) == lengths[entry["seed"]] + 8  # and 0.8 s of 10 Hz stillness
        assert frames[0].shape == (64, 96, 3)
    assert not list(tmp_path.glob(".*"))


def test_an_episode_that_runs_otherwise_is_an_error(tmp_path):
    rows = evaluate(PointPolicy(noise=0.075), PointEnv(9), SEEDS)
    with pytest.raises(DataError, match="ran otherwise than on record"):
        film(PointPolicy(noise=0.02), FilmedPoint(3), rows, tmp_path, **SIZE)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="not among the 30 evaluated"):
        film(PointPolicy(), FilmedPoint(3), rows, tmp_path, seeds=[1])


@pytest.mark.parametrize("cause", ["strict=False", "env", "pictures"])
def test_films_that_do_not_match_the_record_are_left_out(tmp_path, caplog, monkeypatch, cause):
    """With `strict=False`, and where episodes are not the same to the last bit: by the env, or by pictures."""
    monkeypatch.setattr(PolicySpec, "reads_pictures", property(lambda spec: cause == "pictures"))
    rows = evaluate(PointPolicy(noise=0.075), PointEnv(9), SEEDS)
    (tmp_path / "00-old.mp4").write_bytes(b"")
    other = PointPolicy(noise=0.07)
    env = FilmedPoint(3)
    env.spec = replace(env.spec, deterministic=cause != "env")
    paths = film(other, env, rows, tmp_path, seeds=rows.seeds[:8], strict=cause != "strict=False", **SIZE)
    again = evaluate(other, PointEnv(9), SEEDS)
    columns = ["success_once", "length", "ended_by"]
    same = (rows.frame[columns] == again.frame[columns]).all(axis=1)[:8]
    assert 0 < len(paths) == same.sum() < 8
    assert caplog.text.count("It is left out") == 8 - len(paths)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([INDEX, *(p.name for p in paths)])


def test_envs_that_cannot_be_filmed_are_refused(tmp_path):
    with pytest.raises(SpecError, match="has no render"):
        film(PointPolicy(), PointEnv(1), make_rows([True]), tmp_path)
    with pytest.raises(SpecError, match="this task has 'point-1'"):
        film(PointPolicy(), FilmedPoint(1), make_rows([True], digest="other"), tmp_path)


def test_pairs_show_what_changed_first(tmp_path):
    a, b = PointPolicy(noise=0.08), PointPolicy(noise=0.03)
    rows_a, rows_b = evaluate(a, PointEnv(9), SEEDS), evaluate(b, PointEnv(9), SEEDS)
    paths = film_pairs((a, rows_a), (b, rows_b), FilmedPoint(4), tmp_path, count=3, **SIZE)
    index = json.loads((tmp_path / INDEX).read_text())
    assert index[0]["outcome"] in ("success | failure", "failure | success")
    assert all(e["kind"] == "pair" for e in index)
    frames = list(read_mp4(paths[0]))
    assert frames[0].shape == (64, 2 * 96 + 4, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([INDEX, *(p.name for p in paths)])
    names = ("base", "refined")
    assert filmed(tmp_path, rows_b, names=names, count=3) and not filmed(tmp_path, rows_b, names=names, count=4)
    other = make_rows([True], policy="other")
    assert not filmed(tmp_path, other, names=names, count=1) and not filmed(tmp_path, rows_b, names=("a", "b"), count=3)
    paths[0].unlink()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / INDEX).write_text('[{"file": 3}]')
    assert not any(filmed(tmp_path / at, rows_b, names=names, count=1) for at in ("broken", "absent"))
