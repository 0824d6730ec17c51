"""A node that is a simulated arm: MuJoCo at 1 kHz under the maker's abort conditions, playing trajectories by time.

    python -m robopolicy.real.ros2.sim_arm_node --task '<node as JSON>' [--wiring …] [--lost 0.05] [--lockstep]

It keeps to a steady clock; where the machine was late it catches up before it speaks. With --lockstep it waits for the
answer to every state instead: simulated time, which no load can disturb. In real time messages are as late, and as
often lost, as the wiring's `delay` says.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial

import numpy as np
import torch
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from robopolicy.real.control.arm_kinematics import check_arm
from robopolicy.real.control.robots import MujocoArm
from robopolicy.real.ros2 import messages
from robopolicy.real.ros2.cdr import TrajectoryBytes
from robopolicy.real.ros2.delayed_line import DelayedLine
from robopolicy.real.ros2.observation import feature_names, feature_values, one_env
from robopolicy.real.ros2.qos import profile_of
from robopolicy.real.ros2.sim_cameras import SimCameras
from robopolicy.real.ros2.simulated_wiring import SIMULATED
from robopolicy.real.ros2.spin import run, start, take_priority
from robopolicy.real.ros2.timeline import Timeline
from robopolicy.real.ros2.wiring import Wiring, load_wiring
from robopolicy.real.safety import SafetyError
from robopolicy.sim.env import SimEnv

NAME = SIMULATED
STALL_NS = 1_000_000_000  # a delay beyond this is not made good
PATIENCE = 10.0  # s that --lockstep waits for an answer before it goes on by the clock


class ArmNode(Node):
    """The arm and its driver.

    Args:
        env: of the task, one env: scene, features and success.
        wiring: names and ticks.
        lost: fraction of trajectories that are dropped on arrival.
        lockstep: wait for the answer to every state.
    """

    def __init__(self, env: SimEnv, wiring: Wiring, *, lost: float = 0.0, lockstep: bool = False) -> None:
        super().__init__(NAME)
        commands, grip, features = wiring.output, wiring.topic("gripper"), wiring.topics["features"]
        if (commands.type, commands.points) != ("trajectory", "control"):
            raise SafetyError(
                "topics.trajectory: the simulated arm expects type: trajectory with points: control, found type "
                f"{commands.type!r} with points {commands.points!r}"
            )
        self.env, self.wiring, self.lost, self.lockstep = env, wiring, lost, lockstep
        self.rng = np.random.default_rng(0)
        self._out, self._in = (DelayedLine(None if lockstep else wiring.delay, seed=k) for k in (1, 2))
        profile = wiring.profile()
        check_arm(env.arm, profile)
        self.arm = MujocoArm(env.task, profile, dt=wiring.tick_s)
        self.names, self.dt_ns = feature_names(env), wiring.dt_ns
        self._bytes = TrajectoryBytes(wiring.joints, wiring.dt_ns)
        start = time.time_ns() // self.dt_ns
        self.timeline = Timeline(self.arm.points[-1], start)
        self.began = time.monotonic_ns() - start * self.dt_ns  # our steady clock at tick 0
        self.counts = dict.fromkeys(("received", "lost", "refused", "stalled_ms"), 0)
        self.why, self.answers = "", 0
        self.locked, self.waiting_since, self.handled = False, 0.0, 0
        self.declare_parameter("seed", 0)
        self._pub = {
            role: self.create_publisher(kind, topic.name, profile_of(topic))
            for role, kind in (
                ("joint_states", JointState), ("gripper_states", JointState), ("joint_commands", JointState),
                ("features", JointState), ("diagnostics", DiagnosticArray),
            )
            if (topic := wiring.topics[role]) is not None
        }  # fmt: skip
        self.create_subscription(JointTrajectory, commands.name, self._on_trajectory, profile_of(commands), raw=True)
        self.create_subscription(Float64, grip.name, self._on_gripper, profile_of(grip))
        self.create_service(Trigger, "~/reset", self._on_reset)
        self.features_every = 1 if features is None else features.every(wiring.tick_s)
        self.cameras = SimCameras(self, env, wiring)
        self._names = (*wiring.joints, *wiring.gripper)
        self.begin_episode(0)
        self.cameras.check()

    def begin_episode(self, seed: int) -> None:
        """Begin the episode of test seed `seed`, at rest."""
        self.seed, self.locked = seed, False
        self.env.reset(torch.tensor([seed], dtype=torch.int64))
        self.arm.place(self.env.physics.qpos[0], self.env.task_state())
        self.timeline.rest(self.arm.points[-1], self.timeline.tick)
        self.counts = dict.fromkeys(self.counts, 0)
        self.why, self.moved, self.step, self.held, self.success = "", -1, -1, 0, -1

    # -- callbacks --------------------------------------------------------------------------------------------------
    def _on_trajectory(self, data: bytes) -> None:
        self.handled += 1
        self._in.send(partial(self._take, data), may_be_lost=self.moved >= 0)

    def _take(self, data: bytes) -> None:
        try:
            first, points = self._bytes.read(data)
        except SafetyError as error:
            self._refuse(str(error))
            return
        if not len(points):  # no more will come
            self.locked = False
            return
        if self.lockstep and not self.locked:
            self.locked, self.waiting_since = True, time.monotonic()
        self.answers += 1
        self.counts["received"] += 1
        if self.moved >= 0 and self.rng.random() < self.lost:
            self.counts["lost"] += 1
            return
        if why := self.timeline.offer(first, points):
            self._refuse(why)
        elif self.moved < 0:
            self.moved = self.timeline.tick

    def _refuse(self, why: str) -> None:
        self.counts["refused"], self.why = self.counts["refused"] + 1, why

    def _on_gripper(self, message: Float64) -> None:
        self.handled += 1
        if np.isfinite(message.data):
            self.arm.opening = float(message.data)

    def _on_reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        del request
        self.begin_episode(int(self.get_parameter("seed").value))
        response.success, response.message = True, f"episode {self.seed}"
        return response

    # -- time -------------------------------------------------------------------------------------------------------
    def pump(self) -> float:
        """Play all ticks that are due; returns s until the next one."""
        return min(self._out.pump(), self._in.pump(), self._play())

    def _play(self) -> float:
        now = time.monotonic_ns()
        if self.locked:
            if self.answers == 0 and time.monotonic() - self.waiting_since < PATIENCE:
                return 0.05
            self.locked = self.answers > 0
            self._tick()
            self.began = now - self.timeline.tick * self.dt_ns
            self.waiting_since = time.monotonic()
            return 0.0 if not self.locked else 0.05
        behind = now - self.began - self.timeline.tick * self.dt_ns
        if behind > STALL_NS:
            self.counts["stalled_ms"] += behind // 1_000_000
            self.began += behind
        if behind >= 0:
            self._tick()
        return max(0.0, (self.began + self.timeline.tick * self.dt_ns - time.monotonic_ns()) * 1e-9)

    def _tick(self) -> None:
        tick, self.answers = self.timeline.tick, 0
        q = self.timeline.play()
        self.arm.write(q, self.arm.opening, q[None])
        self.arm.advance()
        ns, data = tick * self.dt_ns, self.arm.data
        self._judge(tick)
        if "features" in self._pub and tick % self.features_every == 0:
            obs, _ = self.env.sense(data.qpos[None], data.qvel[None], pictures=False)
            self._say("features", messages.joint_state(self.names, ns, feature_values(self.env, obs)))
        self.cameras.film(tick, data.qpos, data.qvel)
        if "joint_commands" in self._pub:
            echo = messages.joint_state(self.wiring.joints, ns, q)
            echo.header.frame_id = messages.ALONE if self.lockstep and not self.locked else ""
            self._say("joint_commands", echo)
        self._tell(tick)  # the last of the tick: the policy node answers it
        if tick % 25 == 0:
            self.report()

    def _tell(self, tick: int) -> None:
        """Publish where the arm is."""
        ns, n, q, qd = tick * self.dt_ns, self.arm.dof, self.arm.data.qpos, self.arm.data.qvel
        size, names = n + len(self.wiring.gripper), tuple(self.wiring.gripper)
        if (topic := self.wiring.topics["gripper_states"]) is not None:
            if tick % topic.every(self.wiring.tick_s) == 0:
                self._say("gripper_states", messages.joint_state(names, ns, q[n:size], qd[n:size]))
            size = n
        self._say("joint_states", messages.joint_state(self._names[:size], ns, q[:size], qd[:size]))

    def _say(self, role: str, message: JointState) -> None:
        self._out.send(partial(self._pub[role].publish, message))

    def _judge(self, tick: int) -> None:
        """Success, at the policy's rate, counted from the first motion."""
        step = int((tick - self.moved) * self.wiring.tick_s / self.env.dt + 1e-6)
        if self.moved < 0 or step <= self.step:
            return
        self.step = step
        _, success = self.env.sense(self.arm.data.qpos[None], self.arm.data.qvel[None], pictures=False)
        self.held = self.held + 1 if success[0] else 0
        if self.held >= self.env.task.hold and self.success < 0:
            self.success = step
            self.report()

    def report(self) -> None:
        """Publish how the episode goes."""
        aborted = self.arm.aborted
        level, text = (DiagnosticStatus.ERROR, f"aborted: {aborted}") if aborted else (DiagnosticStatus.OK, "ok")
        values: dict[str, object] = {
            "seed": self.seed, "step": self.step, "success_step": self.success, "aborted": aborted, "why": self.why,
            "speed": float(np.abs(self.arm.data.qvel[: self.arm.dof]).max()), **self.counts,
        }  # fmt: skip
        ns = self.timeline.tick * self.dt_ns
        self._pub["diagnostics"].publish(messages.diagnostics(ns, NAME, self.wiring.limits, level, text, values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", required=True, type=json.loads)
    parser.add_argument("--wiring", default="mujoco_panda")
    parser.add_argument("--lost", type=float, default=0.0)
    parser.add_argument("--lockstep", action="store_true")
    args, rest = parser.parse_known_args()
    if not args.lockstep:
        take_priority()  # as a driver would
    start(rest)
    torch.set_num_threads(1)
    run(ArmNode(one_env(args.task), load_wiring(args.wiring), lost=args.lost, lockstep=args.lockstep))


if __name__ == "__main__":
    main()
