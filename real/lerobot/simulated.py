"""`robopolicy deploy robot=mujoco_lerobot`: the simulated arm through LeRobot's class, on a mock of its servo bus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from robopolicy.core.errors import ConfigError
from robopolicy.core.types import RENDERED, Obs
from robopolicy.policies.base import Policy
from robopolicy.real.control.robots import State
from robopolicy.real.deploy.deployment import Deployment
from robopolicy.real.deploy.simulated_arm import Episode, SimulatedArm
from robopolicy.real.lerobot.bus import bus_summary
from robopolicy.real.lerobot.mock_arm import MockArm
from robopolicy.real.lerobot.mock_port import BusTrouble
from robopolicy.real.lerobot.wiring import LeRobotWiring, load_wiring
from robopolicy.real.planning.remote_planner import RemotePlanner
from robopolicy.real.recording.recorder import Recorder
from robopolicy.sim.env import SimEnv


class MockedArm(SimulatedArm):
    """Run a task's arm behind LeRobot's class and a mock bus, on simulated time.

    The policy sees the arm as LeRobot reads it: late, and in the steps of its encoders.

    Args:
        trouble: how the bus misbehaves.
        options: see SimulatedArm.
    """

    arm: MockArm

    def __init__(
        self, env: SimEnv, policy: Policy | RemotePlanner, wiring: LeRobotWiring, *, settings: dict[str, Any],
        trouble: BusTrouble, **options: Any,
    ) -> None:  # fmt: skip
        profile, state = wiring.arm.profile(**settings), wiring.arm.watchdogs["state"]
        arm = MockArm(env.task, wiring, profile, trouble=trouble)
        try:
            super().__init__(env, policy, settings=settings, arm=arm, dt=arm.dt, state=state, **options)
        except BaseException:
            arm.close()
            raise

    def _observe(self, state: State) -> Obs:
        truth = super()._observe(state)
        n, (qpos, qvel) = len(state.q), (self.arm.data.qpos[None].copy(), self.arm.data.qvel[None].copy())
        qpos[0, :n], qpos[0, n : n + 2], qvel[0, :n] = state.q, state.opening / 2, state.qd
        obs, _ = self.env.sense(qpos, qvel, pictures=False)
        return {**obs, **{k: v for k, v in truth.items() if k.startswith(RENDERED)}}


def run_episodes(deployment: Deployment) -> Iterator[Episode]:
    """Episodes on the mock bus, in the order of the deployment's seeds; prints how the bus fared.

    Raises:
        ConfigError: an operator is to take part: this arm runs on simulated time.
    """
    config = deployment.config
    if config.operator is not None:
        raise ConfigError(
            f"operator={config.operator}: robot=mujoco_lerobot runs on simulated time. Leave it out, or take "
            "robot=mujoco"
        )
    wiring = load_wiring(config.wiring)
    it = MockedArm(
        deployment.env, deployment.policy, wiring, settings=config.settings(wiring.arm.safety),
        trouble=BusTrouble(drop=config.lost), latency=config.latency, shadow=config.dry_run, risk=config.risk,
        chunking=config.chunking, recorder=None if config.record is None else Recorder(config.record),
        facts={"policy_id": deployment.policy_id, "chunking": config.chunking},
    )  # fmt: skip
    with closing(it.arm):
        for seed in deployment.seeds:
            yield it.run(seed)
        print(bus_summary(it.arm.driver.counts))
