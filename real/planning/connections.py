"""Which connections a server keeps open: a bounded number, shared fairly; idle ones make room."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from robopolicy.real.planning.wire import WireError

CLIENTS, PER_PEER = 16, 8  # clients that were welcomed, in all and of one address
WAITING = 32  # connections that have not greeted yet, or were refused and are being closed
IDLE = 10.0  # s without a plan after which a client makes room for one that has none


@dataclass(eq=False)
class Connection:
    """One connection, whatever its transport.

    Args:
        since: s, when it was last of use: accepted, welcomed, answered; inf while an answer is being made.
        ended: why it must close now; "" while it may stay.
    """

    line: socket.socket
    peer: str  # address
    since: float
    welcomed: bool = False
    ended: str = ""


class Connections:
    """All open connections of a server, each counted once; safe between threads.

    Connections that have not greeted have places of their own: silent ones take none from clients. Where these places
    are full the oldest connection of the peer with the most of them is closed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._all: list[Connection] = []
        self._lock = threading.Lock()

    @property
    def open(self) -> list[Connection]:
        """Those that are counted, the oldest first."""
        with self._lock:
            return list(self._all)

    def admit(self, line: socket.socket, peer: str) -> Connection:
        """Count a new connection, which has not greeted yet."""
        new, victim = Connection(line, peer, self.clock()), None
        with self._lock:
            self._all.append(new)
            waiting = [one for one in self._all if not one.welcomed]
            if len(waiting) > WAITING:
                most = Counter(one.peer for one in waiting).most_common(1)[0][0]
                victim = next(one for one in waiting if one.peer == most)
                self._all.remove(victim)
        if victim is not None:
            hang_up(victim.line)
        return new

    def welcome(self, one: Connection) -> None:
        """Give it a client's place, if need be that of the client that has been idle longest.

        Raises:
            WireError: all places are taken by clients at work.
        """
        with self._lock:
            if one not in self._all:
                raise WireError("clients: too many connect at once")
            clients = [other for other in self._all if other.welcomed]
            same = [other for other in clients if other.peer == one.peer]
            taken = same if len(same) >= PER_PEER else clients
            if len(same) >= PER_PEER or len(clients) >= CLIENTS:
                longest = min(taken, key=lambda other: other.since)
                if not self.clock() - longest.since >= IDLE:
                    raise WireError(
                        f"clients: {len(same)} of this address and {len(clients)} in all are at work, at most "
                        f"{PER_PEER} and {CLIENTS} may be. Those idle for {IDLE:g} s make room: try again, or stop one"
                    )
                longest.ended = f"clients: another wants the place of this one, which was idle for {IDLE:g} s or more"
                self._all.remove(longest)
            one.welcomed, one.since = True, self.clock()

    def leave(self, one: Connection) -> None:
        """Give its place free; until it is closed it counts among those that wait."""
        with self._lock:
            one.welcomed = False

    def remove(self, one: Connection) -> None:
        with self._lock:
            if one in self._all:
                self._all.remove(one)


def hang_up(line: socket.socket) -> None:
    """End the connection for another thread that reads from or writes to `line`."""
    with suppress(OSError):
        socket.socket.shutdown(line, socket.SHUT_RDWR)  # not SSLSocket's, which would pull TLS away under the other
