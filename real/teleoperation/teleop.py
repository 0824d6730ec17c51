"""`robopolicy teleop`: drive the simulated arm by keys or a gamepad, behind the safety limits, and keep what was shown
as a dataset.

What is written is what `demos` writes: the same columns, units and meaning of actions. An action is what was executed:
where the limits slowed the human, the one that has the effect of what the arm was told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robopolicy.config.instantiate import build
from robopolicy.config.schema import Count, Node
from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import TASK
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.policies.zero_action import ZeroActionPolicy
from robopolicy.real.datasets.convert import Frames, frames_of
from robopolicy.real.datasets.converted import UnusableError
from robopolicy.real.recording.replay import Recording
from robopolicy.real.teleoperation.gamepad import PAD_MAP, PAD_RECORD
from robopolicy.real.teleoperation.keys import Keys
from robopolicy.real.teleoperation.teleoperated_sim import (
    OperatorDevice,
    RealTime,
    Show,
    TeleoperatedSim,
    first_interrupt,
    nothing,
    source_of,
    status,
    stick_of,
    viewer,
)
from robopolicy.real.teleoperation.teleoperator import KEY_MAP, RECORD_KEYS, Drive, Teleoperator
from robopolicy.sim.env import SimEnv

Array = NDArray[np.float64]


class TeleopDisplay(NamedTuple):
    """What a session left behind."""

    path: Path
    episodes: int  # kept
    frames: int
    successes: int  # of the kept ones
    discarded: int


class EpisodeMemory:
    """What a recording of one episode would hold, as far as frames are made of it.

    Args:
        over: the human has ended the episode; that the arm brakes then is no part of a demonstration.
    """

    def __init__(self, over: Callable[[], bool]) -> None:
        self.over, self.closed = over, False
        self.clear()

    def put(self, topic: str, now: float, content: dict[str, Any]) -> None:
        if self.closed:
            return
        if topic == "step":
            self.closed = self.over()
            self.steps.append((topic, {"n": self.count, "now": now, **content}))
            self.count += 1
        elif topic == "tick":
            self.steps.append((topic, {"mode": content["mode"], "changed": content["changed"]}))

    def clear(self) -> None:
        self.steps: list[tuple[str, dict[str, Any]]] = []
        self.count, self.closed = 0, False

    def frames(self, header: dict[str, Any], success: bool) -> Frames:
        """The episode from its first motion on, [T] control steps.

        Raises:
            UnusableError: nothing was shown.
        """
        footer = {"success": success, "dropped": {}}
        found = frames_of(Recording(Path("teleop"), [("header", header), *self.steps, ("footer", footer)]))
        asked = [content["action"] for topic, content in self.steps if topic == "step"][:-1]
        begun = [k for k, action in enumerate(asked) if action is not None and _moves(action, asked[0], header)]
        if not begun:
            raise UnusableError("the arm was not moved")
        at = slice(begun[0], None)  # before it somebody looked at the screen
        obs = {key: value[at] for key, value in found.obs.items()}
        return Frames(obs, found.action[at], found.policy_action[at], found.intervention[at], found.driver[at], success)


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
) -> TeleopDisplay:
    """Drive `robot` by keys in this terminal, or by a gamepad; `episodes` kept ones become a LeRobotDataset v3 in
    `out`.

    `safety` holds settings of `real.safety.Settings`; `drive` the speeds. The scenes are those of `demos` with this
    `seed`; one whose episode is discarded begins again, so that the hard ones are not left out.

    Raises:
        ConfigError: no terminal or gamepad, a task or actions that keys cannot drive. DataError: `out` exists, no
            episode kept.
    """
    del robot  # the only one so far
    env = build(task, "task", num_envs=1, seed=seed)
    if not isinstance(env, SimEnv):
        raise ConfigError("teleop: the simulated arm needs a task of the native suite, e.g. task=pick")
    with source_of(operator, drive or Drive()) as keys:
        return record(
            env, keys, out, episodes=episodes, safety=safety, drive=drive, overwrite=overwrite, seed=seed, view=view,
            pace=RealTime(), show=status, sleep=time.sleep,
        )  # fmt: skip


def record(
    env: SimEnv, keys: Keys, out: Path, *, episodes: int, safety: dict[str, float] | None = None,
    drive: Drive | None = None, overwrite: bool = False, seed: int = 0, view: bool = False,
    pace: Callable[[float], None] = nothing, show: Show = nothing, sleep: Callable[[float], None] = nothing,
    make: Callable[..., TeleoperatedSim] = TeleoperatedSim,
) -> TeleopDisplay:  # fmt: skip
    """`teleop` with keys from anywhere, at any pace; `sleep` passes the time while a verdict is awaited."""
    spec = env.spec
    hand = Teleoperator(keys, spec.action, env.dt, drive, recording=True, stick=stick_of(keys))
    stands = ZeroActionPolicy(PolicySpec(spec.observation, spec.action, env.dt, 1, 1, 1, spec.tasks))  # never drives
    memory = EpisodeMemory(lambda: bool(hand.verdict))
    cell = make(env, stands, hand=hand, settings=dict(safety or {}), put=memory.put, pace=pace, show=show)
    by = "gamepad" if hand.stick else "keyboard"
    facts = {
        "env": {"id": spec.id, "digest": spec.digest, "horizon": spec.horizon}, "operator": by,
        "limits": cell.chain.profile.digest, "seed_split": "train", "run_seed": seed,
    }  # fmt: skip
    frames = successes = discarded = scene = 0
    with (
        DatasetWriter(
            out,
            observation=spec.observation,
            action=spec.action,
            dt=spec.dt,
            tasks=spec.tasks,
            provenance=facts,
            overwrite=overwrite,
        ) as writer,
        viewer(cell, wanted=view) as cell.look,
        first_interrupt(cell.interrupt),
    ):
        print(f"{PAD_MAP}\n{PAD_RECORD}" if hand.stick else f"{KEY_MAP}\n{RECORD_KEYS}")
        while writer.num_episodes < episodes and not hand.over:
            memory.clear()
            number = int(episode_seeds("train", seed, 1, start=scene)[0])
            print(f"\nepisode {writer.num_episodes + 1} of {episodes}: {spec.tasks[0]}")
            done = cell.run(number)
            if hand.over:
                break
            if not hand.verdict:
                what = "success" if done.success else f"stopped ({done.aborted or done.mode})" \
                    if done.aborted or done.mode == "FAULT" else "time is up"  # fmt: skip
                show("")
                keep, discard = ("start", "back") if hand.stick else ("enter", "backspace")
                print(f"{what}: {keep} keeps it, {discard} discards it")
                _ask(hand, sleep)
            if hand.verdict == "keep":
                try:
                    episode = memory.frames(cell.header(number), done.success)
                except UnusableError as error:
                    print(f"nothing to keep: {error}")
                    continue
                _add(writer, episode, number)
                frames, successes = frames + len(episode.action), successes + done.success
                scene += 1
            elif hand.verdict == "discard":
                discarded += 1
        writer.meta.provenance |= {"discarded": discarded, "successes": successes}
        kept = writer.num_episodes
    show("")
    print(f"{kept} demonstrations, {frames} frames in {out} ({successes} successes; {discarded} discarded)"
          f"{f'; the {by} is gone: stopped, the episode under way was not kept' if hand.lost else ''}")  # fmt: skip
    return TeleopDisplay(Path(out), kept, frames, successes, discarded)


# -- inside ---------------------------------------------------------------------------------------------------------
def _ask(hand: Teleoperator, sleep: Callable[[float], None]) -> None:
    """Wait for a verdict on an episode that ended by itself; the arm's time stands still meanwhile."""
    while not hand.verdict and not hand.over:
        key = hand.next_key()
        if key in ("enter", "backspace"):
            hand.verdict = "keep" if key == "enter" else "discard"
        elif key == "x":
            hand.quit = True
        elif key is None:
            sleep(0.02)


def _add(writer: DatasetWriter, episode: Frames, seed: int) -> None:
    success = np.zeros(len(episode.action), dtype=bool)
    success[-1] = bool(episode.success)
    task = int(episode.obs[TASK][0]) if TASK in episode.obs else 0
    writer.add_episode(
        obs=episode.obs, action=episode.action, reward=success.astype(np.float32), success=success,
        terminated=bool(episode.success), task=writer.meta.tasks[task], seed=seed,
    )  # fmt: skip


def _moves(action: list[float], first: list[float] | None, header: dict[str, Any]) -> bool:
    """Whether a human's action is another than to leave everything as it was."""
    gripper = header["policy"]["action"]["gripper"]
    return any(x != (first[i] if first is not None and i == gripper else 0.0) for i, x in enumerate(action))
