"""Planning in another process: the same answers; what goes wrong there is told here, and nothing hangs."""

from __future__ import annotations

import socket
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robopolicy.core.types import STATE
from robopolicy.policies.flow import FlowPolicy
from robopolicy.policies.io import load_policy, save_policy
from robopolicy.real.control.chunk_buffer import Ahead
from robopolicy.real.planning import process_planner
from robopolicy.real.planning.planner import Planner, PlanningError
from robopolicy.real.planning.process_planner import ProcessPlanner
from robopolicy.real.planning.wire import encode
from tests import toy

OBS = {"x": torch.tensor([[[1.0, 2.0], [3.0, 4.5]]]), "picture": torch.full((1, 2, 3, 4, 4), 7, dtype=torch.uint8)}


@contextmanager
def process(kind: str):
    planner = ProcessPlanner(Path("nowhere"), {"kind": kind}, command=(sys.executable, "-m", "tests.real.planner_toy"))
    try:
        yield planner
    finally:
        planner.close()


def test_everything_that_is_asked_arrives_and_a_policy_that_raises_is_asked_again():
    with process("raises") as planner:
        assert planner.history == 2
        planner.reset(2**62)
        assert planner.plan(OBS, 5).tolist() == [[float(2**62), 5.0, 10.5]]
        with pytest.raises(PlanningError, match="ZeroDivisionError: of the policy"):
            planner.plan(OBS, 3)
        ahead = Ahead(np.array([[0.1, 0.2], [0.3, 1 / 3]]), 2)
        assert planner.plan(OBS, 6, ahead).tolist() == [[float(2**62), 6.0, 10.5, 2.0, 0.1, 0.2, 0.3, 1 / 3]]
        planner.line.close()
        assert planner.process.wait(20.0) == 0, "it ends with whoever started it"


@pytest.mark.parametrize(("kind", "what"), [("dies", "status 3"), ("hangs", "time-out")])
def test_a_process_that_is_gone_is_gone_for_good(kind, what, monkeypatch):
    with process(kind) as planner:
        planner.reset(1)
        monkeypatch.setattr(process_planner, "PATIENCE", 1.0)
        with pytest.raises(PlanningError, match=f"process is gone .*{what}"):
            planner.plan(OBS, 3)
        with pytest.raises(PlanningError, match="process is gone"):
            planner.plan(OBS, 4)


@pytest.mark.parametrize(
    "answer",
    [
        encode({"type": "chunk", "step": 4}, {"chunk": np.zeros((1, 2))}),  # of another step
        encode({"type": "chunk", "step": 5}, {}),
        encode({"type": "ready"}, {}),
        encode({"type": "chunk", "step": 5}, {"chunk": np.zeros((1, 2))})[:-1],
    ],
)
def test_an_answer_to_something_else_ends_the_process(answer, monkeypatch):
    monkeypatch.setattr(process_planner, "PATIENCE", 0.2)
    ended, planner = [], object.__new__(ProcessPlanner)
    planner.process = SimpleNamespace(kill=lambda: ended.append(True), wait=lambda: -9)
    planner.line, theirs = socket.socketpair()
    with theirs, planner.line:
        theirs.sendall(answer)
        with pytest.raises(PlanningError, match="process is gone"):
            planner.plan(OBS, 5)
    assert ended


def test_a_policy_that_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(PlanningError, match=r"CheckpointError: .*nowhere"):
        ProcessPlanner(tmp_path / "nowhere", {"which": "latest", "chunking": "async", "latency": 0.0})


def test_a_policy_plans_there_as_it_does_here(tmp_path):
    network = {"_target_": "residual_mlp", "_partial_": True, "width": 64, "time_dim": 16}
    config = {"_target_": "flow", "network": network}
    save_policy(toy.policy(FlowPolicy, toy.random_episodes()), tmp_path / "policy", config_node=config)
    here = Planner(load_policy(tmp_path / "policy"))
    there = ProcessPlanner(tmp_path / "policy", {"which": "latest", "chunking": "async", "latency": 0.0})
    try:
        for seed in (3, 4):
            here.reset(seed), there.reset(seed)
            for step in (0, 4):
                obs = {STATE: torch.full((1, 1, 3), 0.1 * step + seed)}
                assert np.array_equal(here.plan(obs, step), there.plan(obs, step))
    finally:
        there.close()
