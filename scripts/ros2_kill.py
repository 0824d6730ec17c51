"""Kill and stop the policy node at full permitted speed: does the arm stand still, inside the limits, every time?

    python scripts/ros2_kill.py [--trials 100] [--record]      # so many of SIGKILL and of SIGSTOP

A simulated arm at 1 kHz and a node that drives it to and fro, two processes over DDS. Each trial waits until a joint
moves at its permitted speed, kills the node, and checks with the independent checker all that the arm then played.
Times are in ticks of the arm, from the first point of the last trajectory that the node had sent: a busy machine may
kill late, and hear late, and neither counts. A trial whose node had already slowed down when it died, or of which some
tick was not heard, is done again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from rclpy.qos import QoSProfile
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from robopolicy.real.ros2 import messages, sim_arm_node
from robopolicy.real.ros2.cdr import TrajectoryBytes
from robopolicy.real.ros2.episode_client import EpisodeClient
from robopolicy.real.ros2.processes import arm_command, private_environment, processes
from robopolicy.real.ros2.publishers import FORGETS
from robopolicy.real.ros2.qos import profile_of
from robopolicy.real.ros2.sim_launcher import activate
from robopolicy.real.ros2.wiring import load_wiring
from robopolicy.real.safety import Profile, SafetyError
from robopolicy.real.safety.audit import joint_violations, space_violations
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.sim.kinematics import forward
from scripts.ros2_sweep import WIRING, limits

SIGNALS = {"sigkill": signal.SIGKILL, "sigstop": signal.SIGSTOP}
FULL = 0.9  # of a joint's permitted speed, or of the tool's; the limits keep a little for the stop


class NotBegunError(Exception):
    """The node of a trial never took over the arm."""


class NotHeardError(Exception):
    """What the arm played is not known of every tick."""


class Watcher(EpisodeClient):
    """An operator that writes down every control point that the arm plays."""

    def __init__(self, name: str) -> None:
        super().__init__(load_wiring(WIRING), node_name=name)
        self.points: dict[int, list[float]] = {}
        self.last = self.told = -1  # newest tick that was played, and that a trajectory began with
        topic = self.wiring.topic("joint_commands").name
        self.create_subscription(JointState, topic, self._on_point, QoSProfile(depth=2000))
        way = self.wiring.topic("trajectory")
        self.create_subscription(JointTrajectory, way.name, self._on_trajectory, profile_of(way), raw=True)
        self._bytes = TrajectoryBytes(self.wiring.joints, self.wiring.dt_ns)

    def _on_trajectory(self, data: bytes) -> None:
        first, points = self._bytes.read(data)
        if len(points):
            self.told = max(self.told, first)

    def _on_point(self, message: JointState) -> None:
        tick = round(messages.to_ns(message.header.stamp) / self.wiring.dt_ns)
        self.points[tick] = list(message.position)
        self.last = max(self.last, tick)

    def newest(self, count: int) -> np.ndarray:
        """[m n] rad: those of the last `count` ticks that were heard."""
        return np.array([self.points[t] for t in range(self.last - count + 1, self.last + 1) if t in self.points])

    def wait(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        """As that of an operator; says what both nodes report where it takes too long."""
        try:
            super().wait(condition, timeout, what)
        except SafetyError as error:
            raise SafetyError(f"{error}; they report {self.status}") from None


@contextmanager
def nodes(wiring: str = WIRING) -> Iterator[subprocess.Popen[str]]:
    """The process that forks policy nodes."""
    script = Path(__file__).with_name("ros2_sweep.py")
    with subprocess.Popen(
        [sys.executable, str(script), wiring], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=private_environment(), start_new_session=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None and process.stdout.readline().strip() == "ready"
            yield process
        finally:
            os.killpg(process.pid, signal.SIGCONT)
            os.killpg(process.pid, signal.SIGKILL)


def fork(zygote: subprocess.Popen[str], name: str) -> int:
    """A new node's process id."""
    assert zygote.stdin is not None and zygote.stdout is not None
    zygote.stdin.write(name + "\n")
    zygote.stdin.flush()
    return int(zygote.stdout.readline())


def trial(zygote: subprocess.Popen[str], kind: str, number: int) -> dict[str, object]:
    """One kill: what came of it."""
    profile, wiring = limits(), load_wiring(WIRING)
    dt, name = wiring.tick_s, f"policy_node_{kind}_{number}"
    pid = fork(zygote, name)
    try:
        with Watcher(name) as operator:
            try:
                operator.wait(lambda: all(operator.heard.values()), 60.0, "both nodes")
                operator.transition("configure")
                operator.begin_episode(number)
                operator.points.clear()
                operator.last = operator.told = -1
                activate(operator, patience=2.0 * FORGETS)  # the node that was killed before can command until then
            except SafetyError as error:  # before anything moved: of a hundred forks one may find no publisher
                raise NotBegunError(str(error)) from error
            time.sleep(0.3 + 0.013 * (number % 50))

            fast = lambda: permitted(operator.newest(2), profile, dt) > FULL  # noqa: E731
            restarts = wait_through_faults(operator, lambda: not fast(), "lower speed")  # so that what follows begins
            restarts += wait_through_faults(operator, fast, "full speed")
            time.sleep(0.03 + 0.02 * (number % 10))  # its last trajectory began a little before
            os.kill(pid, SIGNALS[kind])
            killed = operator.last
            still = lambda: len(q := operator.newest(120)) == 120 and bool((q == q[-1]).all())  # noqa: E731
            operator.wait(lambda: operator.last > killed + 120 and still(), 30.0, "standstill")
            time.sleep(0.2)
            ticks = sorted(operator.points)
            gaps = int((np.diff(ticks) != 1).sum())
            aborted = operator.status[sim_arm_node.NAME]["aborted"]
            if gaps or operator.told not in operator.points:
                if aborted:
                    raise SafetyError(
                        f"{kind} {number}: the arm aborted ({aborted}), in ticks not all of which were heard"
                    )
                span = f"{ticks[0]} to {ticks[-1]}"
                raise NotHeardError(f"{gaps} gaps in ticks {span}; last trajectory of {operator.told}")
            played = np.array([operator.points[t] for t in ticks])
            moving = np.flatnonzero((np.diff(played, axis=0) != 0).any(axis=1))
            stop_s = (ticks[moving[-1] + 1] - operator.told) * dt
            at = ticks.index(operator.told)
            speed = permitted(played[at - 1 : at + 1], profile, dt)
            commands = np.concatenate([np.repeat(played[:1], 3, axis=0), played])[:, None]
            bad = joint_violations(commands, profile, dt)
            bad |= space_violations(commands, profile, dt, poses=300, seed=number)
    finally:
        with suppress(ProcessLookupError):  # a killed one is gone already
            os.kill(pid, signal.SIGKILL)
    return {
        "kind": kind, "trial": number, "speed": speed, "stop_s": round(stop_s, 4),
        "restarts": restarts,
        "aborted": aborted, "violations": sum(bad.values()), "bad": {k: v for k, v in bad.items() if v},
        "fine": not aborted and sum(bad.values()) == 0
        and stop_s <= profile.longest_stop + 12 * dt,
    }  # fmt: skip


def wait_through_faults(operator: EpisodeClient, condition: Callable[[], bool], what: str) -> int:
    """Wait for `condition`; how often the node had to be reset before, after a FAULT that the busy machine caused."""
    for restarts in range(5):
        try:
            operator.wait(condition, 15.0, what)
            return restarts
        except SafetyError:
            if operator.status[operator.node_name]["mode"] != "FAULT":
                raise
            operator.reset_fault()
    raise SafetyError(f"no {what} after 5 faults; the node reports {operator.status[operator.node_name]}")


def permitted(q: np.ndarray, profile: Profile, dt: float) -> float:
    """Speed between two control points [2 n] rad as a fraction of what is permitted: of a joint, or of the tool."""
    if len(q) < 2:
        return 0.0
    tips = forward(q).pos
    tool = np.linalg.norm(tips[1] - tips[0]) / dt / profile.settings.tcp_speed
    return float(max((np.abs(q[1] - q[0]) / dt / profile.velocity).max(), tool))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--record", action="store_true", help="write docs/results/node_killed.json too")
    args = parser.parse_args()
    os.environ.update({k: v for k, v in private_environment().items() if k.startswith("ROS_")})
    rows: list[Evidence] = []
    with processes(arm_command({"_target_": "native", "task": "reach"}, WIRING)), nodes() as zygote:
        for kind in SIGNALS:
            done, unheard = [], 0
            for number in range(args.trials):
                for again in range(10):
                    try:
                        found = trial(zygote, kind, number + again * args.trials)
                    except (NotBegunError, NotHeardError) as error:
                        unheard += isinstance(error, NotHeardError)
                        print(f"{kind} {number}: again, {error}", file=sys.stderr, flush=True)
                        continue
                    print(json.dumps(found), file=sys.stderr, flush=True)
                    if float(str(found["speed"])) > FULL or not found["fine"]:
                        break
                else:
                    raise SafetyError(f"{kind} {number}: ten times no node drove at full speed")
                done.append(found)
            fine, slowest = sum(bool(d["fine"]) for d in done), max(float(str(d["stop_s"])) for d in done)
            slow = min(float(str(d["speed"])) for d in done)
            note = f"a joint, or the tool, at {100 * slow:.0f}% or more of its permitted speed when the node was ended"
            for metric, value in (("standstill_rate", fine / len(done)), ("slowest_stop_s", slowest),
                                  ("violations", sum(int(str(d["violations"])) for d in done)),
                                  ("done_again_unheard", unheard), ("aborts", sum(bool(d["aborted"]) for d in done)),
                                  ("faults_before", sum(int(str(d["restarts"])) for d in done))):  # fmt: skip
                rows.append(
                    measured(id="node_killed", setting=kind, metric=metric, interval=float(value), episodes=len(done),
                             notes=note)
                )  # fmt: skip
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in rows), sep="\n")
    if args.record:
        print(*write(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
