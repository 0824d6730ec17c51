"""Configs become objects here and nowhere else.

A node is a mapping with `_target_` (the import path of a class or function), its keyword arguments and, for a
factory, `_partial_: true`. The constructor is the schema: keys are checked against its signature, values against
its annotations (pydantic, so a YAML list becomes a tuple and a string a Path), before anything is built.

Targets lie inside our packages, inside a package that the user named with `allow`, or on a short list. Hydra
composes the configs; its `instantiate` is not used, because it would turn the dataclasses and dicts that are passed
at run time (specs, features) into OmegaConf containers, and lists could never become tuples. What this module
resolves for the check is what it calls: the two cannot disagree.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pydantic

from robopolicy.errors import ConfigError, closest

if TYPE_CHECKING:
    from robopolicy.policies.base import Policy
    from robopolicy.spec import PolicySpec

TARGET, PARTIAL = "_target_", "_partial_"
PACKAGES = {"robopolicy", "sim", "real", "world_models"}
WHITELIST = {f"torch.nn.{name}" for name in ("ELU", "GELU", "LeakyReLU", "Mish", "ReLU", "SiLU", "Tanh")} | {
    f"torch.optim.{name}" for name in ("SGD", "Adam", "AdamW")
}
MISSING = "???"  # OmegaConf's mark for a value that the user must give

_NODE = "a config node: built later, with what only the run knows"
Node = Annotated[dict[str, Any], _NODE]


@dataclass(frozen=True)
class Parameter:
    """One keyword that a target accepts: annotation (`Any` where unknown) and default (`inspect.Parameter.empty`)."""

    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


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


def is_node(value: Any) -> bool:
    return isinstance(value, Mapping) and TARGET in value


def resolve(target: str, where: str = "") -> Callable[..., Any]:
    """The class or function that `target` names.

    Raises:
        ConfigError: it lies outside the admitted packages, does not exist, or is neither class nor function.
    """
    key = _join(where, TARGET)
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
        if not hasattr(found, name):
            raise ConfigError(f"{key}: {path} has no {name!r}. {closest(name, _members(found))}")
        found, path = getattr(found, name), child
    home = getattr(found, "__module__", None) or ""
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        raise ConfigError(f"{key}: {target!r} is a {type(found).__name__}; expected a class or a function")
    if home.split(".")[0] not in PACKAGES and target not in WHITELIST:
        raise ConfigError(f"{key}: {target!r} leads out of our packages, into {home!r}, which a config may not call")
    return found


def parameters(target: Callable[..., Any]) -> tuple[dict[str, Parameter], bool]:
    """Keywords that `target` accepts, and whether it takes any others (`**kwargs` without a TypedDict)."""
    function = target.__init__ if inspect.isclass(target) else target
    hints = _hints(function)
    known: dict[str, Parameter] = {}
    anything = False
    for name, parameter in inspect.signature(target).parameters.items():
        hint = hints.get(name, Any)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            options = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Unpack else None
            if options is None:
                anything = True
            else:  # **kwargs: Unpack[Options], a TypedDict that lists them
                for key, kind in typing.get_type_hints(options, include_extras=True).items():
                    known[key] = Parameter(kind, None if key in options.__optional_keys__ else inspect.Parameter.empty)
        elif parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            known[name] = Parameter(hint, parameter.default)
    return known, anything


def problems(node: Mapping[str, Any], where: str = "", *, supplied: Iterable[str] | None = None) -> list[str]:
    """Everything that is wrong with a node and the nodes in it, one sentence each; nothing is built.

    Args:
        where: dotted key of the node, for the messages.
        supplied: names that the caller passes at run time; None: unknown yet, so required ones may be missing.
    """
    try:
        target = resolve(node[TARGET], where)
    except ConfigError as error:
        return [str(error)]
    return call_problems(target, node, where, supplied=None if node.get(PARTIAL) else supplied)


def call_problems(
    target: Callable[..., Any], arguments: Mapping[str, Any], where: str = "", *, supplied: Iterable[str] | None = None
) -> list[str]:
    """`problems` for keyword arguments of a target that is at hand."""
    name = f"{target.__module__}.{target.__qualname__}"
    known, anything = parameters(target)
    found: list[str] = []
    for key, value in arguments.items():
        at = _join(where, key)
        if key in (TARGET, PARTIAL):
            if key == PARTIAL and not isinstance(value, bool):
                found.append(f"{at}: expected true or false, found {value!r}")
        elif str(key).startswith("_"):
            found.append(f"{at}: unknown directive. Known: {TARGET}, {PARTIAL}.")
        elif key not in known and not anything:
            found.append(f"{at}: unknown key; {name} does not take it. {closest(str(key), known)}")
        elif value == MISSING:
            kind = describe(known[key].annotation) if key in known else "value"
            found.append(f"{at}: needs a value. Add {at}=<{kind}>")
        else:
            found += _value_problems(value, known[key].annotation if key in known else Any, at)
    if supplied is not None:
        given = {*arguments, *supplied}
        for key in (k for k, p in known.items() if p.required and k not in given):
            found.append(f"{_join(where, key)}: needs a value ({describe(known[key].annotation)}), required by {name}")
    return found


def check(node: Mapping[str, Any], where: str = "", *, supplied: Iterable[str] | None = None) -> None:
    """Raise ConfigError that lists all `problems`."""
    raise_all(problems(node, where, supplied=supplied))


def raise_all(found: list[str]) -> None:
    """Raise one ConfigError for all sentences in `found`; return when there is none."""
    if len(found) == 1:
        raise ConfigError(found[0])
    if found:
        raise ConfigError(f"{len(found)} problems in the configuration:\n  - " + "\n  - ".join(found))


def build(node: Mapping[str, Any], where: str = "", /, **runtime: Any) -> Any:
    """Build what `node` describes, passing `runtime` keywords beside those of the config.

    Raises:
        ConfigError: any of `problems`, or a key that both the config and the program set.
    """
    both = sorted(set(node) & set(runtime))
    if both:
        raise ConfigError(f"{_join(where, both[0])}: is set by the program itself, remove it from the config")
    check(node, where, supplied=runtime)
    return _construct(node, where, runtime)


def build_policy(
    node: Mapping[str, Any], where: str = "policy", /, *, spec: PolicySpec, **runtime: Any
) -> Policy:
    """Build a policy; `runtime` holds what its constructor needs beside the spec (`normalizer`, `base`).

    The node stays with the policy as `policy.config`, from which checkpoint.py rebuilds it.

    Raises:
        ConfigError: as `build`, or the target is not a Policy.
    """
    from robopolicy.policies.base import Policy

    target = resolve(node[TARGET], where)
    if inspect.isclass(target) and not issubclass(target, Policy):
        raise ConfigError(f"{_join(where, TARGET)}: {node[TARGET]!r} is not a robopolicy.policies.base.Policy")
    policy = build(node, where, spec=spec, **runtime)
    if not isinstance(policy, Policy):
        raise ConfigError(f"{_join(where, TARGET)}: {node[TARGET]!r} built a {type(policy).__name__}, not a Policy")
    policy.config = plain(node)
    return policy


def plain(value: Any) -> Any:
    """A deep copy in dicts and lists, as JSON and YAML know them."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def describe(annotation: Any) -> str:
    """An annotation as a user reads it: `int`, `float | None`, `'ddpm' | 'ddim'`."""
    if typing.get_origin(annotation) is Annotated:
        return "config node" if _NODE in annotation.__metadata__ else describe(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is typing.Literal:
        return " | ".join(repr(v) for v in typing.get_args(annotation))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " | ".join(describe(v) for v in typing.get_args(annotation))
    if annotation is type(None):
        return "null"
    return inspect.formatannotation(annotation).replace("typing.", "").replace("pathlib.", "")


# --- values ---------------------------------------------------------------------------------------------------------


def _value_problems(value: Any, annotation: Any, where: str) -> list[str]:
    if is_node(value):
        if _is_node_type(annotation):
            return problems(value, where)
        return problems(value, where, supplied=()) or _fits(value, annotation, where)
    if _holds_node(value):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        return [p for key, item in items for p in _value_problems(item, Any, _join(where, key))]
    if isinstance(value, Mapping) and _is_node_type(annotation):
        return [f"{where}: has no {TARGET}; choose an option of the config group, or write the node in full"]
    try:
        _coerce(value, annotation)
    except (pydantic.ValidationError, _WrongTypeError):
        return [f"{where}: expected {describe(annotation)}, found {value!r} ({type(value).__name__})"]
    return []


def _fits(node: Mapping[str, Any], annotation: Any, where: str) -> list[str]:
    """A nested node must build what the parameter is annotated with, where both are plain classes."""
    target = resolve(node[TARGET], where)
    if not inspect.isclass(annotation) or annotation is object or typing.get_origin(annotation) is not None:
        return []
    if getattr(annotation, "_is_protocol", False):
        return []
    if node.get(PARTIAL):
        return [f"{where}: expected {describe(annotation)}, found a factory of it; remove {PARTIAL}"]
    if inspect.isclass(target) and not issubclass(target, annotation):
        return [f"{where}: expected {describe(annotation)}, found a node of {node[TARGET]}"]
    return []


def _construct(node: Mapping[str, Any], where: str, runtime: Mapping[str, Any]) -> Any:
    target = resolve(node[TARGET], where)
    known, _ = parameters(target)
    arguments = {
        key: _construct_value(value, known[key].annotation if key in known else Any, _join(where, key))
        for key, value in node.items()
        if key not in (TARGET, PARTIAL)
    }
    if node.get(PARTIAL):
        return functools.partial(target, **arguments, **runtime)
    return target(**arguments, **runtime)


def _construct_value(value: Any, annotation: Any, where: str) -> Any:
    if is_node(value):
        return plain(value) if _is_node_type(annotation) else _construct(value, where, {})
    if _holds_node(value):
        if isinstance(value, Mapping):
            return {k: _construct_value(v, Any, _join(where, k)) for k, v in value.items()}
        return [_construct_value(v, Any, _join(where, i)) for i, v in enumerate(value)]
    return _coerce(value, annotation)


def coerce_arguments(target: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments as `target`'s annotations want them (tuples, Paths); nodes that it asks for stay nodes."""
    known, _ = parameters(target)
    return {k: _construct_value(v, known[k].annotation if k in known else Any, k) for k, v in arguments.items()}


class _WrongTypeError(Exception):
    pass


def _coerce(value: Any, annotation: Any) -> Any:
    if isinstance(value, bool) and not _admits_bool(annotation):  # pydantic would read true as 1
        raise _WrongTypeError
    adapter = _adapter(annotation)
    return plain(value) if adapter is None else adapter.validate_python(value)


def _admits_bool(annotation: Any) -> bool:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_admits_bool(a) for a in typing.get_args(annotation))
    return annotation not in (int, float)


def _adapter(annotation: Any) -> pydantic.TypeAdapter[Any] | None:
    """None where pydantic has no schema for the annotation: the value then goes through unchecked."""
    if annotation is Any or _is_node_type(annotation):
        return None
    for config in (pydantic.ConfigDict(arbitrary_types_allowed=True), None):  # dataclasses refuse a config
        try:
            return pydantic.TypeAdapter(annotation, config=config)
        except (pydantic.PydanticUserError, NameError, TypeError):
            continue
    return None


def _is_node_type(annotation: Any) -> bool:
    if typing.get_origin(annotation) is Annotated:
        return _NODE in annotation.__metadata__
    return any(_is_node_type(a) for a in typing.get_args(annotation))


def _holds_node(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(is_node(v) or _holds_node(v) for v in value.values())
    return isinstance(value, list | tuple) and any(is_node(v) or _holds_node(v) for v in value)


def _hints(function: Any) -> dict[str, Any]:
    """Annotations, each evaluated on its own, so that one under TYPE_CHECKING does not hide the others."""
    raw = getattr(function, "__annotations__", {})
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    found = {}
    for name, hint in raw.items():
        try:
            found[name] = typing.get_type_hints(
                types.SimpleNamespace(__annotations__={name: hint}), scope, include_extras=True
            )[name]
        except (NameError, TypeError, AttributeError):
            found[name] = Any
    return found


def _module_exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _members(found: Any) -> list[str]:
    names = [n for n in dir(found) if not n.startswith("_")]
    if hasattr(found, "__path__"):
        names += [m.name for m in pkgutil.iter_modules(found.__path__)]
    return names


def _join(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)
