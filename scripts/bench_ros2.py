"""How long from a state to the command that answers it, and from an emergency stop to braking, over real DDS.

    python scripts/bench_ros2.py [--ticks 10000] [--stops 1000] [--record]

Two processes: a simulated arm at 1 kHz that publishes 250 states a second (this one, with the operator in a thread),
and the policy node, which drives it to and fro through all limits (scripts/ros2_sweep.py). Times are of one steady
clock, that of the arm's process: from just before a state is published to when the trajectory that answers it is
there. `lost`: states that no command answered. `estop_*`: from publishing the stop to the first trajectory that brakes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil
import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.experimental import EventsExecutor
from rclpy.signals import SignalHandlerOptions
from trajectory_msgs.msg import JointTrajectory

from real.ros2 import messages
from real.ros2.arm import ArmNode
from real.ros2.cell import activate
from real.ros2.observation import one_env
from real.ros2.operator import Operator, private_environment
from real.ros2.timeline import MATCH
from real.ros2.wiring import load_wiring
from robopolicy.evaluate.evidence import Evidence, measured, write
from scripts.ros2_kill import fork, nodes, wait_through_faults
from scripts.ros2_sweep import WIRING


class TimedArm(ArmNode):
    """Notes when states go out and when their answers come in."""

    measuring = False

    def __init__(self) -> None:
        self.sent: dict[int, int] = {}  # ns, by tick
        self.answered: dict[int, int] = {}  # ns, by tick
        self.next_of_stop: np.ndarray | None = None  # [n] rad, what the last trajectory plays if nothing follows
        self.stopped_at, self.braked = 0, threading.Event()  # ns
        self.braking_ns: list[int] = []
        super().__init__(one_env({"_target_": "sim.make", "task": "reach"}), load_wiring(WIRING))

    def _tick(self) -> None:
        tick = self.timeline.tick
        if self.measuring:
            self.sent[tick] = time.monotonic_ns()
        super()._tick()

    def _on_trajectory(self, message: JointTrajectory) -> None:
        now = time.monotonic_ns()
        super()._on_trajectory(message)
        at = self.wiring.lead_ticks + MATCH + 1  # the newest command among the points
        if len(message.points) <= at:  # the greeting, or the farewell: no answer to a state
            return
        first = round(messages.to_ns(message.header.stamp) / self.dt_ns)
        answers = first + at - self.wiring.lead_ticks
        if answers in self.sent:
            self.answered.setdefault(answers, now)
        newest = np.array(message.points[at].positions)
        if self.stopped_at and self.next_of_stop is not None and np.array_equal(newest, self.next_of_stop):
            self.braking_ns.append(now - self.stopped_at)
            self.stopped_at = 0
            self.braked.set()
        self.next_of_stop = np.array(message.points[min(at + 1, len(message.points) - 1)].positions)


def spin(node: TimedArm, ended: threading.Event) -> None:
    """As real.ros2.spin.run, in a thread."""
    executor, wait = EventsExecutor(), 0.0
    executor.add_node(node)
    try:
        while not ended.is_set():
            executor.spin_once(timeout_sec=min(max(wait, 0.0), 0.05))
            wait = node.pump()
    except ExternalShutdownException:
        pass
    executor.shutdown(timeout_sec=1.0)


def measure(ticks: int, stops: int) -> list[Evidence]:
    sys.setswitchinterval(2e-4)
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    arm, ended = TimedArm(), threading.Event()
    thread = threading.Thread(target=spin, args=(arm, ended), daemon=True)
    with nodes() as zygote:
        pid = fork(zygote, "policy_node")
        try:
            thread.start()
            with Operator(arm.wiring) as operator:
                operator.wait(lambda: all(operator.heard.values()), 120.0, "both nodes")
                operator.transition("configure")
                activate(operator, patience=20.0)
                time.sleep(1.0)
                load, arm.measuring = psutil.getloadavg()[0], True
                operator.wait(lambda: len(arm.sent) >= ticks, 60.0 + 0.1 * ticks, "the ticks")
                arm.measuring = False
                time.sleep(0.5)
                restarts = sum(stop(operator, arm) for _ in range(stops))
        finally:
            os.kill(pid, signal.SIGKILL)
            ended.set()
            thread.join(5.0)
    ms = 1e-6 * np.array([arm.answered[t] - arm.sent[t] for t in arm.answered])
    rate = 1 / arm.wiring.tick_s
    note = f"{ticks} ticks at {rate:.0f} Hz, Fast DDS, reliable, load {load:.1f} at the start"
    values = {"p50_ms": np.median(ms), "p99_ms": np.percentile(ms, 99), "max_ms": ms.max()}
    values |= {"lost": float(len(arm.sent) - len(arm.answered)), "rate_hz": rate, "ticks": float(len(arm.sent))}
    if stops:
        brake = 1e-6 * np.array(arm.braking_ns)
        note += (
            f"; {len(brake)} emergency stops in full motion, {restarts} late faults of the busy machine between them"
        )
        values |= {
            "estop_p50_ms": np.median(brake),
            "estop_p99_ms": np.percentile(brake, 99),
            "estop_max_ms": brake.max(),
        }
        values["estop_trials"] = float(len(brake))
    return [
        measured(id="latency_ros2", setting="sweep", metric=m, interval=round(float(v), 4), notes=note)
        for m, v in values.items()
    ]


def stop(operator: Operator, arm: TimedArm) -> int:
    """One emergency stop in full motion, and out of it again; faults that the busy machine caused before it."""
    begin, moving = time.monotonic(), lambda: float(np.abs(arm.arm.data.qvel[:7]).max()) > 0.3
    restarts = wait_through_faults(operator, moving, "motion")
    arm.braked.clear()
    arm.stopped_at = time.monotonic_ns()
    operator.emergency_stop()
    if not arm.braked.wait(10.0):
        raise SystemExit(f"no braking {time.monotonic() - begin:.1f} s after an emergency stop")
    time.sleep(0.5)
    operator.enabling = True
    for _ in range(50):
        time.sleep(0.1)
        if not (why := operator.reset_fault()):
            return restarts
    raise SystemExit(f"the node does not go on after an emergency stop: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ticks", type=int, default=10_000)
    parser.add_argument("--stops", type=int, default=1000)
    parser.add_argument("--record", action="store_true", help="write docs/results/latency_ros2.json too")
    args = parser.parse_args()
    os.environ.update({k: v for k, v in private_environment().items() if k.startswith("ROS_")})
    rows = measure(args.ticks, args.stops)
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in rows), sep="\n")
    if args.record:
        print(*write(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
