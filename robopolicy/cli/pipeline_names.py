"""Names and further keys of the stages of `robopolicy pipeline`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robopolicy.config.hydra_configs import group_files
from robopolicy.config.overrides import ALIASES
from robopolicy.core.trees import flatten


def named(stage: str, round: int) -> str:
    """Return the name of a stage's folder and record: "collect", in the second round "collect_2"."""
    return stage if round == 1 else f"{stage}_{round}"


def stage_of(name: str) -> str:
    """Return the stage that a name of `named` is of: its further keys are those of all rounds."""
    stage, _, round = name.rpartition("_")
    return stage if round.isdecimal() else name


def split_keys(keys: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return further keys of a stage as options of groups, "policy=flow", and values, {"loop.steps": 100}."""
    groups, values = group_files(()), flatten(keys)
    words = [f"{key}={value}" for key, value in values.items() if key in groups and isinstance(value, str)]
    return words, {_moved(key): value for key, value in values.items() if f"{key}={value}" not in words}


def _moved(key: str) -> str:
    """Return the place of a key: "policy.network.width" of "network.width"."""
    first, dot, rest = key.partition(".")
    return f"{ALIASES.get(first, first)}{dot}{rest}"
