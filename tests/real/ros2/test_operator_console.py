"""An operator's lines, and what they do to a node."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")

from robopolicy.real.ros2.episode_client import EpisodeClient
from robopolicy.real.ros2.operator_console import Console
from robopolicy.real.ros2.wiring import load_wiring
from robopolicy.real.safety import SafetyError
from tests.real.ros2_graph import private_domain


class Node:
    """An operator's client that remembers what it is told."""

    node_name, wiring = "policy_node", SimpleNamespace(topic=lambda _: SimpleNamespace(name="/diagnostics"))

    def __init__(self) -> None:
        self.told, self.status, self.why = [], {}, ""

    def enable(self) -> None:
        self.told.append("enable")

    def emergency_stop(self) -> None:
        self.told.append("stop")

    def reset_fault(self) -> str:
        return self.why

    def transition(self, name: str) -> None:
        if self.why:
            raise SafetyError(self.why)
        self.told.append(name)


def test_lines_do_what_they_say():
    node, said = Node(), []
    console = Console(node, said.append)
    for line in ("enable\n", "configure", " activate ", "", "stop", "deactivate", "cleanup", "reset"):
        assert console.take(line)
    assert node.told == ["enable", "configure", "activate", "stop", "deactivate", "cleanup"]
    assert len(said) == 7 and said[-1] == "running"
    assert not console.take("quit\n")


@pytest.mark.parametrize("last", ["stop", "quit"])
def test_a_stop_does_not_wait_for_a_word_that_is_being_carried_out(last: str):
    """A service that does not answer keeps the others waiting for minutes."""
    node, said, busy, over = Node(), [], threading.Event(), threading.Event()
    moved = node.transition

    def slow(name: str) -> None:
        busy.set()
        assert over.wait(10.0)
        moved(name)

    def lines():
        yield from ("enable\n", "configure\n", "activate\n")
        assert busy.wait(10.0)
        yield last
        assert node.told == ["enable", "stop"], "and what waits is dropped"
        yield "enable"
        over.set()
        yield "cleanup"

    node.transition = slow
    Console(node, said.append).listen(lines())
    if last == "stop":
        assert node.told == ["enable", "stop", "enable", "configure", "cleanup"] and "dropped: activate" in said
    else:
        assert node.told == ["enable"], "it falls silent at once"
        over.set()


def test_a_console_whose_words_fail_does_not_go_on_to_enable():
    node, said = Node(), []

    def broken(name: str) -> None:
        raise RuntimeError("a handle that is gone")

    node.transition, node.fall_silent = broken, lambda: node.told.append("silent")
    Console(node, said.append).listen(["enable", "configure", "reset"])
    assert node.told == ["enable", "silent"] and "RuntimeError: a handle that is gone. Fell silent" in said[-1]


def test_all_lines_are_carried_out_before_the_input_s_end_counts():
    node, said = Node(), []
    Console(node, said.append).listen(["configure", "actvate", "enable", "activate"])
    assert [word for word in node.told if word != "enable"] == ["configure", "activate"]
    assert any("'actvate': no such word" in text for text in said)


def test_refusals_and_unknown_words_are_answered():
    node, said = Node(), []
    console, node.why = Console(node, said.append), "enable: nothing has come"
    for line in ("activate", "reset", "actvate"):
        assert console.take(line)
    assert said[0].endswith(node.why) and said[1].endswith(node.why) and "'activate'" in said[2]


def test_the_newest_diagnostics_are_shown_and_their_changes_once():
    node = Node()
    console = Console(node)
    assert "/diagnostics" in console.status() and console.changed() == ""
    node.status["policy_node"] = {"state": "active", "mode": "FAULT", "message": "FAULT: enable", "limits": "a1"}
    assert "limits: a1" in console.status() and "FAULT" in console.changed() and console.changed() == ""


def test_a_console_is_silent_until_it_is_told_to_enable(monkeypatch):
    for key, value in private_domain().items():
        monkeypatch.setenv(key, value)
    said = []
    with EpisodeClient(load_wiring("mujoco_panda"), silent=True) as operator:
        operator._enable.publish = lambda message: said.append(message.data)
        operator._on_timer()
        assert said == []
        Console(operator, lambda _: None).take("enable")
        operator._on_timer()
        assert said[:2] == [True, True]
