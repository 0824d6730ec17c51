"""Publishers of an input: exactly one, or the arm does not move."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from robopolicy.real.safety import SafetyError

ALIVE = 1.0  # s: a publisher that was heard and is silent for longer is gone, whatever the graph says
MOST = 64  # publishers that share a topic with us
FORGETS = 20  # s until the graph forgets a publisher that died


class Endpoint(NamedTuple):
    """A publisher, as the graph knows it."""

    gid: bytes
    node: str


class PublisherError(SafetyError):
    """More than one publisher on an input."""


class Publishers:
    """Watch the publishers of one input, by their messages.

    The graph forgets a publisher that died only after 20 s, so one that was heard and fell silent does not count.

    Args:
        role: of the topic, `name`: the topic's, for messages.
        latched: it publishes once, so silence is normal.
    """

    def __init__(self, role: str, name: str, *, latched: bool = False) -> None:
        self.role, self.name, self.latched = role, name, latched
        self.heard: dict[bytes, float] = {}  # s of our steady clock, of the newest message of each
        self.owner: bytes | None = None  # the newest while the arm did not run
        self.others: set[bytes] = set()  # who share the topic, and speak of other things

    def take(self, gid: bytes, at: float, running: bool) -> None:
        """Note a message of publisher `gid` that was received at `at` s.

        Raises:
            PublisherError: the arm runs, by messages of another one.
        """
        self.heard[gid] = at
        if not running or self.owner is None or self.latched:
            self.owner = gid
        elif gid != self.owner:
            raise PublisherError(self.second())

    def leave(self, gid: bytes | None) -> None:
        """Note that publisher `gid` has sent a message that is of no concern here."""
        if gid is not None and len(self.others) < MOST:
            self.others.add(gid)

    def second(self) -> str:
        """Describe a second publisher that speaks while the arm runs."""
        return f"publishers: {self.role}: another one speaks on {self.name!r} than when the arm was started. Stop one"

    def problems(self, graph: Sequence[Endpoint], now: float) -> list[str]:
        """List why the arm may not be started: more than one of `graph`, or of those heard lately."""
        silent = {gid for gid, at in self.heard.items() if now - at > ALIVE and not self.latched}
        others = self.others - self.heard.keys()
        nodes = {end.gid: end.node for end in graph if end.gid not in silent and end.gid not in others}
        nodes |= {gid: "unknown" for gid in self.heard if gid not in silent and gid not in nodes and not self.latched}
        known = {end.gid for end in graph}
        self.heard = {gid: at for gid, at in self.heard.items() if gid in known or gid not in silent}
        if len(nodes) <= 1:
            return []
        return [
            f"publishers: {self.role}: expected 1 on {self.name!r}, found {len(nodes)}, of the nodes "
            f"{sorted(nodes.values())}. Stop all but one; one that died is forgotten after {FORGETS} s"
        ]


def with_info(take: Callable[[Any, Any], None]) -> Callable[..., None]:
    """Wrap a subscription's callback so that it gets the origin of every message (rclpy's MessageInfo).

    EventsExecutor hands over one tuple where other executors hand over two arguments.
    """

    def callback(given: Any, info: Any = None) -> None:
        message, about = given if info is None and isinstance(given, tuple) else (given, info)
        take(message, about)

    two = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("message", "info")]
    callback.__signature__ = inspect.Signature(two)  # type: ignore[attr-defined]  # by which rclpy decides
    return callback


def gid_of(info: Any) -> bytes | None:
    """Return the publisher's identity; None where the middleware does not say."""
    found = None if info is None else info.get("publisher_gid")
    return None if found is None else bytes(found["data"])
