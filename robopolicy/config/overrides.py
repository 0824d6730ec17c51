"""Translate overrides of the command line into Hydra's: choices of group options, and values of keys."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from robopolicy.config import registry
from robopolicy.core.command_line import argument, hydra_text
from robopolicy.core.errors import UsageError, closest

ALIASES = {"network": "policy.network"}  # groups that land inside another one: `network=unet1d`, `network.width=64`
# Options that were renamed before the first version, as docs/changelog.md lists them: for the message alone.
RENAMED = {"algo=residual_fast": "residual", "policy=tuned": "finetuned", "policy=sighted": "frozen_encoder_student"}
_TEXT = re.compile(r"""[^\[\]{}'",=$\\\n]+""")  # what cannot mean anything else, such as a path with é, ~ or (2) in it
_PATTERN = re.compile(r"^(?P<prefix>\+\+|\+|~)?(?P<key>[^=\s+~-][^=\s]*)(?:=(?P<value>.*))?$", re.DOTALL)


def read_overrides(texts: Sequence[str], options: Mapping[str, Collection[str]]) -> tuple[list[str], list[str]]:
    """Return Hydra's overrides for choices of group options, and for values of keys.

    Values are written in the form that adds keys: constructors decide which keys exist, not the YAML. What Hydra's
    grammar does not take, and can only be text, is put into quotes.

    Args:
        options: {group: names of its options}.

    Raises:
        UsageError: an override is not readable, or a group has no such option.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    groups, values = [], []
    for text in texts:
        match = _PATTERN.match(text)
        if match is None or (match["value"] is None and match["prefix"] != "~"):
            raise UsageError(f"{text!r} is not an override; expected key=value, e.g. task=pick or policy.horizon=8")
        prefix, key, value = match["prefix"] or "", match["key"], match["value"] or ""
        if key.startswith("hydra"):
            raise UsageError(f"{text!r}: Hydra's own settings have no effect here; run_dir=… says where a run goes")
        given, (first, _, rest) = f"={value}" if value or prefix != "~" else "", key.partition(".")
        group, whole = key.split("@")[0], f"{'~' if prefix == '~' else '++'}{key}"
        try:
            OverridesParser.create().parse_override(whole + given)
        except HydraException:
            given = f"={hydra_text(value)}" if _TEXT.fullmatch(value) and not _unclosed(value) else given
            try:
                OverridesParser.create().parse_override(whole + given)
            except HydraException:
                raise _unreadable(text, key, value) from None
        if group in options and value == "null" and prefix != "~":  # Hydra has no such choice: the key's value
            values.append(f"++{ALIASES.get(key, key)}=null")
        elif group in options:
            known = options[group]
            if value not in known and prefix != "~":
                raise UsageError(
                    f"{group}={value}: no such option of the group {group!r}. {_instead(group, value, known)}"
                )
            groups.append(f"{prefix}{f'{key}@{ALIASES[key]}' if key in ALIASES else key}{given}")
        else:
            moved = f"{ALIASES[first]}.{rest}" if first in ALIASES and rest else key
            values.append(f"{'~' if prefix == '~' else '++'}{moved}{given}")
    return groups, values


def _instead(group: str, option: str, known: Collection[str]) -> str:
    """Say how an option that does not exist is given: the closest one, its new name, or the user's own."""
    if (now := RENAMED.get(f"{group}={option}")) is not None:
        return f"It is called {group}={now} now."
    if option.startswith("{"):  # a mapping
        return f"Set its keys one by one: {group}.<key>=<value>."
    own = f"Options of your own come with --config-dir <folder that holds {group}/{option}.yaml>"
    node = f" or a node, {group}={{'_target_': {option!r}, …}}" if option in registry.names(group) else ""
    return f"{closest(option, known)} {own}; in Python with config_dir={',' if node else ''}{node}."


def _unreadable(text: str, key: str, value: str) -> UsageError:
    """Return the error for an override that Hydra's grammar rejects; Hydra's own messages describe its parser."""
    if re.fullmatch(r"[\w.@/-]+", key) is None:
        return UsageError(f"{text!r}: {key!r} is no key; expected names with dots between, e.g. policy.horizon=8")
    why = _unclosed(value) or "it holds a character that means something else there"
    return UsageError(
        f"{key}: the value {value!r} cannot be read: {why}. Lists are [a,b], mappings {{a: b}}; put text with "
        f"brackets, quotes, = or $ into quotes of its own, and all of it into the shell's: {_as_text(key, value)}"
    )


def _as_text(key: str, value: str) -> str:
    """Write an override whose value, or whose items of a list, are read as text."""
    if re.fullmatch(r"""\[[^\[\]{}"]+\]""", value):
        return argument(key, value[1:-1].split(","))
    whole = {"[": '["…"]', "{": '{<key>: "…"}'}.get(value[:1])
    return argument(key, value) if whole is None else f"'{key}={whole}'"


def _unclosed(value: str) -> str:
    """Return which quote or bracket of a value is unmatched; "" for none."""
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
