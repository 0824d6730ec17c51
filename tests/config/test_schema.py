"""schema.py: checking a config costs few calls, and values fit their annotations."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import pytest

import robopolicy
from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose
from robopolicy.config.instantiate import arguments_for
from robopolicy.core.errors import ConfigError

ROOT = str(Path(robopolicy.__file__).parent)
COMMAND = ("algo=residual", "algo.actor_lr=1e-3", "run_dir=x")


def test_checking_an_override_costs_few_calls() -> None:
    verb, calls = find_verb("train"), 0
    arguments_for(verb.load(), compose(verb, COMMAND))  # imports and reflects

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and (frame.f_code.co_filename or "").startswith(ROOT)

    sys.setprofile(count)
    try:
        arguments_for(verb.load(), compose(verb, COMMAND))
    finally:
        sys.setprofile(None)
    assert 0 < calls <= 200


class Gripper(Protocol):
    def close(self) -> None: ...


def grip(gripper: Gripper, other: Gripper | None = None) -> None: ...


def test_no_plain_value_is_a_protocol() -> None:
    with pytest.raises(ConfigError, match=r"^gripper: expected Gripper, found 3 \(int\)$"):
        arguments_for(grip, {"gripper": 3, "other": None})
