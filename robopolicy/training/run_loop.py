"""Call a training loop with everything that was built for it."""

from __future__ import annotations

from typing import Any

from robopolicy.config.instantiate import build, open_arguments
from robopolicy.core.types import Metrics
from robopolicy.policies.base import Policy
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.runs.run_dir import read_config
from robopolicy.training.train_config import TrainConfig
from robopolicy.utils.atomic import write_atomically


def run_loop(
    config: TrainConfig,
    checkpointer: Checkpointer,
    *,
    policy: Policy | None = None,
    eval_every: int | None = None,
    evaluate: Any = None,
    **arguments: Any,
) -> Metrics:
    """Open the tracker and call the loop, which may be stopped by a signal.

    Args:
        policy: the policy to train, whose spec is written into the run directory; None for world models.
        eval_every: replaces `loop.eval_every`; None: leave it.
        evaluate: of policy and step; a gate also saves its state in the checkpoints.
        **arguments: of the loop. It receives those that it names, and `seed`, `device`, `evaluate`, `tracker` and
            `checkpointer`.
    """
    gated = evaluate.keeping(checkpointer) if hasattr(evaluate, "keeping") else None
    if policy is not None:
        write_atomically(config.run_dir / "spec.json", policy.spec.to_json() + "\n")
    tracker = build(config.tracker, "tracker", run_dir=config.run_dir, config=read_config(config.run_dir))
    tracker.rewind(checkpointer.step)
    available = {
        **arguments, "evaluate": evaluate, "seed": config.seed, "device": config.torch_device, "tracker": tracker,
        "checkpointer": gated or checkpointer,
    }  # fmt: skip
    names = open_arguments(config.loop, "loop")
    loop = {**config.loop, "eval_every": eval_every} if gated else config.loop
    try:
        with checkpointer.interruptible():
            result = build(loop, "loop", **{name: value for name, value in available.items() if name in names})
            if gated:
                gated.finish()
    finally:
        tracker.close()
    return result
