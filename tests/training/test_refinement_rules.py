from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import robopolicy as rp
from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose
from robopolicy.core.errors import ConfigError
from robopolicy.core.specs import state_columns
from robopolicy.core.types import Feature
from robopolicy.training.refinement_rules import (
    BUSY,
    FAST,
    LEAST,
    SCHEDULE,
    BaseFacts,
    busy_remark,
    check_keys,
    choose,
    relative_elements,
)  # fmt: skip

_THINGS = ("hand", "object", "other", "before_hand", "goal", "hand_to_object", "object_to_goal")
METAWORLD = tuple(f"{thing}_{axis}" for thing in _THINGS for axis in "xyz")  # fmt: skip
MANISKILL = (
    *(f"qpos_{i}" for i in range(9)),
    "held",
    "tcp_x",
    "tcp_y",
    "tcp_z",
    "cube_x",
    "tcp_to_cube_x",
    "tcp_to_cube_y",
    "tcp_to_cube_z",
)
FACTS = BaseFacts(
    success=0.4, mode_success=0.42, episodes=100, steps_per_second=5_000, success_steps=57, elements=("cube_x",),
    pictures=False, demonstrations=True, instructions=1,
)  # fmt: skip


def overrides(facts: BaseFacts, env_steps: int | None = None) -> list[str]:
    return [override for choice in choose(facts, env_steps) for override in choice.overrides]


def test_a_fast_env_has_the_recorded_preset_until_it_succeeds_always() -> None:
    assert overrides(FACTS) == ["algo=residual", "loop.total_steps=150000", "loop.stop_success=1"]
    preset = compose(find_verb("train"), ["algo=residual", "task=reach", "base=zero_action", "run_dir=x"])
    assert preset["loop"]["warmup_steps"] + preset["algo"]["penalty_steps"] == SCHEDULE
    assert overrides(FACTS, 30_000)[1:] == ["loop.total_steps=30000", "loop.stop_success=1"]


def test_a_speed_below_fast_on_a_busy_machine_is_doubted() -> None:
    said = busy_remark(790.0, 0.5, Path("out/look"))
    assert "took 50% of all cores during the look, so its 790 env steps/s may be too few" in said
    assert "remove out/look and what was trained after it" in said
    assert not busy_remark(790.0, BUSY - 0.01, Path("x")) and not busy_remark(float(FAST), 0.9, Path("x"))


def test_a_slow_env_has_more_updates_for_each_step() -> None:
    slow = replace(FACTS, steps_per_second=90, elements=METAWORLD)
    assert overrides(slow) == [
        "algo=residual", "loop.total_steps=100000", "num_envs=8", "loop.updates_per_step=0.5",
        "policy.state=[hand_z,other_*,hand_to_object_*,object_to_goal_*,other-hand]",
    ]  # fmt: skip
    assert {"loop.warmup_steps=1200", "algo.penalty_steps=4800"} <= set(overrides(slow, 20_000))
    assert "loop.replay.n_step=10" in overrides(replace(slow, success_steps=150))


def test_a_small_budget_has_the_settings_of_a_slow_env_and_a_smaller_one_is_refused() -> None:
    assert overrides(FACTS, LEAST) == overrides(replace(FACTS, steps_per_second=90), LEAST)
    assert "loop.total_steps=15000" in overrides(FACTS, LEAST)
    assert overrides(replace(FACTS, pictures=True), LEAST).count("num_envs=8") == 1
    with pytest.raises(ConfigError, match=r"env_steps=14999: expected at least 15000"):
        choose(FACTS, LEAST - 1)


def test_pictures_and_missing_demonstrations_are_seen() -> None:
    found = overrides(replace(FACTS, pictures=True, demonstrations=False))
    assert found[-3:] == ["policy.pictures=true", "num_envs=8", "loop.demo_fraction=0"]


def test_keys_that_no_rule_sets_are_refused() -> None:
    check_keys(overrides(FACTS), "stages.json")
    with pytest.raises(ConfigError, match=r"stages\.json: overrides: .*'run_dir=elsewhere'"):
        check_keys(["algo=residual", "run_dir=elsewhere"], "stages.json")


def test_advice_sets_nothing() -> None:
    said = [c.reason for c in choose(replace(FACTS, success=0.98, mode_success=0.6, instructions=7)) if not c.overrides]
    assert len(said) == 2 and "98%" in said[0] and "7 instructions" in said[1]
    slow = replace(FACTS, steps_per_second=90, chunks=True)
    assert any("algo=ogpo" in c.reason for c in choose(slow) if not c.overrides)
    for other in (replace(slow, chunks=False), replace(slow, pictures=True), replace(slow, steps_per_second=5_000)):
        assert not any("algo=ogpo" in c.reason for c in choose(other))
    said = [c.reason for c in choose(replace(FACTS, mode_success=0.9)) if not c.overrides]
    assert said == ["without sampling noise 40% is 90%: deterministic=true is a gain for nothing"]


def test_a_base_that_never_succeeds_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"succeeds in 1% of 100 episodes.*Record more demonstrations"):
        choose(replace(FACTS, success=0.01, mode_success=0.0))


def test_absolute_places_are_left_out_where_a_difference_names_their_thing() -> None:
    assert relative_elements(MANISKILL) == ["qpos_7", "qpos_8", "held", "tcp_z", "tcp_to_cube_*"]
    assert relative_elements(["tcp_x", "cube_rel_x"]) == [], "no difference: all are read"


def test_a_distance_is_no_difference_and_a_thing_without_one_gets_it() -> None:
    places = [f"{thing}_{axis}" for thing in ("hand", "cube", "bin") for axis in "xyz"]
    assert relative_elements(["hand_x", "hand_y", "goal_x", "goal_y", "hand_to_goal_m"]) == []
    to_cube = [f"hand_to_cube_{axis}" for axis in "xyz"]
    assert relative_elements([*places, *to_cube]) == ["hand_z", "bin_*", "hand_to_cube_*", "bin-hand"]
    no_things = [f"{what}_{axis}" for what in ("half_size", "cube_linvel", "cube_euler") for axis in "xyz"]
    assert not {n for n in relative_elements([*places, *to_cube, *no_things]) if "-" in n} - {"bin-hand"}
    to_goal = [f"cube_to_bin_{axis}" for axis in "xyz"]
    assert not [n for n in relative_elements([*places, *to_goal]) if "-" in n], "no difference names the tool"


def test_patterns_read_the_kept_elements_alone() -> None:
    names = (*METAWORLD, "hand_to_object_q0")
    kept = [name for name in relative_elements(names) if name != "other-hand"]  # which is made of two
    read = [names[i] for i in state_columns(Feature((len(names),), names=names), kept, where="x")]
    assert not {"hand_x", "goal_z", "before_hand_x", "object_y"} & set(read) and "hand_z" in read


MADE = ["object-hand", "goal-hand", "goal-object", "hand-before_hand"]
PLAIN = tuple(f"{thing}_{axis}" for thing in ("hand", "object", "other", "before_hand", "goal") for axis in "xyz")


def test_a_shovel_is_a_thing_and_no_velocity() -> None:
    names = [f"{what}_{axis}" for what in ("hand", "shovel", "hand_vel", "shovel_linvel") for axis in "xyz"]
    assert [n for n in relative_elements(names) if "-" in n] == ["shovel-hand"]


@pytest.mark.parametrize(
    ("task", "made"), [("pick", ["cube-tcp"]), ("reach", ["target-tcp"]), ("stack", []), ("peg", []), ("tabletop", [])]
)
def test_motions_and_differences_of_native_tasks_are_kept_as_they_are(task: str, made: list[str]) -> None:
    names = rp.make_env(task, num_envs=1).spec.observation["observation.state"].names or ()
    found = relative_elements(names)
    assert [n for n in found if "-" in n] == made
    if found:  # else all are read
        kept = [n for n in found if "-" not in n]
        read = {names[i] for i in state_columns(Feature((len(names),), names=names), kept, where="x")}
        assert {"tcp_vel_x", "lag_x"} <= read and "tcp_x" not in read


def test_differences_are_made_where_the_state_has_places_alone() -> None:
    names = (*PLAIN, "gripper", "object_q0", "object_q1", "before_gripper", "qpos_3")
    found = relative_elements(names, absent=["other"])
    assert found == ["hand_z", "gripper", "object_q0", "object_q1", *MADE]
    assert "other-hand" in relative_elements(names), "it may stand still, and be something"
    assert relative_elements([n for n in names if "hand" not in n]) == [], "no tool: all are read"
    motions = [f"{what}_{axis}" for what in ("hand_vel", "lag", "object_rel", "object_near") for axis in "xyz"]
    assert [n for n in relative_elements([*names, *motions], absent=["other"]) if "-" in n] == MADE
    assert relative_elements(["tcp_x", "tcp_y", "tcp_z", "speed"]) == [], "the tool alone"
    assert f"policy.state=[{','.join(found)}]" in overrides(
        replace(FACTS, elements=names, absent=("other",), steps_per_second=500)
    )
