"""The policy node: a lifecycle node that runs a checkpoint behind the safety limits.

    python -m robopolicy.real.ros2.policy_node --checkpoint runs/pick [--wiring …] [--options '<JSON>'] [--ros-args …]

An inactive node publishes diagnostics alone. A refusal to configure or to activate has a named reason in the log and in
the diagnostics. Parameters: `seed` of the episode, −1: a new one for each; `success`, set before the node is
deactivated, goes into the recording; `safety.<setting>` may be tightened at any time, loosened only while inactive.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

from rcl_interfaces.msg import SetParametersResult
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger

from robopolicy.core.errors import RobopolicyError
from robopolicy.core.rng import unused_seed
from robopolicy.real.ros2.diagnostics import Reports
from robopolicy.real.ros2.parameters import tighten
from robopolicy.real.ros2.pipeline import Pipeline, Runtime, build_pipeline, cell_of
from robopolicy.real.ros2.spin import run, start, take_priority
from robopolicy.real.ros2.upsampling import NOT_CLAIMED, broken_claims
from robopolicy.real.ros2.wiring import Wiring
from robopolicy.real.safety.tracking import not_claimed, unprotected

NAME = "policy_node"


class PolicyNode(LifecycleNode):
    """Run a policy in the life cycle of a ROS 2 node.

    Args:
        wiring: topics, joints, ticks.
        make_runtime: called at configure.
        lockstep: the arm waits for every command (simulated time).
    """

    def __init__(self, wiring: Wiring, make_runtime: Callable[[], Runtime], *, lockstep: bool = False) -> None:
        super().__init__(NAME)
        self.wiring, self.make_runtime, self.lockstep = wiring, make_runtime, lockstep
        self.pipeline: Pipeline | None = None  # while the node is configured
        self.active = False  # by the life cycle, even where the episode has ended
        self.success: bool | None = None  # of the episode under way, where it was set
        self.bystanders: list[str] = []  # nodes that share a topic with us and no message
        self.claims: list[str] = []  # properties of the motion that are not claimed, and why
        self.why = ""
        self.declare_parameter("seed", -1)
        self.declare_parameter("success", False)
        self._reports = Reports(self, wiring)
        self.create_service(Trigger, "~/reset", self._on_reset)
        self.add_on_set_parameters_callback(self._on_parameters)

    # -- lifecycle --------------------------------------------------------------------------------------------------
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the policy, check that it fits the robot, connect."""
        del state
        return self._attempt("configure", self._configure)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Begin an episode where the arm stands."""
        if self._attempt("activate", self._activate) is not TransitionCallbackReturn.SUCCESS:
            return TransitionCallbackReturn.FAILURE
        self.active = True
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End the episode: the arm plays the certified stop."""
        self._stop()
        self.report()
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop the policy and its topics."""
        del state
        self._disconnect()
        return TransitionCallbackReturn.SUCCESS

    on_shutdown = on_cleanup

    def _attempt(self, what: str, action: Callable[[], None]) -> TransitionCallbackReturn:
        try:
            action()
        except Exception as problem:  # a node must not die of a wrong file: the caller gets the reason
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
        self.pipeline = build_pipeline(
            self, self.wiring, self.make_runtime, lockstep=self.lockstep, on_mismatch=self._on_mismatch,
            on_failure=self._on_driver_failure,
        )  # fmt: skip
        if names := self.pipeline.runtime.names:
            topic = self.wiring.topic("features").name
            self.get_logger().info(f"features: the policy needs, by these names on {topic!r}: {', '.join(names)}")

    def _activate(self) -> None:
        if (parts := self.pipeline) is None:
            raise RobopolicyError("not configured")
        stream, profile = parts.stream, parts.stream.chain.profile
        found = [
            *broken_claims(self.wiring, profile),
            *([] if parts.runtime.dry_run else unprotected(profile, self.wiring.tick_s)),
            *parts.problems(),
            *parts.runtime.ended_by_keys(),
            *stream.arm.refusals(time.monotonic()),
        ]
        if found:
            raise RobopolicyError("; ".join(dict.fromkeys(found)))
        self.bystanders = parts.bystanders()
        self.claims = not_claimed(profile) + [NOT_CLAIMED] * (self.wiring.output.type == "positions")
        for sentence in self.claims:
            self.get_logger().warning(sentence)
        given, success, self.success = int(self.get_parameter("seed").value), self.success, None
        seed = given if given >= 0 else unused_seed()
        parts.runtime.end(success, mode=stream.arm.mode.name)  # of a recording from before a reset
        parts.runtime.begin(stream.chain, seed)
        try:
            parts.commands.begin()
            stream.start(seed=seed, now=time.monotonic())
        except Exception:  # no episode is half begun
            stream.stop()
            parts.runtime.end(None)
            raise

    def _stop(self) -> None:
        """End the episode, if there is one; an arm that moves plays the certified stop."""
        self.active = False
        if self.pipeline is not None and self.pipeline.stream.arm.active:
            mode = self.pipeline.stream.arm.mode.name
            self.pipeline.stream.stop()
            try:
                self.pipeline.runtime.end(self.success, mode=mode)
            except RobopolicyError as error:  # e.g. a full disk; the arm stops all the same
                self.why = str(error)
                self.get_logger().error(self.why)

    def _disconnect(self) -> None:
        self._stop()
        if self.pipeline is not None:
            self.pipeline.close()
        self.pipeline, self.bystanders, self.claims = None, [], []

    def _on_mismatch(self) -> None:
        """Warn of a node whose quality of service does not fit. It may not stop an arm that is heard."""
        if self.pipeline is not None:
            self.bystanders = self.pipeline.bystanders()
            for sentence in self.bystanders:
                self.get_logger().warning(sentence)

    def _on_driver_failure(self, why: str) -> None:
        """Fault: the driver has given up."""
        if self.pipeline is not None:
            self.pipeline.stream.arm.on_driver_failure(why)

    @property
    def handled(self) -> int:
        """Number of messages that were taken or refused."""
        return 0 if self.pipeline is None else self.pipeline.subscriptions.handled

    def destroy_node(self) -> None:
        self._disconnect()
        super().destroy_node()

    # -- operator ---------------------------------------------------------------------------------------------------
    def _on_reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Begin an episode after a fault where the arm stands, unless there is a reason against it."""
        del request
        if self.active:
            self._attempt("reset", self._activate)
        response.message = (self.why if self.active else "reset: not active; activate instead") or "running"
        response.success = response.message == "running"
        return response

    def _on_parameters(self, parameters: list[Parameter]) -> SetParametersResult:
        for value in (p.value for p in parameters if p.name == "success"):
            self.success = bool(value)
        why = ""
        if (parts := self.pipeline) is not None:
            why = tighten(parts.stream.chain, parameters, cell_of(self.wiring, parts.runtime))
        return SetParametersResult(successful=not why, reason=why)

    # -- time -------------------------------------------------------------------------------------------------------
    def pump(self) -> float:
        """Decide on all commands that are due; returns s until the next call."""
        now, stream = time.monotonic(), None
        if (parts := self.pipeline) is not None:
            stream = parts.stream
            parts.subscriptions.empty(now)
            if stream.pump(now):
                self._reports.tick_ms.append(1e3 * (time.monotonic() - now))
                if parts.intervention is not None:
                    parts.intervention.tick(stream.loop.driver, now)
        if self._reports.due(stream, now):
            self._watch(now)
            self.report()
        return self.wiring.tick_s / 2

    def _watch(self, now: float) -> None:
        """Fault where another node has come that can command the arm."""
        if (parts := self.pipeline) is not None and parts.stream.arm.running:
            for why in parts.commands.newcomers(now):
                parts.stream.arm.on_second_publisher(why)

    def report(self) -> None:
        """Publish the diagnostics."""
        more = {"bystanders": "; ".join(self.bystanders), "claims": "; ".join(self.claims)}
        stream = None if self.pipeline is None else self.pipeline.stream
        refused = () if self.pipeline is None else self.pipeline.subscriptions.refused.values()
        self._reports.publish(stream, self.why or "; ".join(refused), more)


def main() -> None:
    from robopolicy.real.ros2.node_options import config_of, policy_id_of, wiring_of
    from robopolicy.real.ros2.policy_runtime import make_runtimes

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--wiring", default="mujoco_panda")
    parser.add_argument("--options", type=json.loads, default={}, help="JSON: keys of `robopolicy deploy`")
    args, rest = parser.parse_known_args()
    try:
        config = config_of(args.options, args.checkpoint, args.wiring)
        wiring, policy_id = wiring_of(config), policy_id_of(config)
    except RobopolicyError as error:
        parser.exit(1, f"error: {error}\n")
    unhurried = "" if config.lockstep else take_priority()
    start(rest)
    import torch

    torch.set_num_threads(config.threads or 1)
    node = PolicyNode(wiring, make_runtimes(config, wiring, policy_id), lockstep=config.lockstep)
    if unhurried:
        node.get_logger().warning(f"ticks may come late: {unhurried}")
    run(node)


if __name__ == "__main__":
    main()
