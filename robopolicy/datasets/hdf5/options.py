"""What `robopolicy convert` may be told of HDF5 files, which seldom say everything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from robopolicy.config.schema import Positive


@dataclass(frozen=True)
class ActionFacts:
    """What an action means, as `robopolicy.core.types.ActionSpec`; None: as the file says.

    `units`, `low`, `high`: one for each channel, or one for all. `gripper`: the channel's index, or "none".
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
    """What an HDF5 file does not say, and what to take of it. None: as the file says.

    `task`: the instruction. `rate_hz`: control steps a second. `success`: of all episodes. `state`: keys that make up
    `observation.state`, in this order; (): the format's usual ones, or all. `names`: the state's entries are named
    after their keys; False leaves them nameless, for envs that call them otherwise. `cameras`: names of pictures to
    take. `filter`: a filter key of robomimic's, such as "train". `clip`: actions beyond the limits were clamped when
    they were executed.
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
