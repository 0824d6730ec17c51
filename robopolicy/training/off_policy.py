"""Off-policy training: collect → learn → log → evaluate and save."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from robopolicy.buffers.batch_sampler import BatchSampler, Source
from robopolicy.buffers.collector import OffPolicy, OffPolicyCollector
from robopolicy.buffers.recorded_rollouts import load_rollouts
from robopolicy.buffers.relabeling import read_frames
from robopolicy.buffers.replay_buffer import Replay
from robopolicy.config.schema import Count, Fraction, Natural, Positive
from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.core.protocols import Checkpoints, LogsMetrics
from robopolicy.core.types import Metrics, VecEnv
from robopolicy.core.untrusted import refusing
from robopolicy.datasets.episodes import Episodes
from robopolicy.training.env_statistics import EnvStatistics
from robopolicy.training.loop_state import (
    Evaluate,
    LoopState,
    due,
    evaluate_and_save,
    solved,
    success_rate,
)
from robopolicy.utils.malloc import release_memory


def off_policy(
    *,
    algo: OffPolicy,
    env: VecEnv,
    replay: Callable[..., Replay],
    demos: Episodes | None,
    tracker: LogsMetrics,
    checkpointer: Checkpoints,
    evaluate: Evaluate | None,
    total_steps: Count,
    warmup_steps: Natural,
    critic_only_updates: Natural,
    updates_per_step: Positive,
    batch_size: Count,
    demo_fraction: Fraction = 0.5,
    rollouts: dict[str, Path] | None = None,
    rollout_fraction: Fraction = 0.25,
    eval_every: Natural = 0,
    save_every: Natural = 10_000,
    log_every: Count = 1_000,
    stop_success: Fraction | None = None,
    seed: int = 0,
) -> Metrics:
    """Train `algo` for at most `total_steps` primitive env steps over all N envs, warm-up included.

    Args:
        env: emits [N To ...], and `base_action` where the policy has a base: see `wrap_for`.
        replay: makes an empty replay buffer for `num_envs` and the policy's `spec`.
        demos: supply `demo_fraction` of every batch, as the policy's replay features; None: online data alone.
        rollouts: further datasets, {name: path}, that supply `rollout_fraction` of every batch. Where `env` is
            imagined these are, for example, a similar policy's rollouts on the task itself.
        warmup_steps: env steps of the base policy (with exploration noise) before the first update.
        critic_only_updates: updates right after warm-up in which the policy stays the base.
        updates_per_step: critic updates per primitive env step (UTD).
        evaluate: called with policy and step every `eval_every` env steps and at the end; not counted as training.
        stop_success: end early once the newest 100 training episodes, exploration included, succeed that often.
        total_steps: primitive env steps over all envs, at most. eval_every: env steps between evaluations; 0: none.
        save_every: env steps between checkpoints. batch_size: transitions of an update.
        demo_fraction: share of every batch from `demos`. rollout_fraction: share of every batch from `rollouts`.
        log_every: env steps between log entries.

    Returns:
        `steps`, `train_s` (seconds of collecting and learning), the last evaluation's metrics, and `train_diverged`
        (transitions lost to non-finite physics since the run began) where it is not 0.

    Raises:
        ConfigError: the warm-up takes all of `total_steps`, or the fractions are more than a whole batch.
        CheckpointError: the recorded data of a resumed run has changed. DataError, SpecError: see load_rollouts.
    """
    if warmup_steps >= total_steps:
        raise ConfigError(
            f"loop.warmup_steps={warmup_steps} leaves nothing of loop.total_steps={total_steps} to learn in. "
            "Lower the first or raise the second."
        )
    online = replay(num_envs=env.num_envs, spec=algo.policy.spec)
    state = OffPolicyState(algo=algo, collector=OffPolicyCollector(algo, env), replay=online)
    recorded = {"demo_fraction": (demos, demo_fraction)} if demos is not None else {}
    if rollouts and rollout_fraction > 0.0:
        recorded["rollout_fraction"] = (load_rollouts(rollouts, algo.policy), rollout_fraction)
    sources = _sources(online, recorded, algo, batch_size)
    state.recorded = [episodes.num_frames for episodes, _ in recorded.values()]
    state.generator.manual_seed(seed)
    state.begin(checkpointer.latest())
    sampler = BatchSampler(sources, state.generator)
    most = env.num_envs * max(1, env.spec.chunk)  # primitive steps that one more `env.step` may take

    def finished() -> bool:
        return state.steps + most > total_steps or solved(state.statistics.recent, stop_success, state.steps, env)

    with tracker.progress(total_steps, "off-policy") as progress:
        while True:
            last = finished()
            evaluate_and_save(
                state, algo.policy, evaluate=evaluate, tracker=tracker, checkpointer=checkpointer,
                eval_every=eval_every, save_every=save_every, last=last, save=last and state.saved < state.steps,
            )  # fmt: skip
            if last:
                return {"steps": state.steps, "train_s": state.train_s, **state.statistics.lost, **state.result}
            began, had_begun = time.perf_counter(), state.learns(warmup_steps)
            taken = collect(state, warmup=state.steps < warmup_steps)
            if state.learns(warmup_steps):
                if not had_begun:
                    for i, batch in enumerate(sampler.draw(critic_only_updates)):
                        algo.update(batch, learned_steps=None)
                        progress.update(state.steps, critic_only=i + 1)
                learn(state, sampler, updates=updates_per_step * taken, learned_steps=state.steps - warmup_steps)
            state.train_s += time.perf_counter() - began
            progress.update(state.steps, success=success_rate(state.statistics.recent), **state.statistics.lost)
            if due(log_every, state.logged, state.steps) or finished():
                log(state, tracker)


@dataclass(kw_only=True)
class OffPolicyState(LoopState):
    """Everything that a resumed run needs to continue bit for bit."""

    algo: OffPolicy
    collector: OffPolicyCollector
    replay: Replay
    generator: torch.Generator = field(default_factory=torch.Generator)  # of the batches
    statistics: EnvStatistics = field(default_factory=EnvStatistics)
    recorded: list[int] = field(default_factory=list)  # frames of each dataset
    update_debt: float = 0.0  # updates that are due and not done, a fraction of one
    metrics: dict[str, Any] = field(default_factory=dict)  # of the newest updates
    logged: int = 0  # env step of the latest log

    def begin(self, saved: dict[str, Any] | None) -> None:
        """Continue from a checkpoint; None: start new episodes."""
        if saved is None:
            self.collector.reset()
            return
        self.load_state_dict(saved)
        if not self.collector.env.spec.resumable:  # its episodes are gone: go on with new ones
            self.replay.interrupt()
            self.collector.reset()

    def learns(self, warmup_steps: int) -> bool:
        """Return True once the warm-up is over and there is enough to sample."""
        return self.steps >= warmup_steps and self.replay.can_sample

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(), "algo": self.algo.state_dict(),
            "env": self.collector.env.state_dict(),  # type: ignore[attr-defined]
            "replay": self.replay.state_dict(), "player": self.collector.queue.state_dict(),
            "tally": self.statistics.state_dict(), "generator": self.generator.get_state(), "obs": self.collector.obs,
            "frame": self.collector.features, "owed": self.update_debt,
            "metrics": {k: float(v) for k, v in self.metrics.items()}, "logged": self.logged,
            "recorded": self.recorded,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("recorded", self.recorded) != self.recorded:  # older checkpoints have none
            raise CheckpointError(
                f"dataset, loop.rollouts: hold {self.recorded} frames, those that the run began with held "
                f"{state['recorded']}. Restore them, or give a new run_dir."
            )
        env: Any = self.collector.env
        parts = {"algo": self.algo, "env": env, "replay": self.replay, "player": self.collector.queue,
                 "tally": self.statistics}  # fmt: skip
        with refusing("checkpoint: state.json"):
            for name, part in parts.items():
                part.load_state_dict(state[name])
            self.generator.set_state(state["generator"])
            super().load_state_dict(state)
            self.update_debt, self.logged = float(state["owed"]), int(state["logged"])
            self.metrics = dict(state["metrics"])
            self.collector.start(state["obs"], state.get("frame"))


def collect(state: OffPolicyState, *, warmup: bool) -> int:
    """Take one env step into the replay buffer; return the primitive steps taken over all envs."""
    features, step = state.collector.collect(warmup=warmup)
    state.replay.add(features, step)
    taken = int(step.steps.sum())
    state.steps += taken
    state.statistics.add(step, steps=state.steps, env=state.collector.env)
    return taken


def learn(state: OffPolicyState, sampler: BatchSampler, *, updates: float, learned_steps: int) -> None:
    """Do the whole updates of the debt, which grows by `updates`."""
    state.update_debt += updates
    for batch in sampler.draw(int(state.update_debt)):
        state.metrics = {**state.metrics, **state.algo.update(batch, learned_steps=learned_steps)}
    state.update_debt -= int(state.update_debt)


def log(state: OffPolicyState, tracker: LogsMetrics) -> None:
    """Log the newest update's metrics, the envs' statistics and the speed."""
    state.logged = state.steps
    release_memory()
    numbers = {**{k: float(v) for k, v in state.metrics.items()}, **state.statistics.numbers()}
    numbers |= {"seconds": state.train_s, "steps_per_s": state.steps / state.train_s}
    tracker.log({f"train/{k}": v for k, v in numbers.items()}, state.steps)


def _sources(
    online: Replay, recorded: dict[str, tuple[Episodes, float]], algo: OffPolicy, batch_size: int
) -> list[Source]:
    """Return the replay buffers, of online and of recorded data, with their shares of a batch.

    Args:
        recorded: {key of the loop that sets the fraction: (episodes, fraction)}.
    """
    offline = [
        Source(online.of_episodes(episodes, obs=read_frames(episodes, algo.policy)), round(batch_size * fraction))
        for episodes, fraction in recorded.values() if fraction
    ]  # fmt: skip
    rest = batch_size - sum(source.size for source in offline)
    if rest < 0:
        fractions = " and ".join(f"loop.{key}={fraction}" for key, (_, fraction) in recorded.items())
        raise ConfigError(f"{fractions} are more than a whole batch of {batch_size}. Lower one of them.")
    return [Source(online, rest), *offline]
