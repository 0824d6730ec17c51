"""Off-policy training: collect → update → log → checkpoint → evaluate."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robopolicy.buffers.collector import OffPolicy, OffPolicyCollector
from robopolicy.buffers.recorded_rollouts import load_rollouts
from robopolicy.buffers.relabeling import read_frames
from robopolicy.buffers.replay_buffer import Replay
from robopolicy.config.schema import Count, Fraction, Natural, Positive
from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.core.protocols import Checkpoints
from robopolicy.core.types import Metrics, Obs, Step, VecEnv
from robopolicy.core.untrusted import refusing
from robopolicy.datasets.episodes import Episodes
from robopolicy.training.regression_monitor import RegressionMonitor
from robopolicy.utils.malloc import release_memory

DRAWN = 8  # batches that are drawn at a time: where observations are small, many windows cost little more than few


def off_policy(
    *,
    algo: OffPolicy,
    env: VecEnv,
    replay: Callable[..., Replay],
    demos: Episodes | None,
    tracker: Any,
    checkpointer: Checkpoints,
    evaluate: Callable[[Any, int], Metrics] | None,
    total_steps: Count,
    warmup_steps: Natural,
    critic_only_updates: Natural,
    updates_per_step: Positive,
    batch_size: Count,
    demo_fraction: Fraction = 0.5,
    rollouts: dict[str, Path] | None = None,
    rollout_fraction: Fraction = 0.25,
    eval_every: Natural = 0,
    save_every: Natural = 0,
    log_every: Count = 1_000,
    stop_success: Fraction | None = None,
    seed: int = 0,
) -> Metrics:
    """Train `algo` for at most `total_steps` primitive env steps over all N envs, warm-up included.

    Args:
        env: emits [N To ...], and `base_action` where the policy has a base: see `wrap_for`.
        replay: makes an empty replay for `num_envs` and the policy's `spec`.
        demos: supply `demo_fraction` of every batch, read as the policy reads; None for online data alone.
        rollouts: further datasets, {name: path}, that supply `rollout_fraction` of every batch, e.g. of policies
            like this one on the task itself where `env` is imagined.
        warmup_steps: env steps of the base policy (with exploration noise) before the first update.
        critic_only_updates: updates right after warm-up in which the policy stays the base.
        updates_per_step: critic updates per primitive env step (UTD).
        evaluate: called with policy and step every `eval_every` env steps and at the end; not counted as training.
        stop_success: end early once the newest 100 training episodes, exploration included, succeed that often.

    Returns:
        `steps`, `train_s` (seconds of collecting and learning), `train_diverged` (transitions lost to non-finite
        physics since the run began) where there are any, and the last evaluation's metrics.

    Raises:
        ConfigError: nothing would be learned, the warm-up alone takes `total_steps`; fractions above a whole batch.
        CheckpointError: a resumed run finds as many frames no more. DataError, SpecError: see load_rollouts.
    """
    if warmup_steps >= total_steps:
        raise ConfigError(
            f"loop.warmup_steps={warmup_steps} leaves nothing of loop.total_steps={total_steps} to learn in. "
            "Lower the first or raise the second."
        )
    generator = torch.Generator().manual_seed(seed)
    online, collector = replay(num_envs=env.num_envs, spec=algo.policy.spec), OffPolicyCollector(algo, env)
    beside = [(demos, demo_fraction)] if demos is not None else []
    if rollouts and rollout_fraction > 0.0:
        beside.append((load_rollouts(rollouts, algo.policy), rollout_fraction))
    offline = [(online.of_episodes(e, obs=read_frames(e, algo.policy)), round(batch_size * f)) for e, f in beside if f]
    live = batch_size - sum(size for _, size in offline)  # of a batch
    if live < 0:
        raise ConfigError(
            f"loop.demo_fraction={demo_fraction} and loop.rollout_fraction={rollout_fraction} are more than a whole "
            f"batch of {batch_size}. Lower one of them."
        )
    recorded = [e.num_frames for e, _ in beside]
    state = checkpointer.latest()
    steps, update_debt, train_s, result, metrics, tally = 0, 0.0, 0.0, {}, {}, Tally()
    evaluated, saved, logged = -1, -1, 0  # env step at which that was done last
    best = -1.0  # `standing` of the best evaluation
    most = env.num_envs * max(1, env.spec.chunk)  # primitive steps that one more `env.step` may take
    kept: Obs | None = None
    if state is None:
        obs = env.reset()
    else:
        if state.get("recorded", recorded) != recorded:  # older checkpoints do not say
            raise CheckpointError(
                f"dataset, loop.rollouts: hold {recorded} frames, those that the run began with held "
                f"{state['recorded']}. Restore them, or give a new run_dir."
            )
        parts: dict[str, Any] = {"algo": algo, "env": env, "replay": online, "player": collector.executor}
        with refusing("checkpoint: state.json"):
            for name, part in parts.items():
                part.load_state_dict(state[name])
            tally.load_state_dict(state["tally"])
            generator.set_state(state["generator"])
            obs, steps, update_debt, train_s = (
                state["obs"],
                int(state["steps"]),
                float(state["owed"]),
                float(state["train_s"]),
            )
            kept = state.get("frame")
            result, metrics = dict(state["result"]), dict(state["metrics"])
            evaluated, saved, logged = int(state["evaluated"]), steps, int(state["logged"])
            best = float(state["best"])
        if not env.spec.resumable:  # the episodes of `obs` are gone: go on with new ones
            obs, kept = env.reset(), None
            online.interrupt()
            collector.executor.reset()

    # Saved too: encoded in another batch it differs in its last bits. Older checkpoints have none.
    frame = kept if kept is not None else algo.policy.replay_features(obs)

    def ready() -> bool:
        return steps >= warmup_steps and online.can_sample

    def batches(count: int) -> Iterator[Any]:
        sources = [(online, live), *offline]
        for first in range(0, count, DRAWN):
            many = min(DRAWN, count - first)
            yield from split_batches([r.sample(many * size, generator) for r, size in sources if size], many)

    def finished() -> bool:
        return steps + most > total_steps or solved(tally.recent, stop_success, steps, env)

    def snapshot() -> dict[str, Any]:
        return {
            "algo": algo.state_dict(), "env": env.state_dict(), "replay": online.state_dict(),
            "player": collector.executor.state_dict(), "tally": tally.state_dict(), "generator": generator.get_state(),
            "obs": obs, "frame": frame, "steps": steps, "owed": update_debt, "train_s": train_s, "result": result,
            "best": best, "metrics": {k: float(v) for k, v in metrics.items()}, "evaluated": evaluated,
            "logged": logged, "recorded": recorded,
        }  # fmt: skip

    with tracker.progress(total_steps, "off-policy") as progress:
        while True:
            last, better = finished(), False
            look = due(eval_every, evaluated, steps) or (last and evaluated < steps)
            if evaluate is not None and eval_every and look:
                result, evaluated = evaluate(algo.policy, steps), steps
                tracker.log({f"eval/{k}": v for k, v in result.items()}, steps)
                best, better = max(best, checkpoint_score(result)), checkpoint_score(result) >= best
            if due(save_every, max(saved, 0), steps) or (last and saved < steps) or better or checkpointer.requested:
                saved = steps
                checkpointer.save(steps, policy=algo.policy, state=snapshot(), best=better)
            if last:
                return {"steps": steps, "train_s": train_s, **tally.lost, **result}
            began, learning = time.perf_counter(), ready()

            step = collector.step(collector.next_action(frame, warmup=steps < warmup_steps))
            following = algo.policy.replay_features(step.next_obs)
            online.add(frame, step._replace(next_obs=following))
            collector.executor.reset(step.ended)
            obs, taken = step.obs, int(step.steps.sum())
            frame = collector.next_frame(step, following)
            steps += taken
            tally.add(step, steps=steps, env=env)

            if ready():
                if not learning:
                    for i, batch in enumerate(batches(critic_only_updates)):
                        algo.update(batch, learned_steps=None)
                        progress.update(steps, critic_only=i + 1)
                update_debt += updates_per_step * taken
                for batch in batches(int(update_debt)):
                    metrics = {**metrics, **algo.update(batch, learned_steps=steps - warmup_steps)}
                update_debt -= int(update_debt)
            train_s += time.perf_counter() - began

            progress.update(steps, success=tally.success, **tally.lost)
            if due(log_every, logged, steps) or finished():
                logged = steps
                release_memory()
                numbers = {**{k: float(v) for k, v in metrics.items()}, **tally.numbers()}
                numbers |= {"seconds": train_s, "steps_per_s": steps / train_s}
                tracker.log({f"train/{k}": v for k, v in numbers.items()}, steps)


class Tally:
    """What the log says of the envs: newest successes, divergences of the whole run, `info` since the last log."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=100)  # success of the newest training episodes
        self.diverged = 0  # transitions that were not valid
        self.decline = RegressionMonitor(
            "more to learn from before the policy may change (loop.warmup_steps, loop.critic_only_updates), smaller "
            "steps (algo.actor_lr), a residual that is let out later (algo.penalty, algo.penalty_steps), or "
            "demonstrations (dataset=)"
        )
        self.sums: Metrics = {}  # of `info`, mean over N, over the last `rounds` env steps
        self.rounds = 0

    def add(self, step: Step, *, steps: int, env: VecEnv) -> None:
        """steps: env steps so far, this one's among them."""
        ended = step.success[step.ended & step.valid].float().tolist()
        self.recent.extend(ended)
        self.decline.add(ended, steps=steps, env=env)
        self.diverged += int((~step.valid & (step.steps > 0)).sum())  # a step of no length is an env that reset
        self.sums = {k: self.sums.get(k, 0.0) + float(v.float().mean()) for k, v in step.info.items()}
        self.rounds += 1

    @property
    def success(self) -> float:
        return sum(self.recent) / max(1, len(self.recent))

    @property
    def lost(self) -> Metrics:
        """`train_diverged`, where there is something to worry about."""
        return {"train_diverged": self.diverged} if self.diverged else {}

    def numbers(self) -> Metrics:
        """What to log; `info` begins anew."""
        found = {k: v / self.rounds for k, v in self.sums.items()} | {"diverged": self.diverged}
        if len(self.recent) == self.recent.maxlen:  # the first to end are the short ones, which are successes
            found["success"] = self.success
        self.sums, self.rounds = {}, 0
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"recent": list(self.recent), "diverged": self.diverged, "sums": self.sums, "rounds": self.rounds,
                "decline": self.decline.state_dict()}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.recent = deque(state["recent"], maxlen=self.recent.maxlen)
        self.diverged, self.rounds, self.sums = state["diverged"], state["rounds"], dict(state["sums"])
        self.decline.load_state_dict(state["decline"])


def solved(recent: deque[float], wanted: float | None, steps: int, env: VecEnv) -> bool:
    """The newest training episodes, as many as are kept, succeed as often as `wanted`; never where that is None.

    Not before every env had time for two episodes: those that end first are the short ones, which are successes.
    """
    if wanted is None or len(recent) < (recent.maxlen or 0) or steps < 2 * env.num_envs * env.spec.horizon:
        return False
    return sum(recent) >= wanted * len(recent)


def checkpoint_score(result: Metrics) -> float:
    """What `best` is chosen by: the evaluation's `rank` where it gives one, or else its success rate."""
    return result["rank"] if "rank" in result else result["success_rate"]


def due(every: int, previous: int, steps: int) -> bool:
    """A multiple of `every` lies in (previous, steps]; never where `every` is 0."""
    return every > 0 and steps // every > previous // every


def split_batches[Rows: tuple[Any, ...]](parts: list[Rows], count: int) -> list[Rows]:
    """`count` batches, each with an equal share [B/count] of every part [B], in their order."""

    def mix(*values: Any) -> Any:
        if isinstance(values[0], Tensor):
            return torch.cat([v.unflatten(0, (count, len(v) // count)) for v in values], dim=1).unbind()
        mixed = {k: mix(*(obs[k] for obs in values)) for k in values[0]}
        return [{k: v[i] for k, v in mixed.items()} for i in range(count)]

    columns = [mix(*column) for column in zip(*parts, strict=True)]
    return [type(parts[0])(*row) for row in zip(*columns, strict=True)]
