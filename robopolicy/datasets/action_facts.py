"""Collect the facts that make an ActionSpec: from a dataset, and from keys of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from robopolicy.core.errors import ConfigError
from robopolicy.core.types import ActionSpec

ASKED = {  # how to give what is missing
    "names": "[dx,dy,…], one for each of the {dim} channels",
    "units": "[m,rad,1,…], one for each of the {dim} channels, or one for all",
    "low": "[…], one limit for each of the {dim} channels, or one for all",
    "high": "[…], likewise",
    "frame": "base, tcp, joint or world: in which the action is expressed",
    "tcp": "<the site that moves>",
    "rotation": "none, yaw, rotvec or joint",
    "reference": "measured or commanded: what a delta is added to; or absolute",
    "gripper": "<index of its channel>, or none",
    "gripper_meaning": "<what its ends do, e.g. 'absolute: -1 closed, +1 open'>",
}
_PER_CHANNEL = ("units", "low", "high")


@dataclass(frozen=True)
class ActionFacts:
    """Meaning of an action, as `robopolicy.core.types.ActionSpec`; None: taken from the data.

    `units`, `low`, `high`: one for each channel, or one for all. `gripper`: the channel's index, or "none".

    Args:
        names: of the channels.
        frame: in which the action is meant, e.g. base or world.
        tcp: name of the point that moves.
        rotation: how turns are written, e.g. rotvec or none.
        reference: of relative actions: commanded or measured.
        gripper_meaning: what the gripper's numbers mean.
    """

    names: tuple[str, ...] | None = None
    units: tuple[str | int, ...] | None = None  # the unit 1 is a number in YAML and on the command line
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    frame: Literal["base", "tcp", "joint", "world"] | None = None
    tcp: str | None = None
    rotation: Literal["none", "yaw", "rotvec", "joint"] | None = None
    reference: Literal["measured", "commanded", "absolute"] | None = None
    gripper: int | Literal["none"] | None = None
    gripper_meaning: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The facts that are not None."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


def join_facts(known: Mapping[str, Any], given: ActionFacts, dim: int, key: str) -> tuple[dict[str, Any], list[str]]:
    """Join the facts of the data and of the user, whose facts win.

    Args:
        key: of the facts on the command line, for the message.

    Returns:
        Fields of ActionSpec, and the names of unknown fields.

    Raises:
        ConfigError: another number of values than the action has channels.
    """
    found = {**known, **given.given}
    if found.get("gripper") == "none":
        found |= {"gripper": None, "gripper_meaning": found.get("gripper_meaning", "")}
    if "units" in found:
        found["units"] = tuple(map(str, found["units"]))
    unknown = [f.name for f in fields(ActionSpec) if f.name not in found]
    for name in _PER_CHANNEL:
        if len(found.get(name, ())) == 1:
            found[name] = tuple(found[name]) * dim
    wrong = {k: len(found[k]) for k in ("names", *_PER_CHANNEL) if k in found and len(found[k]) != dim}
    if wrong:
        raise ConfigError(f"{key}: expected {dim} values, as its actions have channels, found {wrong}")
    return found, unknown
