"""Record demonstrations of a human at a simulated arm, one episode after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from robopolicy.core.rng import episode_seeds
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import TASK
from robopolicy.datasets.converted import UnusableError, add_episode
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.policies.residual import ZeroActionPolicy
from robopolicy.real.datasets.convert import Frames, frames_of
from robopolicy.real.deploy.simulated_arm import Episode
from robopolicy.real.recording.recording import Recording
from robopolicy.real.teleoperation.devices import device_of, map_of, stick_of
from robopolicy.real.teleoperation.keys import Keys
from robopolicy.real.teleoperation.teleoperated_sim import Show, TeleoperatedSim, nothing
from robopolicy.real.teleoperation.teleoperator import Drive, Teleoperator
from robopolicy.sim.env import SimEnv


class EpisodeMemory:
    """Hold the records of one episode from which frames are made.

    Args:
        over: whether the human has ended the episode; the braking that follows is no part of a demonstration.
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
        """Return the episode from its first motion on, [T] control steps.

        Raises:
            UnusableError: the arm was not moved.
        """
        footer = {"success": success, "dropped": {}}
        found = frames_of(Recording(Path("teleop"), [("header", header), *self.steps, ("footer", footer)]))
        asked = [content["action"] for topic, content in self.steps if topic == "step"][:-1]
        begun = [k for k, action in enumerate(asked) if action is not None and _moves(action, asked[0], header)]
        if not begun:
            raise UnusableError("the arm was not moved")
        at = slice(begun[0], None)  # without the waiting before the first motion
        obs = {key: value[at] for key, value in found.obs.items()}
        return Frames(obs, found.action[at], found.policy_action[at], found.intervention[at], found.driver[at], success)


class DemonstrationRecorder:
    """Record demonstrations of a human at a simulated arm, one scene after the other.

    Args:
        keys: of the human.
        sleep: passes s while a verdict is awaited.
        make: builds the arm; for tests.
    """

    def __init__(
        self, env: SimEnv, keys: Keys, *, safety: dict[str, float] | None = None, drive: Drive | None = None,
        seed: int = 0, pace: Callable[[float], None] = nothing, show: Show = nothing,
        sleep: Callable[[float], None] = nothing, make: Callable[..., TeleoperatedSim] = TeleoperatedSim,
    ) -> None:  # fmt: skip
        spec = env.spec
        self.env, self.seed, self.show, self.sleep = env, seed, show, sleep
        self.teleoperator = Teleoperator(keys, spec.action, env.dt, drive, recording=True, stick=stick_of(keys))
        # It never drives.
        stands = ZeroActionPolicy(PolicySpec(spec.observation, spec.action, env.dt, 1, 1, 1, spec.tasks))
        self.memory = EpisodeMemory(lambda: bool(self.teleoperator.verdict))
        self.arm = make(env, stands, teleoperator=self.teleoperator, settings=dict(safety or {}), put=self.memory.put,
                        pace=pace, show=show)  # fmt: skip
        self.device = device_of(keys)
        self.frames = self.successes = self.discarded = self.scene = 0

    def run(self, writer: DatasetWriter, episodes: int) -> None:
        """Record until `episodes` are kept or the human ends."""
        human = self.teleoperator
        print(map_of(self.device, recording=True))
        while writer.num_episodes < episodes and not human.over:
            self.memory.clear()
            number = int(episode_seeds("demonstrations", self.seed, 1, start=self.scene)[0])
            print(f"\nepisode {writer.num_episodes + 1} of {episodes}: {self.env.spec.tasks[0]}")
            done = self.arm.run(number)
            if human.over:
                break
            if not human.verdict:
                self._ask(done)
            if human.verdict == "keep":
                self._keep(writer, number, done.success)
            elif human.verdict == "discard":
                self.discarded += 1
        writer.meta.provenance |= {"discarded": self.discarded, "successes": self.successes}

    def _ask(self, done: Episode) -> None:
        """Wait for a verdict on an episode that ended by itself; the arm's time stands still meanwhile."""
        human, failed = self.teleoperator, done.aborted or done.mode == "FAULT"
        stopped = f"stopped ({done.aborted or done.mode})" if failed else "time is up"
        self.show("")
        keep, discard = ("start", "back") if self.device == "gamepad" else ("enter", "backspace")
        print(f"{'success' if done.success else stopped}: {keep} keeps it, {discard} discards it")
        while not human.verdict and not human.over:
            key = human.next_key()
            if key in ("enter", "backspace"):
                human.verdict = "keep" if key == "enter" else "discard"
            elif key == "x":
                human.quit = True
            elif key is None:
                self.sleep(0.02)

    def _keep(self, writer: DatasetWriter, number: int, success: bool) -> None:
        """Write the episode; one without motion is recorded again."""
        try:
            episode = self.memory.frames(self.arm.header(number), success)
        except UnusableError as error:
            print(f"nothing to keep: {error}")
            return
        task = int(episode.obs[TASK][0]) if TASK in episode.obs else 0
        add_episode(writer, episode.obs, episode.action, success=success, task=writer.meta.tasks[task], seed=number)
        self.frames, self.successes = self.frames + len(episode.action), self.successes + success
        self.scene += 1


def _moves(action: list[float], first: list[float] | None, header: dict[str, Any]) -> bool:
    """Whether a human's action moves the arm or the gripper."""
    gripper = header["policy"]["action"]["gripper"]
    return any(x != (first[i] if first is not None and i == gripper else 0.0) for i, x in enumerate(action))
