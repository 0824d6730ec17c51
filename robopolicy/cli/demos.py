"""`robopolicy demos`: record demonstrations of an expert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robopolicy.config.instantiate import build
from robopolicy.config.schema import Count, Fraction, Node, Seed
from robopolicy.datasets.demonstrations import RecordedDemos, record_demos
from robopolicy.runs.logger import Tracker
from robopolicy.sim.suites.replay import record_replays
from robopolicy.utils.threads import set_threads


def demos(
    *,
    out: Path,
    task: Node,
    expert: Node,
    source: Path | None = None,
    episodes: Count = 100,
    expert_noise: Fraction = 0.0,
    only_success: bool = True,
    cameras: tuple[str, ...] | None = None,
    overwrite: bool = False,
    num_envs: Count = 64,
    max_attempts: Count | None = None,
    seed: Seed = 0,
    threads: Count | None = None,
) -> RecordedDemos:
    """Record demonstrations of `expert` on `task` as a LeRobotDataset v3 in `out`.

    Args:
        out: directory of the dataset.
        task: node of the task.
        expert: node of the expert.
        source: a suite's own HDF5 file, whose episodes are run again in place of an expert (ManiSkill, LIBERO).
        episodes: number of demonstrations to keep.
        expert_noise: 0: the expert at its best; 1: between one success in two and one in fourteen, by task.
        only_success: keep only successful episodes.
        cameras: names of the cameras to record; None: all that the task has.
        overwrite: replace a dataset in `out`.
        num_envs: N, envs at a time.
        max_attempts: episodes to try before giving up; None: 20 × episodes + 20.
        seed: of the scenes.
        threads: of torch; None: torch's choice.
    """
    set_threads(threads)
    if source is not None:
        env = build(task, "task", num_envs=1, seed=seed)
        how: dict[str, Any] = {"only_success": only_success, "cameras": cameras, "overwrite": overwrite}
        recording = record_replays(env, source, out, episodes=episodes, **how)
        print(f"{recording.episodes} demonstrations, {recording.frames} frames in {recording.path} "
              f"({recording.successes} of {recording.attempted} in {source.name} succeeded again)")  # fmt: skip
        return recording
    env = build(task, "task", num_envs=min(num_envs, 4 * episodes), seed=seed)
    shown = build(expert, "expert", env=env, expert_noise=expert_noise)
    recording = record_demos(
        env=env, expert=shown, episodes=episodes, out=out, only_success=only_success, cameras=cameras, run_seed=seed,
        max_attempts=max_attempts, overwrite=overwrite, tracker=Tracker(),
    )  # fmt: skip
    rate = recording.successes / max(1, recording.attempted)
    who = "policy" if expert.get("_target_") == "policy" else "expert"
    print(f"{recording.episodes} demonstrations, {recording.frames} frames in {recording.path} "
          f"(the {who} succeeded in {100 * rate:.0f}% of {recording.attempted} episodes"
          f"{f', {recording.dropped} with physics faults dropped' if recording.dropped else ''}"
          f"{f', {recording.too_short} of one frame left out' if recording.too_short else ''})")  # fmt: skip
    return recording
