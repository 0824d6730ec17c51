"""The policy node: a lifecycle node that runs a checkpoint behind the safety limits.

    python -m robopolicy.real.ros2.policy_node --checkpoint runs/pick [--wiring …] [--options '<JSON>'] [--ros-args …]

Publishes nothing but diagnostics unless it is active. It refuses to configure or to activate with a named reason, in
its log and its diagnostics. Parameters: `seed` of the episode; `success`, to be set before it is deactivated, is what
a recording says of the episode; `safety.<setting>`, which may be tightened at any time and loosened only while
inactive.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from rcl_interfaces.msg import SetParametersResult
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger

from robopolicy.core.errors import RobopolicyError
from robopolicy.real.control.robots import Robot, State
from robopolicy.real.ros2.diagnostics import Reports
from robopolicy.real.ros2.parameters import put_in_force, tighten
from robopolicy.real.ros2.spin import run, start, take_priority
from robopolicy.real.ros2.topics import Inputs, Topics
from robopolicy.real.ros2.trajectory_stream import Loop, TrajectoryStream
from robopolicy.real.ros2.upsampling import NOT_CLAIMED, broken_claims
from robopolicy.real.ros2.wiring import Wiring, load_wiring
from robopolicy.real.safety import SafetyChain
from robopolicy.real.safety.tracking import not_claimed, unprotected

NAME = "policy_node"


class Driving(Inputs, Protocol):
    """What decides where to go: `robopolicy.real.ros2.policy_runtime.PolicyRuntime`."""

    dry_run: bool  # nothing may be published that could move anything

    def chain(self) -> SafetyChain: ...
    def loop(self, robot: Robot, chain: SafetyChain, clock: Callable[[], float]) -> Loop: ...
    def warm_up(self, state: State) -> None: ...
    def begin(self, chain: SafetyChain, seed: int) -> None: ...
    def end(self, success: bool | None, **outcome: object) -> None: ...
    def close(self) -> None: ...


class PolicyNode(LifecycleNode):
    """Messages to a `TrajectoryStream` and back.

    Args:
        wiring: topics, joints, ticks.
        make_brain: called at configure.
        lockstep: the arm waits for every command (simulated time).
    """

    def __init__(self, wiring: Wiring, make_brain: Callable[[], Driving], *, lockstep: bool = False) -> None:
        super().__init__(NAME)
        self.wiring, self.make_brain, self.lockstep = wiring, make_brain, lockstep
        self.session: TrajectoryStream | None = None
        self.runtime: Driving | None = None
        self.topics: Topics | None = None
        self.active = False  # as the life cycle has it, whatever became of the episode
        self.success: bool | None = None  # what somebody said of the episode under way
        self.bystanders: list[str] = []  # nodes that share a topic with us and no message
        self.claims: list[str] = []  # what is not claimed of the motion, and why
        self.why = ""
        self.declare_parameter("seed", 0)
        self.declare_parameter("success", False)
        self._reports = Reports(self, wiring)
        self.create_service(Trigger, "~/reset", self._on_reset)
        self.add_on_set_parameters_callback(self._on_parameters)

    # -- lifecycle --------------------------------------------------------------------------------------------------
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the policy, check that it fits the robot, connect."""
        del state
        done = self._attempt("configure", self._configure)
        if done is not TransitionCallbackReturn.SUCCESS:
            self._disconnect()  # nothing half done
        return done

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Begin an episode where the arm stands."""
        if self._attempt("activate", self._activate) is not TransitionCallbackReturn.SUCCESS:
            return TransitionCallbackReturn.FAILURE
        self.active = True
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Say no more: the arm plays the certified stop."""
        self._stop()
        self.report()
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Forget policy and topics."""
        del state
        self._disconnect()
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        del state
        self._disconnect()
        return TransitionCallbackReturn.SUCCESS

    def _attempt(self, what: str, action: Callable[[], None]) -> TransitionCallbackReturn:
        try:
            action()
        except Exception as problem:  # a node must not die of a wrong file; whoever asked is told
            known = isinstance(problem, RobopolicyError)
            self.why = f"{what}: {problem}" if known else f"{what}: {type(problem).__name__}: {problem}"
            self.get_logger().error(self.why)
            self.report()
            return TransitionCallbackReturn.FAILURE
        self.why = ""
        self.report()
        return TransitionCallbackReturn.SUCCESS

    def _configure(self) -> None:
        self._disconnect()
        self.runtime = self.make_brain()
        chain = self.runtime.chain()
        put_in_force(self, chain)
        if broken := broken_claims(self.wiring, chain.profile):
            raise RobopolicyError("; ".join(broken))
        self.topics = Topics(
            self, self.wiring, chain.profile, self.runtime, self._notice, self._fault, dry_run=self.runtime.dry_run
        )
        self.topics.session = self.session = TrajectoryStream(
            chain, self.runtime.loop, self.wiring, send=self.topics.output.send, grip=self.topics.grip,
            follow=self.lockstep,
        )  # fmt: skip
        home = np.array(chain.profile.data["home"])
        chain.limiter.reset(home[None])  # compiles
        chain.limiter.active[:] = False
        self.runtime.warm_up(State(home, np.zeros_like(home), 0.08))

    def _activate(self) -> None:
        session = self._need()
        assert self.topics is not None and self.runtime is not None
        profile = session.chain.profile
        found = [
            *broken_claims(self.wiring, profile),
            *([] if self.runtime.dry_run else unprotected(profile, self.wiring.tick_s)),
            *self.topics.problems(),
            *session.refusals(time.monotonic()),
        ]
        if found:
            raise RobopolicyError("; ".join(dict.fromkeys(found)))
        self.bystanders = self.topics.bystanders()
        self.claims = not_claimed(profile) + [NOT_CLAIMED] * (self.wiring.output.type == "positions")
        for sentence in self.claims:
            self.get_logger().warning(sentence)
        seed, said, self.success = int(self.get_parameter("seed").value), self.success, None
        self.runtime.end(said, mode=session.mode.name)  # of what was recorded before a reset
        self.runtime.begin(session.chain, seed)
        try:
            self.topics.begin()
            session.start(seed=seed, now=time.monotonic())
        except Exception:  # nothing half begun
            session.stop()
            self.runtime.end(None)
            raise

    def _need(self) -> TrajectoryStream:
        if self.session is None:
            raise RobopolicyError("not configured")
        return self.session

    def _stop(self) -> None:
        """End the episode, if there is one; an arm that moves plays the certified stop."""
        self.active = False
        if self.session is not None and self.session.active and self.runtime is not None:
            mode = self.session.mode.name
            self.session.stop()
            try:
                self.runtime.end(self.success, mode=mode)
            except RobopolicyError as error:  # e.g. a full disk; the arm stops all the same
                self.why = str(error)
                self.get_logger().error(self.why)

    def _disconnect(self) -> None:
        self._stop()
        if self.topics is not None:
            self.topics.close()
        if self.runtime is not None:
            self.runtime.close()
        self.topics, self.session, self.runtime, self.bystanders, self.claims = None, None, None, [], []

    def _notice(self) -> None:
        """A node was found whose quality of service does not fit. It may not stop an arm that is heard."""
        if self.topics is not None:
            self.bystanders = self.topics.bystanders()
            for sentence in self.bystanders:
                self.get_logger().warning(sentence)

    def _fault(self, why: str) -> None:
        """The driver has given up."""
        if self.session is not None:
            self.session.on_driver(why)

    def _wrong(self) -> list[str]:
        """What is wrong with what comes in, one sentence each."""
        return [*(self.topics.refused.values() if self.topics is not None else ())]

    @property
    def handled(self) -> int:
        return 0 if self.topics is None else self.topics.handled

    def destroy_node(self) -> None:
        self._disconnect()
        super().destroy_node()

    # -- operator ---------------------------------------------------------------------------------------------------
    def _on_reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """After a fault: begin anew where the arm stands, if nothing speaks against it."""
        del request
        if self.active:
            self._attempt("reset", self._activate)
        response.message = (self.why if self.active else "reset: not active; activate instead") or "running"
        response.success = response.message == "running"
        return response

    def _on_parameters(self, parameters: list[Parameter]) -> SetParametersResult:
        for said in (p.value for p in parameters if p.name == "success"):
            self.success = bool(said)
        why = "" if self.session is None else tighten(self.session.chain, parameters)
        return SetParametersResult(successful=not why, reason=why)

    # -- time -------------------------------------------------------------------------------------------------------
    def pump(self) -> float:
        """Decide what is due; s until there may be something again."""
        session, now = self.session, time.monotonic()
        if self.topics is not None:
            self.topics.empty(now)
        if session is not None and session.pump(now):
            self._reports.tick_ms.append(1e3 * (time.monotonic() - now))
            if self.topics is not None:
                self.topics.tell_driver(session.loop.driver, now)
        if self._reports.due(session, now):
            self.report()
        return self.wiring.tick_s / 2

    def report(self) -> None:
        """Publish how it stands."""
        more = {"bystanders": "; ".join(self.bystanders), "claims": "; ".join(self.claims)}
        self._reports.publish(self.session, self.why or "; ".join(self._wrong()), more)


def main() -> None:
    from robopolicy.real.ros2.policy_runtime import options_of, runtimes

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--wiring", default="mujoco_panda")
    parser.add_argument(
        "--options", type=json.loads, default={}, help="JSON: of robopolicy.real.ros2.policy_runtime.RuntimeOptions"
    )
    args, rest = parser.parse_known_args()
    options, wiring = options_of(args.checkpoint, args.options), load_wiring(args.wiring)
    unhurried = "" if options.lockstep else take_priority()
    start(rest)
    import torch

    torch.set_num_threads(1)
    node = PolicyNode(wiring, runtimes(options, wiring), lockstep=options.lockstep)
    if unhurried:
        node.get_logger().warning(f"ticks may come late: {unhurried}")
    run(node)


if __name__ == "__main__":
    main()
