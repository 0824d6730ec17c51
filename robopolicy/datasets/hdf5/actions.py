"""Meaning of the actions of known controllers (actions.yaml)."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml


@functools.cache
def known_actions(format: str) -> dict[str, dict[str, Any]]:
    """Return fields of `ActionSpec` by the format's name of a controller."""
    found = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))[format]
    return {k: {n: tuple(v) if isinstance(v, list) else v for n, v in facts.items()} for k, facts in found.items()}
