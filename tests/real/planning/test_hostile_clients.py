"""A policy server among clients that are silent, slow, idle, many or malformed: it goes on serving, and leaves none."""

from __future__ import annotations

import json
import random
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest

import robopolicy.real.planning.connections
import robopolicy.real.planning.server
from robopolicy.core.errors import ConfigError
from robopolicy.real.planning.access_token import Token
from robopolicy.real.planning.connections import CLIENTS, PER_PEER, WAITING, Connection, Connections
from robopolicy.real.planning.planner import PlanningError
from robopolicy.real.planning.remote_planner import RemotePlanner
from robopolicy.real.planning.server import PolicyServer
from robopolicy.real.planning.wire import FRAME, WireError, encode, receive, send
from tests.fakes import PointPolicy
from tests.real.planning.test_remote_planner import POLICY, client, hello, observed, serving
from tests.real.planning.test_wire import mutated


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """A certificate and its key, for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    try:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
             "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "own.key", "-out",
             "own.pem"], cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("makes certificates with openssl")
    return {"certificate": folder / "own.pem", "key": folder / "own.key"}


def silent(server: PolicyServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=5)


def refusal(line: socket.socket) -> str:
    """Why the server closes, which it must do now."""
    reason = receive(line, limit=0, timeout=5).head["reason"]
    line.settimeout(5)
    assert line.recv(1) == b"", "it is closed after the refusal"
    return reason


def gone(server: PolicyServer, within: float = 3.0) -> None:
    """No connection is left open there, and no thread."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        if not server.connections.open and not [t for t in threading.enumerate() if t.name == "client"]:
            return
        time.sleep(0.02)
    raise AssertionError(f"left open: {server.connections.open}")


# -- slots ----------------------------------------------------------------------------------------------------------
def test_eight_clients_with_tls_are_eight_clients(tls):
    with serving(**tls) as server, ExitStack() as stack:
        context = ssl.create_default_context(cafile=tls["certificate"])
        for _ in range(PER_PEER):
            line = context.wrap_socket(silent(server), server_hostname="127.0.0.1")
            stack.enter_context(line)
            send(line, hello(), timeout=5)
            assert receive(line, limit=0, timeout=5).head["type"] == "welcome"
        assert len(server.connections.open) == PER_PEER


@pytest.mark.parametrize("secure", [False, True])
def test_silent_sockets_block_no_one(secure, tls):
    with serving(**(tls if secure else {})) as server, ExitStack() as stack:
        lines = [stack.enter_context(silent(server)) for _ in range(2 * WAITING)]
        began = time.monotonic()
        there = client(server, **({"ca": tls["certificate"]} if secure else {}))
        there.reset(3)
        assert there.plan(observed(), 0).shape == (3, 2)
        assert time.monotonic() - began < 0.5 * robopolicy.real.planning.server.GREETING
        assert len(server.connections.open) <= WAITING + 1
        lines[0].settimeout(0.5 * robopolicy.real.planning.server.GREETING)
        assert lines[0].recv(1) == b"", "the oldest made room"
        there.close()
    gone(server)


@pytest.mark.parametrize("secure", [False, True])
def test_a_greeting_has_so_much_time_however_slowly_it_comes(secure, tls, monkeypatch):
    monkeypatch.setattr(robopolicy.real.planning.server, "GREETING", 0.6)
    first = b"\x16\x03\x01\x02\x00\x01" if secure else FRAME.pack(b"RPW1", 2000, 0)  # as a real one begins
    with serving(**(tls if secure else {})) as server, silent(server) as line:
        began = time.monotonic()
        with suppress(OSError):  # it is closed
            for k in range(60):  # a byte at a time
                line.sendall(first[k : k + 1] or b"{")
                time.sleep(0.1)
        assert time.monotonic() - began < 3.0
        gone(server)


def test_an_idle_client_makes_room_for_another(monkeypatch):
    monkeypatch.setattr(robopolicy.real.planning.connections, "IDLE", 0.3)
    with serving() as server, ExitStack() as stack:
        idle = [stack.enter_context(silent(server)) for _ in range(PER_PEER)]
        for line in idle:
            send(line, hello(), timeout=5)
            receive(line, limit=0, timeout=5)
        with pytest.raises(PlanningError, match="clients"):
            client(server)
        time.sleep(0.4)
        there = client(server)
        assert there.plan(observed(), 0).shape == (3, 2)
        assert "idle" in refusal(idle[0]), "the one that was idle longest"
        assert len(server.connections.open) == PER_PEER


def test_a_client_that_talks_without_a_plan_is_idle(monkeypatch):
    monkeypatch.setattr(robopolicy.real.planning.connections, "IDLE", 0.3)
    monkeypatch.setattr(
        robopolicy.real.planning.server, "LOOK", 5.0
    )  # it never waits so long for this one's next message
    with serving() as server, ExitStack() as stack:
        lines = [stack.enter_context(silent(server)) for _ in range(PER_PEER)]
        for line in lines:
            send(line, hello(), timeout=5)
            receive(line, limit=0, timeout=5)
        time.sleep(0.4)
        said = []
        for k in range(3):
            send(lines[0], {"type": "reset", "seed": k}, timeout=5)
            said.append(receive(lines[0], limit=0, timeout=5).head["type"])
            if k == 0:
                client(server)
            elif said[-1] == "refused":
                break
        assert said == ["ready", "refused"]


def test_a_client_that_waits_for_a_plan_is_not_idle(monkeypatch):
    monkeypatch.setattr(robopolicy.real.planning.connections, "IDLE", 0.3)
    begun, go = threading.Event(), threading.Event()

    class Slow(PointPolicy):
        def act(self, obs, *, noise=None, deterministic=False):
            begun.set()
            assert go.wait(10)
            return super().act(obs, noise=noise, deterministic=deterministic)

    with serving(Slow(noise=0.1, n_obs_steps=2, chunk=3)) as server, ExitStack() as stack:
        lines = [stack.enter_context(silent(server)) for _ in range(PER_PEER)]
        for line in lines:
            send(line, hello(), timeout=5)
            receive(line, limit=0, timeout=5)
        longest = server.connections.open[0]
        welcomed = longest.since
        lines[0].sendall(plan_bytes())
        assert begun.wait(10)
        time.sleep(0.4)
        there = client(server)
        assert "idle" in refusal(lines[1]), "the next longest"
        go.set()
        assert receive(lines[0], limit=100, timeout=5).head["type"] == "chunk"
        assert welcomed + 0.3 < longest.since < np.inf, "idle since its answer"
        there.close()


def test_a_client_that_is_refused_gives_its_place_free_at_once(monkeypatch):
    """Before its connection is closed, which waits a little for it to have read why."""
    closing = threading.Event()
    monkeypatch.setattr(robopolicy.real.planning.server, "_drain", lambda line: closing.wait(10))
    with serving() as server, ExitStack() as stack:
        lines = [stack.enter_context(silent(server)) for _ in range(PER_PEER)]
        for line in lines:
            send(line, hello(), timeout=5)
            receive(line, limit=0, timeout=5)
        lines[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert receive(lines[0], limit=0, timeout=5).head["type"] == "refused"
        assert client(server).plan(observed(), 0).shape == (3, 2)
        closing.set()


def test_an_arm_that_had_to_make_room_comes_back(monkeypatch):
    with serving() as server:
        there = client(server)
        there.reset(4)
        before = there.plan(observed(), 0)
        server.connections.open[0].ended = "idle"
        gone(server)
        there.reset(4)
        np.testing.assert_array_equal(there.plan(observed(), 0), before)
        assert there.connects == 2
        there.close()


def test_a_silent_client_is_let_go_of(monkeypatch):
    monkeypatch.setattr(robopolicy.real.planning.server, "SILENCE", 0.3)
    with serving() as server, silent(server) as line:
        send(line, hello(), timeout=5)
        receive(line, limit=0, timeout=5)
        began = time.monotonic()
        assert "idle" in refusal(line)
        assert 0.1 < time.monotonic() - began < 2.0


def test_a_message_that_was_begun_must_come_whole(monkeypatch):
    monkeypatch.setattr(robopolicy.real.planning.server, "MESSAGE", 0.3)
    with serving() as server, silent(server) as line:
        send(line, hello(), timeout=5)
        receive(line, limit=0, timeout=5)
        line.sendall(b"RPW1")
        assert "time-out" in refusal(line)


def pool(*peers: str) -> tuple[Connections, list[Connection], list[str]]:
    """Connections of these peers, accepted one second after the other, on a clock of their own."""
    clock, kept = iter(range(10**6)), Connections(clock=lambda: float(next(clock)))
    opened = []
    for peer in peers:
        a, b = socket.socketpair()
        b.close()
        opened.append(kept.admit(a, peer))
    return kept, opened, [one.peer for one in kept.open]


def test_a_peer_that_floods_pushes_out_its_own():
    kept, opened, _ = pool("honest", *["flood"] * (2 * WAITING), "late")
    assert [one.peer for one in kept.open].count("honest") == 1 and opened[-1] in kept.open
    assert len(kept.open) == WAITING and opened[1] not in kept.open, "the oldest goes first"


def test_no_peer_takes_all_places_and_those_at_work_stay():
    kept, opened, _ = pool(*["busy"] * (PER_PEER + 1), *["other"] * 4)
    for one in opened[:PER_PEER]:
        kept.welcome(one)
        one.since = np.inf  # an answer is being made
    with pytest.raises(WireError, match="clients"):
        kept.welcome(opened[PER_PEER])
    for one in opened[PER_PEER + 1 :]:
        kept.welcome(one)
    opened[3].since = 0.0
    kept.welcome(opened[PER_PEER])
    assert opened[3].ended and not any(one.ended for one in opened if one is not opened[3])


def test_all_places_are_taken_by_several_peers_too():
    peers = [f"peer {k}" for k in range(CLIENTS + 1)]
    kept, opened, _ = pool(*peers)
    for one in opened[:CLIENTS]:
        kept.welcome(one)
        one.since = np.inf
    with pytest.raises(WireError, match="clients"):
        kept.welcome(opened[CLIENTS])
    opened[3].since = 0.0
    kept.welcome(opened[CLIENTS])
    assert opened[3].ended and sum(one.welcomed for one in kept.open) == CLIENTS
    assert PER_PEER < CLIENTS <= WAITING, "one peer cannot take all; the pool above is not pushed out"


def test_one_that_was_pushed_out_is_not_welcomed():
    kept, opened, _ = pool(*["flood"] * (WAITING + 1))
    with pytest.raises(WireError, match="clients"):
        kept.welcome(opened[0])


# -- accepting goes on ----------------------------------------------------------------------------------------------
def test_trouble_with_accepting_does_not_end_the_server(monkeypatch):
    accept, troubles = socket.socket.accept, [OSError(24, "Too many open files"), ConnectionAbortedError()]

    def sick(self):
        if troubles:
            raise troubles.pop()
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", sick)
    start, fails = threading.Thread.start, [RuntimeError("can't start new thread")]

    def tired(self):
        if self.name == "client" and fails:
            raise fails.pop()
        start(self)

    monkeypatch.setattr(threading.Thread, "start", tired)
    with serving() as server:
        with silent(server) as line:
            assert line.recv(1) == b""
        assert client(server).plan(observed(), 0).shape == (3, 2)
        assert not troubles and not fails


@pytest.mark.parametrize("where", [{"port": 99999}, {"port": -1}, {"host": "a" * 80 + ".example"}, {"host": "\0"}])
def test_an_address_that_is_none_is_a_config_error(where, tls):
    with pytest.raises(ConfigError, match=next(iter(where))):
        PolicyServer(POLICY, token=Token("x" * 16, None), **tls, **where)


# -- what is said ---------------------------------------------------------------------------------------------------
def plan_bytes() -> bytes:
    return encode({"type": "plan", "step": 3}, {"observation.state": np.zeros((1, 2, 4), np.float32)})


@contextmanager
def no_thread_dies(monkeypatch):
    died = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    yield
    assert not died, died[0].exc_value


def test_mutated_messages_are_answered_and_closed(monkeypatch):
    """Of a greeting, a reset and a plan: each ends in an answer, or in a refusal and a closed connection."""
    rng, told = random.Random(0), Counter()
    with no_thread_dies(monkeypatch), serving() as server:
        for case in range(150):
            whole = [encode(hello(), {}), encode({"type": "reset", "seed": 1}, {}), plan_bytes()]
            which = case % 3
            whole[which] = mutated(whole[which], rng)
            kinds = ["nothing"]
            with silent(server) as line:
                for data in whole[: which + 1]:
                    line.sendall(data)
                line.shutdown(socket.SHUT_WR)
                with suppress(WireError):
                    while True:
                        kinds.append(receive(line, limit=100, timeout=5).head["type"])
                line.settimeout(1)
                assert line.recv(1) == b"", ("an open line", case, whole[which])
            told[kinds[-1]] += 1
        gone(server)
        assert told["refused"] > 60, told
        assert client(server).plan(observed(), 0).shape == (3, 2)


@pytest.mark.parametrize(
    ("key", "head"),
    [
        ("surrogate", hello(token="\ud800" * 16)), ("spec", hello(spec="[" * 90_000)),
        ("spec", hello(spec="[Infinity]")),
        ("spec", hello(spec=POLICY.spec.to_json().replace('"n_obs_steps": 2', '"n_obs_steps": 1e999'))),
        ("spec", hello(spec=POLICY.spec.to_json().replace('"n_obs_steps": 2', '"n_obs_steps": "\\ud800"'))),
        ("protocol", hello(protocol=1.0)), ("protocol", hello(protocol=True)), ("surrogate", hello(type="\ud800")),
    ],
)  # fmt: skip
def test_greetings_out_of_their_minds_are_refused(key, head, monkeypatch):
    text = json.dumps({**head, "arrays": []}).encode()
    with no_thread_dies(monkeypatch), serving(token=Token(hello()["token"], None)) as server, silent(server) as line:
        line.sendall(FRAME.pack(b"RPW1", len(text), 0) + text)
        assert key in refusal(line)
        gone(server)


def test_a_bug_of_the_server_is_told_to_the_client_not_to_the_threads(monkeypatch):
    monkeypatch.setattr(robopolicy.real.planning.server, "Planner", lambda policy: 1 / 0)
    with no_thread_dies(monkeypatch), serving() as server:
        with pytest.raises(PlanningError, match="ZeroDivisionError"):
            client(server)
        gone(server)


def test_a_refusal_is_short_and_can_be_printed():
    class Wordy(PointPolicy):
        def act(self, obs, *, noise=None, deterministic=False):
            raise RuntimeError("\x1b[2J\ud800" + "x" * 10**6)

    with serving(Wordy(noise=0.1, n_obs_steps=2, chunk=3)) as server:
        there = client(server)
        with pytest.raises(PlanningError, match="RuntimeError") as refused:
            there.plan(observed(), 0)
    text = str(refused.value)
    assert len(text) < 5000 and "\x1b" not in text and text.encode()


# -- a server that is hostile ---------------------------------------------------------------------------------------
@contextmanager
def lying(*answers):
    """A server that answers each message with the next of these, (head, arrays) or bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def attend():
            with suppress(OSError), listening.accept()[0] as line:
                for answer in answers:
                    receive(line, limit=10**6, timeout=5)
                    if isinstance(answer, bytes):
                        line.sendall(answer)
                    else:
                        send(line, answer[0], answer[1], timeout=5)
                line.settimeout(5)
                line.recv(1)

        thread = threading.Thread(target=attend, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(5)


WELCOME = {"type": "welcome", "keys": ["observation.state"], "policy": "it", "history": 2}
CHUNK = np.zeros((3, 2))


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("history", {"history": 10**9}), ("history", {"history": 0}), ("history", {"history": 2.0}),
        ("keys", {"keys": [1]}), ("keys", {"keys": "state"}), ("step", {"type": "chunk", "step": "x"}),
    ],
)  # fmt: skip
def test_a_welcome_that_lies_is_refused(key, changes):
    text = json.dumps({**WELCOME, **changes, "arrays": []}).encode()
    data = FRAME.pack(b"RPW1", len(text), 0) + text
    with lying(data) as address, pytest.raises(PlanningError, match=key):
        RemotePlanner(address, POLICY.spec)


@pytest.mark.parametrize(
    ("key", "head", "arrays"),
    [
        ("step", {"type": "chunk", "step": 8}, {"chunk": CHUNK}),  # of the plan before
        ("chunk", {"type": "chunk", "step": 4}, {"chunk": CHUNK[:2]}),
        ("chunk", {"type": "chunk", "step": 4}, {"chunk": CHUNK.astype(np.int64)}),
        ("chunk", {"type": "chunk", "step": 4}, {}),
        ("ready", {"type": "ready"}, {}),
    ],
)
def test_an_answer_to_something_else_is_no_chunk(key, head, arrays):
    with lying((WELCOME, None), (head, arrays)) as address:
        there = RemotePlanner(address, POLICY.spec)
        with pytest.raises(PlanningError, match=key):
            there.plan(observed(), 4)
        assert there.line is None, "what may come after it is not read"


def test_mutated_answers_are_chunks_or_planning_errors():
    rng, outcomes = random.Random(2), Counter()
    fine = encode({"type": "chunk", "step": 4}, {"chunk": CHUNK})
    for _ in range(80):
        answer = mutated(fine, rng)
        with lying((WELCOME, None), answer) as address:
            there = RemotePlanner(address, POLICY.spec, timeout=0.1)
            try:
                chunk = there.plan(observed(), 4)
            except PlanningError as error:
                outcomes["refused"] += bool(str(error)) and there.line is None
            else:
                outcomes["taken"] += chunk.shape == (3, 2) and chunk.dtype == np.float64
            there.close()
    assert outcomes["refused"] + outcomes["taken"] == 80 and outcomes["refused"] > 50, outcomes


def test_an_observation_that_the_server_asks_for_and_is_not_there_is_named():
    with lying(({**WELCOME, "keys": ["observation.secret"]}, None)) as address:
        there = RemotePlanner(address, POLICY.spec)
        with pytest.raises(PlanningError, match=r"observation\.secret"):
            there.plan(observed(), 0)
        there.close()


@pytest.mark.parametrize("secure", [False, True])
def test_a_server_that_dribbles_is_not_waited_for(secure, tls):
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def dribble():
            with listening.accept()[0] as line:
                data = b"\x16\x03\x03\x40\x00\x02" if secure else FRAME.pack(b"RPW1", 2000, 0)
                while not stop.wait(0.1):
                    try:
                        line.sendall(data[:1] or b"\x02")
                    except OSError:
                        return
                    data = data[1:]

        thread = threading.Thread(target=dribble, daemon=True)
        thread.start()
        began = time.monotonic()
        with pytest.raises(PlanningError):
            RemotePlanner(
                f"127.0.0.1:{listening.getsockname()[1]}", POLICY.spec, connect=0.5,
                ca=tls["certificate"] if secure else None,
            )  # fmt: skip
        assert time.monotonic() - began < 2.5
        stop.set()
        thread.join(5)


def test_a_reader_that_dribbles_is_not_waited_for(tls):
    """A megabyte under TLS has as much time as a byte."""
    a, b = socket.socketpair()
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=tls["certificate"])
    theirs.load_cert_chain(tls["certificate"], tls["key"])

    def dribble():
        with suppress(OSError), theirs.wrap_socket(b, server_side=True) as line:
            while line.recv(1 << 14):
                time.sleep(0.1)

    thread = threading.Thread(target=dribble, daemon=True)
    thread.start()
    with ours.wrap_socket(a, server_hostname="127.0.0.1") as line:
        began = time.monotonic()
        with pytest.raises(WireError):
            send(line, {"type": "ready"}, {"x": np.zeros(1 << 21, np.uint8)}, timeout=0.5)
        assert time.monotonic() - began < 1.5
    thread.join(5)


@pytest.mark.parametrize("host", ["..", "a" * 80, "\0"])
def test_a_host_that_cannot_be_looked_up_is_named(host, tmp_path):
    (tmp_path / "token").write_text("x" * 16)
    with pytest.raises((PlanningError, ConfigError), match="server"):
        RemotePlanner(f"{host}:5757", POLICY.spec, token=tmp_path / "token")
