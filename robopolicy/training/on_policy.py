"""On-policy training: collect → returns → update → log → checkpoint → evaluate."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from robopolicy.buffers.rollout_collector import Explorer, Rollout, RolloutCollector
from robopolicy.config.schema import Count, Fraction, Natural
from robopolicy.core.errors import ConfigError
from robopolicy.core.protocols import Checkpoints
from robopolicy.core.types import Metrics, VecEnv
from robopolicy.core.untrusted import refusing
from robopolicy.training.off_policy import checkpoint_score, due, solved
from robopolicy.training.regression_monitor import RegressionMonitor
from robopolicy.utils.malloc import release_memory


class OnPolicy(Explorer, Protocol):
    """An algorithm that learns from one rollout at a time, the policy not from the first `critic_warmup` of them."""

    @property
    def critic_warmup(self) -> int: ...

    def returns(self, rollout: Rollout) -> Any:
        """Everything about a rollout that does not depend on the weights that `update` changes."""
        ...

    def update(self, batch: Any, *, progress: float) -> Metrics:
        """Learn from what `returns` gave; `progress`: share of the training that is done, for schedules."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def on_policy(
    *,
    algo: OnPolicy,
    env: VecEnv,
    tracker: Any,
    checkpointer: Checkpoints,
    evaluate: Callable[[Any, int], Metrics] | None,
    total_steps: Count,
    rollout_steps: Count | None,
    eval_every: Natural = 0,
    save_every: Natural = 0,
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

    Returns:
        `steps`, `train_s` (seconds of collecting and learning) and the last evaluation's metrics.

    Raises:
        ConfigError: not even one rollout fits into `total_steps`, or none that the policy learns from.
    """
    rollout_steps = rollout_steps or env.spec.horizon
    per_rollout = env.num_envs * rollout_steps
    iterations = total_steps // per_rollout
    if not iterations:
        raise ConfigError(
            f"total_steps={total_steps} is less than one rollout of num_envs={env.num_envs} × "
            f"rollout_steps={rollout_steps} = {per_rollout} primitive steps. Raise loop.total_steps, or lower "
            "num_envs or loop.rollout_steps."
        )
    if iterations <= algo.critic_warmup:
        raise ConfigError(
            f"total_steps={total_steps} makes {iterations} rollouts of {per_rollout} primitive steps, and from the "
            f"first algo.critic_warmup={algo.critic_warmup} the critic alone learns: the policy would stay as it is. "
            "Raise loop.total_steps, or lower one of the others."
        )
    collector = RolloutCollector(algo, env)
    state = checkpointer.latest()
    done, steps, train_s, result = 0, 0, 0.0, {}
    evaluated, saved = -1, 0  # env step at which that was done last
    best = -1.0  # `standing` of the best evaluation
    recent: deque[float] = deque(maxlen=100)  # success of the newest training episodes
    decline = RegressionMonitor(
        "smaller steps (algo.actor_lr, algo.target_kl), or larger rollouts (loop.rollout_steps)"
    )
    if state is None:
        collector.reset()
    else:
        with refusing("checkpoint: state.json"):
            algo.load_state_dict(state["algo"])
            collector.load_state_dict(state["collector"])
            done, steps, train_s = int(state["done"]), int(state["steps"]), float(state["train_s"])
            evaluated, saved, recent = int(state["evaluated"]), steps, deque(map(float, state["recent"]), maxlen=100)
            best, result = float(state["best"]), dict(state["result"])
            decline.load_state_dict(state["decline"])

    def snapshot() -> dict[str, Any]:
        return {
            "algo": algo.state_dict(), "collector": collector.state_dict(), "done": done, "steps": steps,
            "train_s": train_s, "result": result, "evaluated": evaluated, "recent": list(recent), "best": best,
            "decline": decline.state_dict(),
        }  # fmt: skip

    with tracker.progress(total_steps, "on-policy") as progress:
        while True:
            last, better = done == iterations or solved(recent, stop_success, steps, env), False
            look = due(eval_every, evaluated, steps) or (last and evaluated < steps)
            if evaluate is not None and eval_every and look:
                result, evaluated = evaluate(algo.policy, steps), steps
                tracker.log({f"eval/{k}": v for k, v in result.items()}, steps)
                best, better = max(best, checkpoint_score(result)), checkpoint_score(result) >= best
            if due(save_every, saved, steps) or last or better or checkpointer.requested:
                saved = steps
                checkpointer.save(steps, policy=algo.policy, state=snapshot(), best=better)
            if last:
                return {"steps": steps, "train_s": train_s, **result}

            clock = [time.perf_counter()]
            rollout = collector.collect(rollout_steps)
            clock.append(time.perf_counter())
            batch = algo.returns(rollout)
            clock.append(time.perf_counter())
            metrics = algo.update(batch, progress=done / iterations)
            clock.append(time.perf_counter())
            done, steps, train_s = done + 1, steps + rollout.steps, train_s + clock[-1] - clock[0]

            recent.extend(rollout.success)
            decline.add(rollout.success, steps=steps, env=env)
            progress.update(steps, success=sum(recent) / max(1, len(recent)))
            numbers = {f"train/{k}": v for k, v in (metrics | rollout.info).items()}
            if len(recent) == recent.maxlen:  # the first to end are the short ones, which are successes
                numbers["train/success"] = sum(recent) / len(recent)
            parts = zip(("collect", "returns", "update"), clock, clock[1:], strict=False)
            numbers |= {f"train/{name}_s": end - begin for name, begin, end in parts}
            tracker.log({**numbers, "train/seconds": train_s, "train/steps_per_s": steps / train_s}, steps)
            release_memory()
