"""The node under attack: the real policy node with a policy that waves. Forks one for every line on standard input.

    python -m scripts.hostile.target            # a line is JSON: name, domain, wiring, dry_run, process

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

import numpy as np
import torch

from real import planner_process
from real.planning import Planner
from real.ros2 import brain
from real.ros2.plain import PlainObserver
from real.ros2.wiring import Wiring, load_wiring
from real.safety import SafetyChain, load_profile
from real.safety.chain import Measured
from robopolicy.policies.base import Policy
from robopolicy.spec import PolicySpec
from robopolicy.types import STATE, ActionSpec, Feature

CAMERA, PICTURE = "observation.images.front", (3, 24, 32)
PERIOD, REACH = 1.6, np.array([0.25, 0.1, 0.15, 0.12, 0.2, 0.15, 0.3])  # s; rad to either side of home
GRIP_PERIOD = 1.2  # s between closing and closing
RAISES_S = 1.0


def spec_of(wiring: Wiring) -> PolicySpec:
    """Of a policy that sees the joints, and the front camera where its messages are plain pictures."""
    joints = load_profile(wiring.limits).joints
    action = ActionSpec(
        names=(*(f"{j}.pos" for j in joints), "gripper"), units=(*("rad",) * 7, "m"), low=(*(-3.0,) * 7, 0.0),
        high=(*(4.0,) * 7, 0.08), frame="joint", tcp="tcp", rotation="joint", reference="absolute", gripper=7,
        gripper_meaning="opening",
    )  # fmt: skip
    seen = {STATE: Feature((7,), names=tuple(f"{j}.pos" for j in joints))}
    if wiring.cameras[CAMERA].type == "image":
        seen[CAMERA] = Feature(PICTURE, "uint8")
    return PolicySpec(seen, action, 0.04, 1, 8, 4, ("wave",))


class Wave(Policy):
    """All joints to and fro about home by the clock, the gripper open and closed by turns."""

    def __init__(self, spec: PolicySpec, home: np.ndarray) -> None:
        super().__init__()
        self.spec, self.home = spec, home

    def act(self, obs: Any, *, noise: Any = None, deterministic: bool = False) -> torch.Tensor:
        at = time.monotonic() + self.spec.dt * np.arange(self.spec.horizon)
        phase = 2 * np.pi * (at[:, None] / PERIOD + np.arange(7) / 7)
        grip = np.where(at % GRIP_PERIOD < GRIP_PERIOD / 2, 0.07, 0.01)
        chunk = np.concatenate([self.home + REACH * np.sin(phase), grip[:, None]], axis=1)
        return torch.from_numpy(chunk).float()[None]


def policy_of(wiring: Wiring) -> Wave:
    return Wave(spec_of(wiring), np.array(load_profile(wiring.limits).data["home"]))


class Waving(planner_process.ProcessPlanner):
    """Such a policy in a process of its own."""

    wiring = ""

    def __init__(self, checkpoint: Path, options: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "scripts.hostile.target", "--planner", self.wiring]
        super().__init__(checkpoint, options, command=command)


def child(line: dict[str, Any], wiring: Wiring) -> None:
    """A node, until it is ended."""
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    from real.ros2.node import PolicyNode
    from real.ros2.spin import run, take_priority

    os.environ["ROS_DOMAIN_ID"] = str(line["domain"])
    until = [0.0]
    signal.signal(signal.SIGUSR1, lambda *_: until.__setitem__(0, time.monotonic() + RAISES_S))
    observe = PlainObserver.__call__

    def raising(self: PlainObserver, state: Any) -> Any:
        if time.monotonic() < until[0]:
            raise RuntimeError("injected")
        return observe(self, state)

    PlainObserver.__call__ = raising  # type: ignore[method-assign]
    brain.load_policy = lambda *_, **__: policy_of(wiring)  # type: ignore[assignment,attr-defined]
    brain.ProcessPlanner = Waving  # type: ignore[assignment,misc,attr-defined]
    Waving.wiring = line["wiring"]
    options = brain.Options(Path("none"), None, dry_run=line["dry_run"], process=line["process"])
    take_priority()
    rclpy.init(args=["--ros-args", "-r", f"__node:={line['name']}"], signal_handler_options=SignalHandlerOptions.NO)
    run(PolicyNode(wiring, brain.brains(options, wiring)))


def compile_all(wirings: list[Wiring]) -> None:
    """What is compiled at its first call is compiled before the fork."""
    for wiring in wirings:
        chain, home = SafetyChain(load_profile(wiring.limits), dt=wiring.tick_s), np.zeros(7)
        home = np.array(chain.profile.data["home"])
        chain.activate(Measured(home), 0.0)
        for k in range(20):
            chain.filter(home + 0.02, Measured(home), wiring.tick_s * k)
        policy_of(wiring).act({})


def planner(name: str) -> None:
    """Be the process that plans."""
    planner_process.planner_of = lambda *_, **__: Planner(policy_of(load_wiring(name)))  # type: ignore[assignment]
    planner_process.main()


def main() -> None:
    if "--planner" in sys.argv:
        at = sys.argv.index("--planner")
        name = sys.argv[at + 1]
        del sys.argv[at : at + 2]
        planner(name)
        return
    import real.ros2.node
    import real.ros2.spin  # noqa: F401

    torch.set_num_threads(1)
    wirings = {name: load_wiring(name) for name in ("mujoco_panda", "fr3")}
    compile_all(list(wirings.values()))
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
