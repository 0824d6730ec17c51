"""Commands in messages, as they can be typed."""

from __future__ import annotations

import re
import shlex


def argument(key: str, value: object) -> str:
    """Return `key=value`, in quotes for Hydra and for the shell where the value needs them."""
    text = str(value)
    if re.fullmatch(r"[\w./:@+~-]*", text, re.ASCII) is None:
        # Hydra reads a backslash as itself, unless a quote follows.
        inner = re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + (found[2] and f"\\{found[2]}"), text)
        escaped = inner.replace("${", r"\${")  # no interpolation
        text = f'"{escaped}"'
    return shlex.quote(f"{key}={text}")
