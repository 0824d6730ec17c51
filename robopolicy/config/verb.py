"""Describe a subcommand of the command line."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Verb:
    """A subcommand: the config that it starts from and the function that it calls with it.

    Args:
        target: "module:function", imported only when it runs.
        interrupted: what the user has and can do after Ctrl-C.
        config: there is a configs/<file>.yaml.
    """

    name: str
    summary: str
    target: str
    interrupted: str
    config: bool = True

    @property
    def file(self) -> str:
        """Name of the config; a verb may have two words."""
        return self.name.replace(" ", "_")

    def load(self) -> Any:
        module, name = self.target.split(":")
        return getattr(importlib.import_module(module), name)
