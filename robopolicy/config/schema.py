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
# Returns a deep copy in dicts and lists, as JSON and YAML know them; paths become strings.
plain = functools.partial(pydantic_core.to_jsonable_python, inf_nan_mode="constants", fallback=lambda other: other)
_CONFIG = pydantic.ConfigDict(arbitrary_types_allowed=True)

_NODE = "a config node: built later, with what only the run knows"
Node = Annotated[dict[str, Any], _NODE]

# Values with a range; the description is what an error message says was expected.
Count = Annotated[int, pydantic.Field(ge=1, description="int ≥ 1")]
Natural = Annotated[int, pydantic.Field(ge=0, description="int ≥ 0")]
Positive = Annotated[float, pydantic.Field(gt=0.0, allow_inf_nan=False, description="float > 0")]
NonNegative = Annotated[float, pydantic.Field(ge=0.0, allow_inf_nan=False, description="float ≥ 0")]
Fraction = Annotated[float, pydantic.Field(ge=0.0, le=1.0, description="float from 0 to 1")]
Rate = Annotated[float, pydantic.Field(gt=0.0, le=1.0, description="float above 0 and up to 1")]
Decay = Annotated[float, pydantic.Field(ge=0.0, lt=1.0, description="float from 0 to below 1")]
Seed = Annotated[int, pydantic.Field(ge=-(2**63), lt=2**63, description="int of 64 bits")]
Side = Annotated[int, pydantic.Field(ge=1, le=4096, description="int from 1 to 4096")]  # pixels of a picture


def _usable(device: str) -> str:
    if device != "cpu":
        import torch

        if (torch.device(device).index or 0) >= torch.cuda.device_count():
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


class Parameter(NamedTuple):
    """One keyword that a target accepts.

    Args:
        annotation: `Any` where unknown.
        default: `inspect.Parameter.empty` where the keyword is required.
        adapter: validates plain values, beside nodes; None where the annotation has no schema.
        takes_node: the annotation is `Node`, or a union that contains it.
        takes_bool: whether true and false fit; pydantic would read them as numbers.
        group: the dataclass that the annotation names, or its description.
    """

    annotation: Any
    default: Any
    adapter: pydantic.TypeAdapter[Any] | None = None
    takes_node: bool = False
    takes_bool: bool = True
    group: Any = None

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


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
    found = hints(target.__init__ if inspect.isclass(target) else target)
    known: dict[str, Parameter] = {}
    anything = False
    for name, parameter in inspect.signature(target).parameters.items():
        hint = found.get(name, Any)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            if typing.get_origin(hint) is typing.Unpack:
                known = {**_options(typing.get_args(hint)[0]), **known}
                continue
            anything = callees is None
            for callee in callees or ():
                known = {**signature(callee).known, **known}
        elif parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            known[name] = Parameter(hint, parameter.default)
    return with_adapters(known, anything)


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
_ADAPTERS: dict[int, tuple[Any, ...]] = {}


def with_adapters(known: Mapping[str, Parameter], anything: bool) -> Signature:
    """Return the signature with validators; each annotation gets one, whichever targets use it."""
    for annotation in [p.annotation for p in known.values() if id(p.annotation) not in _ADAPTERS]:
        origin, adapter = typing.get_origin(annotation), None
        members = typing.get_args(annotation) if origin in (typing.Union, types.UnionType) else (annotation,)
        bare = [typing.get_args(a)[0] if typing.get_origin(a) is Annotated else a for a in members]
        others = tuple(a for a in members if _NODE not in getattr(a, "__metadata__", ()))
        takes_node = len(others) < len(members)
        if takes_node:
            kind: Any = typing.Union[others] if others else _NOTHING  # noqa: UP007
            adapter = pydantic.TypeAdapter(kind)
        elif annotation is not Any:
            for config in (_CONFIG, None):  # dataclasses refuse a config
                try:
                    adapter = pydantic.TypeAdapter[Any](annotation, config=config)
                    break
                except pydantic_core.SchemaError:  # a protocol: no plain value is one
                    adapter = pydantic.TypeAdapter(None) if type(None) in members else pydantic.TypeAdapter(_NOTHING)
                    break
                except (pydantic.PydanticUserError, NameError, TypeError):
                    continue
        takes_bool = bool([a for a in bare if a not in (int, float, type(None))])
        groups = [a for a in members if inspect.isclass(a) and dataclasses.is_dataclass(a)]
        _ADAPTERS[id(annotation)] = annotation, adapter, takes_node, takes_bool, groups[0] if groups else None
    full = {name: Parameter(p.annotation, p.default, *_ADAPTERS[id(p.annotation)][1:]) for name, p in known.items()}
    return Signature(
        full, anything, frozenset([name for name, p in full.items() if p.default is inspect.Parameter.empty])
    )


def is_node(value: Any) -> bool:
    return isinstance(value, Mapping) and TARGET in value


def holds_node(value: Any) -> bool:
    """Return whether this mapping or list is or contains a node."""
    if isinstance(value, Mapping):
        return TARGET in value or True in [holds_node(v) for v in value.values() if not isinstance(v, SCALARS)]
    return isinstance(value, list | tuple) and True in [holds_node(v) for v in value if not isinstance(v, SCALARS)]


def describe(annotation: Any) -> str:
    """Describe an annotation for users: `int`, `float | null`, `'ddpm' | 'ddim'`."""
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


def literals(annotation: Any) -> list[str]:
    """Return the names that an annotation takes, at any depth: those of `Literal`."""
    if typing.get_origin(annotation) is typing.Literal:
        return [value for value in typing.get_args(annotation) if isinstance(value, str)]
    inner = typing.get_args(annotation)
    return [value for part in inner for value in literals(part)]


def join(where: str, key: Any) -> str:
    """Return the dotted key."""
    return f"{where}.{key}" if where else str(key)


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union; () for anything else."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else ()


def hints(function: Any) -> dict[str, Any]:
    """Evaluate each annotation alone, so that one under TYPE_CHECKING does not hide the others."""
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    found = {}
    for name, hint in getattr(function, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: hint})
        try:
            found[name] = typing.get_type_hints(alone, scope, include_extras=True)[name]
        except (NameError, TypeError, AttributeError):
            found[name] = Any
    return found
