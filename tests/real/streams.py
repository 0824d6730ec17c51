"""Trajectory streams without ROS, for tests."""

from __future__ import annotations

from robopolicy.real.ros2.remote_arm import RemoteArm
from robopolicy.real.ros2.trajectory_stream import TrajectoryStream


def stream_of(chain, make_loop, wiring, *, send, follow: bool = False) -> TrajectoryStream:
    """Build a stream; `make_loop`: of robot, chain and clock."""
    arm = RemoteArm(chain, wiring, send=send, grip=lambda *_: None, follow=follow)
    return TrajectoryStream(arm, make_loop(arm, chain, lambda: arm.time))
