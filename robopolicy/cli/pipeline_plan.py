"""Plan `robopolicy pipeline`: the stages of all rounds in order, and checks of all arguments before the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from robopolicy.cli.pipeline_gate import PipelineGate
from robopolicy.cli.pipeline_names import split_keys
from robopolicy.cli.pipeline_stages import Flow
from robopolicy.cli.refine import own_dataset
from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import check_paths, compose
from robopolicy.config.instantiate import build
from robopolicy.config.registry import resolve
from robopolicy.config.schema import TARGET
from robopolicy.core.errors import ConfigError, SpecError, UsageError
from robopolicy.core.types import FixedStarts, VecEnv
from robopolicy.evaluation.gate_checks import FEWEST, check_level
from robopolicy.evaluation.policy_ref import PolicyRef, task_of
from robopolicy.policies.factory import build_policy
from robopolicy.runs.checkpointer import load_policy
from robopolicy.training.offline_rl import check_updates

Stage = Literal["imitate", "collect", "offline", "online", "one_step", "compare"]
STAGES: dict[str, str] = {  # in order
    "demos": "the expert of the task demonstrates it",
    "imitate": "a policy learns from the demonstrations",
    "collect": "the policy acts, and its episodes are recorded, failures too",
    "model": "a world model learns from these episodes, and the gate judges in it",
    "offline": "a copy of the policy learns from these episodes, and a gate decides whether it is kept",
    "online": "reinforcement learning on top of the frozen policy, from success alone",
    "one_step": "a policy of one network call learns from the refined one",
    "compare": "every policy on the same unseen episodes",
}
_AGAIN = {  # in order, of each further round
    "collect": "the policy that is accepted acts, and its episodes are recorded too",
    "model": "a world model learns from all episodes, and the gate judges in it",
    "imitate": "a new policy learns from the demonstrations and all successes; a gate decides whether it is kept",
    "offline": "a copy of the accepted policy learns from all recorded episodes, and a gate decides again",
}
_ALGOS = {"imitate": "bc", "model": "world_model", "offline": "offline", "online": "residual", "one_step": "distill"}


class PlannedStage(NamedTuple):
    """A stage of a round, from 1 on; the other stages are of round 1."""

    stage: str
    round: int
    about: str


def plan(stages: Sequence[str], rounds: int, *, demos: bool, base: bool, model: bool) -> Iterator[PlannedStage]:
    """Yield the chosen stages in order; stages before `online` belong to rounds, and a base needs no imitation.

    Args:
        demos: the expert demonstrates first. base: there is a policy to begin with. model: the gate asks a world model.
    """
    chosen = {*stages, *(("demos",) if demos else ())} - ({"imitate"} if base else set())
    judged = {"model"} if model else set()  # in the first round only `offline` is
    names = list(STAGES)
    first, last = names[: names.index("online")], names[names.index("online") :]
    once = chosen | (judged if "offline" in chosen else set())
    yield from (PlannedStage(name, 1, STAGES[name]) for name in first if name in once)
    yield from (PlannedStage(name, n, f"round {n}: {about}") for n in range(2, rounds + 1)
                for name, about in _AGAIN.items() if name in chosen | judged)  # fmt: skip
    yield from (PlannedStage(name, 1, STAGES[name]) for name in last if name in chosen)


def begin(
    out: Path, base: Path | None, dataset: Path | None, task: dict[str, Any] | None, stages: Sequence[str],
    more: dict[str, dict[str, Any]], *, rollouts: int, rounds: int, demos: int | None, gate: PipelineGate,
) -> Flow:  # fmt: skip
    """Check the arguments of all stages, and return the stages, ready to run.

    Raises:
        ConfigError: nothing to begin with, stages that do not fit together, or too few rollouts for the gate.
        DataError, CheckpointError: the dataset or the base does not exist. UsageError: a key that a stage lacks.
    """
    check_level(gate.level)
    if gate.estimator == "fitted_q" and more.get("model"):
        raise ConfigError(
            f"model: {sorted(more['model'])} have no effect with gate=fitted_q, which learns no world model."
        )
    offline = _check_keys(out, more)  # a typo is refused before a missing dataset, and before hours of work
    gate.held_out = float(offline["loop"].get("held_out") or 0.0)
    check_paths({"base": base and str(base), "dataset": dataset and str(dataset)})
    _check_stages(base, dataset, task, stages, rounds=rounds, demos=demos)
    if "offline" in stages or rounds > 1:
        _check_rollouts(rollouts, gate.held_out)
    if "offline" in stages:
        _check_offline(base, offline)
    node = task
    if base is not None:
        ref = PolicyRef.of(base, "latest", out / "look")
        node, dataset = task_of(task, ref), dataset or own_dataset(ref)
    assert node is not None
    if {"collect", "online", "one_step"} & set(stages) or demos is not None:
        _check_starts(node)
    flow = Flow(out, node, dataset, more, gate)
    if base is not None:
        flow.policies["base"], flow.accepted = base, "base"
    return flow


def _check_starts(task: dict[str, Any]) -> None:
    """Refuse a task with a fixed list of starts: all of them are its test, and stages would learn from them."""
    env: VecEnv = build(task, "task", num_envs=1, seed=0)
    if isinstance(env, FixedStarts):
        raise ConfigError(
            f"task: the {env.fixed_starts} starts of {env.spec.id} are all its test, and demos, collect, online and "
            "one_step would learn on them. Leave these stages out."
        )
    if (close := getattr(env, "close", None)) is not None:
        close()


def _check_keys(out: Path, more: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Compose the config of every training with its further keys; return that of `offline`."""
    configs = dict[str, dict[str, Any]]()
    for name, keys in more.items():
        words, settings = split_keys(keys)
        given = {**settings, "run_dir": out / name}
        try:
            configs[name] = compose(find_verb("train"), [f"algo={_ALGOS[name]}", *words], settings=given)
        except UsageError as error:
            raise UsageError(f"stage {name}: {error}") from None
    return configs["offline"]


def _check_offline(base: Path | None, config: dict[str, Any]) -> None:
    """Refuse a budget without updates of the policy, and a base that offline RL cannot fine-tune."""
    loop, policy = config["loop"], config["policy"]
    try:
        if loop[TARGET] == "offline_rl":
            check_updates(loop["steps"], loop["critic_only_updates"])
        if base is not None and policy[TARGET] == "finetuned":
            built = build_policy(policy, base=load_policy(base))
            getattr(resolve(config["algo"], "algo"), "check_policy", lambda policy: None)(built)
    except (ConfigError, SpecError) as error:
        raise ConfigError(f"stage offline: {error}\nOr leave it out: stages=[…] without offline.") from None


def _check_stages(
    base: Path | None, dataset: Path | None, task: dict[str, Any] | None, stages: Sequence[str], *, rounds: int,
    demos: int | None,
) -> None:  # fmt: skip
    if demos is not None and (base is not None or dataset is not None):
        raise ConfigError(
            f"demos={demos}: demonstrations are recorded only where nothing else is given to begin with, and there is "
            f"base={base}, dataset={dataset}. Remove demos, or these."
        )
    if base is None and ((dataset is None and demos is None) or "imitate" not in stages):
        raise ConfigError(
            f"base: there is no policy to begin with: base=None, dataset={dataset}, stages={list(stages)}. Give "
            "base=<run directory>, or dataset=<demonstrations> or demos=<number> with the stage imitate."
        )
    if base is None and task is None:
        raise ConfigError("task: is needed to begin with demonstrations. Choose one: task=<name>.")
    if "offline" in stages and "collect" not in stages:
        raise ConfigError("stages: `offline` learns from the episodes of `collect`. Add collect, or remove offline.")
    learns = "offline" in stages or ("imitate" in stages and base is None)
    if rounds > 1 and not ("collect" in stages and learns):
        raise ConfigError(
            f"rounds={rounds}: a further round records episodes and learns from them, found stages={list(stages)}. Add "
            "collect, and offline or imitate; with a base `imitate` is left out."
        )


def _check_rollouts(rollouts: int, held_out: float) -> None:
    """Refuse too few episodes for the gate; the held-out ones are drawn, so half as many again are asked for."""
    found, least = rollouts * held_out, 1.5 * FEWEST
    if found < least:
        raise ConfigError(
            f"rollouts={rollouts}: about {found:.0f} of these episodes are held out for the gate, expected {least:.0f} "
            "or more. Raise rollouts or offline.loop.held_out, or leave the stage offline out."
        )
