"""Configs become objects here and nowhere else.

A node is a mapping with `_target_` (the import path of a class or function), its keyword arguments and, for a
factory, `_partial_: true`. Everything is checked against constructors (schema.py) before anything is built.
Targets lie inside our packages, inside a package that the user named with `allow`, or on a short list.

Hydra composes the configs; its `instantiate` is not used: it would turn the dataclasses and dicts that are passed at
run time (specs, features) into OmegaConf containers, and lists could never become tuples. What this module resolves
for the check is what it calls: the two cannot disagree.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pkgutil
import types
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from robopolicy.errors import ConfigError, closest
from robopolicy.schema import (
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

if TYPE_CHECKING:
    from robopolicy.policies.base import Policy

PACKAGES = {"robopolicy", "sim", "real", "world_models"}
WHITELIST = {f"torch.nn.{name}" for name in ("ELU", "GELU", "LeakyReLU", "Mish", "ReLU", "SiLU", "Tanh")} | {
    f"torch.optim.{name}" for name in ("SGD", "Adam", "AdamW")
}
_ANY = Parameter(Any, None)


def allow(package: str) -> None:
    """Admit targets of a top-level package of the user's own, for this process.

    Raises:
        ConfigError: the package cannot be found.
    """
    if not package.isidentifier() or importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"--allow {package}: no such top-level package can be imported. Run from the folder that holds it, "
            "or install it into this environment."
        )
    PACKAGES.add(package)


def resolve(target: str, where: str = "") -> Callable[..., Any]:
    """The class or function that `target` names.

    Raises:
        ConfigError: it lies outside the admitted packages, does not exist, or is neither class nor function.
    """
    key = join(where, TARGET)
    if not isinstance(target, str) or "." not in target:
        raise ConfigError(f"{key}: expected an import path such as 'sim.make', found {target!r}")
    package = target.split(".")[0]
    if package not in PACKAGES and target not in WHITELIST:
        raise ConfigError(
            f"{key}: {target!r} is outside the packages whose code a config may call "
            f"({', '.join(sorted(PACKAGES))}). For a package of your own add: --allow {package}"
        )
    found: Any = importlib.import_module(package)
    path = package
    for name in target.split(".")[1:]:
        child = f"{path}.{name}"
        if not hasattr(found, name) and isinstance(found, types.ModuleType) and _module_exists(child):
            importlib.import_module(child)
        if name.startswith("_") or not hasattr(found, name):
            raise ConfigError(f"{key}: {path} has no public {name!r}. {closest(name, _public_names(found))}")
        found, path = getattr(found, name), child
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        raise ConfigError(f"{key}: {target!r} is a {type(found).__name__}; expected a class or a function")
    home = getattr(found, "__module__", None) or ""
    if home.split(".")[0] not in PACKAGES and target not in WHITELIST:
        raise ConfigError(f"{key}: {target!r} leads out of our packages, into {home!r}, which a config may not call")
    return found


def problems(node: Mapping[str, Any], where: str = "", *, supplied: Iterable[str] | None = None) -> list[str]:
    """Everything that is wrong with a node and the nodes in it, one sentence each; nothing is built.

    Args:
        where: dotted key of the node, for the messages.
        supplied: names that the caller passes at run time; None: unknown yet, so required ones may be missing.
    """
    try:
        target = resolve(node[TARGET], where)
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
        elif value == MISSING:
            found.append(f"{at}: needs a value. Add {at}=<{describe(annotation)}>")
        else:
            found += _value_problems(value, annotation, at)
    given = set(known) if supplied is None else {*arguments, *supplied}
    return found + [
        f"{join(where, key)}: needs a value ({describe(parameter.annotation)}), required by {name}"
        for key, parameter in known.items()
        if parameter.required and key not in given
    ]


def check(node: Mapping[str, Any], where: str = "", *, supplied: Iterable[str] | None = None) -> None:
    """Raise ConfigError that lists all `problems`."""
    raise_all(problems(node, where, supplied=supplied))


def raise_all(found: list[str], error: type[ConfigError] = ConfigError) -> None:
    """Raise one `error` for all sentences in `found`; return when there is none."""
    if len(found) == 1:
        raise error(found[0])
    if found:
        raise error(f"{len(found)} problems in the configuration:\n  - " + "\n  - ".join(found))


def build(node: Mapping[str, Any], where: str = "", /, **runtime: Any) -> Any:
    """Build what `node` describes, passing `runtime` keywords beside those of the config.

    Raises:
        ConfigError: any of `problems`, or a key that both the config and the program set.
    """
    if not is_node(node):
        raise ConfigError(f"{where or 'config'}: expected a node with {TARGET}, found {node!r}")
    both = sorted(set(node) & set(runtime))
    if both:
        raise ConfigError(f"{join(where, both[0])}: is set by the program itself, remove it from the config")
    check(node, where, supplied=runtime)
    raise_all(_runtime_problems(resolve(node[TARGET], where), runtime, where))
    return _construct(node, where, runtime)


def build_policy(node: Mapping[str, Any], where: str = "policy", /, **runtime: Any) -> Policy:
    """Build a policy; `runtime` holds what its constructor needs beside the config (`spec`, `normalizer`, `base`).

    The node stays with the policy as `policy.config`, from which checkpoint.py rebuilds it, unless what it names has
    already left another one there.

    Raises:
        ConfigError: as `build`, or the target is not a Policy.
    """
    from robopolicy.policies.base import Policy

    target = resolve(node.get(TARGET, ""), where)
    if inspect.isclass(target) and not issubclass(target, Policy):
        raise ConfigError(f"{join(where, TARGET)}: {node[TARGET]!r} is not a robopolicy.policies.base.Policy")
    policy = build(node, where, **runtime)
    if not isinstance(policy, Policy):
        raise ConfigError(f"{join(where, TARGET)}: {node[TARGET]!r} built a {type(policy).__name__}, not a Policy")
    policy.config = getattr(policy, "config", None) or plain(node)
    return policy


def arguments_for(target: Callable[..., Any], arguments: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Keyword arguments as `target`'s annotations want them; inner nodes are built, unless `Node` asks for them."""
    known, _ = parameters(target, arguments)
    return {
        key: _construct_value(value, known.get(key, _ANY).annotation, join(where, key))
        for key, value in arguments.items()
        if key not in (TARGET, PARTIAL)
    }


# --- values ---------------------------------------------------------------------------------------------------------


def _value_problems(value: Any, annotation: Any, where: str) -> list[str]:
    group = group_of(annotation)
    if is_node(value):
        if is_node_type(annotation):
            return problems(value, where)
        return problems(value, where, supplied=()) or _misfits(value, annotation, where)
    if group is not None and isinstance(value, Mapping):
        return call_problems(group, value, where, supplied=())
    if holds_node(value):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        return [p for key, item in items for p in _value_problems(item, Any, join(where, key))]
    if isinstance(value, Mapping) and is_node_type(annotation):
        return [f"{where}: has no {TARGET}; choose an option of the config group, or write the node in full"]
    try:
        coerce(value, annotation)
    except WrongTypeError:
        found = "null" if value is None else f"{value!r} ({type(value).__name__})"
        return [f"{where}: expected {describe(annotation)}, found {found}"]
    return []


def _runtime_problems(target: Callable[..., Any], runtime: Mapping[str, Any], where: str) -> list[str]:
    """Objects of another class than the target asks for, e.g. a policy that the chosen algo cannot train."""
    known, anything = parameters(target, runtime)
    found = [f"{where or target.__qualname__}: does not take {k!r}" for k in runtime if k not in known and not anything]
    for key, value in runtime.items():
        kind = known.get(key, _ANY).annotation
        if not inspect.isclass(kind) or getattr(kind, "_is_protocol", False):
            continue
        if kind.__module__.split(".")[0] in PACKAGES and not isinstance(value, kind):
            found.append(
                f"{where}: {target.__qualname__} needs a {kind.__name__} as {key!r}, found a {type(value).__name__}. "
                "Choose options that belong together."
            )
    return found


def _misfits(node: Mapping[str, Any], annotation: Any, where: str) -> list[str]:
    """A nested node must build what the parameter is annotated with, where that is a plain class."""
    target = resolve(node[TARGET], where)
    if not inspect.isclass(annotation) or annotation is object or getattr(annotation, "_is_protocol", False):
        return []
    if node.get(PARTIAL):
        return [f"{where}: expected {describe(annotation)}, found a factory of it; remove {PARTIAL}"]
    if inspect.isclass(target) and not issubclass(target, annotation):
        return [f"{where}: expected {describe(annotation)}, found a node of {node[TARGET]}"]
    return []


def _construct(node: Mapping[str, Any], where: str, runtime: Mapping[str, Any]) -> Any:
    target = resolve(node[TARGET], where)
    arguments = {**arguments_for(target, node, where), **runtime}
    return functools.partial(target, **arguments) if node.get(PARTIAL) else target(**arguments)


def _construct_value(value: Any, annotation: Any, where: str) -> Any:
    group = group_of(annotation)
    if is_node(value):
        return plain(value) if is_node_type(annotation) else _construct(value, where, {})
    if group is not None and isinstance(value, Mapping):
        return group(**arguments_for(group, value, where))
    if holds_node(value):
        if isinstance(value, Mapping):
            return {k: _construct_value(v, Any, join(where, k)) for k, v in value.items()}
        return [_construct_value(v, Any, join(where, i)) for i, v in enumerate(value)]
    return coerce(value, annotation)


def _module_exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _public_names(found: Any) -> list[str]:
    names = [n for n in dir(found) if not n.startswith("_")]
    if hasattr(found, "__path__"):
        names += [m.name for m in pkgutil.iter_modules(found.__path__)]
    return names
