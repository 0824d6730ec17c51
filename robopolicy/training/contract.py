"""Check an algorithm against the interface of its loop, before the first env step."""

from __future__ import annotations

import inspect
from typing import Any

from robopolicy.core.errors import ConfigError


def check_algorithm(algo: Any, contract: type, loop: str) -> None:
    """Refuse an algorithm that lacks a method or an argument which its loop uses.

    Args:
        contract: the Protocol of the loop's algorithms. loop: its name, for the message.

    Raises:
        ConfigError: names the method, what it lacks, and the signature that is expected.
    """
    name = type(algo).__qualname__
    methods = {key: method for base in reversed(contract.__mro__) for key, method in vars(base).items()
               if inspect.isfunction(method) and not key.startswith("_")}  # fmt: skip
    for key, method in methods.items():
        own, wanted = getattr(algo, key, None), inspect.signature(method)
        expected = f"def {key}{_written(wanted)}"
        if not callable(own):
            raise ConfigError(f"algo: {name} lacks {key}, which the loop {loop} calls. Add {expected}.")
        try:
            found = inspect.signature(own)
        except (TypeError, ValueError):  # written in C, or a stand-in
            continue
        takes_all = any(p.kind is p.VAR_KEYWORD for p in found.parameters.values())
        passed = [p.name for p in wanted.parameters.values() if p.kind is p.KEYWORD_ONLY]
        if lacking := [k for k in passed if k not in found.parameters and not takes_all]:
            raise ConfigError(
                f"algo: {name}.{key} lacks {', '.join(lacking)}, which the loop {loop} passes. Expected {expected}."
            )
        positional = len(wanted.parameters) - len(passed) - 1  # without self
        try:
            found.bind(*[None] * positional, **dict.fromkeys(passed))
        except TypeError as error:
            raise ConfigError(
                f"algo: {name}.{key}{found} cannot be called by the loop {loop}: {error}. Expected {expected}."
            ) from None


def _written(wanted: inspect.Signature) -> str:
    """Write the parameters of a contract's method, without their types."""
    bare = [p.replace(annotation=p.empty) for p in wanted.parameters.values()]
    return str(inspect.Signature(bare))
