"""Parse overrides of the command line, and tell choices of group options from values of keys."""

from __future__ import annotations

import re
from dataclasses import dataclass

from robopolicy.config.hydra_configs import HydraConfigs, UsageError
from robopolicy.core.errors import closest

ALIASES = {"network": "policy.network"}  # groups that land inside another one: `network=unet1d`, `network.width=64`


@dataclass(frozen=True)
class Override:
    text: str
    prefix: str  # "", "+", "++" or "~"
    key: str
    value: str


_PATTERN = re.compile(r"^(?P<prefix>\+\+|\+|~)?(?P<key>[^=\s+~-][^=\s]*)(?:=(?P<value>.*))?$", re.DOTALL)


def parse(text: str) -> Override:
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
        OverridesParser.create().parse_override(forced(override))
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


def sort_overrides(hydra: HydraConfigs, file: str, overrides: list[Override]) -> tuple[list[Override], list[Override]]:
    """Choices of group options, and values of keys."""
    groups = hydra.groups()
    chosen = [o for o in overrides if o.key.split("@")[0] in groups]
    values = [o for o in overrides if o not in chosen]
    for o in chosen:
        group = o.key.split("@")[0]
        if o.value not in (options := hydra.options(group)) and o.value != "null" and o.prefix != "~":
            raise UsageError(f"{group}={o.value}: no such option of the group {group!r}. {closest(o.value, options)}")
    direct = [o for o in chosen if o.key not in ALIASES]
    used = hydra.choices(file, [o.text for o in direct if _in_defaults(hydra, file, o)])
    for o in direct:
        if o.key not in used and not o.prefix:
            raise UsageError(f"{o.text}: `{file.replace('_', ' ')}` has no group {o.key!r}. {closest(o.key, used)}")
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


def _in_defaults(hydra: HydraConfigs, file: str, override: Override) -> bool:
    return override.prefix != "" or override.key in hydra.choices(file, [])


def forced(override: Override) -> str:
    """Whether a key exists is decided by the constructors, not by what the YAML happens to list."""
    if override.prefix == "~":
        return f"~{override.key}" + (f"={override.value}" if override.value else "")
    return f"++{override.key}={override.value}"
