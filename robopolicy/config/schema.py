"""Reflect constructors, which are the schema: the keywords that a target takes, and the values that they accept.

Annotations do the work. pydantic checks and converts plain values (a YAML list becomes a tuple, a string a Path);
`**options: Unpack[SomeTypedDict]` lists what would otherwise be anything; `Node` marks a config that the callee
builds itself, and a dataclass groups several keys. `Count` and its like say which numbers make sense.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import pydantic
import pydantic_core

TARGET, PARTIAL = "_target_", "_partial_"
MISSING = "???"  # OmegaConf's mark for a value that the user must give

SCALARS = (str, int, float, bool, type(None))
_CONFIG = pydantic.ConfigDict(arbitrary_types_allowed=True)

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


def _refuse(value: Any) -> Any:
    raise ValueError


_NOTHING = Annotated[Any, pydantic.AfterValidator(_refuse)]


class WrongTypeError(Exception):
    """A value does not fit its annotation."""


class Parameter(NamedTuple):
    """One keyword that a target accepts.

    `annotation` is `Any` where unknown, `default` is `inspect.Parameter.empty` where the keyword is required. `adapter`
    validates plain values; None where the annotation has no schema. `takes_node`: the annotation is `Node`, or a union
    that contains it.
    """

    annotation: Any
    default: Any
    adapter: pydantic.TypeAdapter[Any] | None = None
    takes_node: bool = False

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    def coerce(self, value: Any) -> Any:
        """Convert `value` as the annotation wants it; a plain copy where the annotation has no schema.

        Raises:
            WrongTypeError: it does not fit.
        """
        if isinstance(value, bool) and not _admits_bool(self.annotation):  # pydantic would read true as 1
            raise WrongTypeError
        if self.adapter is None:
            return plain(value)
        try:
            return self.adapter.validate_python(value)
        except pydantic.ValidationError as error:
            raise WrongTypeError from error


class Signature(NamedTuple):
    """The keywords of a target, and whether it takes any others (`**kwargs` of which nothing is known)."""

    known: dict[str, Parameter]
    anything: bool
    required: frozenset[str]


def signature(target: Callable[..., Any], arguments: Mapping[str, Any] | None = None) -> Signature:
    """Return the keywords that `target` accepts. Each target is reflected once.

    The keys of `**kwargs` are read from an `Unpack[TypedDict]` annotation, or from an attribute `forwards_to` of the
    target: called with `arguments`, it returns the callables to whose keywords `kwargs` are passed on.
    """
    forwards = getattr(target, "forwards_to", None)
    return _reflect(target, None if forwards is None else tuple(forwards(arguments or {})))


@functools.lru_cache(maxsize=1024)
def _reflect(target: Callable[..., Any], callees: tuple[Callable[..., Any], ...] | None) -> Signature:
    hints = _hints(target.__init__ if inspect.isclass(target) else target)
    known: dict[str, Parameter] = {}
    anything = False
    for name, parameter in inspect.signature(target).parameters.items():
        hint = hints.get(name, Any)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            if typing.get_origin(hint) is typing.Unpack:
                known = {**_options(typing.get_args(hint)[0]), **known}
                continue
            anything = callees is None
            for callee in callees or ():
                known = {**signature(callee).known, **known}
        elif parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            known[name] = Parameter(hint, parameter.default)
    known = _with_adapters(known)
    required = frozenset({name for name, p in known.items() if p.default is inspect.Parameter.empty})
    return Signature(known, anything, required)


def _options(options: Any) -> dict[str, Parameter]:
    """Return the keys of a TypedDict."""
    found = {}
    for key, kind in typing.get_type_hints(options, include_extras=True).items():
        mark, optional = typing.get_origin(kind), key in options.__optional_keys__
        if mark in (typing.Required, typing.NotRequired):  # as strings they escape __optional_keys__
            kind, optional = typing.get_args(kind)[0], mark is typing.NotRequired
        found[key] = Parameter(kind, None if optional else inspect.Parameter.empty)
    return found


# By the annotation's id; the annotation is kept, so that the id stays its own.
_ADAPTERS: dict[int, tuple[Any, pydantic.TypeAdapter[Any] | None, bool]] = {}


def _with_adapters(known: dict[str, Parameter]) -> dict[str, Parameter]:
    """Add validators; each annotation gets one, whichever targets use it."""
    for annotation in [p.annotation for p in known.values() if id(p.annotation) not in _ADAPTERS]:
        union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
        members, adapter = (annotation, *(typing.get_args(annotation) if union else ())), None
        takes_node = _NODE in [m for a in members for m in getattr(a, "__metadata__", ())]
        if annotation is not Any and not takes_node:
            for config in (_CONFIG, None):  # dataclasses refuse a config
                try:
                    adapter = pydantic.TypeAdapter[Any](annotation, config=config)
                    break
                except pydantic_core.SchemaError:  # a protocol: no plain value is one
                    adapter = pydantic.TypeAdapter(None) if type(None) in members else pydantic.TypeAdapter(_NOTHING)
                    break
                except (pydantic.PydanticUserError, NameError, TypeError):
                    continue
        _ADAPTERS[id(annotation)] = annotation, adapter, takes_node
    return {name: Parameter(*p[:2], *_ADAPTERS[id(p.annotation)][1:]) for name, p in known.items()}


def is_node(value: Any) -> bool:
    return isinstance(value, Mapping) and TARGET in value


def holds_node(value: Any) -> bool:
    """Return whether this mapping or list is or contains a node."""
    if isinstance(value, Mapping):
        return TARGET in value or True in [holds_node(v) for v in value.values() if not isinstance(v, SCALARS)]
    return isinstance(value, list | tuple) and True in [holds_node(v) for v in value if not isinstance(v, SCALARS)]


def group_of(annotation: Any) -> type | None:
    """Return the dataclass that an annotation (or its `| None`) names."""
    for kind in _members(annotation) or (annotation,):
        if inspect.isclass(kind) and dataclasses.is_dataclass(kind):
            return kind
    return None


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
    """Return a deep copy in dicts and lists, as JSON and YAML know them."""
    if isinstance(value, Mapping):
        return {str(k): v if isinstance(v, SCALARS) else plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [v if isinstance(v, SCALARS) else plain(v) for v in value]
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
