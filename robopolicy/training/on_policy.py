"""On-policy training: collect → returns → update → log → evaluate and save."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from robopolicy.buffers.collector import Explorer, Rollout, RolloutCollector
from robopolicy.config.schema import Count, Fraction, Natural
from robopolicy.core.errors import ConfigError
from robopolicy.core.protocols import Checkpoints, LogsMetrics, lost_episodes
from robopolicy.core.types import Metrics, Stateful, VecEnv
from robopolicy.core.untrusted import refusing
from robopolicy.training.contract import check_algorithm
from robopolicy.training.loop_state import RECENT, Evaluate, LoopState, evaluate_and_save, solved
from robopolicy.training.ranked import join_rows, own_rows
from robopolicy.utils import ranks
from robopolicy.utils.malloc import release_memory


class OnPolicy(Explorer, Stateful, Protocol):
    """An algorithm that learns from one rollout at a time; for `critic_warmup` rollouts only the critic learns."""

    @property
    def critic_warmup(self) -> int: ...

    def returns(self, rollout: Rollout) -> Any:
        """Compute everything of a rollout that does not depend on the weights that `update` changes."""
        ...

    def update(self, batch: Any, *, progress: float) -> Metrics:
        """Learn from the result of `returns`.

        Args:
            progress: share of the training that is done, for schedules.
        """
        ...


def on_policy(
    *,
    algo: OnPolicy,
    env: VecEnv,
    tracker: LogsMetrics,
    checkpointer: Checkpoints,
    evaluate: Evaluate | None,
    total_steps: Count,
    rollout_steps: Count | None,
    eval_every: Natural = 0,
    save_every: Natural = 100_000,
    stop_success: Fraction | None = None,
) -> Metrics:
    """Train `algo` for at most `total_steps` primitive env steps over all N envs.

    Args:
        env: emits [N To ...] and takes primitive actions: HistoryEnv(env).
        rollout_steps: T primitive steps of every env per iteration, of which ⌊total_steps / (N·T)⌋ are made; None: the
            env's horizon.
        evaluate: called with policy and step every `eval_every` env steps and at the end, never where that is 0;
            not counted as training.
        stop_success: end early once the newest 100 training episodes, exploration included, succeed that often.
        total_steps: primitive env steps over all envs, at most. eval_every: env steps between evaluations; 0: none.
        save_every: env steps between checkpoints.

    Returns:
        `steps`, `train_s` (seconds of collecting and learning) and the last evaluation's metrics.

    Raises:
        ConfigError: `total_steps` holds no rollout, or none that the policy learns from.
    """
    check_algorithm(algo, OnPolicy, "on_policy")
    rollout_steps = rollout_steps or env.spec.horizon
    iterations = _iterations(algo, env, total_steps, rollout_steps)
    state = OnPolicyState(algo=algo, collector=RolloutCollector(algo, env))
    state.begin(checkpointer.latest())
    with tracker.progress(total_steps, "on-policy") as progress:
        while True:
            last = state.done == iterations or solved(state.recent, stop_success, state.steps, env)
            evaluate_and_save(
                state, algo.policy, evaluate=evaluate, tracker=tracker, checkpointer=checkpointer,
                eval_every=eval_every, save_every=save_every, last=last,
            )  # fmt: skip
            if last:
                return {"steps": state.steps, "train_s": state.train_s, **state.result}
            clock = [time.perf_counter()]
            rollout = count_over_ranks(state.collector.collect(rollout_steps))
            clock.append(time.perf_counter())
            batch = algo.returns(rollout)
            clock.append(time.perf_counter())
            metrics = algo.update(batch, progress=state.done / iterations)
            clock.append(time.perf_counter())
            state.add(rollout, seconds=clock[-1] - clock[0])
            progress.update(state.steps, **state.success)
            log(state, tracker, metrics | rollout.info, clock)


@dataclass(kw_only=True)
class OnPolicyState(LoopState):
    """Everything that a resumed run needs to continue bit for bit."""

    advice = "smaller steps (algo.actor_lr, algo.target_kl), or larger rollouts (loop.rollout_steps)"
    algo: OnPolicy
    collector: RolloutCollector
    done: int = 0  # rollouts

    def begin(self, saved: dict[str, Any] | None) -> None:
        """Continue from a checkpoint; None: start new episodes."""
        if saved is None:
            self.collector.reset()
        else:
            self.load_state_dict(saved)

    def add(self, rollout: Rollout, *, seconds: float) -> None:
        """Account for a rollout that was learned from, and for the seconds that it took."""
        self.done, self.steps, self.train_s = self.done + 1, self.steps + rollout.steps, self.train_s + seconds
        self.add_episodes(rollout.success, rollout.elapsed, self.collector.env)

    def state_dict(self) -> dict[str, Any]:
        collector = join_rows(self.collector.state_dict(), self.collector.env.num_envs)
        return {
            **super().state_dict(), "algo": self.algo.state_dict(), "collector": collector,
            "done": self.done, "recent": list(self.recent), "decline": self.monitor.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with refusing("checkpoint: state.json"):
            self.algo.load_state_dict(state["algo"])
            if not self.collector.env.spec.resumable:  # the collector starts new episodes
                getattr(self.algo, "interrupt", lambda: None)()
            self.collector.load_state_dict(own_rows(state["collector"], self.collector.env.num_envs))
            super().load_state_dict(state)
            self.done, self.recent = int(state["done"]), deque(map(float, state["recent"]), maxlen=RECENT)
            self.monitor.load_state_dict(state["decline"])


def count_over_ranks(rollout: Rollout) -> Rollout:
    """Replace episodes, steps and info of a rollout by those of all ranks, in the order of one rank with all envs."""
    if ranks.count() == 1:
        return rollout
    ended = list(zip(rollout.ended_at, rollout.success, rollout.elapsed, strict=True))
    episodes = sorted((episode for part in ranks.gather(ended) for episode in part), key=lambda episode: episode[0])
    success, elapsed = [episode[1] for episode in episodes], [episode[2] for episode in episodes]
    steps = int(ranks.total(torch.tensor(rollout.steps)))
    values = ranks.total(torch.tensor(list(rollout.info.values()), dtype=torch.float64)) / ranks.count()
    info = dict(zip(rollout.info, values.tolist(), strict=True))
    return rollout._replace(success=success, elapsed=elapsed, steps=steps, info=info)


def log(state: OnPolicyState, tracker: LogsMetrics, metrics: Metrics, clock: list[float]) -> None:
    """Log the metrics of a rollout, its seconds by part, and the speed.

    Args:
        clock: seconds at the beginning, and after collecting, returns and update.
    """
    numbers = {f"train/{k}": v for k, v in metrics.items()}
    numbers |= {f"train/{k}": v for k, v in state.success.items()}
    parts = zip(("collect", "returns", "update"), clock, clock[1:], strict=False)
    numbers |= {f"train/{name}_s": end - begin for name, begin, end in parts}
    speed = {"train/seconds": state.train_s, "train/steps_per_s": state.steps / state.train_s}
    if lost := lost_episodes(state.collector.env):
        numbers["train/lost_episodes"] = lost
    tracker.log({**numbers, **speed}, state.steps)
    release_memory()


def _iterations(algo: OnPolicy, env: VecEnv, total_steps: int, rollout_steps: int) -> int:
    """Return how many rollouts fit into `total_steps`."""
    num_envs = env.num_envs * ranks.count()
    per_rollout = num_envs * rollout_steps
    iterations = total_steps // per_rollout
    if not iterations:
        raise ConfigError(
            f"total_steps={total_steps} is less than one rollout of num_envs={num_envs} × "
            f"rollout_steps={rollout_steps} = {per_rollout} primitive steps. Raise loop.total_steps, or lower "
            "num_envs or loop.rollout_steps."
        )
    if iterations <= algo.critic_warmup:
        raise ConfigError(
            f"total_steps={total_steps} makes {iterations} rollouts of {per_rollout} primitive steps, and from the "
            f"first algo.critic_warmup={algo.critic_warmup} the critic alone learns: the policy would stay as it is. "
            "Raise loop.total_steps, or lower one of the others."
        )
    return iterations
