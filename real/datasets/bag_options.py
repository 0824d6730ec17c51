"""Options of `robopolicy convert` for rosbag2 bags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from robopolicy.config.schema import Count, Positive


@dataclass(frozen=True)
class BagOptions:
    """Facts that a rosbag2 bag does not hold.

    `wiring`: of the robot, a preset in configs/robots/ or a file: topics, joints, rates and patience. `task`: the
    instruction; "": as the bags' metadata say. `rate_hz`: of the policy to be trained; None: as they say, else 20.
    `action`: the joint commands, or, without any (guided by hand), the joint positions a step later.
    `success`: of all episodes; False: as the bags' metadata say. `image_size`: (height, width) to average pictures down
    to; None: as they come.

    A dataset is made bags by `wiring`, and without the commands where `action` is measured; its metadata say the rest.
    """

    wiring: str | None = None
    task: str = ""
    rate_hz: Positive | None = None
    action: Literal["commanded", "measured"] = "commanded"
    success: bool = False
    image_size: tuple[Count, Count] | None = None
