"""`robopolicy teleop`: drive the simulated arm by hand, behind the safety limits, and record a dataset.

Columns, units and actions are those of `demos`. An action is the executed one: where the limits slowed the human, it
has the effect of the commanded motion.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

from robopolicy.config.instantiate import build
from robopolicy.config.schema import Count, Node
from robopolicy.core.errors import ConfigError
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.real.teleoperation.demonstrations import DemonstrationRecorder
from robopolicy.real.teleoperation.devices import OperatorDevice, source_of
from robopolicy.real.teleoperation.keys import Keys
from robopolicy.real.teleoperation.teleoperated_sim import (
    RealTime,
    first_interrupt,
    status,
    viewer,
)
from robopolicy.real.teleoperation.teleoperator import Drive
from robopolicy.sim.env import SimEnv
from robopolicy.utils.threads import set_threads


class TeleopSummary(NamedTuple):
    """Count the recorded episodes."""

    path: Path
    episodes: int  # kept
    frames: int
    successes: int  # of the kept ones
    discarded: int


def teleop(
    *,
    out: Path,
    task: Node,
    episodes: Count = 20,
    robot: Literal["mujoco"] = "mujoco",
    operator: OperatorDevice = "keyboard",
    safety: dict[str, float] | None = None,
    drive: Drive | None = None,
    view: bool = True,
    overwrite: bool = False,
    seed: int = 0,
    threads: Count | None = None,
) -> TeleopSummary:
    """Record demonstrations by keys in this terminal, a gamepad or a SpaceMouse, as a LeRobotDataset v3.

    Args:
        out: folder of the dataset.
        episodes: number of episodes to keep.
        safety: settings of `real.safety.Settings`.
        drive: speeds of the keys.
        seed: of the scenes, which are those of `demos`. A scene whose episode is discarded begins again, so that hard
            scenes are not left out.
        task: node of a native task.
        robot: the arm; mujoco is the simulated one.
        operator: device of the human: keyboard, gamepad or spacemouse.
        view: open a window onto the arm, where there is a display.
        overwrite: replace a dataset in `out`.
        threads: of torch; None: torch's choice.

    Raises:
        ConfigError: there is no terminal, gamepad or SpaceMouse, or keys cannot drive this task's actions.
        DataError: `out` exists, or no episode was kept.
    """
    del robot  # the only one so far
    set_threads(threads)
    env = build(task, "task", num_envs=1, seed=seed)
    if not isinstance(env, SimEnv):
        raise ConfigError("teleop: the simulated arm needs a task of the native suite, e.g. task=pick")
    with source_of(operator, drive or Drive()) as keys:
        return record(
            env, keys, out, episodes=episodes, safety=safety, drive=drive, overwrite=overwrite, seed=seed, view=view,
            pace=RealTime(), show=status, sleep=time.sleep,
        )  # fmt: skip


def record(
    env: SimEnv, keys: Keys, out: Path, *, episodes: int, overwrite: bool = False, view: bool = False, **options: Any
) -> TeleopSummary:
    """Record a dataset as `teleop` does, with keys from any source; `options`: of DemonstrationRecorder."""
    recorder = DemonstrationRecorder(env, keys, **options)
    spec, arm = env.spec, recorder.arm
    provenance = {
        "env": {"id": spec.id, "digest": spec.digest, "horizon": spec.horizon}, "operator": recorder.device,
        "limits": arm.chain.profile.digest, "seed_split": "demonstrations", "run_seed": recorder.seed,
    }  # fmt: skip
    with (
        DatasetWriter(
            out, observation=spec.observation, action=spec.action, dt=spec.dt, tasks=spec.tasks,
            provenance=provenance, overwrite=overwrite,
        ) as writer,
        viewer(arm, wanted=view) as arm.redraw,
        first_interrupt(arm.interrupt),
    ):  # fmt: skip
        recorder.run(writer, episodes)
        kept = writer.num_episodes
    recorder.show("")
    gone = f"; the {recorder.device} is gone: stopped, the episode under way was not kept"
    print(f"{kept} demonstrations, {recorder.frames} frames in {out} ({recorder.successes} successes; "
          f"{recorder.discarded} discarded){gone if recorder.teleoperator.lost else ''}")  # fmt: skip
    return TeleopSummary(Path(out), kept, recorder.frames, recorder.successes, recorder.discarded)
