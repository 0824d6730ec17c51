"""Plan the construction of a config node: look up its target, check its arguments and convert them; build nothing."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from robopolicy.config import registry
from robopolicy.config.schema import (
    MISSING,
    PARTIAL,
    TARGET,
    Parameter,
    WrongTypeError,
    describe,
    group_of,
    holds_node,
    join,
    plain,
    signature,
)
from robopolicy.core.errors import ConfigError, closest

_SIMPLE = {str, int, float, type(None)}  # not bool, which pydantic would read as a number


@dataclass
class Plan:
    """A call whose arguments are checked and converted; arguments that are plans are carried out first."""

    target: Callable[..., Any]
    arguments: dict[str, Any]
    partial: bool = False
    name: str = ""  # registered

    def values(self) -> dict[str, Any]:
        return {k: v.make() if isinstance(v, Plan) else v for k, v in self.arguments.items()}

    def make(self, runtime: Mapping[str, Any] | None = None) -> Any:
        arguments = {**self.values(), **(runtime or {})}
        return functools.partial(self.target, **arguments) if self.partial else self.target(**arguments)


def resolve(node: Any, slot: str, where: str = "") -> Callable[..., Any]:
    """The class or function that `node` names.

    Args:
        slot: the registry's slot that decides which names may stand there.
        where: dotted key of the node, for the messages; `slot` when empty.

    Raises:
        ConfigError: `node` is no node, or names nothing that is registered for `slot`.
    """
    if not isinstance(node, Mapping) or TARGET not in node:
        raise ConfigError(f"{where or slot}: expected a node with {TARGET}, found {node!r}")
    return registry.lookup(slot, node[TARGET], where or slot)


def plan_node(
    node: Any, slot: str, where: str, supplied: Iterable[str] | None, target: Callable[..., Any] | None = None
) -> tuple[Plan, list[str]]:
    """Plan a node and the nodes in it.

    Args:
        slot, where: as `resolve`.
        supplied: names that the caller passes at run time; None: unknown yet, so required ones may be missing.
        target: of the node, where it is resolved already.

    Returns:
        The plan, and everything that is wrong with the node, one sentence each.
    """
    try:
        target = target or resolve(node, slot, where)
        plan, found = plan_call(target, node, where, None if node.get(PARTIAL) else supplied)
    except ConfigError as error:
        return Plan(_nothing, {}), [str(error)]
    plan.partial, plan.name = bool(node.get(PARTIAL)), node[TARGET]
    return plan, found


def plan_call(
    target: Callable[..., Any],
    arguments: Mapping[str, Any],
    where: str,
    supplied: Iterable[str] | None,
    name: str | None = None,
) -> tuple[Plan, list[str]]:
    """Check and convert arguments: what fits its annotation at once, and the rest one by one."""
    known, values = signature(target, arguments), dict[str, Any]()
    found: list[str] = []
    for key, value in arguments.items():
        if key == TARGET or (key == PARTIAL and isinstance(value, bool)):
            continue
        if str(key).startswith("_"):
            found.append(f"{join(where, key)}: unknown directive or value. Known: {TARGET}, {PARTIAL} (true or false).")
            continue
        parameter = known.known.get(key)
        if parameter is not None and parameter.adapter is not None:
            simple = type(value) in _SIMPLE or (type(value) is bool and parameter.annotation is bool)
            simple |= type(value) is list and not [v for v in value if type(v) not in _SIMPLE]
            with contextlib.suppress(ValidationError):
                if simple and value != MISSING:
                    values[key] = parameter.adapter.validate_python(value)
                    continue
        at = f"{where}.{key}" if where else str(key)
        if parameter is not None:
            inner = isinstance(value, Mapping) and TARGET in value
            values[key], wrong = (_plan_inner if inner else _plan_value)(str(key), value, parameter, at)
            found += wrong
        elif known.anything:
            values[key] = plain(value)
            found += _data_problems(value, at)
        else:
            taker = name or _name_of(target)
            found.append(f"{at}: unknown key; {taker} does not take it. {closest(str(key), known.known)}")
    if supplied is not None and (missing := known.required - {*arguments, *supplied}):
        found += [
            f"{join(where, key)}: needs a value ({describe(parameter.annotation)}), required by "
            f"{name or _name_of(target)}"
            for key, parameter in known.known.items()
            if key in missing
        ]
    return Plan(target, values), found


def _plan_value(key: str, value: Any, parameter: Parameter, at: str) -> tuple[Any, list[str]]:
    """Check and convert one argument; `key` is its name, which is the slot of a node that stands there."""
    if value == MISSING:
        return None, [f"{at}: needs a value. Add {at}=<{describe(parameter.annotation)}>"]
    if isinstance(value, Mapping) and (group := group_of(parameter.annotation)) is not None:
        return plan_call(group, value, at, ())
    if isinstance(value, Mapping) and parameter.takes_node:
        return None, [f"{at}: has no {TARGET}; choose an option of the config group, or write the node in full"]
    if found := _data_problems(value, at):
        return None, found
    try:
        return parameter.coerce(value), []
    except WrongTypeError:
        given = "null" if value is None else f"{value!r} ({type(value).__name__})"
        return None, [f"{at}: expected {describe(parameter.annotation)}, found {given}"]


def _plan_inner(slot: str, node: Mapping[str, Any], parameter: Parameter, where: str) -> tuple[Any, list[str]]:
    """Check a node that stands at an argument; where the argument wants a `Node`, it stays data."""
    if parameter.takes_node:
        return node, plan_node(node, slot, where, None)[1]
    if slot in registry.ROOTS:
        return None, [f"{where}: got a node, and nothing can be built there. Give a plain value."]
    plan, found = plan_node(node, slot, where, ())
    return plan, found or _misfits(plan, parameter.annotation, where)


def _nothing() -> None:
    """Stand in for the target of a node that names none."""


def _name_of(target: Callable[..., Any]) -> str:
    return f"{target.__module__}.{target.__qualname__}"


def _data_problems(value: Any, where: str) -> list[str]:
    """A node is an argument itself; inside of plain data it would be built unchecked."""
    if holds_node(value):
        return [f"{where}: got data with a node ({TARGET}) in it, and nothing can be built there. Give plain values."]
    return []


def _misfits(plan: Plan, annotation: Any, where: str) -> list[str]:
    """A nested node must build what the parameter is annotated with, where that is a plain class."""
    if annotation in (Any, object) or not inspect.isclass(annotation) or getattr(annotation, "_is_protocol", False):
        return []
    if plan.partial:
        return [f"{where}: expected {describe(annotation)}, found a factory of it; remove {PARTIAL}"]
    if inspect.isclass(plan.target) and not issubclass(plan.target, annotation):
        return [f"{where}: expected {describe(annotation)}, found a node of {plan.name}"]
    return []
