"""Options of `robopolicy convert` for facts that HDF5 files lack."""

from __future__ import annotations

from dataclasses import dataclass, field

from robopolicy.config.schema import Positive
from robopolicy.datasets.action_facts import ActionFacts


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
