"""Read the meaning of a target's keys from docstrings."""

from __future__ import annotations

import inspect
import re
import sys
import typing
from typing import Any

from robopolicy.config import schema


def sources(target: Any, seen: tuple[Any, ...] = ()) -> list[Any]:
    """Return where the docs of a target's keys stand: itself, its bases, and those to whom it passes keywords on.

    Args:
        seen: targets that pass keywords on to this one.
    """
    found = [target, *(inspect.getmro(target)[1:-1] if inspect.isclass(target) else ())]
    if inspect.isclass(target):
        found.append(target.__init__)
    for one in list(found):
        function = one.__init__ if inspect.isclass(one) else one
        for hint in schema.hints(function).values():
            if typing.get_origin(hint) is typing.Unpack:
                found.append(typing.get_args(hint)[0])
    for callee in getattr(target, "forwards_to", lambda given: ())({}):
        found += [] if callee in (target, *seen) else sources(callee, (target, *seen))
    return found


def documentation(documented: list[Any], names: set[str]) -> dict[str, str]:
    """Return {key: its meaning}: the first sentence of its entry "key: …" or "key, other: …" in a docstring.

    "see Other" stands for the entry of the same key in the docstring of Other.
    """
    found: dict[str, str] = {}
    for source in documented:
        doc = re.sub(r"(?m)^(?:Args|Attributes):$", "", inspect.cleandoc(source.__doc__ or ""))
        block = re.split(r"\n(?:Returns|Raises):\n", doc)[0]
        entry = r"(?:^\s*|\n\s*|(?<=[.;:] ))((?:\*{0,2}`?\w+`?, )*\*{0,2}`?\w+`?): "
        marks = [m for m in re.finditer(entry, block) if "*" in m[1] or names & set(re.findall(r"\w+", m[1]))]
        for mark, following in zip(marks, [*marks[1:], None][: len(marks)], strict=True):
            heads, body = mark[1], block[mark.end() : following.start() if following else len(block)]
            given = [head for head in heads.replace("`", "").split(", ") if head in names and head not in found]
            text = re.split(r"(?<!al\.)(?<!e\.g\.)(?<=\.)\s", " ".join(body.split()))[0].rstrip(".;:")
            if reference := re.fullmatch(r"see `?(\w+)`?", text):
                modules = [
                    sys.modules[source.__module__],
                    *(m for n, m in sorted(sys.modules.items()) if n.startswith("robopolicy.")),
                ]
                other = next((vars(m)[reference[1]] for m in modules if reference[1] in vars(m)), None)
                found |= documentation(sources(other), set(given)) if given and callable(other) else {}
            else:
                found |= dict.fromkeys(given, text) if text else {}
    return found
