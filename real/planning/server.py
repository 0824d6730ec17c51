"""`robopolicy serve`: a policy for arms on other machines. On this machine alone unless a token and TLS protect it."""

from __future__ import annotations

import hmac
import math
import socket
import ssl
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from robopolicy.config.schema import Count
from robopolicy.core.errors import ConfigError
from robopolicy.core.specs import PolicySpec, changes
from robopolicy.core.types import BASE_ACTION, Feature
from robopolicy.evaluation.policy_ref import PolicyRef
from robopolicy.policies.base import Policy
from robopolicy.real.planning.access_token import Token, is_loopback
from robopolicy.real.planning.connections import Connection, Connections, hang_up
from robopolicy.real.planning.planner import Planner
from robopolicy.real.planning.wire import PROTOCOL, Message, WireError, printable, ready, receive, send
from robopolicy.runs.checkpointer import load_policy
from robopolicy.utils.provenance import version
from robopolicy.utils.threads import set_threads

GREETING = 5.0  # s in which TLS must be agreed on, and again for a greeting, or an answer to be taken
MESSAGE, SILENCE = 10.0, 600.0  # s for a message once it has begun; s after which a silent client is let go
LOOK = 0.25  # s between looks whether a waiting client must make room


def serve(
    *, checkpoint: Path, which: Literal["latest", "best"] = "latest", host: str = "127.0.0.1", port: int = 5757,
    token: Path | None = None, certificate: Path | None = None, key: Path | None = None,
    threads: Count | None = None,
) -> None:  # fmt: skip
    """Serve a checkpoint's policy until interrupted; `robopolicy deploy … server=host:port` uses it.

    Args:
        checkpoint: run directory, checkpoint or policy directory.
        which: newest or best checkpoint of a run directory.
        host: address to listen on; any other than this machine's own needs token, certificate and key.
        port: to listen on.
        token: file with a secret of at least 16 characters, and its expiry after a space.
        certificate: PEM file of the server's certificate, for TLS.
        key: PEM file of the certificate's key.
        threads: of torch; None: torch's choice.
    """
    set_threads(threads)
    place = PolicyRef.of(checkpoint, which, Path())
    policy = load_policy(place.policy)
    secret = None if token is None else Token.load(token)
    server = PolicyServer(
        policy, host=host, port=port, token=secret, certificate=certificate, key=key, ident=place.ident
    )
    print(f"serving {place.ident} on {host}:{server.port}{' with TLS' if certificate else ', this machine only'}")
    try:
        server.serve()
    finally:
        server.close()


class PolicyServer:
    """Plans for each client that shows the token and asks for this very policy.

    Raises:
        ConfigError: beyond this machine without token, certificate and key; an address that is taken.
    """

    def __init__(
        self, policy: Policy, *, host: str = "127.0.0.1", port: int = 0, token: Token | None = None,
        certificate: Path | None = None, key: Path | None = None, ident: str = "",
    ) -> None:  # fmt: skip
        lacks = [n for n, v in (("token", token), ("certificate", certificate), ("key", key)) if v is None]
        if lacks and not is_loopback(host):
            raise ConfigError(f"host={host}: other machines can reach it; it needs {', '.join(lacks)} too")
        if (certificate is None) != (key is None):
            raise ConfigError("certificate and key: give both or neither")
        self.policy, self.token, self.ident, self.spec = policy, token, ident, policy.spec
        self.planning = threading.Lock()  # one chunk at a time
        self.tls = None
        try:
            if certificate is not None:
                self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                self.tls.minimum_version = ssl.TLSVersion.TLSv1_2
                self.tls.load_cert_chain(certificate, key)
            self.socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except (OSError, ValueError, TypeError, OverflowError) as error:  # ssl.SSLError, or no such address
            raise ConfigError(f"host={host!r}, port={port}, certificate={certificate}: {error}") from error
        self.port = int(self.socket.getsockname()[1])
        self.connections = Connections()
        self.closed = False

    def serve(self) -> None:
        """Answer until `close`."""
        while not self.closed:
            try:
                line, peer = self.socket.accept()
            except OSError:
                if self.closed or self.socket.fileno() < 0:
                    return
                time.sleep(0.05)  # that client is gone again, or this process has too many files open
                continue
            try:
                line.settimeout(GREETING)
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self.tls is not None:  # spoken in the client's thread: the accept loop never waits
                    line = self.tls.wrap_socket(line, server_side=True, do_handshake_on_connect=False)
                one = self.connections.admit(line, str(peer[0]))
            except OSError:  # gone again
                line.close()
                continue
            try:
                threading.Thread(target=self._attend, args=(one,), name="client", daemon=True).start()
            except RuntimeError:  # too many threads
                self.connections.remove(one)
                line.close()

    def close(self) -> None:
        """Hang up on everyone."""
        self.closed = True
        hang_up(self.socket)
        self.socket.close()
        for one in self.connections.open:
            hang_up(one.line)

    # -- inside -----------------------------------------------------------------------------------------------------
    def _attend(self, one: Connection) -> None:
        try:
            if isinstance(one.line, ssl.SSLSocket):
                one.line.do_handshake()  # within GREETING, the line's time-out, in all
            try:
                self._talk(one)
            except WireError as error:
                self._refuse(one, str(error))
            except Exception as error:  # a bug here: this client gets the error, the others go on
                self._refuse(one, f"server: {type(error).__name__}: {error}")
        except (OSError, WireError):  # gone, or no TLS spoken
            pass
        finally:
            self.connections.remove(one)
            one.line.close()

    def _talk(self, one: Connection) -> None:
        self._greet(receive(one.line, limit=0, timeout=GREETING))
        planner = Planner(self.policy)
        needed = {k: f for e in planner.executors for k, f in e.policy.spec.observation.items() if k != BASE_ACTION}
        limit = planner.history * sum(_size(f) for f in needed.values())
        self.connections.welcome(one)
        about = {"protocol": PROTOCOL, "robopolicy": version(), "policy": self.ident, "history": planner.history}
        send(one.line, {"type": "welcome", "keys": sorted(needed), **about}, timeout=GREETING)
        while True:
            self._await(one)
            message = receive(one.line, limit=limit, timeout=MESSAGE)
            if message.head["type"] == "reset":
                planner.reset(message.head["seed"])
                send(one.line, {"type": "ready"}, timeout=GREETING)
            elif message.head["type"] == "plan":
                self._check_expiry()
                one.since = math.inf  # it waits for an answer, and is not idle
                step, obs = message.head["step"], _observation(message.arrays, needed, planner.history)
                try:
                    with self.planning:
                        chunk = planner.plan(obs, step)
                except Exception as error:  # a bug of the policy: the arm gets it, and holds
                    raise WireError(f"planning failed: {type(error).__name__}: {error}") from error
                one.since = self.connections.clock()
                send(one.line, {"type": "chunk", "step": step}, {"chunk": chunk}, timeout=GREETING)
            else:
                raise WireError(f"type: expected 'reset' or 'plan', found {message.head['type']!r}")

    def _await(self, one: Connection) -> None:
        """Wait until it says something, which it need not do soon."""
        until = time.monotonic() + SILENCE
        while not ready(one.line, LOOK) and not one.ended:
            if time.monotonic() >= until:
                raise WireError(f"idle: nothing was said for {SILENCE:g} s")
        if one.ended:
            raise WireError(one.ended)

    def _refuse(self, one: Connection, reason: str) -> None:
        """Say why, and close."""
        self.connections.leave(one)
        send(one.line, {"type": "refused", "reason": printable(reason)}, timeout=GREETING)
        _drain(one.line)

    def _greet(self, hello: Message) -> None:
        head = hello.head
        if head["type"] != "hello" or head["protocol"] != PROTOCOL:
            raise WireError(
                f"protocol: this server speaks version {PROTOCOL}, the client says {head['type']!r} of version "
                f"{head.get('protocol')!r}. Install the same robopolicy on both."
            )
        if self.token is not None:
            given = head["token"] or ""
            if not hmac.compare_digest(given.encode(), self.token.secret.encode()):
                raise WireError("token: it is missing or wrong")
            self._check_expiry()
        try:
            differ = changes(PolicySpec.from_json(head["spec"] or ""), self.spec)
        except Exception as error:  # text of unknown origin may raise any error
            raise WireError(f"spec: the client's cannot be read ({type(error).__name__}: {error})") from error
        if differ:
            what = "\n  - ".join(differ)
            raise WireError(f"spec: the client expects another policy than is served here:\n  - {what}")

    def _check_expiry(self) -> None:
        """Of the token, while a client is connected too."""
        if self.token is not None and self.token.expires is not None and datetime.now(UTC) >= self.token.expires:
            raise WireError(f"token: it expired at {self.token.expires.isoformat()}; give both sides a new one")


def _observation(found: dict[str, NDArray[Any]], needed: dict[str, Feature], history: int) -> dict[str, torch.Tensor]:
    if set(found) != set(needed):
        raise WireError(f"observation: expected {sorted(needed)}, found {sorted(found)}")
    for key, feature in needed.items():
        shape, value = (1, history, *feature.shape), found[key]
        if value.shape != shape or value.dtype.name != feature.dtype:
            raise WireError(f"{key!r}: expected {feature.dtype} {shape}, found {value.dtype} {value.shape}")
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise WireError(f"{key!r}: holds NaN or infinity")
    return {k: torch.from_numpy(v) for k, v in found.items()}


def _size(feature: Feature) -> int:
    return int(np.prod(feature.shape, dtype=np.int64)) * np.dtype(feature.dtype).itemsize


def _drain(line: socket.socket) -> None:
    """Read waiting data briefly: to close with unread data would discard the refusal on its way."""
    until = time.monotonic() + 0.5
    line.shutdown(socket.SHUT_WR)
    while (left := until - time.monotonic()) > 0:
        line.settimeout(left)
        if not line.recv(1 << 16):
            return
