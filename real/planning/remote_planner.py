"""A planner whose policy runs on a server (real/planning/server.py). While the server is gone the arm holds."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError
from robopolicy.core.specs import PolicySpec, check_fits
from robopolicy.core.types import BASE_ACTION, EnvSpec, Obs
from robopolicy.policies.find import read_spec
from robopolicy.real.control.chunk_buffer import Ahead
from robopolicy.real.planning.access_token import Token, is_loopback
from robopolicy.real.planning.planner import PlanningError
from robopolicy.real.planning.wire import PROTOCOL, Message, WireError, printable, receive, send
from robopolicy.utils.provenance import version

Array = NDArray[np.float64]
HISTORY = 256  # observations that a server may ask to be kept


def connect(
    server: str, checkpoint: Path, env: EnvSpec, *, which: Literal["latest", "best"] = "latest",
    token: Path | None = None, ca: Path | None = None,
) -> RemotePlanner:  # fmt: skip
    """Connect a planner for the policy whose spec is in `checkpoint`; its weights are not read here.

    Raises:
        SpecError: it does not fit `env`. Also the errors of RemotePlanner.
    """
    spec = read_spec(checkpoint, which=which)
    check_fits(spec, env, ignore=[BASE_ACTION])
    return RemotePlanner(server, spec, token=token, ca=ca)


class RemotePlanner:
    """A `Planner` (planner.py) whose policy is elsewhere. Blocks for `timeout` at most: run it in a thread.

    Args:
        address: "host:port".
        spec: of the policy that is expected there; another one is refused.
        token: file with the secret; `ca`: file of certificates to trust instead of the system's. Beyond this machine
            a token is needed and TLS is spoken.
        timeout: s for an answer; `connect`: s for a connection; `retry`: s between attempts to connect.

    Raises:
        ConfigError: not an address, or no token for another machine.
        PlanningError: the server cannot be reached, or refuses; it says why.
    """

    def __init__(
        self, address: str, spec: PolicySpec, *, token: Path | None = None, ca: Path | None = None,
        timeout: float = 1.0, connect: float = 5.0, retry: float = 0.2,
    ) -> None:  # fmt: skip
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(f"server={address}: expected host:port")
        self.host, self.port, self.spec = host.strip("[]"), int(port), spec
        self.token = None if token is None else Token.load(token).secret
        local = is_loopback(self.host)
        if not local and self.token is None:
            raise ConfigError(f"server={address}: is another machine; it needs server_token=<file> too")
        try:
            self.tls = None if local and ca is None else ssl.create_default_context(cafile=ca)
        except OSError as error:
            raise ConfigError(f"server_ca={ca}: {error}") from error
        self.timeout, self.connect, self.retry = timeout, connect, retry
        self.line: socket.socket | None = None
        self.seed, self.failed = 0, -np.inf
        self.connects, self.closed = 0, False
        self._open()

    def reset(self, seed: int) -> None:
        """Begin an episode. A server that is gone is noticed when the first chunk is asked for."""
        self.seed = seed
        try:
            self._begin()
        except PlanningError:
            self._hang_up()
            self.failed = -np.inf  # it may have let go of an arm that was idle: connect again at once

    def plan(self, obs: Obs, step: int, ahead: Ahead | None = None) -> Array:
        """Plan a chunk [Ta Da] for observations [1 To …], at control step `step` of the episode; what is `ahead` is
        not sent.

        Raises:
            PlanningError: no answer in time, a connection that broke, a refusal. The next call connects again.
        """
        if self.line is None:
            if time.monotonic() - self.failed < self.retry:
                raise PlanningError(f"{self._name}: is not connected")
            self._begin()
        if missing := sorted(set(self.keys) - set(obs)):
            raise PlanningError(f"{self._name}: asks for {missing}, which this arm does not observe: {sorted(obs)}")
        arrays = {k: obs[k].cpu().numpy() for k in self.keys}
        answer = self._ask({"type": "plan", "step": step}, "chunk", arrays)
        chunk, found = answer.arrays.get("chunk"), answer.head["step"]
        expected = (self.spec.n_action_steps, self.spec.action.dim)
        if chunk is None or chunk.shape != expected or chunk.dtype != np.float64 or found != step:
            what = "none" if chunk is None else f"{chunk.dtype} {chunk.shape}"
            raise self._given_up(f"expected a chunk float64 {expected} for step {step}, found {what} for step {found}")
        return chunk

    def close(self) -> None:
        """Hang up for good: a plan that is under way in another thread does not connect again."""
        self.closed = True
        self._hang_up()

    # -- inside -----------------------------------------------------------------------------------------------------
    @property
    def _name(self) -> str:
        return f"server {self.host}:{self.port}"

    def _open(self) -> None:
        try:
            line = socket.create_connection((self.host, self.port), timeout=self.connect)
            self.line = line
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls is not None:
                self.line = self.tls.wrap_socket(line, server_hostname=self.host)
        except (OSError, ValueError) as error:  # ValueError: a name that is none
            raise self._given_up(f"cannot be reached: {error}") from error
        if self.closed:
            raise self._given_up("was closed")
        hello = {"type": "hello", "protocol": PROTOCOL, "robopolicy": version(), "spec": self.spec.to_json()}
        welcome = self._ask({**hello, "token": self.token}, "welcome", wait=self.connect)
        if not 1 <= welcome.head["history"] <= HISTORY:
            raise self._given_up(f"history: expected 1 to {HISTORY}, found {welcome.head['history']}")
        self.history, self.keys = welcome.head["history"], welcome.head["keys"]
        self.ident = printable(welcome.head["policy"])
        self.connects += 1

    def _begin(self) -> None:
        if self.line is None:
            self._open()
        self._ask({"type": "reset", "seed": self.seed}, "ready")

    def _ask(
        self, head: dict[str, Any], expected: str, arrays: dict[str, NDArray[Any]] | None = None,
        *, wait: float | None = None,
    ) -> Message:  # fmt: skip
        if (line := self.line) is None:  # another thread closed it
            raise self._given_up("was closed")
        wait, broken = self.timeout if wait is None else wait, None
        try:
            send(line, head, arrays, timeout=wait)
        except WireError as error:  # it may have hung up after saying why
            wait, broken = self.timeout, error
        try:
            answer = receive(line, limit=8 * self.spec.n_action_steps * self.spec.action.dim, timeout=wait)
        except WireError as error:
            raise self._given_up(str(broken or error)) from error
        if broken is not None or answer.head["type"] != expected:
            found = answer.head.get("reason", f"found {answer.head['type']!r}")
            raise self._given_up(f"refuses: {printable(found)}")
        return answer

    def _given_up(self, why: str) -> PlanningError:
        """Hang up; `plan` connects again."""
        self._hang_up()
        return PlanningError(f"{self._name}: {why}")

    def _hang_up(self) -> None:
        line, self.line, self.failed = self.line, None, time.monotonic()
        if line is not None:
            line.close()
