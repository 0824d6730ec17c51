"""Plan the construction of a config node: look up its target, check its arguments and convert them; build nothing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pydantic

from robopolicy.config import registry
from robopolicy.config.described import Described
from robopolicy.config.schema import (
    MISSING,
    PARTIAL,
    TARGET,
    Parameter,
    Signature,
    describe,
    holds_node,
    join,
    literals,
    plain,
    signature,
)
from robopolicy.core.errors import ConfigError, SizeError, closest

_DATA = Parameter(Any, None)  # any value
Target = Callable[..., Any] | Described
Resolve = Callable[[Any, str, str], Target]


@dataclass
class Plan:
    """A call with checked and converted arguments. `make` carries out arguments that are plans first.

    Args:
        name: of the target in messages; for a node its registered one.
        known: keywords of the target, once it is planned. where: dotted key of the node.
    """

    target: Target
    arguments: dict[str, Any]
    name: str = ""
    partial: bool = False
    known: Signature = Signature({}, True, frozenset())  # noqa: RUF009  immutable
    where: str = ""

    def make(self, runtime: Mapping[str, Any] | None = None) -> Any:
        assert not isinstance(self.target, Described)
        arguments = {k: v.make() if isinstance(v, Plan) else v for k, v in self.arguments.items()} | dict(runtime or {})
        if not self.partial:
            return self.target(**arguments)
        factory = Factory(self.target, **arguments)
        factory.where, factory.known = self.where, self.known
        return factory


class Factory(functools.partial[Any]):
    """A node with `_partial_: true`: the program calls it with the other keywords.

    Raises:
        ConfigError: when called, a required keyword that neither the config nor the program gives, or a size that does
            not fit the others.
    """

    where: str
    known: Signature

    def __call__(self, /, *given: Any, **runtime: Any) -> Any:
        missing = self.known.required.difference(self.keywords, runtime) if not given else ()
        if missing:
            raise ConfigError("; ".join(
                f"{join(self.where, key)}: needs a value ({describe(self.known.known[key].annotation)}), required by "
                f"{self.func.__module__}.{self.func.__qualname__}" for key in sorted(missing)
            ))  # fmt: skip
        try:
            return super().__call__(*given, **runtime)
        except SizeError as error:  # a constructor does not know where in the config it stands
            raise ConfigError(join(self.where, error)) from error


def plan_call(
    target: Target,
    arguments: Mapping[str, Any],
    where: str,
    supplied: Iterable[str] | None,
    name: str = "",
    resolve: Resolve = registry.resolve,
    converts: bool = False,
) -> tuple[Plan, list[str]]:
    """Check and convert the arguments of a target, and those of all nodes in them; list all that is wrong.

    Args:
        where, name: dotted key of the arguments and name of the target, for the messages.
        supplied: names that the caller passes at run time; None: unknown yet, so required ones may be missing.
        resolve: finds the target of a node: itself, or its description, which needs no imports.
        converts: put numbers in place of what stands for them in `arguments` too: 10 for 1e1 and for "10".
    """
    whole, found = Plan(target, {}, name), list[str]()
    todo: list[tuple[Plan, Mapping[str, Any], str, Iterable[str] | None]] = [(whole, arguments, where, supplied)]
    for plan, given, here, others in todo:  # nodes and groups in the arguments are appended
        plan.where = here
        taker = name if plan is whole and name else f"{plan.target.__module__}.{plan.target.__qualname__}"
        try:
            called = plan.target
            plan.known = called.signature(given) if isinstance(called, Described) else signature(called, given)
        except ConfigError as error:
            found.append(str(error))
            continue
        for key, value in given.items():
            at = f"{here}.{key}" if here else str(key)
            parameter = plan.known.known.get(key, _DATA if plan.known.anything else None)
            may_nest = isinstance(value, Mapping) and parameter is not _DATA  # in data it would be built unchecked
            is_node = bool(here) or plan is not whole  # the keywords of a verb are none
            if is_node and (key == TARGET or (key == PARTIAL and isinstance(value, bool))):
                continue
            if is_node and str(key).startswith("_"):
                found.append(f"{at}: unknown directive or value. Known: {TARGET}, {PARTIAL} (true or false).")
            elif parameter is None:
                found.append(f"{at}: unknown key; {taker} does not take it. {closest(str(key), plan.known.known)}")
            elif isinstance(value, str) and value == MISSING:
                found.append(f"{at}: needs a value. Add {at}=<{describe(parameter.annotation)}>")
            elif may_nest and (TARGET in value or parameter.takes_node or parameter.group):
                inner, wrong = _plan_inner(str(key), value, parameter, at, resolve)
                found += wrong
                if inner is not None:
                    plan.arguments[key] = value if parameter.takes_node else inner  # a `Node` stays data
                    todo.append((inner, value, at, None if parameter.takes_node or inner.partial else ()))
            elif isinstance(value, Mapping | list | tuple) and holds_node(value):
                found.append(f"{at}: got data with a node ({TARGET}) in it: nothing is built there. Give plain values.")
            elif parameter.adapter is None:
                plan.arguments[key] = plain(value)
            else:
                try:
                    if isinstance(value, bool) and not parameter.takes_bool:
                        raise ValueError
                    plan.arguments[key] = converted = parameter.adapter.validate_python(value)
                    if converts and isinstance(value, str | float) and type(converted) in (bool, int, float):
                        cast(dict[str, Any], given)[key] = converted
                except ValueError as error:  # pydantic's errors are such
                    shown = "null" if value is None else f"{value!r} ({type(value).__name__})"
                    expected = describe(parameter.annotation)
                    hint = _near(error, parameter.annotation)
                    if type(value) is int and _reads(parameter, str(value)):
                        hint = f". As text: '{at}=\"{value}\"'"
                    if parameter.takes_node:
                        hint = f". Set its keys one by one: {at}.<key>=<value>"
                    found.append(f"{at}: expected {expected}, found {shown}{hint}")
        missing = frozenset() if others is None else plan.known.required.difference(given, others)
        found += [f"{join(here, key)}: needs a value ({describe(parameter.annotation)}), required by {taker}"
                  for key, parameter in plan.known.known.items() if key in missing]  # fmt: skip
    return whole, found


def _reads(parameter: Parameter, text: str) -> bool:
    """Return whether a parameter takes text."""
    try:
        return parameter.adapter is not None and isinstance(parameter.adapter.validate_python(text), str | Path)
    except ValueError:
        return False


def _near(error: ValueError, annotation: Any) -> str:
    """Return a sentence with the names closest to the first one that is none of those expected; "" without any."""
    known = literals(annotation)
    faults = error.errors() if isinstance(error, pydantic.ValidationError) else []
    wrong = next((e["input"] for e in faults if e["type"] == "literal_error" and isinstance(e["input"], str)), None)
    return f". {closest(wrong, known)}" if known and wrong is not None else ""


def _plan_inner(
    slot: str, node: Mapping[str, Any], parameter: Parameter, where: str, resolve: Resolve
) -> tuple[Plan | None, list[str]]:
    """Look up the target of a node that stands at an argument; None where there is none to plan."""
    if TARGET not in node and parameter.group:
        return Plan(parameter.group, {}), []
    if TARGET not in node:
        return None, [f"{where}: has no {TARGET}; choose an option of the config group, or write the node in full"]
    if not parameter.takes_node and slot in registry.ROOTS:
        return None, [f"{where}: got a node, and nothing can be built there. Give a plain value."]
    try:
        plan = Plan(resolve(node, slot, where), {}, node[TARGET], partial=bool(node.get(PARTIAL)))
    except ConfigError as error:
        return None, [str(error)]
    if isinstance(plan.target, Described):
        return plan, plan.target.problems(node, where)
    kind = parameter.annotation  # checked where it is a plain class
    if parameter.takes_node or kind in (Any, object) or not inspect.isclass(kind) or hasattr(kind, "_is_protocol"):
        return plan, []
    if plan.partial:
        return plan, [f"{where}: expected {describe(kind)}, found a factory of it; remove {PARTIAL}"]
    if inspect.isclass(plan.target) and not issubclass(plan.target, kind):
        return plan, [f"{where}: expected {describe(kind)}, found a node of {plan.name}"]
    return plan, []
