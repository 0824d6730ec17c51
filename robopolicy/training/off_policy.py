"""Off-policy training: collect → learn → log → evaluate and save."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robopolicy.buffers.recorded_rollouts import batch_sources, load_rollouts
from robopolicy.buffers.replay_buffer import BatchSampler, Replay
from robopolicy.config.schema import Count, Fraction, Natural, Positive
from robopolicy.core.errors import ConfigError
from robopolicy.core.protocols import Checkpoints, LogsMetrics, OffPolicy, lost_episodes
from robopolicy.core.types import Metrics, Obs, Step, VecEnv
from robopolicy.datasets.episodes import Episodes
from robopolicy.envs.chunk_executor import ChunkQueue
from robopolicy.envs.wrappers import request_images
from robopolicy.runs.log_window import interval
from robopolicy.training.contract import check_algorithm
from robopolicy.training.loop_state import Evaluate, due, evaluate_and_save, next_due, solved
from robopolicy.training.off_policy_state import OffPolicyState
from robopolicy.utils.malloc import release_memory

_SHOWN_EVERY_S = 1.0  # seconds between updates of the progress bar


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
    log_every: Count | None = None,
    stop_success: Fraction | None = None,
    seed: int = 0,
) -> Metrics:
    """Train `algo` for at most `total_steps` primitive env steps over all N envs, warm-up included.

    Args:
        env: emits [N To ...], and `base_action` where the policy has a base: see `wrap_for`.
        replay: makes an empty replay buffer for `num_envs`, the policy's `spec` and the env's `horizon`.
        demos: supply `demo_fraction` of every batch, as the policy's replay features; None: only online data.
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
        log_every: env steps between log entries; None: a twentieth of `total_steps`, at most 1,000.

    Returns:
        `steps`, `train_s` (seconds of collecting and learning), the last evaluation's metrics, and `train_diverged`
        (transitions lost to non-finite physics since the run began) where it is not 0.

    Raises:
        ConfigError: the warm-up takes all of `total_steps`, or the fractions are more than a whole batch.
        CheckpointError: the recorded data of a resumed run has changed. DataError, SpecError: see load_rollouts.
    """
    _check(algo, warmup_steps, total_steps)
    log_every = log_every or interval(total_steps, most=1_000)
    horizon = env.spec.task_horizon or env.spec.horizon  # of the task: a cut episode has its discount
    online = replay(num_envs=env.num_envs, spec=algo.policy.spec, horizon=horizon)
    state = OffPolicyState(algo=algo, collector=OffPolicyCollector(algo, env), replay=online)
    recorded = {"demo_fraction": (demos, demo_fraction)} if demos is not None else {}
    if rollouts and rollout_fraction > 0.0:
        recorded["rollout_fraction"] = (load_rollouts(rollouts, algo.policy), rollout_fraction)
    state.recorded = [episodes.num_frames for episodes, _ in recorded.values()]
    sampler = BatchSampler(batch_sources(online, recorded, algo.policy, batch_size), state.generator)
    state.generator.manual_seed(seed)
    state.begin(checkpointer.latest())
    most = env.num_envs * max(1, env.spec.chunk)  # primitive steps that one more `env.step` may take
    pause, shown = state.steps, 0.0  # env step at which something is due next; time of the latest progress

    with tracker.progress(total_steps, "off-policy") as progress:
        while True:
            last = state.steps + most > total_steps
            last |= stop_success is not None and solved(state.recent, stop_success, state.steps, env)
            if last or checkpointer.requested or state.steps >= pause:
                if state.logged < state.steps and (last or due(log_every, state.logged, state.steps)):
                    log(state, tracker)
                next_check = evaluate_and_save(
                    state, algo.policy, evaluate=evaluate, tracker=tracker, checkpointer=checkpointer,
                    eval_every=eval_every, save_every=save_every, last=last,
                )  # fmt: skip
                pause = min(next_check, next_due(log_every, state.logged))
            if last or time.perf_counter() - shown > _SHOWN_EVERY_S:
                progress.update(state.steps, **state.success, **state.lost)
                shown = time.perf_counter()
            if last:
                return {"steps": state.steps, "train_s": state.train_s, **state.lost, **state.result}
            began, had_begun = time.perf_counter(), state.steps >= warmup_steps and online.can_sample
            taken = collect(state, warmup=state.steps < warmup_steps)
            if state.steps >= warmup_steps and online.can_sample:
                if not had_begun:
                    for i, batch in enumerate(sampler.draw(critic_only_updates)):
                        algo.update(batch, learned_steps=None)
                        progress.update(state.steps, critic_only=i + 1)
                learn(state, sampler, updates=updates_per_step * taken, learned_steps=state.steps - warmup_steps)
            state.train_s += time.perf_counter() - began


def _check(algo: OffPolicy, warmup_steps: int, total_steps: int) -> None:
    check_algorithm(algo, OffPolicy, "off_policy")
    if warmup_steps >= total_steps:
        raise ConfigError(
            f"loop.warmup_steps={warmup_steps} leaves nothing of loop.total_steps={total_steps} to learn in. "
            "Lower the first or raise the second."
        )


class OffPolicyCollector:
    """Collects experience of an off-policy algorithm, one env step at a time. An action is a chunk of length one.

    Each env plans again when its chunk is used up or its episode has ended.
    """

    def __init__(self, algo: OffPolicy, env: VecEnv) -> None:
        self.algo, self.env, self.warmup = algo, env, True
        spec = algo.policy.spec
        self.queue = ChunkQueue(
            self._plan, env.num_envs, action_dim=spec.action.dim, n_action_steps=spec.n_action_steps, device=env.device
        )
        # [N] replay buffers store the images of every frame, or of none.
        self.every_image = torch.full((env.num_envs,), spec.reads_pictures, device=env.device)
        self.obs: Obs = {}  # [N To ...] to act on next
        self.features: Obs = {}  # [N ...] replay features of `obs`
        self.age = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)  # [N] steps of the episode so far

    def start(self, obs: Obs, features: Obs | None = None) -> None:
        """Act on `obs` [N To ...] next.

        Args:
            features: replay features of `obs` [N ...]; None: computed. In a batch of another size they would differ in
                their last bits, so a resumed run passes the saved ones.
        """
        self.obs = obs
        self.features = self.algo.policy.replay_features(obs) if features is None else features

    def reset(self) -> None:
        """Start new episodes in all envs."""
        self.queue.reset()
        self.age.zero_()
        self.start(self.env.reset())

    def collect(self, *, warmup: bool) -> tuple[Obs, Step]:
        """Take one env step.

        Returns:
            The replay features [N ...] that were acted on, and the step with the features of its `next_obs`.
        """
        self.warmup, features = warmup, self.features
        action = self.queue.next_action(features, self.env.episode_seed)
        request_images(self.env, self.every_image)
        step = self.env.step(action)
        following = self.algo.policy.replay_features(step.next_obs)
        self.queue.reset(step.ended)
        self.start(step.obs, self._first_features(step, following))
        return features, step._replace(next_obs=following)

    def _first_features(self, step: Step, following: Obs) -> Obs:
        """Return the features to act on next [N ...]: `following`, or those of the first frame of a new episode.

        Only new episodes are encoded, since encoding images costs more than everything else.
        """
        if not bool(step.ended.any()):
            return following
        first = self.algo.policy.replay_features({k: v[step.ended] for k, v in step.obs.items()})
        features = {k: v.clone() for k, v in following.items()}
        for key, value in first.items():
            features[key][step.ended] = value
        return features

    def _plan(self, features: Obs, rows: Tensor, noise: Tensor | None) -> Tensor:
        chunk = self.algo.explore({k: v[rows] for k, v in features.items()}, warmup=self.warmup)
        return chunk if chunk.ndim == 3 else chunk[:, None]

    def state_dict(self) -> dict[str, Any]:
        env = self.env.state_dict()  # type: ignore[attr-defined]
        return {
            "env": env, "player": self.queue.state_dict(), "obs": self.obs, "frame": self.features, "age": self.age,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.load_state_dict(state["env"])  # type: ignore[attr-defined]
        self.queue.load_state_dict(state["player"])
        self.start(state["obs"], state.get("frame"))
        self.age = state.get("age", self.age).to(self.age.device).clone()  # older checkpoints have none


def collect(state: OffPolicyState, *, warmup: bool) -> int:
    """Take one env step into the replay buffer; return the primitive steps taken over all envs."""
    features, step = state.collector.collect(warmup=warmup)
    state.replay.add(features, step)
    taken = int(step.steps.sum())
    state.steps += taken
    state.diverged += int((~step.valid & (step.steps > 0)).sum())  # a step of no length is an env that reset
    for key, value in step.info.items():
        state.sums[key] = state.sums.get(key, 0.0) + float(value.float().mean())
    state.rounds += 1
    age = state.collector.age
    age += step.steps
    if bool((ended := step.ended).any()):
        counted = ended & step.valid
        state.add_episodes(step.success[counted].float().tolist(), age[counted].tolist(), state.collector.env)
        age[ended] = 0
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
    numbers = {k: float(v) for k, v in state.metrics.items()} | {k: v / state.rounds for k, v in state.sums.items()}
    state.sums, state.rounds = {}, 0
    numbers["diverged"] = state.diverged
    if lost := lost_episodes(state.collector.env):
        numbers["lost_episodes"] = lost
    numbers |= state.success | {"seconds": state.train_s, "steps_per_s": state.steps / state.train_s}
    tracker.log({f"train/{k}": v for k, v in numbers.items()}, state.steps)
