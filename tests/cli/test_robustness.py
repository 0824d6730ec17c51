"""Worse conditions: what they do to an env by hand, and what the command makes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.cli import robustness
from robopolicy.cli.main import invoke
from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import episode_seeds, keyed_normal
from robopolicy.core.types import STATE
from robopolicy.envs.perturbations import _STREAM, UNITS, Grid, Perturbed, changes, check_grid, perturbed
from robopolicy.evaluation.compare import compare
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.rollout import evaluate
from robopolicy.evaluation.statistics import holm, wilson
from robopolicy.reporting.robustness import Point, Robustness
from robopolicy.runs.checkpointer import Checkpointer
from tests.evaluation.points import make_rows, outcomes
from tests.fakes import PointEnv, PointPolicy
from tests.runs.test_checkpointer import gaussian

NEAR: dict[str, Any] = {"_target_": "named_point", "name": "near"}
PICK: dict[str, Any] = {"_target_": "native", "task": "pick"}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two policies for the point env."""
    for i, name in enumerate(("bc", "refined")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(f"task: {{_target_: {NEAR['_target_']}, name: near}}\n")
        Checkpointer(tmp_path / name).save(1, policy=gaussian(i), state={})
    return tmp_path / "bc", tmp_path / "refined"


def test_late_actions_by_hand() -> None:
    plain, env = PointEnv(2, horizon=4), Perturbed(PointEnv(2, horizon=4), latency=2)
    seeds = episode_seeds("test", 0, 4)
    start = plain.reset(seeds)[STATE][:, :2]
    assert env.reset(seeds)[STATE][:, :2].equal(start)
    sent = torch.tensor([[0.01, 0.0], [0.02, 0.0], [0.03, 0.0], [0.04, 0.0]])
    steps = [env.step(a.repeat(2, 1)) for a in sent]
    assert [s.executed[0, 0].item() for s in steps] == pytest.approx([0.0, 0.0, 0.01, 0.02])
    assert steps[3].truncated.all() and steps[3].next_obs[STATE][0, 0] == pytest.approx(start[0, 0].item() + 0.03)
    again = env.step(sent[0].repeat(2, 1))
    assert again.executed.eq(0).all(), "what was on its way belongs to the episode before"


def test_the_gripper_is_as_it_was_first_asked_for() -> None:
    inner = PointEnv(1)
    inner.spec = replace(inner.spec, action=replace(inner.spec.action, gripper=1, gripper_meaning="x"))
    env = Perturbed(inner, latency=1)
    env.reset(episode_seeds("test", 0, 1))
    assert env.step(torch.tensor([[0.05, 0.1]])).executed.tolist() == [[0.0, pytest.approx(0.1)]]
    assert env.step(torch.tensor([[0.0, -0.1]])).executed.tolist() == [[pytest.approx(0.05), pytest.approx(0.1)]]


def test_noise_is_a_function_of_seed_and_step() -> None:
    seeds, sigma = episode_seeds("test", 0, 2), 0.5
    plain, env = PointEnv(1, horizon=2), Perturbed(PointEnv(1, horizon=2), sensor_noise=sigma)

    def noise(seed: int, step: int) -> torch.Tensor:
        return sigma * keyed_normal(seeds[seed : seed + 1], torch.tensor([step]), (4,), stream=_STREAM)

    assert env.reset(seeds)[STATE].equal(plain.reset(seeds)[STATE] + noise(0, 0))
    still = torch.zeros(1, 2)
    for at, (seed, step) in enumerate([(0, 1), (1, 0)]):  # the second step ends the first episode
        a, b = env.step(still), plain.step(still)
        assert a.obs[STATE].equal(b.obs[STATE] + noise(seed, step))
        assert a.next_obs[STATE].equal(b.next_obs[STATE] + noise(0, at + 1))


def test_outcomes_do_not_depend_on_neighbours_and_get_worse() -> None:
    seeds, policy = episode_seeds("test", 0, 12), PointPolicy(noise=0.01)
    found = [evaluate(policy, Perturbed(PointEnv(n), latency=3, sensor_noise=0.05), seeds) for n in (5, 12)]
    assert outcomes(found[0]) == outcomes(found[1])
    assert sum(found[0].successes()) < sum(evaluate(policy, PointEnv(12), seeds).successes())


def test_native_tasks_change_their_own_physics_and_nothing_else() -> None:
    seeds = episode_seeds("test", 0, 2)
    plain = sim.make("pick", 2)
    start = plain.reset(seeds)[STATE]
    digests = {plain.spec.digest}
    for what, value in (("mass", 4.0), ("friction", 0.5), ("latency", 2)):
        env: Any = perturbed(PICK, what, value, num_envs=2)
        digests.add(env.spec.digest)
        assert env.reset(seeds)[STATE].equal(start), f"{what}: the episode begins as it always did"
        if what != "latency":
            model, cube = env._bank.models[1], plain.model.body("cube").id
            assert model.body_mass[cube] == pytest.approx(
                plain.model.body_mass[cube] * (value if what == "mass" else 1)
            )
            scale = value if what == "friction" else 1
            np.testing.assert_allclose(model.geom_friction[:, 0], plain.model.geom_friction[:, 0] * scale)
        else:
            first = env.step(torch.full((2, 5), 0.02))
            assert first.next_obs[STATE][:, :3].sub(start[:, :3]).abs().max() < 1e-3, "nothing has arrived yet"
    assert len(digests) == 4 and perturbed(PICK, "friction", 1.0, num_envs=2).spec.digest == plain.spec.digest
    kept = perturbed({**PICK, "randomization": {"mass": [0.5, 2.0]}}, "friction", 2.0, num_envs=1)
    assert kept.randomization.mass == (0.5, 2.0) and kept.randomization.friction == (2.0, 2.0)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("what", "own"), [("latency", [2, 2]), ("friction", [0.5, 0.5]), ("mass", [2.0, 2.0]), ("sensor_noise", 0.01)]
)
def test_the_nominal_value_is_that_of_no_variation(what: str, own: Any) -> None:
    task = {**PICK, "randomization": {what: own}}
    nominal: float = 1.0 if what in ("friction", "mass") else 0
    assert perturbed(task, what, nominal, num_envs=1).spec.digest == sim.make("pick", 1).spec.digest
    assert changes(task, what, nominal) and not changes(PICK, what, nominal)
    assert not changes({**PICK, "randomization": {"latency": [0, 0]}}, "latency", 0)


def test_what_warp_cannot_change_is_said_before_the_first_evaluation() -> None:
    warp, spec = {**PICK, "physics": "warp"}, sim.make("pick", 1).spec
    with pytest.raises(ConfigError, match=r"grid.friction, grid.mass: task.physics=warp"):
        check_grid(warp, spec, Grid())
    check_grid(warp, spec, Grid(friction=(), mass=(1.0,)))


def test_a_condition_that_a_task_is_made_with_is_a_multiple_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robopolicy.envs.perturbations.supported_conditions", lambda task: {"mass", "latency"})
    monkeypatch.setattr("robopolicy.envs.perturbations.build", lambda task, *_, **__: task)
    made: list[Any] = [perturbed(t, "mass", v, num_envs=1) for t in ({}, {"mass": 3.0}) for v in (1.0, 0.5)]
    assert made == [{}, {"mass": 0.5}, {"mass": 3.0}, {"mass": 1.5}]
    late: Any = perturbed({"latency": 2}, "latency", 3, num_envs=1)
    assert late == {"latency": 3} and type(late["latency"]) is int


def test_what_a_task_cannot_do_is_said_at_once(runs: tuple[Path, Path]) -> None:
    spec = PointEnv(1).spec
    with pytest.raises(
        ConfigError, match=r"grid.friction: only tasks that take task.randomization .*grid.friction=\[\]"
    ):
        invoke("robustness", f"checkpoint={runs[0]}")
    assert not (runs[0] / "robustness").exists()
    absolute = replace(spec, action=replace(spec.action, reference="absolute"))
    with pytest.raises(ConfigError, match=r"grid.latency: point has absolute actions.*grid.latency=\[\]"):
        check_grid(NEAR, absolute, Grid(friction=(), mass=()))
    blind = replace(spec, observation={})
    with pytest.raises(ConfigError, match=r"grid.sensor_noise: point has no observation.state"):
        check_grid(NEAR, blind, Grid(friction=(), mass=()))
    check_grid(PICK, absolute, Grid())
    with pytest.raises(ConfigError, match="expected values of at least one condition"):
        invoke("robustness", f"checkpoint={runs[0]}", *(f"grid.{k}=[]" for k in UNITS))
    with pytest.raises(ConfigError, match=r"names: expected 2 different names, found \['x', 'x'\]"):
        invoke("robustness", f"checkpoint={runs[0]}", f"base={runs[1]}", "names=[x,x]")


def test_a_checkpoint_saved_meanwhile_is_not_evaluated_under_the_older_ones_name(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, load, loaded = runs[0], robustness.load_policy, list[Path]()

    def build(*_: object, num_envs: int, **__: object) -> PointEnv:
        Checkpointer(run, keep=9).save(9, policy=gaussian(9), state={})
        return PointEnv(num_envs)

    monkeypatch.setattr(robustness, "build", build)
    monkeypatch.setattr(robustness, "check_grid", lambda *_: None)
    monkeypatch.setattr(robustness, "load_policy", lambda path, **how: loaded.append(path) or load(path, **how))
    grid = Grid(latency=(0,), friction=(), mass=(), sensor_noise=())
    found = robustness.robustness(checkpoint=run, grid=grid, episodes=2)
    assert "step_0000000001@" in found.points[0].rows[0].frame["policy"].iloc[0]
    assert loaded[0].parent.name == "step_0000000001"


def test_the_command(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bc, refined = runs
    line = [f"base={bc}", f"checkpoint={refined}", "grid.latency=[0,2]", "grid.sensor_noise=[0,0.1]", "grid.mass=[]",
            "grid.friction=[]", "episodes=6"]  # fmt: skip
    found = invoke("robustness", *line)
    folder = refined / "robustness"
    names = {"nominal", "latency-2", "sensor_noise-0.1"}
    assert {p.name for p in folder.glob("*.csv")} == {
        f"episodes-{a}-{b}.csv" for a in ("base", "refined") for b in names
    }
    rows = EpisodeTable.load(folder / "episodes-base-latency-2.csv")
    assert rows.seeds == episode_seeds("test", 0, 6).tolist() and set(rows.frame["policy"]) != {""}
    facts = json.loads((folder / "robustness.json").read_text())
    assert len(facts["rows"]) == 12 and {"command", "version", "hardware"} <= set(facts)
    assert facts["rows"][3]["at"] == 2.0 and facts["rows"][3]["value"] == rows.success_rate().value
    assert {p.name for p in folder.glob("*.svg")} == {"latency.svg", "sensor_noise.svg"}
    assert "Success by latency" in (folder / "report.html").read_text()
    assert not list(refined.glob("episodes*.csv")), "a report of the run is not about the worse conditions"
    calls: list[int] = []
    monkeypatch.setattr("robopolicy.evaluation.rollout.evaluate", lambda *a, **k: calls.append(1))
    capsys.readouterr()
    assert invoke("robustness", *line).text() == found.text() and not calls, "rows on disk are taken"
    assert "| latency | base | 95% CI | refined | 95% CI | difference | 95% CI | p |" in capsys.readouterr().out


def test_tables_by_hand() -> None:
    """8 of 10 against 10 of 10 at nominal, 1 of 10 against 9 of 10 late; three tasks in all, nominal counted once."""

    def pair(a: int, b: int, digest: str) -> tuple[EpisodeTable, EpisodeTable]:
        return make_rows([i < a for i in range(10)], digest=digest), make_rows(
            [i < b for i in range(10)], digest=digest
        )

    same = pair(8, 10, "n")
    points = [Point("latency", 0.0, same), Point("latency", 2.0, pair(1, 9, "l")), Point("mass", 1.0, same),
              Point("mass", 0.5, pair(8, 8, "m"))]  # fmt: skip
    found = Robustness(("base", "refined"), points, UNITS)
    assert [p.value for p in found.curves()["mass"]] == [0.5, 1.0]
    p = holm([0.5, 2 / 256, 1.0])  # exact McNemar of 2, 8 and 0 discordant pairs, all on one side
    assert [q for _, q in found.comparisons().values()] == pytest.approx(p)
    low, high = (100 * v for v in wilson(1, 10)[1:])
    d = compare(*pair(1, 9, "l")).difference
    line = f"| 2 | 10.0% | {low:.1f} – {high:.1f} | 90.0% | "
    assert line in found.text() and f"| +80.0 | {100 * d.low:+.1f} – {100 * d.high:+.1f} | 0.023 |" in found.text()
    assert set(found.charts()) == {"latency", "mass"}
    alone = Robustness(("it",), [Point("latency", 0.0, same[:1])], UNITS)
    assert alone.comparisons() == {} and "| difference" not in alone.text() and alone.charts() == {}


def test_names_do_not_break_the_table() -> None:
    rows = make_rows([True, False])
    text = Robustness(("a|b", "c"), [Point("latency", 0.0, (rows, rows))], UNITS).text()
    head, rule = (line for line in text.splitlines() if line.startswith("| ") and "---:" in line or "a\\|b" in line)
    assert head.replace("\\|", "").count("|") == rule.count("|")
