from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from robopolicy.algos.residual import ResidualTD3
from robopolicy.buffers.replay_buffer import Batch
from robopolicy.cli import refine as cli
from robopolicy.cli.main import main
from robopolicy.cli.refine import task_overrides
from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose, task_node
from robopolicy.config.schema import plain
from robopolicy.core.errors import SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Feature, Metrics
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.policies.base import Policy
from robopolicy.policies.diffusion import DiffusionPolicy
from robopolicy.policies.flow import FlowPolicy
from robopolicy.runs.run_dir import read_config
from robopolicy.training import refinement_rules
from tests.evaluation.points import make_rows
from tests.fakes import PointEnv, PointPolicy
from tests.toy import policy, random_episodes

QUIET = ("task=reach", "tracker=quiet", "seed=0", "threads=1")


@pytest.mark.parametrize(
    "words",
    [
        ["task=pick"],
        ["task=metaworld", "task.name=push-v3", "task.relative=true"],
        ["task=pick", "task.horizon=33", "task.objects=false"],
        ["task=gymnasium", "task.name=Toy-v0", "task.package=my_toy"],
        ["task=gymnasium", "task.name='1'", "task.package=my_toy", "task.text='it\\'s a, b: {c} (d) = e'"],
        ["task=gymnasium", 'task.name="1e3"', "task.package=my_toy", 'task.text="é"'],
    ],
)
def test_a_task_is_written_as_it_was_chosen(words: list[str]) -> None:
    node = compose(find_verb("demos"), [*words, "out=x", "episodes=1"])["task"]
    again = compose(find_verb("demos"), [*task_overrides(node), "out=x", "episodes=1"])["task"]
    assert again == node and task_overrides(node)[0] == words[0]
    assert task_overrides(task_node("reach")) == ["task=reach"]


def test_a_task_of_ones_own_is_written_key_by_key() -> None:
    node = {"_target_": "reach_of_mine", "goal": [0.1, 0.2], "name": "a b"}
    again = compose(find_verb("demos"), [*task_overrides(node), "out=x", "episodes=1"], checked=False)["task"]
    assert again == node


def test_a_dataset_is_checked_before_the_look_and_without_outcomes_not_read_by_rl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    assert main(["demos", "task=reach", f"out={data}", "episodes=2", "seed=0"]) == 0
    episodes = load_episodes(data)
    spec = PolicySpec(episodes.observation, episodes.action_spec, episodes.dt, 1, 1, 1, episodes.tasks)
    assert cli._of_dataset(spec, Path("bc"), data)["demonstrations"] is True
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "load_episodes", lambda *_, **__: replace(episodes, outcomes=False))
        assert cli._of_dataset(spec, Path("bc"), data)["demonstrations"] is False
    assert f"robopolicy data import dataset={data} outcomes=success" in capsys.readouterr().out
    camera = {"observation.images.top": Feature((3, 8, 8), "uint8")}
    others = {
        "action.high": replace(spec, action=replace(spec.action, high=tuple(2 * v for v in spec.action.high))),
        "observation.images.top": replace(spec, observation=spec.observation | camera),
        "reads at least one vector": replace(spec, observation=camera),
    }
    for problem, other in others.items():  # and nothing is played
        monkeypatch.setattr(cli, "load_policy", lambda *_, other=other, **__: SimpleNamespace(spec=other))
        with pytest.raises(SpecError, match=problem):
            cli._look(SimpleNamespace(policy=Path("bc")), SimpleNamespace(spec=None), 1, data, "cpu")  # type: ignore[arg-type]


_update = ResidualTD3.update


def _few_of_the_critic_alone(self: ResidualTD3, batch: Batch, *, learned_steps: int | None) -> Metrics:
    """Most of the updates of so short a refinement come before the policy learns."""
    few = learned_steps is not None or self.updates < 10
    return _update(self, batch, learned_steps=learned_steps) if few else {}


def test_a_base_is_looked_at_refined_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, base, out = tmp_path / "data", tmp_path / "bc", tmp_path / "out"
    assert main(["demos", "task=reach", f"out={data}", "episodes=10", "expert_noise=0.3", "seed=0"]) == 0
    assert main(["train", "algo=bc", *QUIET, f"dataset={data}", f"run_dir={base}", "loop.steps=200",
                 "validation_episodes=0"]) == 0  # fmt: skip
    capsys.readouterr()
    command = ["refine", f"base={base}", "look_episodes=20", "env_steps=2000", "episodes=20", "videos=0",
               "tracker=quiet", "threads=1"]  # fmt: skip
    assert main([*command, f"out={out}", "plan_only=true"]) == 1
    assert "env_steps=2000: expected at least 15000" in capsys.readouterr().err and not out.exists()
    monkeypatch.setattr(refinement_rules, "LEAST", 100)
    monkeypatch.setattr(refinement_rules, "BUSY", 0.0)
    monkeypatch.setattr(refinement_rules, "FAST", 10**9)
    assert main([*command, f"out={out}", "plan_only=true"]) == 0
    planned = capsys.readouterr().out
    assert "of all cores during the look" in planned
    assert "algo=ogpo" in planned, "the base is of chunks"
    monkeypatch.undo()
    monkeypatch.setattr(refinement_rules, "LEAST", 100)
    monkeypatch.setattr(ResidualTD3, "update", _few_of_the_critic_alone)
    assert "robopolicy train task=reach algo=residual loop.total_steps=2000" in planned and f"dataset={data}" in planned
    by_hand = shlex.split(planned.split("by hand:\n")[1].splitlines()[0])
    assert by_hand[:2] == ["robopolicy", "train"]
    assert not (out / "refined").exists()
    assert main([*command, f"out={out}"]) == 0
    said = capsys.readouterr().out
    assert (out / "refined" / "comparison.json").is_file() and (out / "refined" / "report.html").is_file()
    assert "5/5 report" in said
    written, run = compose(find_verb("train"), by_hand[2:]), read_config(out / "refined")
    unlike = {k for k in written if k not in ("tracker", "run_dir") and plain(written[k]) != plain((run or {}).get(k))}
    assert not unlike, {k: (written[k], (run or {}).get(k)) for k in unlike}
    looked = (out / "look" / "episodes-sampled-20.csv").read_bytes()
    assert main([*command, f"out={out}", "look_episodes=30", "seed=1"]) == 1
    refused = capsys.readouterr()
    assert "refined began with the facts in" in refused.out, "another speed would choose other settings"
    assert "seed: was 0, now 1" in refused.err and "give a new out=" in refused.err
    assert (out / "look" / "episodes-sampled-20.csv").read_bytes() == looked
    monkeypatch.setattr(cli, "invoke", lambda verb, *_, **__: SimpleNamespace(b_is_worse=True))
    assert main([*command, f"out={tmp_path / 'again'}"]) == 0
    again = capsys.readouterr().out
    assert "worse than its base" in again
    found = json.loads((out / "refined" / "comparison.json").read_text())
    assert ("worse than its base" in said) == (found["verdict"] == f"{found['a']} is better"), found


def test_a_speed_is_not_taken_from_rows_that_more_envs_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ref: Any = SimpleNamespace(policy=Path("bc"), out=tmp_path, ident="bc", name="bc")
    monkeypatch.setattr(cli, "load_policy", lambda *_, **__: PointPolicy(noise=0.1))
    for episodes, at_a_time, again in ((8, 4, False), (6, 4, True), (2, 2, False)):
        cli._look(ref, PointEnv(at_a_time), episodes, None, "cpu")
        said = capsys.readouterr().out
        assert (f"episodes-sampled-{at_a_time}.csv: rows of" in said) == again, said


@pytest.mark.parametrize(("kind", "played", "chunks"), [
    (DiffusionPolicy, 2, True), (DiffusionPolicy, 1, False), (FlowPolicy, 2, False),
])  # fmt: skip
def test_ogpo_is_advised_for_a_diffusion_base_of_chunks(kind: type[Policy], played: int, chunks: bool) -> None:
    """A flow base gained half as much by it: docs/findings/ogpo.md."""
    base = policy(kind, random_episodes())
    base.spec = replace(base.spec, n_action_steps=played)
    facts = cli.facts_of(base, rows := make_rows([True]), rows, at_a_time=1, demonstrations=False)
    assert facts.chunks is chunks
