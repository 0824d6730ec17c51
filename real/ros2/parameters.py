"""The limits' settings as parameters `safety.<setting>` of a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from rcl_interfaces.msg import ParameterDescriptor
from rclpy.node import Node
from rclpy.parameter import Parameter

from robopolicy.core.errors import RobopolicyError, closest
from robopolicy.real.safety import SafetyChain, SafetyError, Settings
from robopolicy.real.safety.settings import check_cell

PREFIX = "safety."
# No energy: no topic carries torques.
LIVE = (*(f.name for f in fields(Settings) if f.type == "float"), "tracking_error", "stall", "joint_speed")


def put_in_force(node: Node, chain: SafetyChain, cell: Mapping[str, Any], *, dry_run: bool = False) -> None:
    """Declare the parameters where they are missing, and apply them to the chain's settings: those given to the
    node when it was started (`--ros-args -p safety.tcp_speed:=0.1`) count more than the chain's own.

    Args:
        cell: settings of the wiring, which no parameter may loosen.
        dry_run: the arm follows no command, so `stall` stays unset.

    Raises:
        SafetyError: a value that no setting can have, one that is looser than the cell's, or no such parameter.
    """
    for name in (n.removeprefix(PREFIX) for n in node._parameter_overrides if n.startswith(PREFIX)):
        if name not in LIVE:  # rclpy ignores a value for a parameter that the node does not declare
            raise SafetyError(
                f"{PREFIX}{name}: given when the node was started, and no parameter. {closest(name, LIVE)} Others of "
                "`safety` go into the wiring or --options"
            )
    live = [name for name in LIVE if not (dry_run and name == "stall")]
    for name in live:
        if not node.has_parameter(PREFIX + name):
            value = getattr(chain.profile.settings, name)
            value = list(value) if isinstance(value, tuple) else value
            # joint_speed may be a number, or a number a joint; an unset setting may be given later
            how = ParameterDescriptor(dynamic_typing=value is None or name == "joint_speed")
            node.declare_parameter(PREFIX + name, value, how)
    _change(chain, {name: node.get_parameter(PREFIX + name).value for name in live}, cell)


def _change(chain: SafetyChain, wanted: dict[str, Any], cell: Mapping[str, Any]) -> None:
    check_cell(cell, replace(chain.profile.settings, **wanted))
    chain.tighten(**wanted)


def tighten(chain: SafetyChain, parameters: Iterable[Parameter], cell: Mapping[str, Any]) -> str:
    """Put those of `parameters` that are settings in force, unless they are looser than the `cell`; why not, or ""."""
    wanted = {p.name.removeprefix(PREFIX): p.value for p in parameters if p.name.startswith(PREFIX)}
    if unknown := [name for name in wanted if name not in LIVE]:
        return f"no such safety setting: {unknown[0]!r}"
    try:
        if wanted:
            _change(chain, wanted, cell)
    except (RobopolicyError, TypeError) as error:
        return str(error)
    return ""
