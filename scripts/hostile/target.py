"""The node under attack: the real policy node with a policy that waves. Forks one for every line on standard input.

    python -m scripts.hostile.target PRESET …   # a line is JSON: name, domain, wiring, dry_run, process

Everything is loaded before the fork, so that every trial gets a fresh node in a moment. SIGUSR1 makes what observes
raise for a second, inside the tick.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # a process that forks should have one thread
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.planning import process_planner
from robopolicy.real.ros2 import policy_runtime
from robopolicy.real.ros2.joint_state_adapter import JointStateObserver
from robopolicy.real.ros2.wiring import Wiring, load_wiring
from robopolicy.real.safety import SafetyChain
from robopolicy.real.safety.decision import Measured
from scripts.hostile.policy import HOME, policy_of

RAISES_S = 1.0


class Waving(process_planner.ProcessPlanner):
    """Such a policy in a process of its own."""

    wiring = ""

    def __init__(self, checkpoint: Path, options: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "scripts.hostile.policy", self.wiring]
        super().__init__(checkpoint, options, command=command)


def child(line: dict[str, Any], wiring: Wiring) -> None:
    """A node, until it is ended."""
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    from robopolicy.real.ros2.policy_node import PolicyNode
    from robopolicy.real.ros2.spin import run, take_priority

    os.environ["ROS_DOMAIN_ID"] = str(line["domain"])
    until = [0.0]
    signal.signal(signal.SIGUSR1, lambda *_: until.__setitem__(0, time.monotonic() + RAISES_S))
    observe = JointStateObserver.__call__

    def raising(self: JointStateObserver, state: Any) -> Any:
        if time.monotonic() < until[0]:
            raise RuntimeError("injected")
        return observe(self, state)

    JointStateObserver.__call__ = raising  # type: ignore[method-assign]
    policy_runtime.load_policy = lambda *_, **__: policy_of(line["wiring"])  # type: ignore[assignment,attr-defined]
    policy_runtime.ProcessPlanner = Waving  # type: ignore[assignment,misc,attr-defined]
    Waving.wiring = line["wiring"]
    config = DeployConfig(checkpoint=Path("none"), dry_run=line["dry_run"], process=line["process"])
    take_priority()
    rclpy.init(args=["--ros-args", "-r", f"__node:={line['name']}"], signal_handler_options=SignalHandlerOptions.NO)
    run(PolicyNode(wiring, policy_runtime.make_runtimes(config, wiring)))


def compile_all(wirings: dict[str, Wiring]) -> None:
    """What is compiled at its first call is compiled before the fork."""
    for name, wiring in wirings.items():
        chain = SafetyChain(wiring.profile(), dt=wiring.tick_s)
        chain.activate(Measured(HOME), 0.0)
        for k in range(20):
            chain.filter(HOME + 0.02, Measured(HOME), wiring.tick_s * k)
        policy_of(name).act({})


def main() -> None:
    import robopolicy.real.ros2.policy_node
    import robopolicy.real.ros2.spin  # noqa: F401

    torch.set_num_threads(1)
    wirings = {name: load_wiring(name) for name in sys.argv[1:]}
    compile_all(wirings)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    forked(wirings, child)


def forked(wirings: dict[str, Wiring], child: Callable[[dict[str, Any], Wiring], None]) -> None:
    """Fork for every line, and print the process id."""
    while text := sys.stdin.readline():
        line = json.loads(text)
        if (pid := os.fork()) == 0:
            sys.stdin.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the planner's process is waited for
            child(line, wirings[line["wiring"]])
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
