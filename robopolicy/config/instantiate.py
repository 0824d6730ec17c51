"""Configs become objects here and nowhere else.

A node is a mapping with `_target_` (a name that is registered for the node's slot, see registry.py), keyword
arguments and, for a factory, `_partial_: true`. Everything is checked against constructors (schema.py) before anything
is built. The slot of a nested node is the key that it stands at.

Hydra composes the configs; its `instantiate` is not used: it calls any import path, it would turn the dataclasses and
dicts that are passed at run time (specs, features) into OmegaConf containers, and lists could never become tuples.
What this module resolves for the check is what it calls: the two cannot disagree.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from robopolicy.config import registry
from robopolicy.config.schema import (
    MISSING,
    PARTIAL,
    TARGET,
    Parameter,
    WrongTypeError,
    coerce,
    describe,
    group_of,
    holds_node,
    is_node,
    is_node_type,
    join,
    parameters,
    plain,
)
from robopolicy.core.errors import ConfigError, closest

if TYPE_CHECKING:
    pass

_ANY = Parameter(Any, None)
_NODE_EXPECTED = "{}: expected a node with {}, found {!r}"


def resolve(node: Any, slot: str, where: str = "") -> Callable[..., Any]:
    """The class or function that `node` names.

    Args:
        slot: the registry's slot that decides which names may stand there.
        where: dotted key of the node, for the messages; `slot` when empty.

    Raises:
        ConfigError: `node` is no node, or names nothing that is registered for `slot`.
    """
    where = where or slot
    if not is_node(node):
        raise ConfigError(_NODE_EXPECTED.format(where, TARGET, node))
    return registry.lookup(slot, node[TARGET], join(where, TARGET))


def problems(
    node: Mapping[str, Any], slot: str, where: str = "", *, supplied: Iterable[str] | None = None
) -> list[str]:
    """Everything that is wrong with a node and the nodes in it, one sentence each; nothing is built.

    Args:
        slot, where: as `resolve`.
        supplied: names that the caller passes at run time; None: unknown yet, so required ones may be missing.
    """
    where = where or slot
    try:
        target = resolve(node, slot, where)
        return call_problems(target, node, where, supplied=None if node.get(PARTIAL) else supplied)
    except ConfigError as error:
        return [str(error)]


def call_problems(
    target: Callable[..., Any],
    arguments: Mapping[str, Any],
    where: str = "",
    *,
    supplied: Iterable[str] | None = None,
    name: str | None = None,
) -> list[str]:
    """`problems` for the keyword arguments of a target that is at hand; `name`: what to call it."""
    name = name or f"{target.__module__}.{target.__qualname__}"
    known, anything = parameters(target, arguments)
    found: list[str] = []
    for key, value in arguments.items():
        at, annotation = join(where, key), known.get(key, _ANY).annotation
        if key == TARGET:
            continue
        if key == PARTIAL:
            found += [] if isinstance(value, bool) else [f"{at}: expected true or false, found {value!r}"]
        elif str(key).startswith("_"):
            found.append(f"{at}: unknown directive. Known: {TARGET}, {PARTIAL}.")
        elif key not in known and not anything:
            found.append(f"{at}: unknown key; {name} does not take it. {closest(str(key), known)}")
        elif key not in known:
            found += _data_problems(value, at)
        elif value == MISSING:
            found.append(f"{at}: needs a value. Add {at}=<{describe(annotation)}>")
        else:
            found += _value_problems(value, annotation, str(key), at)
    given = set(known) if supplied is None else {*arguments, *supplied}
    return found + [
        f"{join(where, key)}: needs a value ({describe(parameter.annotation)}), required by {name}"
        for key, parameter in known.items()
        if parameter.required and key not in given
    ]


def check(node: Mapping[str, Any], slot: str, where: str = "", *, supplied: Iterable[str] | None = None) -> None:
    """Raise ConfigError that lists all `problems`."""
    raise_all(problems(node, slot, where, supplied=supplied))


def raise_all(found: list[str], error: type[ConfigError] = ConfigError) -> None:
    """Raise one `error` for all sentences in `found`; return when there is none."""
    if len(found) == 1:
        raise error(found[0])
    if found:
        raise error(f"{len(found)} problems in the configuration:\n  - " + "\n  - ".join(found))


def build(node: Mapping[str, Any], slot: str, where: str = "", /, **runtime: Any) -> Any:
    """Build what `node` describes, passing `runtime` keywords beside those of the config.

    Args:
        slot, where: as `resolve`.

    Raises:
        ConfigError: any of `problems`, or a key that both the config and the program set.
    """
    where = where or slot
    target = resolve(node, slot, where)
    both = sorted(set(node) & set(runtime))
    if both:
        raise ConfigError(f"{join(where, both[0])}: is set by the program itself, remove it from the config")
    check(node, slot, where, supplied=runtime)
    raise_all(_runtime_problems(target, runtime, where))
    return _construct(node, slot, where, runtime)


def open_arguments(node: Mapping[str, Any], slot: str) -> set[str]:
    """Return the keywords that the node's target takes and the node leaves to the program."""
    known, _ = parameters(resolve(node, slot), node)
    return set(known) - set(node)


def value_of(node: Mapping[str, Any], slot: str, key: str) -> Any:
    """Return the value of a key: the node's, or else the constructor's default; None where there is neither."""
    if key in node:
        return node[key]
    parameter = parameters(resolve(node, slot), node)[0].get(key)
    return None if parameter is None or parameter.required else parameter.default


def arguments_for(target: Callable[..., Any], arguments: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Keyword arguments as `target`'s annotations want them; inner nodes are built, unless `Node` asks for them."""
    known, _ = parameters(target, arguments)
    return {
        key: _construct_value(value, known.get(key, _ANY).annotation, str(key), join(where, key))
        for key, value in arguments.items()
        if key not in (TARGET, PARTIAL)
    }


# --- values ---------------------------------------------------------------------------------------------------------


def _value_problems(value: Any, annotation: Any, key: str, where: str) -> list[str]:
    """Of an argument; `key` is its name, which is the slot of a node that stands there."""
    group = group_of(annotation)
    if is_node(value):
        if is_node_type(annotation):
            return problems(value, key, where)
        if key in registry.ROOTS:
            return [f"{where}: got a node, and nothing can be built there. Give a plain value."]
        return problems(value, key, where, supplied=()) or _misfits(value, annotation, key, where)
    if group is not None and isinstance(value, Mapping):
        return call_problems(group, value, where, supplied=())
    if isinstance(value, Mapping) and is_node_type(annotation):
        return [f"{where}: has no {TARGET}; choose an option of the config group, or write the node in full"]
    if found := _data_problems(value, where):
        return found
    try:
        coerce(value, annotation)
    except WrongTypeError:
        given = "null" if value is None else f"{value!r} ({type(value).__name__})"
        return [f"{where}: expected {describe(annotation)}, found {given}"]
    return []


def _data_problems(value: Any, where: str) -> list[str]:
    """A node is an argument itself; inside of plain data it would be built unchecked."""
    if is_node(value) or holds_node(value):
        return [f"{where}: got data with a node ({TARGET}) in it, and nothing can be built there. Give plain values."]
    return []


def _runtime_problems(target: Callable[..., Any], runtime: Mapping[str, Any], where: str) -> list[str]:
    """Objects of another class than the target asks for, e.g. a policy that the chosen algo cannot train."""
    known, anything = parameters(target, runtime)
    found = [f"{where or target.__qualname__}: does not take {k!r}" for k in runtime if k not in known and not anything]
    for key, value in runtime.items():
        kind = known.get(key, _ANY).annotation
        if kind is Any or not inspect.isclass(kind) or getattr(kind, "_is_protocol", False):
            continue
        if kind.__module__ != "builtins" and not isinstance(value, kind):
            found.append(
                f"{where}: {target.__qualname__} needs a {kind.__name__} as {key!r}, found a {type(value).__name__}. "
                "Choose options that belong together."
            )
    return found


def _misfits(node: Mapping[str, Any], annotation: Any, slot: str, where: str) -> list[str]:
    """A nested node must build what the parameter is annotated with, where that is a plain class."""
    target = resolve(node, slot, where)
    if annotation in (Any, object) or not inspect.isclass(annotation) or getattr(annotation, "_is_protocol", False):
        return []
    if node.get(PARTIAL):
        return [f"{where}: expected {describe(annotation)}, found a factory of it; remove {PARTIAL}"]
    if inspect.isclass(target) and not issubclass(target, annotation):
        return [f"{where}: expected {describe(annotation)}, found a node of {node[TARGET]}"]
    return []


def _construct(node: Mapping[str, Any], slot: str, where: str, runtime: Mapping[str, Any]) -> Any:
    target = resolve(node, slot, where)
    arguments = {**arguments_for(target, node, where), **runtime}
    return functools.partial(target, **arguments) if node.get(PARTIAL) else target(**arguments)


def _construct_value(value: Any, annotation: Any, key: str, where: str) -> Any:
    group = group_of(annotation)
    if is_node(value):
        return plain(value) if is_node_type(annotation) else _construct(value, key, where, {})
    if group is not None and isinstance(value, Mapping):
        return group(**arguments_for(group, value, where))
    return coerce(value, annotation)
