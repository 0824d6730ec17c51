"""Specs and seed in the header of a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pydantic

from robopolicy.core.errors import CheckpointError, DataError
from robopolicy.core.specs import FeatureFile, Key, PolicySpec
from robopolicy.core.types import Feature
from robopolicy.core.untrusted import checked

_FEATURES = pydantic.TypeAdapter(dict[Key, FeatureFile])
_SEED = pydantic.TypeAdapter(Annotated[int, pydantic.Field(ge=0, lt=2**63)])


def policy_of(header: dict[str, Any]) -> PolicySpec:
    try:
        return PolicySpec.from_data(header.get("policy"))
    except CheckpointError as error:
        raise DataError(f"recording: its header's policy: {error}") from error


def observation_of(header: dict[str, Any]) -> dict[str, Feature]:
    found = checked(_FEATURES, header.get("observation"), "recording: its header's observation", error=DataError)
    return {key: feature.feature for key, feature in found.items()}


def seed_of(header: dict[str, Any]) -> int:
    return checked(_SEED, header.get("seed", 0), "recording: its header's seed", error=DataError)


def check_same(first: dict[str, Any], other: dict[str, Any], path: Path) -> None:
    for key in ("observation", "task", "task_digest"):
        if first.get(key) != other.get(key):
            raise DataError(f"{path}: its {key} is not that of the first recording; convert them apart")
    before, now = policy_of(first), policy_of(other)
    for key in ("action", "dt", "tasks"):
        if getattr(before, key) != getattr(now, key):
            raise DataError(f"{path}: its policy's {key} is not that of the first recording; convert them apart")
