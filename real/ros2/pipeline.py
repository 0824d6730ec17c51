"""A configured policy node, built from the top: runtime, limits, commands, arm, control loop, stream, subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from rclpy.lifecycle import LifecycleNode

from robopolicy.core.errors import RobopolicyError
from robopolicy.real.control.robots import Robot, State
from robopolicy.real.ros2.commands import Commands, InterventionPublisher
from robopolicy.real.ros2.outputs import OnFailure, OnMismatch
from robopolicy.real.ros2.parameters import put_in_force
from robopolicy.real.ros2.remote_arm import RemoteArm
from robopolicy.real.ros2.subscriptions import Inputs, Subscriptions
from robopolicy.real.ros2.trajectory_stream import Loop, TrajectoryStream
from robopolicy.real.ros2.upsampling import broken_claims
from robopolicy.real.ros2.wiring import Wiring
from robopolicy.real.safety import SafetyChain
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.command_limiter import CommandLimiter
from robopolicy.real.safety.motion import HISTORY
from robopolicy.real.safety.settings import Box

_FAR = 100.0  # m


class Runtime(Inputs, Protocol):
    """Run a policy: `robopolicy.real.ros2.policy_runtime.PolicyRuntime`, or a motion for tests."""

    dry_run: bool  # publish no commands

    def chain(self) -> SafetyChain: ...
    def loop(self, robot: Robot, chain: SafetyChain, clock: Callable[[], float]) -> Loop: ...
    def warm_up(self, state: State) -> None: ...
    def begin(self, chain: SafetyChain, seed: int) -> None: ...
    def end(self, success: bool | None, **outcome: object) -> None: ...
    def ended_by_keys(self) -> list[str]: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Pipeline:
    """Parts of a configured policy node. The stream owns the arm and the control loop."""

    runtime: Runtime
    commands: Commands
    stream: TrajectoryStream
    subscriptions: Subscriptions
    intervention: InterventionPublisher | None

    def problems(self) -> list[str]:
        """List why the arm may not be started by the topics, one sentence each."""
        return [*self.commands.problems(), *self.subscriptions.problems()]

    def bystanders(self) -> list[str]:
        """List nodes that share a topic with us and no message, one sentence each."""
        return [*self.commands.bystanders(), *self.subscriptions.bystanders()]

    def close(self) -> None:
        if self.intervention is not None:
            self.intervention.close()
        self.subscriptions.close()
        self.commands.close()
        self.runtime.close()


def cell_of(wiring: Wiring, runtime: Runtime) -> dict[str, Any]:
    """Return the settings that no parameter may loosen: those of the wiring, unless nothing can move."""
    return {} if runtime.dry_run else wiring.safety


def compiled(chain: SafetyChain, home: Array) -> None:
    """Compile the limiter of a chain at `home` [n] rad, where the arm need not be: its limits may exclude it.

    The scene is moved far away and not removed, as each kind of limit in it is code of its own.
    """
    scene, far = chain.profile.settings, Box((_FAR, _FAR, _FAR), (_FAR + 1.0, _FAR + 1.0, _FAR + 1.0))
    profile = chain.profile.changed(
        joint_margin=0.0,
        workspace=scene.workspace and Box((-_FAR, -_FAR, -_FAR), (_FAR, _FAR, _FAR)),
        planes=tuple(replace(plane, offset=-_FAR) for plane in scene.planes),
        keep_out=(far,) * len(scene.keep_out),
    )
    CommandLimiter(profile, dt=chain.limiter.dt).warm_up(np.tile(home, (1, HISTORY, 1)))


def build_pipeline(
    node: LifecycleNode, wiring: Wiring, make_runtime: Callable[[], Runtime], *, lockstep: bool,
    on_mismatch: OnMismatch, on_failure: OnFailure,
) -> Pipeline:  # fmt: skip
    """Load the policy, check that it fits the robot, and connect it to the node's topics.

    Args:
        on_mismatch: called when a node is found whose quality of service does not fit.
        on_failure: called with a sentence when the driver gives up.

    Raises:
        RobopolicyError: the policy, the limits or a topic do not fit; all parts are closed again.
    """
    with ExitStack() as undo:
        runtime = make_runtime()
        undo.callback(runtime.close)
        chain = runtime.chain()
        put_in_force(node, chain, cell_of(wiring, runtime), dry_run=runtime.dry_run)
        if broken := broken_claims(wiring, chain.profile):
            raise RobopolicyError("; ".join(broken))
        commands = Commands(
            node, wiring, dry_run=runtime.dry_run, on_mismatch=on_mismatch, on_failure=on_failure,
            on_gripper_failure=lambda why: arm.on_gripper_failure(why),  # of later on, when there is an arm
        )  # fmt: skip
        undo.callback(commands.close)
        arm = RemoteArm(
            chain, wiring, send=commands.output.send, grip=commands.grip, follow=lockstep, dry_run=runtime.dry_run
        )
        stream = TrajectoryStream(arm, runtime.loop(arm, chain, lambda: arm.time))
        intervention = None
        if (topic := wiring.topics["intervention"]) is not None:
            intervention = InterventionPublisher(node, topic, on_mismatch)
            undo.callback(intervention.close)
        subscriptions = Subscriptions(node, wiring, runtime, arm, on_mismatch)
        undo.callback(subscriptions.close)
        home = np.array(chain.profile.data["home"])
        compiled(chain, home)
        runtime.warm_up(State(home, np.zeros_like(home), 0.08))
        undo.pop_all()
    return Pipeline(runtime, commands, stream, subscriptions, intervention)
