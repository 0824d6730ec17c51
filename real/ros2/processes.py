"""Start the two nodes as processes on a ROS graph of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.ros2.spin import ENDS


def private_environment() -> dict[str, str]:
    """Return variables for a private ROS graph: a domain of this process, no other machine, and nodes that end with the
    process that started them."""
    return {
        **os.environ, "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "PYTHONUNBUFFERED": "1", ENDS: "1",
        "ROS_DOMAIN_ID": os.environ.get("ROS_DOMAIN_ID") or str(1 + os.getpid() % 100),
    }  # fmt: skip


class Process(subprocess.Popen[bytes]):
    """A process whose output goes to the file `log`."""

    log: Path

    def last_lines(self, count: int = 8) -> str:
        """Return the end of its output."""
        return "\n".join(self.log.read_text(errors="replace").strip().splitlines()[-count:])


@contextlib.contextmanager
def processes(*commands: Sequence[str], logs: Path | None = None) -> Iterator[list[Process]]:
    """Run commands, each in a process group of its own; at the end whole groups are ended, stopped ones too.

    Their output goes to files in `logs`, a temporary folder where None.
    """
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as files:
        folder, running = logs or Path(temporary), list[Process]()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for i, command in enumerate(commands):
                log = folder / f"{i}-{Path(command[-1 if len(command) < 3 else 2]).stem}.log"
                process = Process(
                    list(command), stdin=subprocess.DEVNULL, stdout=files.enter_context(log.open("wb")),
                    stderr=subprocess.STDOUT, env=private_environment(), start_new_session=True,
                )  # fmt: skip
                process.log = log
                running.append(process)
            yield running
        finally:
            for name, patience in ((signal.SIGCONT, 0.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
                for process in running:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, name)
                until = time.monotonic() + patience
                for process in running:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.0, until - time.monotonic()))


def arm_command(task: dict[str, Any], wiring: str, *, lost: float = 0.0, lockstep: bool = False) -> list[str]:
    """Return the command that starts the simulated arm."""
    return [
        sys.executable, "-m", "robopolicy.real.ros2.sim_arm_node", "--task", json.dumps(task), "--wiring", wiring,
        "--lost", str(lost), *["--lockstep"] * lockstep,
    ]  # fmt: skip


def node_command(config: DeployConfig) -> list[str]:
    """Return the command that starts the policy node."""
    return [
        sys.executable, "-m", "robopolicy.real.ros2.policy_node", "--checkpoint", str(config.checkpoint),
        "--wiring", config.wiring, "--options", config.to_json(),
    ]  # fmt: skip
