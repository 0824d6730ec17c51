"""A policy on a server, over real sockets: the same chunks, and whatever goes wrong is refused by name and held."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import STATE
from robopolicy.real.deploy.simulated_arm import SimulatedArm
from robopolicy.real.planning.access_token import Token, is_loopback
from robopolicy.real.planning.planner import Planner, PlanningError
from robopolicy.real.planning.remote_planner import RemotePlanner
from robopolicy.real.planning.server import PolicyServer
from robopolicy.real.planning.wire import FRAME, PROTOCOL, WireError, receive, send
from tests.fakes import PointPolicy
from tests.real.control.test_robots import WIDE, Drive

SECRET = "correct-horse-battery"
POLICY = PointPolicy(noise=0.1, n_obs_steps=2, chunk=3)


@contextmanager
def serving(policy=POLICY, **options):
    server = PolicyServer(policy, **options)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(5)
        assert not thread.is_alive()


def client(server: PolicyServer, **options) -> RemotePlanner:
    return RemotePlanner(f"127.0.0.1:{server.port}", POLICY.spec, **options)


def observed(seed: int = 0) -> dict[str, torch.Tensor]:
    return {STATE: torch.randn(1, 2, 4, generator=torch.Generator().manual_seed(seed)), "other": torch.zeros(1)}


def token_file(folder: Path, text: str = SECRET) -> Path:
    path = folder / "token"
    path.write_text(text + "\n")
    return path


def test_chunks_from_afar_are_those_from_here():
    here = Planner(POLICY)
    with serving() as server:
        there = client(server)
        assert there.history == here.history == 2
        for seed in (5, 6):
            here.reset(seed)
            there.reset(seed)
            for step in (0, 3, 6):
                chunk = there.plan(observed(step), step)
                np.testing.assert_array_equal(chunk, here.plan(observed(step), step))
        assert chunk.dtype == np.float64 and there.connects == 1
        there.close()


def hello(**changes) -> dict:
    return {"type": "hello", "protocol": PROTOCOL, "spec": POLICY.spec.to_json(), "token": SECRET, **changes}


def answer(server: PolicyServer, *messages, raw: bytes = b"") -> str:
    """The server's last word on messages (head, arrays)."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as line:
        if raw:
            line.sendall(raw)
            return receive(line, limit=1000, timeout=5).head["reason"]
        for head, arrays in messages:
            send(line, head, arrays, timeout=5)
            last = receive(line, limit=1000, timeout=5).head
        return last.get("reason", last["type"])


def test_greetings_that_are_refused():
    expired = Token(SECRET, datetime(2020, 1, 1, tzinfo=UTC))
    other = dataclasses.replace(POLICY.spec, dt=0.05)
    with serving(token=Token(SECRET, None)) as server:
        assert answer(server, (hello(), None)) == "welcome"
        for change, reason in [
            ({"token": "wrong-horse-battery"}, "token: it is missing or wrong"),
            ({"token": None}, "token: it is missing or wrong"),
            ({"token": 7}, "token: "),
            ({"protocol": 2}, "speaks version 1, the client says 'hello' of version 2"),
            ({"type": "ready"}, "the client says 'ready'"),
            ({"spec": other.to_json()}, "dt: was 0.05, now 0.1"),
            ({"spec": "{}"}, "spec: the client's cannot be read"),
            ({"spec": None}, "spec: the client's cannot be read"),
        ]:
            assert reason in answer(server, (hello(**change), None)), change
    with serving(token=expired) as server:
        assert "expired at 2020-01-01" in answer(server, (hello(), None))


def test_messages_that_are_refused():
    fine = np.zeros((1, 2, 4), dtype=np.float32)
    plan = {"type": "plan", "step": 0}
    with serving() as server:
        for arrays, reason in [
            ({STATE: np.zeros((1, 2, 40), dtype=np.float32)}, "oversized message: .* arrays 320 "),
            ({STATE: fine[:, :1]}, "expected float32 \\(1, 2, 4\\), found float32 \\(1, 1, 4\\)"),
            ({STATE: np.zeros((1, 2, 2))}, "found float64"),
            ({STATE: np.zeros((1, 2, 4), dtype=np.uint8)}, "expected float32 .*found uint8"),
            ({STATE: fine * np.nan}, "NaN"),
            ({"observation.stat": fine}, "expected \\['observation.state'\\], found \\['observation.stat'\\]"),
            ({}, "found \\[\\]"),
        ]:
            with pytest.raises(AssertionError, match=reason):
                raise AssertionError(answer(server, (hello(), None), (plan, arrays)))
        assert answer(server, (hello(), None), (plan, {STATE: fine})) == "chunk"
        assert "step: " in answer(server, (hello(), None), ({**plan, "step": -1}, {STATE: fine}))
        for kind in ("run", "ready"):
            assert "type: expected" in answer(server, (hello(), None), ({"type": kind}, None))
        for raw, reason in [
            (FRAME.pack(b"RPW1", 2**31, 0), "oversized message: header 2147483648"),
            (FRAME.pack(b"RPW1", 2, 2**31), "oversized"),
            (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "expected a robopolicy message, found b'GET '"),
            (FRAME.pack(b"RPW1", 2, 0) + b"{}", "malformed message: type"),
            (FRAME.pack(b"RPW1", 9, 0) + b"[[[[[[[[[", "malformed message"),
        ]:
            assert reason in answer(server, raw=raw)
        lie = json.dumps({**hello(), "arrays": [["x", "float32", [2**30]]]}).encode()
        assert "were announced" in answer(server, raw=FRAME.pack(b"RPW1", len(lie), 0) + lie)
        assert answer(server, (hello(), None)) == "welcome", "it goes on serving"


def test_a_client_says_why_it_is_refused(tmp_path):
    with serving(token=Token(SECRET, None)) as server:
        with pytest.raises(PlanningError, match="refuses: token: it is missing or wrong"):
            client(server)
        there = client(server, token=token_file(tmp_path))
        there.reset(1)
        with pytest.raises(PlanningError, match=r"refuses: .*NaN"):
            there.plan({STATE: observed()[STATE] * torch.nan}, 0)
        time.sleep(0.25)
        assert there.plan(observed(), 0).shape == (3, 2) and there.connects == 2


def test_a_token_that_expires_ends_the_connection(tmp_path):
    with serving(token=Token(SECRET, None)) as server:
        there = client(server, token=token_file(tmp_path))
        assert there.plan(observed(), 0).shape == (3, 2)
        server.token = Token(SECRET, datetime(2020, 1, 1, tzinfo=UTC))
        with pytest.raises(PlanningError, match="expired at 2020-01-01"):
            there.plan(observed(), 1)
        there.close()
        with pytest.raises(PlanningError, match="was closed"):
            there._open()


def test_a_policy_that_raises_is_told():
    class Broken(PointPolicy):
        def act(self, obs, *, noise=None, deterministic=False):
            raise RuntimeError("no such weight")

    with serving(Broken(noise=0.1, n_obs_steps=2, chunk=3)) as server:
        there = client(server)
        with pytest.raises(PlanningError, match="planning failed: RuntimeError: no such weight"):
            there.plan(observed(), 0)


def test_a_server_that_says_nothing_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        began = time.monotonic()
        with pytest.raises(PlanningError, match="time-out"):
            RemotePlanner(f"127.0.0.1:{mute.getsockname()[1]}", POLICY.spec, connect=0.3)
        assert time.monotonic() - began < 3.0
        port = mute.getsockname()[1]
    with pytest.raises(PlanningError, match="cannot be reached"):
        RemotePlanner(f"127.0.0.1:{port}", POLICY.spec)


def test_other_machines_need_a_token_and_tls(tmp_path):
    with pytest.raises(ConfigError, match=r"host=0\.0\.0\.0: other machines can reach it; it needs token, certificate"):
        PolicyServer(POLICY, host="0.0.0.0")
    with pytest.raises(ConfigError, match="it needs certificate, key too"):
        PolicyServer(POLICY, host="::", token=Token(SECRET, None))
    with pytest.raises(ConfigError, match="needs server_token"):
        RemotePlanner("192.0.2.1:5757", POLICY.spec)
    with pytest.raises(ConfigError, match="expected host:port"):
        RemotePlanner("localhost", POLICY.spec)
    assert [is_loopback(h) for h in ("localhost", "127.0.0.2", "::1", "", "gpu", "10.0.0.1")] == [True] * 3 + [
        False
    ] * 3
    for text, reason in [("short", "expected 16 or more"), (f"{SECRET} tomorrow", "Invalid isoformat"),
                         ("x" * 20 + " 2030-01-01T00:00:00", "no time zone")]:  # fmt: skip
        with pytest.raises(ConfigError, match=reason):
            Token.load(token_file(tmp_path, text))
    with pytest.raises(ConfigError, match="Expected a file with a secret"):
        Token.load(tmp_path / "none")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
def test_tls(tmp_path):
    for name in ("own", "foreign"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
             "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{name}.key", "-out",
             f"{name}.pem"], cwd=tmp_path, check=True, capture_output=True,
        )  # fmt: skip
    token = token_file(tmp_path)
    tls = {"certificate": tmp_path / "own.pem", "key": tmp_path / "own.key"}
    with serving(host="0.0.0.0", token=Token.load(token), **tls) as server:
        assert client(server, token=token, ca=tmp_path / "own.pem").plan(observed(), 0).shape == (3, 2)
        with pytest.raises(PlanningError, match="CERTIFICATE_VERIFY_FAILED"):
            client(server, token=token, ca=tmp_path / "foreign.pem")
        with pytest.raises(PlanningError):
            client(server, token=token, connect=2.0)  # without TLS
        with pytest.raises(PlanningError, match="token: it is missing"):
            client(server, ca=tmp_path / "own.pem")
    with pytest.raises(ConfigError, match="server_ca"):
        client(server, ca=tmp_path / "none.pem")


def test_arrays_of_other_types_are_not_sent():
    a, b = socket.socketpair()
    with a, b:
        with pytest.raises(WireError, match="complex128 is not sent"):
            send(a, {"type": "ready"}, {"x": np.zeros(2, dtype=complex)}, timeout=1)
        send(a, {"type": "ready"}, {"x": np.arange(6, dtype=np.int64).reshape(2, 3).T}, timeout=1)
        assert receive(b, limit=48, timeout=1).arrays["x"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_the_arm_holds_while_the_server_is_dead_and_goes_on_with_another():
    env = sim.make("reach", 1, joint_noise=0.0, horizon=2000)
    policy = Drive(env, [0.01, 0.0, 0.0, 0.0, 0.0])
    start = multiprocessing.get_context("fork").Process
    server = PolicyServer(policy)
    process = start(target=server.serve, daemon=True)
    process.start()
    server.socket.close()  # the child has its own
    it = SimulatedArm(env, RemotePlanner(f"127.0.0.1:{server.port}", policy.spec), settings=WIDE)
    it.begin(1)
    seen = []
    try:
        for tick in range(700):
            if tick == 100:
                os.kill(process.pid, signal.SIGKILL)
                process.join(5)
            if tick == 400:
                with_new = serving(policy, port=server.port)
                with_new.__enter__()
                time.sleep(0.25)  # between attempts to connect
            decision = it.loop.tick()
            it.arm.advance()
            it.time += it.dt
            seen.append((np.abs(it.arm.data.qvel[:7]).max(), decision.mode.name, " ".join(decision.reasons)))
    finally:
        process.kill()
        process.join(5)
    with_new.__exit__(None, None, None)
    assert it.arm.aborted == "" and not it.chain.error
    assert max(v for v, *_ in seen[50:100]) > 0.05
    assert max(v for v, *_ in seen[250:400]) < 0.01, "it stands"
    assert any("planning_failed: server 127.0.0.1" in why for *_, why in seen[100:250])
    assert max(v for v, *_ in seen[550:]) > 0.05, "it goes on"
    assert it.loop.plans.runner.planner.connects == 2
