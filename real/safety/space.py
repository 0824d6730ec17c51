"""Every limit in space that a profile's settings ask for."""

from __future__ import annotations

from robopolicy.real.safety.body import Body
from robopolicy.real.safety.clearance import KeepOut, Planes, SelfCollision
from robopolicy.real.safety.limits import Limit
from robopolicy.real.safety.singularity import Singularity
from robopolicy.real.safety.tool import TcpSpeed, Workspace


def space_limits(body: Body) -> tuple[Limit, ...]:
    """Build the limits of the tool, of links and the scene, and of links among themselves; cheap ones first."""
    s = body.profile.settings
    found: list[Limit] = [TcpSpeed(body, s.tcp_speed)]
    if s.workspace is not None:
        found.append(Workspace(body, s.workspace))
    if s.planes:
        found.append(Planes(body, s.planes, s.scene_distance))
    if s.keep_out:
        found.append(KeepOut(body, s.keep_out, s.scene_distance))
    return (*found, SelfCollision(body, s.self_distance), Singularity(body, s.condition))
