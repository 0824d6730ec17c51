"""The limits' settings as parameters `safety.<setting>` of a node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from rclpy.node import Node
from rclpy.parameter import Parameter

from robopolicy.core.errors import RobopolicyError
from robopolicy.real.safety import SafetyChain, Settings

PREFIX = "safety."
# No energy: no topic carries torques.
LIVE = (*(f.name for f in fields(Settings) if f.type == "float"), "tracking_error")


def put_in_force(node: Node, chain: SafetyChain) -> None:
    """Declare the parameters where they are missing, and apply them to the chain's settings: those given to the
    node when it was started (`--ros-args -p safety.tcp_speed:=0.1`) count more than the chain's own.

    Raises:
        SafetyError: a value that no setting can have.
    """
    live = [name for name in LIVE if getattr(chain.profile.settings, name) is not None]
    for name in live:
        if not node.has_parameter(PREFIX + name):
            node.declare_parameter(PREFIX + name, float(getattr(chain.profile.settings, name)))
    chain.tighten(**{name: node.get_parameter(PREFIX + name).value for name in live})


def tighten(chain: SafetyChain, parameters: Iterable[Parameter]) -> str:
    """Put those of `parameters` that are settings in force; why not, or ""."""
    wanted = {p.name.removeprefix(PREFIX): p.value for p in parameters if p.name.startswith(PREFIX)}
    if unknown := [name for name in wanted if name not in LIVE]:
        return f"no such safety setting: {unknown[0]!r}"
    try:
        if wanted:
            chain.tighten(**wanted)
    except (RobopolicyError, TypeError) as error:
        return str(error)
    return ""
