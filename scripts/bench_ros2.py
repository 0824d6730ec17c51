"""How long from a state to the command that answers it, and from an emergency stop to braking, over real DDS.

    python scripts/bench_ros2.py [--ticks 10000] [--stops 1000] [--rate 250] [--record]

Three processes: a simulated arm at 1 kHz that publishes its state every tick, the policy node, which drives it to and
fro through all limits (scripts/ros2_sweep.py), and the operator, this one. All times are of the machine's one steady
clock: from just before a state is published to when the arm has the command for the tick that this state is to be
answered in, which the node decides on by time, with the newest state that it has. `lost`: states without one.
`estop_*`: from before the stop is published to when the arm has the first trajectory that brakes.
`write_ratio`, `read_ratio`: how often our bytes of a trajectory of 60 points are written and read in the time in which
rclpy makes them of a message, and a message of them; medians, side by side.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil
import rclpy
import yaml
from rclpy.serialization import deserialize_message, serialize_message
from rclpy.signals import SignalHandlerOptions
from trajectory_msgs.msg import JointTrajectory

from robopolicy.real.control.joint_order import JointOrder
from robopolicy.real.ros2 import messages
from robopolicy.real.ros2.cdr import TrajectoryBytes
from robopolicy.real.ros2.episode_client import EpisodeClient
from robopolicy.real.ros2.observation import one_env
from robopolicy.real.ros2.processes import private_environment, processes
from robopolicy.real.ros2.sim_arm_node import NAME, ArmNode
from robopolicy.real.ros2.sim_launcher import activate
from robopolicy.real.ros2.spin import run, take_priority
from robopolicy.real.ros2.timeline import MATCH
from robopolicy.real.ros2.wiring import FOLDER, load_wiring
from robopolicy.reporting.result_rows import Evidence, measured, write
from scripts.ros2_kill import fork, nodes, wait_through_faults
from scripts.ros2_sweep import WIRING

MOTION = 0.3  # rad/s: a joint that is faster is in full motion


class TimedArm(ArmNode):
    """Notes when states go out and when their answers come in; writes it down when it ends."""

    def __init__(self, file: Path, wiring: str) -> None:
        self.file = file
        self.went_out: list[tuple[int, int, float]] = []  # tick, ns when it went out, rad/s of the fastest joint
        self.came_in: list[tuple[int, int, bool]] = []  # tick, ns when it was there, does it brake?
        self.next_of_stop: np.ndarray | None = None  # [n] rad, what the last trajectory plays if nothing follows
        super().__init__(one_env({"_target_": "native", "task": "reach"}), load_wiring(wiring))
        self.reader = TrajectoryBytes(self.wiring.joints, self.dt_ns)

    def _tell(self, tick: int) -> None:
        self.went_out.append((tick, time.monotonic_ns(), float(np.abs(self.arm.data.qvel[:7]).max())))
        super()._tell(tick)

    def _on_trajectory(self, data: bytes) -> None:
        now = time.monotonic_ns()
        super()._on_trajectory(data)
        at = self.wiring.lead_ticks + MATCH + 1  # the newest command among the points
        first, points = self.reader.read(data)
        if len(points) > at:  # else the greeting, or the farewell: no answer to a state
            brakes = self.next_of_stop is not None and np.array_equal(points[at], self.next_of_stop)
            self.came_in.append((first + at - self.wiring.lead_ticks, now, brakes))
            self.next_of_stop = points[min(at + 1, len(points) - 1)]

    def destroy_node(self) -> None:
        np.savez(self.file, states=np.array(self.went_out), answers=np.array(self.came_in, dtype=np.int64))
        super().destroy_node()


def paced(rate: float, folder: Path) -> str:
    """The preset's wiring with `rate` ticks a second and the same time on the way; its name, or the file's."""
    wiring = yaml.safe_load((FOLDER / f"{WIRING}.yaml").read_text(encoding="utf-8"))
    if math.isclose(rate * wiring["tick_s"], 1.0):
        return WIRING
    wiring["lead_ticks"] = round(wiring["lead_ticks"] * wiring["tick_s"] * rate)
    wiring["tick_s"] = 1.0 / rate
    for role in ("joint_states", "joint_commands", "trajectory"):
        wiring["topics"][role]["rate_hz"] = rate
    path = folder / "wiring.yaml"
    path.write_text(yaml.safe_dump(wiring, sort_keys=False), encoding="utf-8")
    return str(path)


def measure(ticks: int, stops: int, file: Path, name: str) -> list[Evidence]:
    wiring, rng = load_wiring(name), np.random.default_rng(0)
    stopped, restarts = [], 0
    with processes([sys.executable, __file__, "--arm", str(file), "--wiring", name]), nodes(name) as zygote:
        pid = fork(zygote, "policy_node")
        try:
            with EpisodeClient(wiring) as operator:
                operator.wait(lambda: all(operator.heard.values()), 120.0, "both nodes")
                operator.transition("configure")
                activate(operator, patience=20.0)
                time.sleep(1.0)
                load, begin = psutil.getloadavg()[0], time.monotonic_ns()
                time.sleep(ticks * wiring.tick_s + 0.1)
                end = time.monotonic_ns()
                for _ in range(stops):
                    time.sleep(rng.uniform(0.1, 0.5))
                    stopped.append(time.monotonic_ns())
                    operator.emergency_stop()
                    restarts += go_on(operator)
        finally:
            os.kill(pid, signal.SIGKILL)
    log = np.load(file)
    states = log["states"][(log["states"][:, 1] > begin) & (log["states"][:, 1] < end)][:ticks]
    came: dict[int, int] = {}
    for tick, ns, _ in log["answers"].tolist():
        came.setdefault(tick, ns)
    ms = np.array([1e-6 * (came[int(tick)] - ns) for tick, ns, _ in states.tolist() if int(tick) in came])
    note = f"{len(states)} ticks at {1 / wiring.tick_s:.0f} Hz, Fast DDS, reliable, load {load:.1f} at the start"
    values = {"p50_ms": np.median(ms), "p99_ms": np.percentile(ms, 99), "max_ms": ms.max()}
    values |= {"lost": float(len(states) - len(ms)), "rate_hz": 1 / wiring.tick_s, "ticks": float(len(states))}
    if stops:
        brake = braking(log["states"], log["answers"], stopped)
        note += f"; {len(brake)} emergency stops in full motion of {stops}"
        note += f", {restarts} faults of the busy machine between them"
        values |= {"estop_p50_ms": np.median(brake), "estop_p99_ms": np.percentile(brake, 99)}
        values |= {"estop_max_ms": brake.max(), "estop_trials": float(len(brake))}
    values |= conversion()
    setting = "sweep" if name == WIRING else f"sweep_{1 / wiring.tick_s:.0f}hz"
    return [
        measured(id="latency_ros2", setting=setting, metric=m, interval=round(float(v), 4), notes=note)
        for m, v in values.items()
    ]


def conversion(points: int = 60, rounds: int = 500) -> dict[str, float]:
    """Ratios of times, rclpy's over ours."""
    wiring = load_wiring(WIRING)
    joints, dt = wiring.joints, wiring.dt_ns
    ours, order = TrajectoryBytes(joints, dt), JointOrder(joints)
    q = np.random.default_rng(0).normal(size=(points, len(joints)))
    data = ours.write(0, q)
    ways: dict[str, Callable[[], object]] = {
        "write/rclpy": lambda: serialize_message(messages.trajectory(joints, 0, q, dt)),
        "write/ours": lambda: ours.write(0, q),
        "read/rclpy": lambda: messages.points_of(deserialize_message(data, JointTrajectory), order, dt),
        "read/ours": lambda: ours.read(data),
    }
    took: dict[str, list[int]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begin = time.perf_counter_ns()
            way()
            took[name].append(time.perf_counter_ns() - begin)
    ms = {name: float(np.median(ns)) for name, ns in took.items()}
    return {f"{way}_ratio": ms[f"{way}/rclpy"] / ms[f"{way}/ours"] for way in ("write", "read")}


def braking(states: np.ndarray, answers: np.ndarray, stopped: list[int]) -> np.ndarray:
    """[m] ms from each stop in full motion to the first trajectory that brakes."""
    found = []
    for ns in stopped:
        before = states[max(0, int(np.searchsorted(states[:, 1], ns)) - 1)]
        after = answers[(answers[:, 1] > ns) & (answers[:, 2] == 1)]
        if before[2] > MOTION:
            found.append(1e-6 * (float(after[0, 1]) - ns) if len(after) else np.inf)
    return np.array(found)


def go_on(operator: EpisodeClient) -> int:
    """After an emergency stop, into motion again; faults that the busy machine caused meanwhile."""
    operator.wait(lambda: operator.status[operator.node_name]["mode"] == "FAULT", 10.0, "the fault")
    time.sleep(0.3)
    operator.enable()
    for _ in range(100):
        time.sleep(0.05)
        if not (why := operator.reset_fault()):
            moving = lambda: float(operator.status[NAME]["speed"]) > MOTION  # noqa: E731
            return wait_through_faults(operator, moving, "motion")
    raise SystemExit(f"the node does not go on after an emergency stop: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ticks", type=int, default=10_000)
    parser.add_argument("--stops", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=250.0, help="ticks, states and commands a second")
    parser.add_argument("--record", action="store_true", help="write docs/results/latency_ros2.json too")
    parser.add_argument("--arm", type=Path, help=argparse.SUPPRESS)  # be the arm, and write there what it saw
    parser.add_argument("--wiring", default=WIRING, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.arm is not None:
        take_priority()
        rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
        run(TimedArm(args.arm, args.wiring))
        return
    os.environ.update({k: v for k, v in private_environment().items() if k.startswith("ROS_")})
    with TemporaryDirectory() as folder:
        rows = measure(args.ticks, args.stops, Path(folder) / "arm.npz", paced(args.rate, Path(folder)))
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in rows), sep="\n")
    if args.record:
        print(*write(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
