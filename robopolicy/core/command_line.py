"""Commands in messages, as they can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from numbers import Real

_PLAIN = re.compile(r"[\w./:@+-]+", re.ASCII)  # text that Hydra's grammar takes without quotes
_TYPED = re.compile(  # plain text that Hydra reads as another type
    r"[+-]?(\d[\d_]*\.?|(\d[\d_]*)?\.\d[\d_]*)(e[+-]?\d[\d_]*)?|[+-]?(inf|nan)|true|false|null", re.IGNORECASE
)


def argument(key: str, value: object) -> str:
    """Return `key=value`, in quotes for Hydra and for the shell where the value needs them."""
    return shlex.quote(f"{key}={hydra_text(value)}")


def hydra_text(value: object) -> str:
    """Write a value so that Hydra's override parser reads it back, with its type."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Real):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(hydra_text, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(k))}: {hydra_text(v)}" for k, v in value.items()) + "}"
    text = str(value)
    if _PLAIN.fullmatch(text) and not _TYPED.fullmatch(text):
        return text
    # Hydra and OmegaConf read a backslash as itself, unless a quote or an interpolation follows.
    uninterpolated = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    inner = re.sub(r'(\\*)("|\Z)', lambda found: found[1] * 2 + (found[2] and f"\\{found[2]}"), uninterpolated)
    return f'"{inner}"'


def _key(text: str) -> str:
    """Write a key of a mapping: Hydra takes no quotes there."""
    return re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", text)
