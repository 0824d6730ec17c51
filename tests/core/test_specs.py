"""spec.py: what a policy and its world say of each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from robopolicy import sim
from robopolicy.core import specs
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.specs import PolicySpec, changes, check_features, check_fits, state_columns, with_cameras
from robopolicy.core.types import IMAGES, POINTS, STATE, Feature
from tests import lerobot_toys, toy


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"dt": 0.1}, ["dt: was 0.05, now 0.1"]),
        ({"action": replace(toy.ACTION, names=("x", "z"))}, ["action.names: 'y' → 'z'"]),
        ({"observation": {STATE: Feature((4,))}}, [f"observation.{STATE}.shape: 3 → 4"]),
        (
            {"observation": {}},
            ["observation: was None, now {}"]
            + [f"observation.{STATE}.{k}: was {v}, now None" for k, v in (("dtype", "'float32'"), ("shape", "(3,)"))],
        ),
    ],
)
def test_changes_name_every_key_that_differs(change: dict[str, object], expected: list[str]) -> None:
    now = toy.spec(**change)
    assert changes(toy.spec(), now) == expected
    assert changes(toy.spec(), PolicySpec.from_json(toy.spec().to_json())) == []


def test_changes_of_long_lists_stay_short() -> None:
    names = tuple(f"joint{i}" for i in range(40))
    before, now = (toy.spec(observation={STATE: Feature((40,), names=n)}) for n in (names, names[::-1]))
    (said,) = changes(before, now)
    assert said.startswith(f"observation.{STATE}.names: 'joint0' → 'joint39', ")
    assert said.endswith(" and 35 more")


def test_an_env_that_does_not_say_what_actions_mean_takes_the_policys_word() -> None:
    env = lerobot_toys.env(action=replace(toy.ACTION, names=("a0", "a1"), units=("1", "1"), tcp="", frame="world"))
    assert toy.ACTION.names != env.action.names
    check_fits(toy.spec(), env)
    with pytest.raises(SpecError, match=r"action\.low: the policy has \(-0\.02, -0\.02\), toy has"):
        check_fits(toy.spec(), replace(env, action=replace(env.action, low=(-0.1, -0.02))))
    with pytest.raises(SpecError, match=r"action\.names"):
        check_fits(toy.spec(), replace(env, action=replace(env.action, tcp="tool0")))


def test_counted_elements_of_an_env_are_no_names() -> None:
    named, counted = Feature((2,), names=("x", "y")), Feature((2,), names=("agent_pos_0", "agent_pos_1"))
    assert check_features({STATE: named}, {STATE: counted}, needs="a", offers="b") == []
    assert check_features({STATE: named}, {STATE: replace(counted, names=("y", "x"))}, needs="a", offers="b")


def test_an_env_that_counts_elements_by_its_own_keys_is_told_how_to_name_them() -> None:
    named, counted = Feature((3,), names=("x", "y", "goal")), Feature((3,), names=("arm_0", "arm_1", "goal_0"))
    policy, env = toy.spec(observation={STATE: named}), replace(lerobot_toys.env(), action=toy.ACTION)
    with pytest.raises(SpecError, match=r"x≠arm_0(.|\n)*'task\.names=\[x,y,goal\]'"):
        check_fits(policy, replace(env, observation={STATE: counted}))
    with pytest.raises(SpecError) as told:
        check_fits(policy, replace(env, observation={STATE: replace(named, names=("y", "x", "goal"))}))
    assert "task.names" not in str(told.value), "names of its own are not replaced"
    hostile = replace(policy, observation={STATE: replace(named, names=("x", "'; touch owned; '", "goal"))})
    with pytest.raises(SpecError) as told:
        check_fits(hostile, replace(env, observation={STATE: counted}))
    assert "task.names" not in str(told.value), "a stranger's names are not offered to a shell"


NAMED = Feature((6,), names=("hand_x", "hand_y", "to_x", "to_y", "to_[1]", "to_1"))


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (None, [0, 1, 2, 3, 4, 5]),
        ((), []),
        (("to_y", "hand_x"), [3, 0]),
        (("to_?", "to_*", "to_x"), [2, 3, 5, 4]),
        (("*_y", "hand_?"), [1, 3, 0]),
        (("to_[1]",), [4]),  # a name before it is a pattern
        (("to_[xy]",), [2, 3]),
    ],
)
def test_elements_of_the_state_are_chosen_by_name_in_order_and_once(names, columns) -> None:
    assert state_columns(NAMED, names, where="here") == columns


def test_names_that_fit_nothing_are_refused_whatever_their_case() -> None:
    with pytest.raises(SpecError, match=r"here: 'observation\.state' has no 'Hand_\*'\. Did you mean 'hand_"):
        state_columns(NAMED, ("to_x", "Hand_*"), where="here")


def test_of_elements_with_the_same_name_all_are_chosen() -> None:
    assert state_columns(Feature((3,), names=("a", "b", "a")), ("a",), where="here") == [0, 2]


def test_counted_elements_say_nothing_and_names_do() -> None:
    """What was recorded or trained before a suite's elements had names still fits it."""
    old, now, other = (
        {STATE: Feature((2,), names=n)} for n in (("main_0", "main_1"), ("hand_x", "hand_y"), ("hand_y", "hand_x"))
    )
    said = {"needs": "the policy", "offers": "env"}
    assert check_features(old, now, **said) == check_features(now, old, **said) == []
    assert "hand_x≠hand_y, hand_y≠hand_x" in check_features(now, other, **said)[0]
    partly = {STATE: Feature((2,), names=("main_0", "x"))}
    assert "main_0≠hand_x" in check_features(partly, now, **said)[0]


@pytest.mark.parametrize(("own", "there", "who"), [(None, ("x", "y"), "the policy"), (("x", "y"), None, "reach")])
def test_an_order_that_cannot_be_checked_is_said_once(own, there, who, caplog: pytest.LogCaptureFixture) -> None:
    specs._warn_of_order.cache_clear()
    env = sim.make("reach", 1).spec
    env = replace(env, observation={STATE: Feature((2,), names=there)})
    policy = PolicySpec({STATE: Feature((2,), names=own)}, env.action, env.dt, 1, 1, 1, env.tasks)
    for _ in range(2):
        check_fits(policy, env)
    assert caplog.text.count(f"'observation.state': {who} does not name its elements") == 1
    check_fits(replace(policy, observation=env.observation), env)
    assert len(caplog.records) == 1


def test_a_camera_that_is_not_there_is_named_with_those_that_are() -> None:
    top = {IMAGES + "top": Feature((3, 8, 8), "uint8")}
    with pytest.raises(ConfigError, match=r"^cameras: there is no 'tpo'\. Did you mean 'top'"):
        with_cameras(top, ["tpo"], where="cameras")
    with pytest.raises(ConfigError, match=r"^points: there is no 'top'\. There are no point clouds at all.*cameras="):
        with_cameras(top, ["top"], where="points", prefix=POINTS)
