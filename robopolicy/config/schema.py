"""The constructor is the schema: which keywords a class or function takes, and which values they accept.

Annotations do the work. pydantic checks and converts plain values (a YAML list becomes a tuple, a string a Path);
`**options: Unpack[SomeTypedDict]` lists what would otherwise be anything; `Node` marks a config that the callee
builds itself, and a dataclass groups several keys. `Count` and its like say which numbers make sense.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic

TARGET, PARTIAL = "_target_", "_partial_"
MISSING = "???"  # OmegaConf's mark for a value that the user must give

_NODE = "a config node: built later, with what only the run knows"
Node = Annotated[dict[str, Any], _NODE]

# Values with a range; the description is what an error message says was expected.
Count = Annotated[int, pydantic.Field(ge=1, description="int ≥ 1")]
Natural = Annotated[int, pydantic.Field(ge=0, description="int ≥ 0")]
Positive = Annotated[float, pydantic.Field(gt=0.0, allow_inf_nan=False, description="float > 0")]
NonNegative = Annotated[float, pydantic.Field(ge=0.0, allow_inf_nan=False, description="float ≥ 0")]
Fraction = Annotated[float, pydantic.Field(ge=0.0, le=1.0, description="float from 0 to 1")]
Side = Annotated[int, pydantic.Field(ge=1, le=4096, description="int from 1 to 4096")]  # pixels of a picture


def _usable(device: str) -> str:
    import torch

    index = torch.device(device).index
    if device != "cpu" and (index or 0) >= torch.cuda.device_count():
        raise ValueError
    return device


Device = Annotated[
    str,
    pydantic.Field(pattern=r"^(cpu|cuda(:\d+)?)$", description="'cpu', or 'cuda' where `doctor` finds a GPU"),
    pydantic.AfterValidator(_usable),
]


class WrongTypeError(Exception):
    """A value does not fit its annotation."""


@dataclass(frozen=True)
class Parameter:
    """One keyword that a target accepts: annotation (`Any` where unknown) and default (`inspect.Parameter.empty`)."""

    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


def parameters(
    target: Callable[..., Any], arguments: Mapping[str, Any] | None = None
) -> tuple[dict[str, Parameter], bool]:
    """Keywords that `target` accepts, and whether it takes any others (`**kwargs` of which nothing is known).

    What `**kwargs` may hold is said by an `Unpack[TypedDict]` annotation, or by an attribute `forwards_to` of the
    function: called with its arguments, it returns the callables to whose keywords `kwargs` are passed on.
    """
    hints = _hints(target.__init__ if inspect.isclass(target) else target)
    known: dict[str, Parameter] = {}
    anything = False
    for name, parameter in inspect.signature(target).parameters.items():
        hint = hints.get(name, Any)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            if typing.get_origin(hint) is not typing.Unpack:
                callees = getattr(target, "forwards_to", lambda given: None)(arguments or {})
                anything = callees is None
                for callee in callees or ():
                    known = {**parameters(callee)[0], **known}
                continue
            options = typing.get_args(hint)[0]
            for key, kind in typing.get_type_hints(options, include_extras=True).items():
                mark, optional = typing.get_origin(kind), key in options.__optional_keys__
                if mark in (typing.Required, typing.NotRequired):  # as strings they escape __optional_keys__
                    kind, optional = typing.get_args(kind)[0], mark is typing.NotRequired
                known[key] = Parameter(kind, None if optional else inspect.Parameter.empty)
        elif parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            known[name] = Parameter(hint, parameter.default)
    return known, anything


def is_node(value: Any) -> bool:
    return isinstance(value, Mapping) and TARGET in value


def holds_node(value: Any) -> bool:
    """Some node lies inside this mapping or list."""
    if isinstance(value, Mapping):
        return any(is_node(v) or holds_node(v) for v in value.values())
    return isinstance(value, list | tuple) and any(is_node(v) or holds_node(v) for v in value)


def is_node_type(annotation: Any) -> bool:
    """`Node`, or a union that contains it."""
    if typing.get_origin(annotation) is Annotated:
        return _NODE in annotation.__metadata__
    return any(is_node_type(a) for a in _members(annotation))


def group_of(annotation: Any) -> type | None:
    """The dataclass that an annotation (or its `| None`) names."""
    for kind in _members(annotation) or (annotation,):
        if inspect.isclass(kind) and dataclasses.is_dataclass(kind):
            return kind
    return None


def coerce(value: Any, annotation: Any) -> Any:
    """`value` as `annotation` wants it; unchecked where pydantic has no schema for the annotation.

    Raises:
        WrongTypeError: it does not fit.
    """
    if isinstance(value, bool) and not _admits_bool(annotation):  # pydantic would read true as 1
        raise WrongTypeError
    adapter = _adapter(annotation)
    if adapter is None:
        return plain(value)
    try:
        return adapter.validate_python(value)
    except pydantic.ValidationError as error:
        raise WrongTypeError from error


def describe(annotation: Any) -> str:
    """An annotation as a user reads it: `int`, `float | null`, `'ddpm' | 'ddim'`."""
    if annotation is Any:
        return "value"
    if annotation is type(None):
        return "null"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        said = [m.description for m in annotation.__metadata__ if getattr(m, "description", None)]
        return "config node" if _NODE in annotation.__metadata__ else said[0] if said else describe(arguments[0])
    if origin is typing.Literal:
        return " | ".join(repr(v) for v in arguments)
    if _members(annotation):
        return " | ".join(describe(v) for v in arguments)
    if origin in (list, tuple):
        return "[" + ", ".join("…" if v is ... else describe(v) for v in arguments) + "]"
    if origin is not None and not inspect.isclass(origin):
        return str(origin)
    return getattr(origin or annotation, "__name__", str(annotation))


def plain(value: Any) -> Any:
    """A deep copy in dicts and lists, as JSON and YAML know them."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def join(where: str, key: Any) -> str:
    """Dotted key."""
    return f"{where}.{key}" if where else str(key)


def _members(annotation: Any) -> tuple[Any, ...]:
    """Members of a union; () for anything else."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else ()


def _admits_bool(annotation: Any) -> bool:
    if typing.get_origin(annotation) is Annotated:
        return _admits_bool(typing.get_args(annotation)[0])
    members = _members(annotation)
    return any(_admits_bool(a) for a in members) if members else annotation not in (int, float, type(None))


def _adapter(annotation: Any) -> pydantic.TypeAdapter[Any] | None:
    if annotation is Any or is_node_type(annotation):
        return None
    for config in (pydantic.ConfigDict(arbitrary_types_allowed=True), None):  # dataclasses refuse a config
        try:
            return pydantic.TypeAdapter(annotation, config=config)
        except (pydantic.PydanticUserError, NameError, TypeError):
            continue
    return None


def _hints(function: Any) -> dict[str, Any]:
    """Annotations, each evaluated on its own, so that one under TYPE_CHECKING does not hide the others."""
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    found = {}
    for name, hint in getattr(function, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: hint})
        try:
            found[name] = typing.get_type_hints(alone, scope, include_extras=True)[name]
        except (NameError, TypeError, AttributeError):
            found[name] = Any
    return found
