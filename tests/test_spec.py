"""spec.py: what a policy and its world say of each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from robopolicy.spec import PolicySpec, changes
from robopolicy.types import STATE, Feature
from tests import toy


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
