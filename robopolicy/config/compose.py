"""From a command line to a checked config: Hydra composes, constructors say what is valid, one message what is not.

Overrides are Hydra's: `group=option` chooses a file of configs/<group>/, `a.b=value` sets a key. A key need not be in
the YAML as long as the constructor behind its node takes it; every other key is refused with the closest valid ones.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import robopolicy
from robopolicy.config.schema import MISSING, plain
from robopolicy.core.errors import ConfigError, closest
from robopolicy.core.trees import flatten

ALIASES = {"network": "policy.network"}  # groups that land inside another one: `network=unet1d`, `network.width=64`


class UsageError(ConfigError):
    """A command line that cannot be carried out; exit code 2."""


@dataclass(frozen=True)
class Verb:
    """A subcommand: the config that it starts from and the function that it calls with it."""

    name: str
    summary: str
    target: str  # module:function, imported only when it runs
    config: bool = True  # configs/<file>.yaml

    @property
    def file(self) -> str:
        """The config's name: a verb may have two words."""
        return self.name.replace(" ", "_")

    def load(self) -> Any:
        import importlib

        module, name = self.target.split(":")
        return getattr(importlib.import_module(module), name)


@dataclass(frozen=True)
class Override:
    text: str
    prefix: str  # "", "+", "++" or "~"
    key: str
    value: str


_PATTERN = re.compile(r"^(?P<prefix>\+\+|\+|~)?(?P<key>[^=\s+~-][^=\s]*)(?:=(?P<value>.*))?$", re.DOTALL)


def config_folder() -> Path:
    """The config groups, which the package ships."""
    return Path(robopolicy.__file__).resolve().parent / "configs"


def compose(
    verb: Verb,
    overrides: Sequence[str] = (),
    *,
    settings: Mapping[str, Any] | None = None,
    config_dirs: Sequence[Path] = (),
    checked: bool = True,
) -> dict[str, Any]:
    """The resolved config of a verb in plain dicts and lists, checked against everything that it will build.

    Args:
        settings: top-level keys given as Python values, not as text; None leaves the default. Paths become strings.
        config_dirs: further folders with groups of the user's own, e.g. <dir>/task/mine.yaml for `task=mine`.
        checked: False composes only; for help texts.

    Raises:
        UsageError: an unknown group, option or key, a value of the wrong type, a missing one; all of them are listed.
    """
    with _hydra(config_dirs) as hydra:
        chosen, values = _sort(hydra, verb, [_parse(text) for text in overrides])
        config = hydra.compose(verb.file, [o.text for o in chosen] + [_forced(o) for o in values])
        for key, value in (settings or {}).items():
            if value is not None:
                config[key] = str(value) if isinstance(value, Path) else plain(value)
        if checked:
            _check_roots(config, known=hydra.keys(verb.file))
    if checked:
        from robopolicy.config.instantiate import call_problems, raise_all

        found = call_problems(verb.load(), config, supplied=(), name=f"`{verb.name}`")
        raise_all([_with_hint(p, config, group_options(config_dirs)) for p in found], UsageError)
    return config


def task_node(name: str) -> dict[str, Any]:
    """The node of an option of the group `task`, for programs that others start.

    Raises:
        ConfigError: there is no such option.
    """
    from omegaconf import OmegaConf

    folder = config_folder() / "task"
    if not (file := folder / f"{name}.yaml").is_file():
        raise ConfigError(f"task={name}: no such task. {closest(name, [f.stem for f in folder.glob('*.yaml')])}")
    return plain(OmegaConf.to_container(OmegaConf.load(file)))


NO_GROUPS = {"robots"}  # folders whose files are not composed: real/ros2/wiring.py reads them


def group_options(config_dirs: Sequence[Path] = ()) -> dict[str, dict[str, str]]:
    """{group: {option: the first comment line of its file}}."""
    found: dict[str, dict[str, str]] = {}
    for root in (config_folder(), *config_dirs):
        for file in sorted(Path(root).glob("*/*.yaml")):
            if file.parent.name not in NO_GROUPS:
                found.setdefault(file.parent.name, {})[file.stem] = summary(file)
    return found


def summary(file: Path) -> str:
    """The comment at the head of a YAML file, up to its first full stop."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            lines.append(line.lstrip("# "))
    return re.split(r"(?<=\.)\s", " ".join(lines))[0]


def _parse(text: str) -> Override:
    match = _PATTERN.match(text)
    if match is None or (match["value"] is None and match["prefix"] != "~"):
        raise UsageError(f"{text!r} is not an override; expected key=value, e.g. task=pick or policy.horizon=8")
    if match["key"].startswith("hydra"):
        raise UsageError(f"{text!r}: Hydra's own settings have no effect here; run_dir=… says where a run goes")
    found = Override(text, match["prefix"] or "", match["key"], match["value"] or "")
    _check_grammar(found)
    return found


def _check_grammar(override: Override) -> None:
    """Raise UsageError where Hydra's grammar has no reading for an override; its own exceptions speak of the parser."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        OverridesParser.create().parse_override(_forced(override))
        return
    except HydraException:
        key, value = override.key, override.value
    if re.fullmatch(r"[\w.@/-]+", key) is None:
        raise UsageError(
            f"{override.text!r}: {key!r} is no key; expected names with dots between, e.g. policy.horizon=8"
        )
    why = _unclosed(value) or "it holds a character that means something else there"
    raise UsageError(
        f"{key}: the value {value!r} cannot be read: {why}. Lists are [a,b], mappings {{a: b}}; put text with "
        f"brackets, quotes, = or $ into quotes of its own, and all of it into the shell's: '{key}=\"…\"'."
    )


def _unclosed(value: str) -> str:
    """Which quote or bracket of a value has no partner; "" where all have one."""
    closing = {"(": ")", "[": "]", "{": "}"}
    opened: list[str] = []
    quote = ""
    for before, sign in zip(" " + value, value, strict=False):
        if quote:
            quote = "" if sign == quote and before != "\\" else quote
        elif sign in "'\"":
            quote = sign
        elif sign in closing:
            opened.append(sign)
        elif sign in closing.values() and (not opened or closing[opened.pop()] != sign):
            return f"{sign} closes nothing"
    return f"the quote {quote} is not closed" if quote else f"{opened[-1]} is not closed" if opened else ""


def _sort(hydra: _Hydra, verb: Verb, overrides: list[Override]) -> tuple[list[Override], list[Override]]:
    """Choices of group options, and values of keys."""
    groups = hydra.groups()
    chosen = [o for o in overrides if o.key.split("@")[0] in groups]
    values = [o for o in overrides if o not in chosen]
    for o in chosen:
        group = o.key.split("@")[0]
        if o.value not in (options := hydra.options(group)) and o.value != "null" and o.prefix != "~":
            raise UsageError(f"{group}={o.value}: no such option of the group {group!r}. {closest(o.value, options)}")
    direct = [o for o in chosen if o.key not in ALIASES]
    used = hydra.choices(verb.file, [o.text for o in direct if _in_defaults(hydra, verb, o)])
    for o in direct:
        if o.key not in used and not o.prefix:
            raise UsageError(f"{o.text}: `{verb.name}` has no group {o.key!r}. {closest(o.key, used)}")
    placed = []
    for o in chosen:
        if o in direct:
            placed.append(o)
            continue
        package = f"{o.key}@{ALIASES[o.key]}"
        if package not in used:
            raise UsageError(f"{o.text}: nothing here takes a {o.key}. Groups in use: {', '.join(sorted(used))}.")
        placed.append(Override(f"{o.prefix}{package}={o.value}", o.prefix, package, o.value))
    moved = []
    for o in values:
        first, _, rest = o.key.partition(".")
        key = f"{ALIASES[first]}.{rest}" if first in ALIASES and rest else o.key
        moved.append(Override(o.text, o.prefix, key, o.value))
    return placed, moved


def _in_defaults(hydra: _Hydra, verb: Verb, override: Override) -> bool:
    return override.prefix != "" or override.key in hydra.choices(verb.file, [])


def _check_roots(config: Mapping[str, Any], known: set[str]) -> None:
    """The commonest mistakes, found before anything heavy is imported: configs/<verb>.yaml lists all top keys."""
    from robopolicy.config.instantiate import raise_all

    raise_all([f"{key}: unknown key. {closest(key, known)}" for key in config if key not in known], UsageError)
    raise_all([f"{k}: needs a value. Add {k}=…" for k, value in config.items() if value == MISSING], UsageError)


def _forced(override: Override) -> str:
    """Whether a key exists is decided by the constructors, not by what the YAML happens to list."""
    if override.prefix == "~":
        return f"~{override.key}" + (f"={override.value}" if override.value else "")
    return f"++{override.key}={override.value}"


def _with_hint(problem: str, config: Mapping[str, Any], groups: Mapping[str, Mapping[str, str]]) -> str:
    """For an unknown key that exists elsewhere under the same name: where. For a group: its options."""
    key, _, what = problem.partition(": ")
    if key in groups and what.startswith(("needs a value", "has no _target_")):
        return f"{key}: must be chosen: {key}=<one of {', '.join(groups[key])}>"
    if not what.startswith("unknown key"):
        return problem
    leaf = key.rsplit(".", 1)[-1]
    there = [k for k in flatten(config) if k.rsplit(".", 1)[-1] == leaf and k != key]
    return f"{problem} There is {' and '.join(there[:3])}." if there else problem


class _Hydra:
    """The few calls of Hydra's compose API that are needed, with its errors in our words."""

    def __init__(self, config_dirs: Sequence[Path]) -> None:
        folders = ",".join(f"file://{Path(d).resolve()}" for d in config_dirs)
        self.search = [f"hydra.searchpath=[{folders}]"] if config_dirs else []
        self.roots = [config_folder(), *map(Path, config_dirs)]
        self._composed = functools.cache(_composed) if config_dirs else _built_in

    def groups(self) -> set[str]:
        return {f.parent.name for root in self.roots for f in root.glob("*/*.yaml")} - NO_GROUPS

    def options(self, group: str) -> list[str]:
        return [f.stem for root in self.roots for f in (root / group).glob("*.yaml")]

    def choices(self, name: str, overrides: list[str]) -> dict[str, Any]:
        """{group key: chosen option}."""
        found = self._compose(name, overrides).hydra.runtime.choices
        return {k: v for k, v in found.items() if not k.startswith("hydra/")}

    def keys(self, name: str) -> set[str]:
        """Top-level keys and groups of a verb."""
        return {*self._compose(name, []), *self.choices(name, [])} - {"hydra"}

    def compose(self, name: str, overrides: list[str]) -> dict[str, Any]:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        config = self._compose(name, overrides).copy()
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        try:
            return plain(OmegaConf.to_container(config, resolve=True))
        except OmegaConfBaseException as error:
            raise UsageError(f"config: {_first_line(error)}") from error

    def _compose(self, name: str, overrides: list[str]) -> Any:
        return self._composed(name, (*self.search, *overrides))


def _composed(name: str, overrides: tuple[str, ...]) -> Any:
    """Hydra's config of a verb, its own settings included."""
    from hydra import compose
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = compose(name, list(overrides), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        text = _first_line(error).replace("Ambiguous value for argument", "several values given in")
        if "several values" in text:
            text += "; one run takes one value. A list is written key=[a,b]."
        raise UsageError(f"config: {text}") from error
    OmegaConf.set_readonly(config, False)
    return config


_built_in = functools.lru_cache(maxsize=32)(_composed)  # configs/ stays as it is while a process lives


@contextlib.contextmanager
def _hydra(config_dirs: Sequence[Path]) -> Iterator[_Hydra]:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    for folder in config_dirs:
        if not Path(folder).is_dir():
            raise UsageError(f"--config-dir {folder}: no such folder")
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        yield _Hydra(config_dirs)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip() and "full_key" not in line]
    return lines[0].strip() if lines else type(error).__name__
