"""Offline reinforcement learning: sample recorded rollouts → update → log → evaluate and save. No env step is taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from robopolicy.buffers.recorded_rollouts import load_rollouts, replay_of_episodes
from robopolicy.buffers.relabeling import read_frames
from robopolicy.buffers.replay_buffer import BatchSampler, Replay, Source
from robopolicy.config.schema import Count, Fraction, Natural
from robopolicy.core.errors import CheckpointError, ConfigError, DataError
from robopolicy.core.protocols import Checkpoints, LogsMetrics, OffPolicy
from robopolicy.core.types import Metrics
from robopolicy.core.untrusted import refusing
from robopolicy.datasets.episodes import Episodes, held_out, succeeded, take
from robopolicy.runs.log_window import LogWindow, interval
from robopolicy.training.contract import check_algorithm
from robopolicy.training.loop_state import Evaluate, LoopState, evaluate_and_save

_SHOWN_EVERY_S = 1.0  # seconds between updates of the progress bar


@dataclass(kw_only=True)
class OfflineRLState(LoopState):
    """Everything that a resumed run needs to continue bit for bit; `steps` counts updates."""

    advice = ""  # no episodes are collected
    algo: OffPolicy
    window: LogWindow
    recorded: list[int]  # frames of rollouts and demonstrations
    generator: torch.Generator = field(default_factory=torch.Generator)  # of the batches

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(), "algo": self.algo.state_dict(), "generator": self.generator.get_state(),
            "window": {**self.window.state_dict(), "step": self.steps}, "recorded": self.recorded,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["recorded"] != self.recorded:
            raise CheckpointError(
                f"dataset, loop.rollouts, loop.held_out: {self.recorded} frames are learned from, the run began with "
                f"{state['recorded']}. Restore them, or give a new run_dir."
            )
        super().load_state_dict(state)
        self.algo.load_state_dict(state["algo"])
        self.generator.set_state(state["generator"])
        self.window.load_state_dict(state["window"])


def offline_rl(
    *,
    algo: OffPolicy,
    replay: Callable[..., Replay],
    demos: Episodes | None,
    tracker: LogsMetrics,
    checkpointer: Checkpoints,
    evaluate: Evaluate | None,
    rollouts: dict[str, Path],
    steps: Count,
    batch_size: Count,
    critic_only_updates: Natural = 0,
    demo_fraction: Fraction = 0.25,
    held_out: Fraction = 0.25,
    eval_every: Natural = 0,
    save_every: Natural = 10_000,
    log_every: Count | None = None,
    seed: int = 0,
) -> Metrics:
    """Train an off-policy `algo` only on recorded rollouts, resuming from the newest checkpoint.

    Args:
        replay: makes a replay buffer; its class and its γ count, its capacity does not.
        rollouts: datasets of a policy's own episodes, {name: path}, failures and successes.
        demos: supply `demo_fraction` of every batch; None: only rollouts.
        held_out: share of the rollouts' episodes that is not learned from, for `robopolicy gate`; 0: none.
        steps: number of updates. critic_only_updates: first updates, in which the policy stays the base.
        batch_size: transitions of an update. demo_fraction: share of every batch from `demos`.
        evaluate: called with policy and update every `eval_every` updates and at the end; not counted as training.
        eval_every: updates between evaluations; 0: none. save_every: updates between checkpoints.
        log_every: updates between log entries; None: a twentieth of `steps`, at most 500.

    Returns:
        Means over the last log interval, `steps`, `train_s` (seconds of learning) and the last evaluation's metrics.

    Raises:
        ConfigError: no rollouts are given, demonstrations take all of a batch, or critic-only updates all of `steps`.
        DataError: no episode failed, none succeeded, or no transition can be learned from; see load_rollouts.
        CheckpointError: the recorded data of a resumed run has changed. SpecError: see load_rollouts.
    """
    check_algorithm(algo, OffPolicy, "offline_rl")
    check_updates(steps, critic_only_updates)
    shares = [batch_size] if demos is None else [batch_size - round(batch_size * demo_fraction)]
    if not shares[0]:
        raise ConfigError(
            f"loop.demo_fraction={demo_fraction}: a batch of {batch_size} holds no transition of the rollouts, and "
            "nothing is learned from them. Lower it; for demonstrations alone take algo=bc."
        )
    recorded = learned_episodes(rollouts, demos, algo, held_out)
    shares += [] if demos is None else [batch_size - shares[0]]
    horizon = int(max(episodes.lengths.max() for episodes in recorded))
    empty = replay(num_envs=1, spec=algo.policy.spec, horizon=horizon)
    sources = [
        Source(replay_of_episodes(empty, episodes, obs=read_frames(episodes, algo.policy)), share)
        for episodes, share in zip(recorded, shares, strict=True) if share
    ]  # fmt: skip
    state = OfflineRLState(
        algo=algo, window=LogWindow(log_every or interval(steps, most=500)),
        recorded=[episodes.num_frames for episodes in recorded],
    )  # fmt: skip
    state.generator.manual_seed(seed)
    if (saved := checkpointer.latest()) is not None:
        with refusing("checkpoint: state.json"):
            state.load_state_dict(saved)
    sampler, shown, pause = BatchSampler(sources, state.generator), 0.0, state.steps
    with tracker.progress(steps, "offline RL") as progress:
        while True:
            last = state.steps >= steps
            if last or checkpointer.requested or state.steps >= pause:
                pause = evaluate_and_save(
                    state, algo.policy, evaluate=evaluate, tracker=tracker, checkpointer=checkpointer,
                    eval_every=eval_every, save_every=save_every, last=last,
                )  # fmt: skip
            if last or time.perf_counter() - shown > _SHOWN_EVERY_S:
                progress.update(state.steps, **state.window.means)
                shown = time.perf_counter()
            if last:
                return {**state.window.means, "steps": steps, "train_s": state.train_s, **state.result}
            learn(state, sampler, tracker, critic_only=critic_only_updates)


def check_updates(steps: int, critic_only_updates: int) -> None:
    """Raise ConfigError where critic-only updates take all of `steps`."""
    if critic_only_updates >= steps:
        raise ConfigError(
            f"loop.critic_only_updates={critic_only_updates}: leaves nothing of loop.steps={steps} for the policy. "
            "Lower the first or raise the second."
        )


def learn(state: OfflineRLState, sampler: BatchSampler, tracker: LogsMetrics, *, critic_only: int) -> None:
    """Take one update, and log where an entry is due."""
    began = time.perf_counter()
    (batch,) = sampler.draw(1)
    learned = None if state.steps < critic_only else state.steps - critic_only
    metrics = state.algo.update(batch, learned_steps=learned)
    state.steps += 1
    state.train_s += time.perf_counter() - began
    state.window.add(metrics, state.steps, tracker)


class NoFailures(DataError):
    """All episodes succeeded: nothing says which actions to avoid."""


def learned_episodes(
    rollouts: dict[str, Path], demos: Episodes | None, algo: OffPolicy, share: float
) -> list[Episodes]:
    """Load the rollouts without the held-out `share`, and put the demonstrations after them.

    Raises:
        As offline_rl.
    """
    if not rollouts:
        raise ConfigError(
            "loop.rollouts: is empty, so there is nothing to learn from. Record episodes of the base by `robopolicy "
            "demos expert._target_=policy expert.checkpoint=<base> only_success=false`, and give "
            "loop.rollouts.own=<path>."
        )
    whole = load_rollouts(rollouts, algo.policy)
    found = take(whole, ~held_out(whole, share))
    named = ", ".join(f"loop.rollouts.{name}={path}" for name, path in rollouts.items())
    if not found.num_episodes:
        raise DataError(
            f"{named}: loop.held_out={share:g} leaves none of {whole.num_episodes} episodes to learn from. Lower it, "
            "or record more."
        )
    outcome = torch.cat([succeeded(part) for part in ([found] if demos is None else [found, demos])])
    if not bool(outcome.any()):
        raise DataError(
            f"{named}: none of {len(outcome)} episodes succeeded, so no action is better than another. Record more of "
            "them, or add demonstrations (dataset=)."
        )
    if bool(outcome.all()):
        raise NoFailures(
            f"{named}: none of {len(outcome)} episodes failed, so nothing says which actions to avoid. Record failures "
            "too (robopolicy demos only_success=false), or imitate these episodes (algo=bc)."
        )
    return [found] if demos is None else [found, demos]
