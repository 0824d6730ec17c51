"""Describe the observations and actions of a policy: PolicySpec, `spec.json` in every checkpoint."""

from __future__ import annotations

import functools
import json
import logging
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

import pydantic

from robopolicy.core.errors import CheckpointError, ConfigError, SpecError, closest
from robopolicy.core.trees import flatten
from robopolicy.core.types import ENV_STATE, IMAGES, RENDERED, STATE, ActionSpec, EnvSpec, Feature
from robopolicy.core.untrusted import AXES, Strict, checked, parse_json

SPEC_VERSION = 1
_SHOWN = 8  # names in a warning
_log = logging.getLogger(__name__)
_COUNTED = ("main", "agent_pos", "environment_state")  # keys of Gymnasium envs whose elements have numbers, no names

# version found → function that turns its dict into the next version's. Filled when SPEC_VERSION grows.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


@dataclass(frozen=True)
class PolicySpec:
    """The contract between a policy and its env, arm or server; checked before weights are loaded.

    `observation`: the keys that `act` reads, shapes without batch and history axes.
    `n_obs_steps` To · `horizon` H · `n_action_steps` Ta: the executed slice is the first Ta of H steps.
    `dt`: seconds per primitive step at which the policy was trained.
    """

    observation: dict[str, Feature]
    action: ActionSpec
    dt: float
    n_obs_steps: int
    horizon: int
    n_action_steps: int
    tasks: tuple[str, ...]
    version: int = SPEC_VERSION

    def __post_init__(self) -> None:
        if not 1 <= self.n_action_steps <= self.horizon:
            raise SpecError(
                f"n_action_steps (Ta) must lie between 1 and horizon (H={self.horizon}), found {self.n_action_steps}"
            )
        if self.n_obs_steps < 1:
            raise SpecError(f"n_obs_steps (To) must be at least 1, found {self.n_obs_steps}")

    @property
    def reads_pictures(self) -> bool:
        """Whether `act` reads pictures or point clouds."""
        return any(key.startswith(RENDERED) for key in self.observation)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> PolicySpec:
        """Read the text that `to_json` wrote; it may be untrusted.

        Raises:
            CheckpointError: a newer version, missing or unknown fields, values that are none.
        """
        return cls.from_data(parse_json(text, "spec.json", finite=False))

    @classmethod
    def from_data(cls, data: Any) -> PolicySpec:
        """Do the same as `from_json`, from the parsed object."""
        if not isinstance(data, dict):
            raise CheckpointError(f"spec.json: expected an object, found {type(data).__name__}")
        version = data.get("version", 0)
        if type(version) is not int or version > SPEC_VERSION:
            raise CheckpointError(
                f"spec.json has version {version!r}, this robopolicy reads up to {SPEC_VERSION}. Upgrade robopolicy."
            )
        while version < SPEC_VERSION:
            if version not in MIGRATIONS:
                raise CheckpointError(f"spec.json has version {version} and no migration leads from it")
            data = MIGRATIONS[version](data)
            version = data["version"]
        known = {f.name for f in fields(cls)}
        if set(data) != known:
            raise CheckpointError(
                f"spec.json: missing fields {sorted(known - set(data))}, unknown fields {sorted(set(data) - known)}"
            )
        found = checked(SpecFile, data, "spec.json")
        try:
            return cls(**{**found.shared(), "n_obs_steps": found.n_obs_steps, "n_action_steps": found.n_action_steps,
                          "version": found.version})  # fmt: skip
        except SpecError as error:
            raise CheckpointError(f"spec.json does not describe a policy: {error}") from error


Text = Annotated[str, pydantic.Field(max_length=4096)]


# Of a feature: columns, modules and folders of films are called after it.
Key = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z][^/\\\x00-\x1f]{0,255}$")]


class FeatureFile(Strict):
    """A `Feature` in JSON."""

    shape: tuple[Annotated[int, pydantic.Field(ge=0, le=2**24)], ...] = pydantic.Field(max_length=AXES)
    dtype: Literal["float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool"]
    names: tuple[Text, ...] | None = None

    @pydantic.model_validator(mode="after")
    def _size(self) -> FeatureFile:
        if math.prod(self.shape) > 2**28:
            raise ValueError("expected at most 2²⁸ numbers of a frame")
        return self

    @property
    def feature(self) -> Feature:
        return Feature(self.shape, self.dtype, self.names)


class ActionFile(Strict):
    """An `ActionSpec` in JSON; limits may be infinite."""

    names: tuple[Text, ...] = pydantic.Field(min_length=1, max_length=4096)
    units: tuple[Text, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    frame: Literal["base", "tcp", "joint", "world"]
    tcp: Text
    rotation: Literal["none", "yaw", "rotvec", "joint"]
    reference: Literal["measured", "commanded", "absolute"]
    gripper: pydantic.NonNegativeInt | None
    gripper_meaning: Text

    @property
    def action(self) -> ActionSpec:
        """Convert, or raise SpecError where the parts do not fit."""
        return ActionSpec(**dict(self))


class SharedFile(Strict):
    """The common part of the specs of policies and envs."""

    observation: dict[Key, FeatureFile]
    action: ActionFile
    tasks: tuple[Text, ...]
    dt: Annotated[float, pydantic.Field(gt=0.0, le=3600.0, allow_inf_nan=False)]
    horizon: Annotated[int, pydantic.Field(ge=1, le=10**7)]

    def shared(self) -> dict[str, Any]:
        """Return the keywords of a spec; raises SpecError as `ActionFile.action`."""
        observation = {key: found.feature for key, found in self.observation.items()}
        return {"observation": observation, "action": self.action.action, "tasks": self.tasks, "dt": self.dt,
                "horizon": self.horizon}  # fmt: skip


class SpecFile(SharedFile):
    """spec.json of a policy."""

    n_obs_steps: Annotated[int, pydantic.Field(ge=1, le=10**4)]
    n_action_steps: Annotated[int, pydantic.Field(ge=1, le=10**5)]
    horizon: Annotated[int, pydantic.Field(ge=1, le=10**5)]
    version: int


class EnvFile(SharedFile):
    """spec.json of a world model: the env that it replaces."""

    id: Text
    digest: Text
    history: pydantic.NonNegativeInt
    chunk: pydantic.NonNegativeInt
    joint_access: bool
    resumable: bool
    deterministic: bool = True  # which worlds written before 2026-11-27 do not say
    branches: bool = False  # which worlds written before 2026-11-25 do not say
    task_horizon: pydantic.PositiveInt | None = None  # the same, before 2026-11-30

    def spec(self) -> EnvSpec:
        """Convert; raises SpecError as `shared`."""
        own = {k: getattr(self, k) for k in EnvFile.model_fields if k not in SharedFile.model_fields}
        return EnvSpec(**self.shared(), **own)


def with_cameras(
    features: dict[str, Feature], cameras: Iterable[str] | None, *, where: str, prefix: str = IMAGES
) -> dict[str, Feature]:
    """Return `features` with the pictures of `cameras` only; None: of all cameras. `where`: key for the message.

    `prefix`: POINTS chooses among point clouds instead.

    Raises:
        ConfigError: there is no such camera.
    """
    if cameras is None:
        return dict(features)
    offered = [k.removeprefix(prefix) for k in features if k.startswith(prefix)]
    if strange := sorted(set(cameras) - set(offered)):
        what, others = ("pictures", "points") if prefix == IMAGES else ("point clouds", "cameras")
        fix = f"There are no {what} at all: leave {where} out, or read what there is by {others}=."
        raise ConfigError(f"{where}: there is no {strange[0]!r}. {closest(strange[0], offered) if offered else fix}")
    kept = {prefix + name for name in cameras}
    return {k: f for k, f in features.items() if not k.startswith(prefix) or k in kept}


def state_columns(feature: Feature, names: Sequence[str] | None, *, where: str) -> list[int]:
    """Return the columns of `observation.state` with these names, in the given order, each once; None: all.

    Args:
        names: elements' own, or patterns as of file names: `cube_to_*`, `cube_?`. where: the key to blame.

    Raises:
        SpecError: it has no such element, or no names.
    """
    if names is None:
        return list(range(feature.shape[0]))
    if feature.names is None:
        raise SpecError(f"{where}: the elements of {STATE!r} have no names to choose by")
    found: dict[int, None] = {}
    for name in names:
        exact = [i for i, element in enumerate(feature.names) if element == name]
        those = exact or [i for i, element in enumerate(feature.names) if fnmatchcase(element, name)]
        if not those:
            raise SpecError(f"{where}: {STATE!r} has no {name!r}. {closest(name, feature.names)}")
        found |= dict.fromkeys(those)
    return list(found)


def check_features(needed: dict[str, Feature], offered: dict[str, Feature], *, needs: str, offers: str) -> list[str]:
    """List the features of `needed` that `offered` does not supply, one sentence each."""
    problems = []
    for key, feature in needed.items():
        if key not in offered:
            problems.append(f"{needs} needs {key!r}, which {offers} does not have. {closest(key, offered)}")
        elif tuple(offered[key].shape) != tuple(feature.shape):
            problems.append(f"{key!r}: {needs} expects shape {feature.shape}, {offers} has {offered[key].shape}")
        elif offered[key].dtype != feature.dtype:
            problems.append(f"{key!r}: {needs} expects dtype {feature.dtype}, {offers} has {offered[key].dtype}")
        elif _named(feature) and _named(offered[key]) and feature.names != offered[key].names:
            pairs = zip(feature.names or (), offered[key].names or (), strict=True)
            differ = [f"{a}≠{b}" for a, b in pairs if a != b]
            problems.append(f"{key!r}: element names differ between {needs} and {offers}: {', '.join(differ[:5])}")
    return problems


def _named(feature: Feature) -> bool:
    """Return whether the elements have names; the counted keys of a Gymnasium env, as main_0, main_1, are none."""
    counted = [tuple(f"{key}_{i}" for i in range(feature.shape[0])) for key in _COUNTED] if feature.names else []
    return bool(feature.names) and feature.names not in counted


def check_action_spec(policy: ActionSpec, env: ActionSpec, *, needs: str, offers: str) -> list[str]:
    """List the fields in which two action representations differ, one sentence each."""
    return [
        f"action.{f.name}: {needs} has {getattr(policy, f.name)!r}, {offers} has {getattr(env, f.name)!r}"
        for f in fields(ActionSpec)
        if getattr(policy, f.name) != getattr(env, f.name)
    ]


def meant(action: ActionSpec, policy: ActionSpec) -> ActionSpec:
    """Return an env's action; where the env does not say what it means, with the meaning that the policy gives it."""
    unnamed = action.names == tuple(f"a{i}" for i in range(action.dim)) and not action.tcp
    unnamed &= set(action.units) == {"1"} and action.dim == policy.dim
    return replace(policy, low=action.low, high=action.high) if unnamed else action


def changes(before: PolicySpec, now: PolicySpec) -> list[str]:
    """List the keys in which two specs of one policy differ, with both values."""
    old, new = flatten(asdict(before)), flatten(asdict(now))
    return [f"{k}: {_change(old.get(k), new.get(k))}" for k in sorted({*old, *new}) if old.get(k) != new.get(k)]


def _change(old: Any, new: Any) -> str:
    """Describe a change; of long lists (names of elements, limits) only the entries that differ."""
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        pairs = [f"{a!r} → {b!r}" for a, b in zip(old, new, strict=True) if a != b]
        return ", ".join(pairs[:5]) + (f" and {len(pairs) - 5} more" if len(pairs) > 5 else "")
    return f"was {reprlib.repr(old)}, now {reprlib.repr(new)}"


def check_fits(policy: PolicySpec, env: EnvSpec, *, ignore: Iterable[str] = ()) -> None:
    """Raise SpecError with *all* differences between what a policy needs and what an env is.

    `ignore` names observation keys that a wrapper will add (the residual policy's base action).
    """
    needed = {k: v for k, v in policy.observation.items() if k not in set(ignore)}
    problems = check_features(needed, env.observation, needs="the policy", offers=env.id)
    problems += check_action_spec(policy.action, meant(env.action, policy.action), needs="the policy", offers=env.id)
    if not abs(policy.dt - env.dt) <= 1e-6:
        problems.append(f"dt: the policy was trained at {policy.dt} s a step, {env.id} runs at {env.dt} s")
    if problems:
        hint = _naming_hint(needed.get(STATE), env.observation)
        raise SpecError("policy and environment do not fit:\n  - " + "\n  - ".join(problems) + hint)
    for key, feature in needed.items():
        there = env.observation[key]
        if len(feature.shape) == 1 and feature.shape[0] > 1 and _named(feature) != _named(there):
            _warn_of_order(key, env.id if _named(feature) else "the policy", feature.names or there.names or ())


@functools.cache
def _warn_of_order(key: str, who: str, names: tuple[str, ...]) -> None:
    """Warn, once in a process, that the order of elements cannot be checked."""
    more = ", …" if len(names) > _SHOWN else ""
    _log.warning(
        "%r: %s does not name its elements, so their order is taken on trust: %s%s", key, who,
        ", ".join(names[:_SHOWN]), more,
    )  # fmt: skip


def _naming_hint(state: Feature | None, env: dict[str, Feature]) -> str:
    """Say how an env that only counts the elements of its state, as Gymnasium's do, gets the names of the policy."""
    other = env.get(STATE)
    if state is None or other is None or ENV_STATE in env or len(state.names or ()) != len(other.names or ()):
        return ""
    if state.names == other.names or not all(name.rpartition("_")[2].isdecimal() for name in other.names or ()):
        return ""
    if not all(re.fullmatch(r"[\w.-]+", name) for name in state.names or ()):
        return ""  # a checkpoint's names are its author's, and this is to be pasted into a shell
    return (
        "\nThe env counts its elements. Where they are the same ones in the same order, give them the policy's names: "
        f"'task.names=[{','.join(state.names or ())}]'"
    )


def check_teacher(student: PolicySpec, teacher: PolicySpec, *, more: Sequence[str] = ()) -> None:
    """Refuse a teacher that commands other actions than the student, or at another rate.

    Args:
        more: further problems to list, one sentence each.

    Raises:
        SpecError: lists all problems.
    """
    problems = check_action_spec(student.action, teacher.action, needs="the student", offers="the teacher")
    if abs(student.dt - teacher.dt) > 1e-6:
        problems.append(f"dt: the student acts every {student.dt} s, the teacher every {teacher.dt} s")
    if problems := [*problems, *more]:
        raise SpecError("the teacher cannot teach this student:\n  - " + "\n  - ".join(problems))
