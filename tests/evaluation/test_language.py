"""Evaluation under other instructions: each variant has its own rows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from robopolicy import sim
from robopolicy.cli.eval import evaluate
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.evaluation.episode_table import COLUMNS, EpisodeTable
from robopolicy.policies.factory import build_policy
from robopolicy.policies.io import load_policy, save_policy
from robopolicy.policies.normalizer import Normalizer
from tests.policies.test_vla import SMALL

TASK_NODE = {"_target_": "native", "task": "tabletop", "horizon": 2}
FLOW = {"_target_": "flow", "network": {
    "_target_": "residual_mlp", "_partial_": True, "width": 8}}  # fmt: skip
VLA = {"_target_": "vla", **SMALL, "prefix": {**SMALL["prefix"], "max_words": 8}}


def saved(node: dict, path: Path) -> Path:
    env = sim.make("tabletop", 1)
    torch.manual_seed(0)
    spec = PolicySpec(env.spec.observation, env.spec.action, env.spec.dt, 1, 2, 2, env.spec.tasks)
    policy = build_policy(node, spec=spec, normalizer=Normalizer.from_limits(spec.observation, spec.action))
    return save_policy(policy, path / "policy")


def test_each_variant_has_rows_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture):
    checkpoint = saved(VLA, tmp_path)
    variants = {"seen": {}, "paraphrases": {"wording": "unseen"}, "wrong_goal": {"instruction_goal": "other"}}
    first = evaluate(
        checkpoint=checkpoint, task=TASK_NODE, variants=variants, episodes=5, videos=0, out=tmp_path / "out"
    )
    found = {v: EpisodeTable.load(tmp_path / "out" / f"episodes-{v}.csv").frame for v in variants}
    assert first.frame["task"].tolist() == found["seen"]["task"].tolist()
    for variant in ("paraphrases", "wrong_goal"):
        assert found[variant]["seed"].tolist() == found["seen"]["seed"].tolist()
        assert all(found[variant]["task"] != found["seen"]["task"])
    assert set(found["wrong_goal"]["task"]) <= set(sim.make("tabletop", 1).spec.tasks)
    assert len({f["digest"][0] for f in found.values()}) == 3
    assert "(paraphrases), test seeds" in capsys.readouterr().out


def test_a_policy_that_counts_tasks_refuses_other_words(tmp_path: Path):
    checkpoint, other = saved(FLOW, tmp_path), sim.make("tabletop", 1, wording="unseen")
    with pytest.raises(SpecError, match="tells the 7 tasks of its training apart by number"):
        load_policy(checkpoint, env=other.spec)
    policy = load_policy(checkpoint, env=sim.make("tabletop", 1).spec)
    with pytest.raises(SpecError, match="its instructions are not those"):
        wrap_for(policy, other)


def test_a_variant_that_the_policy_cannot_follow_is_named_before_any_is_evaluated(tmp_path: Path):
    variants = {"seen": {}, "paraphrases": {"wording": "unseen"}}
    how = {"checkpoint": saved(FLOW, tmp_path), "task": TASK_NODE, "episodes": 1, "videos": 0, "out": tmp_path / "out"}
    with pytest.raises(ConfigError, match=r"variants\.paraphrases: tasks: (.|\n)*'~variants\.paraphrases'"):
        evaluate(**how, variants=variants)
    assert not list((tmp_path / "out").glob("*.csv"))


def test_success_by_task():
    outcomes = {"push": [True, False], "pick": [True, True, False, True]}
    lines = [(task, ok) for task, found in outcomes.items() for ok in found]
    empty = {"str": "", "bool": False}
    frame = pd.DataFrame({name: [empty.get(kind, 0) for _ in lines] for name, kind in COLUMNS.items()})
    frame["seed"], frame["ended_by"] = range(len(lines)), "truncated"
    frame["task"], frame["success_once"] = zip(*lines, strict=True)
    rows = EpisodeTable(frame)
    assert {task: rate.value for task, rate in rows.by_task().items()} == {"pick": 0.75, "push": 0.5}
    assert rows.task_table() == "\n   75.0% of   4  pick\n   50.0% of   2  push"
    assert EpisodeTable(frame[frame["task"] == "pick"]).task_table() == ""
