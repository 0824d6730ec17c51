"""A simulated arm under the control loop, on simulated time."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import mujoco
import torch

from robopolicy.core.types import Obs
from robopolicy.policies.base import Policy
from robopolicy.real.control.control_loop import ControlLoop
from robopolicy.real.control.joints import ActionDecoder
from robopolicy.real.control.robots import MujocoArm, Robot, State, Trouble
from robopolicy.real.control.state_forecast import ForecastState, StateForecaster
from robopolicy.real.planning.chunking import Chunking, chunking_of
from robopolicy.real.planning.planner import InlineRunner
from robopolicy.real.planning.remote_planner import RemotePlanner
from robopolicy.real.recording.recorder import PolicyJournal, Put, RecordedChain, Recorder
from robopolicy.real.recording.records import header_of
from robopolicy.real.safety import Mode, Profile, SafetyChain, load_profile
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.decision import Patience
from robopolicy.real.safety.risk import RiskCritic
from robopolicy.real.teleoperation.teleoperator import Teleoperator
from robopolicy.sim.arm import FINGER_STROKE
from robopolicy.sim.env import SimEnv

Settings = dict[str, float]
TICK = 0.004  # s between commands


class Episode(NamedTuple):
    """Summarise one episode."""

    seed: int
    success: bool
    steps: int  # control steps
    aborted: str  # by the arm; "" where it was not
    mode: str  # at the end
    changed: float  # fraction of ticks in which the command was not the target
    paced: float  # fraction of control steps that were slower than the policy asked for
    reasons: Counter[str]
    helped: float = 0.0  # fraction of control steps in which a human drove, or had the arm go back
    ticks: int = 0


class PlacedArm(Robot, Protocol):
    """A simulated arm that an episode can be begun with."""

    profile: Profile
    model: mujoco.MjModel
    data: mujoco.MjData
    dof: int  # n joints
    extra: Array  # [1 E] the task's state beside physics
    aborted: str  # why the arm gave up; "" where it did not

    def place(self, qpos: Array, extra: Array) -> None: ...
    def advance(self) -> None: ...


class SimulatedArm:
    """Run a task's simulated arm at 1 kHz under a control loop, on simulated time.

    Args:
        put: takes the messages of a recording (see `Recorder.put`) where there is no `recorder`.
        arm: in the place of the strict one, with `dt` of its own. state: patience with its states.
        operator: a human who may drive.
        predict: plan from the state that the arm will be in when the plan begins.
    """

    def __init__(
        self, env: SimEnv, policy: Policy | RemotePlanner, *, settings: Settings, latency: float = 0.0,
        trouble: Trouble | None = None, shadow: bool = False, dt: float = TICK, risk: Path | None = None,
        recorder: Recorder | None = None, facts: dict[str, Any] | None = None, put: Put | None = None,
        operator: Teleoperator | None = None, chunking: Chunking = "async", predict: bool = True,
        arm: PlacedArm | None = None, state: Patience | None = None,
    ) -> None:  # fmt: skip
        self.env, self.dt, self.time = env, dt, 0.0
        put = put if recorder is None else recorder.put
        self.recorder, self.facts = recorder, facts or {}
        if arm is None:
            arm = MujocoArm(env.task, load_profile(env.task.model.limits, **settings), dt=dt, trouble=trouble)
        self.arm, profile = arm, arm.profile
        critic = None if risk is None else RiskCritic.load(risk, profile, dt)
        kind = SafetyChain if put is None else partial(RecordedChain, put=put)
        self.chain = kind(profile, dt=dt, risk=critic, state=state)
        chunks = chunking_of(chunking, policy, latency, predict=predict)
        decoder = ActionDecoder(env.controller, stroke=FINGER_STROKE, dt=env.dt)
        forecaster = StateForecaster(decoder, chunks.buffer, behind=dt, tick=dt)
        self.loop = ControlLoop(
            self.arm, self.chain, decoder,
            InlineRunner(chunks.planner, latency=latency), self._observe, chunks.buffer,
            clock=lambda: self.time, history=chunks.planner.history, lead=chunks.lead, shadow=shadow,
            journal=None if put is None else PolicyJournal(put), operator=operator, delays=chunks.delays,
            forecaster=forecaster if chunks.predict and not shadow else None,
        )  # fmt: skip
        self.held = 0

    def _observe(self, state: State) -> Obs:
        """Return the task's features [1 …], of this arm's physics; of a forecast, as far as its motion goes on."""
        qpos, qvel = self.arm.data.qpos, self.arm.data.qvel
        if isinstance(state, ForecastState):
            obs, _ = self.env.sense(*self._moved_on(state))
            return obs
        obs, success = self.env.sense(qpos[None], qvel[None])
        self.held = self.held + 1 if success[0] else 0
        return obs

    def _moved_on(self, state: ForecastState) -> tuple[Array, Array]:
        """Return qpos [1 nq], qvel [1 nv] with the arm as forecast, fingers as measured, all else at constant speed."""
        qpos, qvel, n = self.arm.data.qpos.copy(), self.arm.data.qvel.copy(), self.arm.dof
        mujoco.mj_integratePos(self.arm.model, qpos, qvel, state.ahead)
        qpos[:n], qvel[:n] = state.q, state.qd
        qpos[n : n + 2] = self.arm.data.qpos[n : n + 2]
        return qpos[None], qvel[None]

    def run(self, seed: int) -> Episode:
        """Run one episode to success, to its horizon or to a fault, and record it where there is a recorder."""
        if self.recorder is None:
            return self._run(seed)
        self.recorder.begin(self.header(seed))
        outcome: dict[str, Any] = {"success": None}
        try:
            episode = self._run(seed)
            outcome = {"success": episode.success, "aborted": episode.aborted, "mode": episode.mode}
        finally:
            self.recorder.end(**outcome)
        return episode

    def header(self, seed: int) -> dict[str, Any]:
        """Return the header of the recording of episode `seed`."""
        return header_of(
            self.chain, self.env.spec, self.loop.buffer.spec, seed=seed, shadow=self.loop.shadow, **self.facts
        )

    def goes_on(self) -> bool:
        """Whether the episode needs another tick."""
        most = self.env.task.horizon * self.env.dt  # s; waiting counts
        return self.time - self.loop.origin < most + 0.5 * self.dt and self.held < self.env.task.hold

    def ticked(self) -> None:
        """Hook after every tick."""

    def begin(self, seed: int) -> None:
        """Put the arm into the scene of `seed`, and start the loop there."""
        self.env.reset(torch.tensor([seed], dtype=torch.int64))
        self.arm.place(self.env.physics.qpos[0], self.env.task_state())
        self.held = 0
        self.loop.counts.clear()
        self.loop.start(seed=seed)

    def _run(self, seed: int) -> Episode:
        env, changed, ticks, reasons = self.env, 0, 0, Counter[str]()
        self.begin(seed)
        while self.goes_on():
            decision = self.loop.tick()
            self.arm.advance()
            self.time += self.dt
            self.ticked()
            ticks, changed = ticks + 1, changed + decision.changed
            reasons.update(decision.reasons)
            if decision.mode is Mode.FAULT or self.arm.aborted:
                break
        return Episode(
            seed, self.held >= env.task.hold, self.loop.step, self.arm.aborted, self.chain.mode.name,
            changed / max(1, ticks), self.loop.counts["paced"] / max(1, self.loop.step), reasons,
            (self.loop.counts["human"] + self.loop.counts["rewind"]) / max(1, self.loop.step), ticks,
        )  # fmt: skip
