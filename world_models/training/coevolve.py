"""Improve a policy and its world model in turns: imagine, roll out for real, refit the model, repeat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from robopolicy.config.schema import TARGET, Count, Fraction
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import Metrics
from robopolicy.core.untrusted import refusing
from robopolicy.policies.residual import ZERO_ACTION
from robopolicy.runs.checkpointer import Checkpointer, load_policy
from robopolicy.utils.atomic import write_atomically
from robopolicy.world_models.envs.starts import run_of
from robopolicy.world_models.training.round_runner import RoundRunner, finetunes_policy, learns_off_policy


def coevolve(
    *,
    rounds: Count,
    run_dir: Path,
    config: dict[str, Any] | None,
    episodes: Count = 12,
    real_steps: Count = 5_000,
    refit_steps: Count = 2_000,
    share: Fraction = 0.25,
    starts: Count = 100,
    patience: Count = 1,
) -> Metrics:
    """Run `rounds` of co-evolution, continuing after the newest finished one.

    A finetuned policy continues from the policy kept last. An off-policy learner starts again in each round, with all
    rollouts in its batches (`loop.rollout_fraction`); it is dropped where real success is significantly lower.

    A round's policy is kept where its gate accepted an update and real success does not contradict the imagined one.
    Without a gate, the model must not significantly prefer the earlier policy. Rounds end where the refitted model
    and real success still differ beyond their intervals for `patience` rounds in a row.

    Args:
        config: of the whole command; `world` is imagined in, `task` is the real env.
        episodes: real rollouts of a round's policy. real_steps: most primitive env steps of all rounds together.
        refit_steps: updates of the model in a round, from its weights. share: fraction of its batches from rollouts.
        starts: held-out starts from which the gap is measured.
        patience: rounds in a row with a significant gap after which the rounds end. A model of little data is wrong
            at first, and real failures improve it.

    Returns:
        Of the last round: imagined and real success and their gap; number of rounds and of real steps.

    Raises:
        ConfigError: no task, or a policy that can neither continue from the one before nor learn from rollouts.
    """
    config = _checked(config)
    checkpointer = Checkpointer(run_dir, keep=int(config.get("keep_checkpoints", 2)))
    state = checkpointer.latest() or {"records": [], "policy": "", "model": ""}
    with refusing("checkpoint: state.json"):
        records = [dict(record) for record in state["records"]]
        state = {**state, "records": records, "policy": str(state["policy"]), "model": str(state["model"])}
    runner = RoundRunner(run_dir, config, episodes, real_steps, refit_steps, share, starts, patience)
    while (reason := runner.over(state, rounds)) == "":
        state = runner.round(state)
        kept = state["records"][-1]["kept"]
        policy = load_policy(runner.policy(state))
        write_atomically(run_dir / "spec.json", policy.spec.to_json() + "\n")
        write_atomically(run_dir / "rounds.json", json.dumps(state["records"], indent=1) + "\n")
        checkpointer.save(len(state["records"]), policy=policy, state=state, best=kept)
    print(f"rounds: {reason}")
    last = state["records"][-1]
    return {
        "rounds": len(state["records"]), "real_steps": last["real_steps_total"], "gap": last["gap"],
        "imagined_success": last["imagined"][0], "success_rate": last["true"][0],
    }  # fmt: skip


def _checked(config: dict[str, Any] | None) -> dict[str, Any]:
    """Return `config`, or raise ConfigError where rounds cannot run with it."""
    if config is None:
        raise ConfigError("rounds: got no config, expected that of `robopolicy train`")
    if config.get("task") is None:
        raise ConfigError("task: got null, and each round has real rollouts. Add task=<name>.")
    if not (finetunes_policy(config) or learns_off_policy(config)) or config.get("base") in (None, ZERO_ACTION):
        found = {k: (config.get(k) or {}).get(TARGET) for k in ("policy", "loop")}
        raise ConfigError(
            "rounds: each goes on from the policy of the one before, as policy=finetuned does on base=<run directory> "
            "(algo=dppo, ppo, policy_flow), or learns off-policy on top of such a base from all rollouts so far "
            f"(algo=residual); found policy {found['policy']!r}, loop {found['loop']!r}, "
            f"base={config.get('base')}."
        )
    _check_fractions(config)
    if run_of(Path(config["world"]["model"] or "")) is None:
        raise ConfigError(f"world.model={config['world']['model']}: is not in a run, so its training config is unknown")
    if config["world"].get("starts") is not None:
        raise ConfigError("world.starts: rounds start episodes from the model's own data. Leave it away.")
    return config


def _check_fractions(config: dict[str, Any]) -> None:
    """Raise ConfigError for batch fractions above 1, which the first round would not show."""
    loop = config.get("loop") or {}
    if not learns_off_policy(config) or config.get("dataset") is None:
        return
    demos, rollouts = float(loop.get("demo_fraction", 0.5)), float(loop.get("rollout_fraction", 0.25))
    if demos + rollouts > 1.0:
        raise ConfigError(
            f"loop.demo_fraction={demos:g} and loop.rollout_fraction={rollouts:g} are more than a whole batch, from "
            "the second round on. Lower one of them."
        )
