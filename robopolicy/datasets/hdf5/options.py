"""Options of `robopolicy convert` for facts that HDF5 files lack."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from robopolicy.config.schema import Positive


@dataclass(frozen=True)
class ActionFacts:
    """Meaning of an action, as `robopolicy.core.types.ActionSpec`; None: taken from the file.

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
    units: tuple[str, ...] | None = None
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    frame: Literal["base", "tcp", "joint", "world"] | None = None
    tcp: str | None = None
    rotation: Literal["none", "yaw", "rotvec", "joint"] | None = None
    reference: Literal["measured", "commanded", "absolute"] | None = None
    gripper: int | Literal["none"] | None = None
    gripper_meaning: str | None = None


@dataclass(frozen=True)
class Hdf5Options:
    """Facts that an HDF5 file lacks, and a selection of its content. None: taken from the file.

    `task`: the instruction. `rate_hz`: control steps a second. `success`: of all episodes. `state`: keys of
    `observation.state`, in this order; (): the format's usual ones, or all. `names`: name the entries of the state
    after their keys; False leaves them without names. `cameras`: names of the images to convert. `filter`: a filter
    key of robomimic, such as "train". `clip`: the simulator clamped actions to the limits.

    Args:
        action: meaning of the actions.
    """

    task: str | None = None
    rate_hz: Positive | None = None
    success: bool | None = None
    state: tuple[str, ...] = ()
    names: bool = True
    cameras: tuple[str, ...] | None = None
    filter: str | None = None
    clip: bool = False
    action: ActionFacts = field(default_factory=ActionFacts)
