"""`robopolicy arm check`: a wiring and its limits against a running arm over ROS 2."""

from __future__ import annotations

from typing import Annotated

import pydantic

from robopolicy.core.errors import ConfigError
from robopolicy.doctor import show
from robopolicy.doctor.checks import Check
from robopolicy.real.ros2.wiring import load_wiring
from robopolicy.real.safety import SafetyError


def arm_check(*, wiring: str, seconds: Annotated[float, pydantic.Field(ge=0.5, le=600.0)] = 5.0) -> list[Check]:
    """Compare a wiring and its limits with a running arm, and print a finding each; nothing is published.

    Args:
        wiring: a preset in configs/robots/, or a file.
        seconds: s to listen; move each joint meanwhile to see its direction.

    Raises:
        ConfigError: ROS 2 is missing. SafetyError: something does not fit; the findings are printed before.
    """
    known = load_wiring(wiring)
    try:
        from robopolicy.real.ros2.arm_check import checks_of
    except ImportError as error:
        raise ConfigError(
            f"arm check needs ROS 2 ({error}): ./scripts/setup.sh ros, or source a ROS 2 installation"
        ) from error
    print(f"listening for {seconds:g} s on {known.topic('joint_states').name!r} …", flush=True)
    checks = checks_of(known, seconds)
    show(checks)
    if failed := [check.name for check in checks if not check.ok]:
        raise SafetyError(f"wiring={wiring}: does not fit the running arm: {', '.join(failed)}")
    return checks
