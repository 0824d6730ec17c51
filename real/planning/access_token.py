"""Secrets that a policy server and its clients share."""

from __future__ import annotations

import ipaddress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from robopolicy.core.errors import ConfigError

SHORTEST = 16  # characters of a token


class Token(NamedTuple):
    """A secret, and until when it opens."""

    secret: str
    expires: datetime | None

    @classmethod
    def load(cls, path: Path) -> Token:
        """Read a file: the secret, and after a space, if wanted, when it expires (2027-01-31T12:00:00Z).

        Raises:
            ConfigError: not readable, too short, or not a time with a zone.
        """
        try:
            secret, _, until = path.read_text(encoding="utf-8").strip().partition(" ")
            expires = datetime.fromisoformat(until.strip()) if until else None
        except (OSError, ValueError) as error:
            raise ConfigError(f"token={path}: {error}. Expected a file with a secret, and maybe its expiry.") from error
        if len(secret) < SHORTEST:
            raise ConfigError(f"token={path}: the secret has {len(secret)} characters, expected {SHORTEST} or more")
        if expires is not None and expires.tzinfo is None:
            raise ConfigError(f"token={path}: the expiry {until!r} has no time zone; append Z for UTC")
        return cls(secret, expires)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; of names only localhost is believed."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
