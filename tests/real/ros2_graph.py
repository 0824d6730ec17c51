"""A ROS graph for tests: an arm and a node of toy parts in processes of their own, on a domain of this test process."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from robopolicy.core.types import RENDERED
from robopolicy.real.ros2.episode_client import EpisodeClient
from robopolicy.real.ros2.processes import arm_command, processes
from robopolicy.real.ros2.wiring import load_wiring

TASK = {"_target_": "native", "task": "reach", "horizon": 12, "joint_noise": 0.0, "cameras": ("front",),
        "image_size": (24, 32)}  # fmt: skip
WIRING = "mujoco_panda"


def private_domain() -> dict[str, str]:
    """A domain for this process of pytest; above 101 its ports might be taken by others."""
    return {"ROS_DOMAIN_ID": str(1 + os.getpid() % 100), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}


@contextlib.contextmanager
def graph(
    wiring: Path | str = WIRING, *, arm_wiring: Path | str | None = None, lost: float = 0.0, record: Path | str = "",
    human: bool = False, task: dict = TASK,
):  # fmt: skip
    """(operator, processes) with the arm in lockstep and the node unconfigured; all ended afterwards.

    `human`: one may take over. `task`: of both nodes.
    """
    node = [sys.executable, "-m", "tests.real.ros2_graph", str(wiring), str(record), "human" if human else "",
            json.dumps(task)]  # fmt: skip
    arm = arm_command(task, str(arm_wiring or wiring), lost=lost, lockstep=True)
    with processes(arm, node) as running, EpisodeClient(load_wiring(str(wiring))) as operator:
        operator.wait(lambda: all(operator.heard.values()), 600.0, f"both nodes ({[p.poll() for p in running]})")
        yield operator, running


def main() -> None:
    """The policy node with a policy that goes to and fro."""
    import rclpy
    import torch
    from rclpy.signals import SignalHandlerOptions

    from robopolicy.real.deploy.deploy_config import DeployConfig
    from robopolicy.real.ros2 import policy_runtime
    from robopolicy.real.ros2.policy_node import PolicyNode
    from robopolicy.real.ros2.spin import run
    from tests.real.control.test_robots import Drive

    torch.set_num_threads(1)
    wiring, task = load_wiring(sys.argv[1]), json.loads(sys.argv[4])
    env = policy_runtime.one_env(task)

    class Seeing(Drive):
        """Goes to and fro, and stands still where it is shown no picture."""

        plans = 0

        def act(self, obs, **how):
            picture = next(obs[key] for key in env.spec.observation if key.startswith(RENDERED))
            assert picture.shape[-3:] == (3, 24, 32) or picture.shape[-2:] == (512, 3), picture.shape
            self.plans += 1
            way = 1.0 if self.plans // 6 % 2 == 0 else -1.0  # at the end of its way the arm would stand
            return super().act(obs, **how) * bool((picture != 0).any()) * way

    policy_runtime.load_policy = lambda *_, **__: Seeing(env, [0.01, 0.01, -0.005, 0.0, -1.0])
    config = DeployConfig(
        checkpoint=Path("none"), task=task, safety={"tcp_speed": 0.5}, lockstep=True,
        record=Path(sys.argv[2]) if sys.argv[2] else None, operator="keyboard" if sys.argv[3] == "human" else None,
    )  # fmt: skip
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    run(PolicyNode(wiring, policy_runtime.make_runtimes(config, wiring), lockstep=True))


if __name__ == "__main__":
    main()
