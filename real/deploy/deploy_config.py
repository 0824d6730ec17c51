"""Options of a deployment: the keys of `robopolicy deploy`, and of a policy node's `--options`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from robopolicy.config.instantiate import arguments_for
from robopolicy.config.schema import Count, Natural, Node, Positive
from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import episode_seeds
from robopolicy.real.planning.chunking import Chunking
from robopolicy.real.safety.settings import tightened
from robopolicy.real.safety.tracking import guarded
from robopolicy.real.teleoperation.devices import OperatorDevice
from robopolicy.real.teleoperation.teleoperator import Drive


@dataclass(frozen=True, kw_only=True)
class DeployConfig:
    """Options of a deployment.

    Attributes:
        checkpoint: run directory, checkpoint or policy directory.
        robot: `mujoco`: simulated in this process; `mujoco_ros2`: simulated arm and policy node as two processes;
            `mujoco_lerobot`: simulated, behind LeRobot's class on a mock of its servo bus; `lerobot`: a real arm by
            LeRobot's class.
        task: of the native suite, whose observations and actions the policy has. `prepare` takes None for the task of
            the training run; for a policy node None says that the policy was trained on data of the robot itself
            (robopolicy.real.ros2.joint_state_adapter).
        episodes: number of them. Simulated ones begin at the first starts of the test.
        safety: settings of `robopolicy.real.safety.Settings`.
        speed: factor of the speeds in `safety`; 0.1 is where to begin on a real arm.
        latency_ms: time by which plans are held back.
        chunking: how a chunk follows the one before, see robopolicy.real.planning.chunking.chunking_of.
        predict: show the policy the state in which its plan will begin, instead of the one that was measured.
        lost: fraction of commands that the simulated arm loses; on a mock bus, of replies and goals.
        dry_run: compute everything, move no arm.
        risk: file of a critic by scripts/train_risk.py, which may slow the arm.
        record: a new folder for one MCAP file an episode.
        server: host:port of `robopolicy serve`, which plans instead; only spec and task of `checkpoint` are read then.
        server_token: file with the server's secret; needed beyond this machine.
        server_ca: file with certificates to trust; None: the system's.
        wiring: topics and joints over ROS 2: a preset in configs/robots/, or a file. Motors of LeRobot's arms: a
            preset in configs/lerobot/, or a file.
        lockstep: over ROS 2 the arm waits for every command (simulated time).
        process: over ROS 2 plan in a process of its own, which real time needs and lockstep does not.
        operator: a human with this device may take over, in real time; over ROS 2 by the `keys` topic.
        human_first: the human begins every episode.
        drive: how keys move the arm.
        threads: of torch, in this process; None: torch's choice.
        which: newest or best checkpoint of a run directory.

    Raises:
        ConfigError: `lost` is no fraction below 1.
    """

    checkpoint: Path
    robot: str = "mujoco"
    task: Node | None = None
    which: Literal["latest", "best"] = "latest"
    episodes: Count = 1
    safety: dict[str, Any] | None = None
    speed: Positive = 1.0
    latency_ms: Natural = 0
    chunking: Chunking = "async"
    predict: bool = True
    lost: float = 0.0
    dry_run: bool = False
    risk: Path | None = None
    record: Path | None = None
    server: str | None = None
    server_token: Path | None = None
    server_ca: Path | None = None
    wiring: str = "mujoco_panda"
    lockstep: bool = False
    process: bool = True
    operator: OperatorDevice | None = None
    human_first: bool = False
    drive: Drive = field(default_factory=Drive)
    threads: Count | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.lost < 1.0:
            raise ConfigError(f"lost: expected a fraction from 0 to below 1, found {self.lost}")

    @property
    def latency(self) -> float:
        """Time by which plans are held back, s."""
        return self.latency_ms / 1000

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(int(s) for s in episode_seeds("test", 0, self.episodes))

    def settings(self, cell: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the settings of `robopolicy.real.safety.Settings` at this speed, under those of a `cell`.

        Raises:
            SafetyError: no such setting, a value that it cannot have, or one that is looser than the cell's.
        """
        return guarded(tightened(cell or {}, self.safety or {}, self.speed), dry_run=self.dry_run)

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Build a config from JSON values.

        Raises:
            ConfigError: unknown or missing keys, or values of another type; lists all of them.
        """
        return cls(**arguments_for(cls, values, "deploy"))
