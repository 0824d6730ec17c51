"""Build what the `train_*` functions share: envs, evaluation, gate, data and algorithm (policies: policy_builders)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robopolicy.config.instantiate import build, open_arguments, value_of
from robopolicy.config.schema import TARGET
from robopolicy.core.errors import ConfigError
from robopolicy.core.protocols import Shareable
from robopolicy.core.types import BASE_ACTION, VecEnv
from robopolicy.datasets.compatibility import check_same_data, check_same_world
from robopolicy.datasets.episodes import Episodes
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.remarks import evaluation_starts
from robopolicy.envs.grouped_env import GroupedEnv
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.policies.base import Policy
from robopolicy.training.base_critic import load_base_critic
from robopolicy.training.train_config import TrainConfig
from robopolicy.training.validation import Validation
from robopolicy.utils import ranks

_GATE_EVALUATIONS = 8  # number of evaluations by a gate, where `loop.eval_every` is not given


# --- envs ------------------------------------------------------------------------------------------------------------


def build_env(config: TrainConfig) -> VecEnv:
    """Build the env to learn in: the imagined one, or else the task's. Each rank builds its share of the N envs.

    Raises:
        ConfigError: neither is given, or ranks cannot share the envs. SpecError: the imagined env is of another task.
    """
    if config.world is not None:
        world = build(config.world, "world", num_envs=config.num_envs, seed=config.seed)
        if config.task is not None:
            task = build(config.task, "task", num_envs=1, seed=0)
            getattr(task, "close", lambda: None)()
            check_same_world(world.spec, task.spec)
        return world
    if config.task is None:
        raise config.missing("task", "Choose one: task=<name>.")
    return build(config.task, "task", num_envs=own_envs(config), seed=config.seed)


def own_envs(config: TrainConfig) -> int:
    """Return the number of envs of this rank; imitation only evaluates, and shares none.

    Raises:
        ConfigError: N envs, or their groups, cannot be shared equally.
    """
    n, k, size = config.num_envs, ranks.count() if config.loop[TARGET] != "offline" else 1, config.group_size or 1
    if k > 1 and n % (k * size):
        fits = [str(c) for c in range(2, n + 1) if not n % (c * size)]
        whole = -(-n // (k * size)) * k * size
        groups = f" in groups of group_size={size}" if size > 1 else ""
        raise ConfigError(
            f"num_envs={n}: {k} ranks cannot share so many envs{groups} equally. Set num_envs={whole}"
            + (f", or start {' or '.join(fits)} ranks." if fits else ".")
        )
    return n // k


def required_env(config: TrainConfig, env: VecEnv | None) -> VecEnv:
    return build_env(config) if env is None else env  # without task and world this says which key is missing


def wrap_env(config: TrainConfig, env: VecEnv, policy: Policy, teacher: Policy | None) -> VecEnv:
    """Wrap `env` for the policy: groups, history, and the base's action where there is a base."""
    grouped = GroupedEnv(env, config.group_size, seed=config.seed) if config.group_size else env
    if ranks.count() > 1:
        if not isinstance(grouped, Shareable):
            raise ConfigError(
                f"task={env.spec.id}: its episodes cannot be shared by ranks; the native tasks' can. Train it in one "
                "process, without torchrun."
            )
        grouped.share_episodes()
    return wrap_for(policy, grouped, teacher=teacher)


def build_evaluation(config: TrainConfig) -> Validation | None:
    """Build the evaluation on the validation episodes; None without a task."""
    if config.task is None or config.validation_episodes < 1:
        return None
    return Validation(config.task, episodes=config.validation_episodes, run_dir=config.run_dir)


def build_gate(config: TrainConfig, *, algo: Any, env: VecEnv, evaluation: Validation | None) -> tuple[Any, int]:
    """Build the gate of an imagined env, which replaces the evaluation, and its interval in env steps.

    The true task is evaluated only where `loop.eval_every` is given, and its result is only logged.

    Returns:
        The gate, or `evaluation` itself where `env` has none, and `loop.eval_every`.
    """
    every = value_of(config.loop, "loop", "eval_every") or 0
    node = getattr(env, "gate", None) if {"env", "evaluate"} <= open_arguments(config.loop, "loop") else None
    if node is None:
        return evaluation, every
    truth = evaluation if every > 0 else None
    gate = build(node, "gate", "world.gate", algo=algo, env=env, truth=truth, run_dir=config.run_dir)
    return gate, every if every > 0 else max(1, config.loop_steps // _GATE_EVALUATIONS)


# --- data ------------------------------------------------------------------------------------------------------------


def load_demonstrations(config: TrainConfig, base: Policy | None) -> Episodes | None:
    """Load `dataset=`, checked against the base policy; None where no dataset is given."""
    if config.dataset is None:
        return None
    if base is None or config.base is None:
        episodes = load_episodes(config.dataset, cameras=config.cameras, incomplete=config.incomplete)
        return _announced(episodes, config.dataset)
    needed = {k: v for k, v in base.spec.observation.items() if k != BASE_ACTION}
    episodes = load_episodes(config.dataset, needed=needed, incomplete=config.incomplete)
    check_same_data(base.spec, episodes, base=config.base, dataset=config.dataset)
    return _announced(episodes, config.dataset)


def _announced(episodes: Episodes, dataset: Path) -> Episodes:
    if (said := evaluation_starts(episodes, f"dataset={dataset}")) and not ranks.rank():
        print(said)
    return episodes


def required(config: TrainConfig, demonstrations: Episodes | None) -> Episodes:
    """Return the demonstrations, or raise ConfigError where there are none."""
    if demonstrations is None:
        raise config.missing("dataset", "Give dataset=<path>; `robopolicy demos` records one.")
    return demonstrations


def reads_dataset(config: TrainConfig) -> bool:
    """Return whether policy or algorithm need the dataset, beside the loop."""
    algo, policy = open_arguments(config.algo_node, "algo"), open_arguments(config.policy_node, "policy")
    return config.base is None or not policy.isdisjoint({"normalizer", "episodes"}) or "episodes" in algo


# --- algorithm --------------------------------------------------------------------------------------------------------


def build_algorithm(
    config: TrainConfig,
    policy: Policy,
    *,
    demonstrations: Episodes | None,
    teacher: Policy | None = None,
    resumed: bool = False,
) -> Any:
    """Build the algorithm around `policy`.

    An algorithm's constructor receives those of these keyword arguments that it names and its config does not set:
        policy: the policy to train. base: the frozen policy underneath, None where there is none.
        episodes: the dataset; naming it makes `dataset=` required. demos: the dataset, or None.
        teacher: the policy of `teacher=`; naming it makes that key required.
        group_size: envs that start in the same state; naming it makes that key required.
        steps: length of the loop, in updates (offline) or env steps. seed, device: those of the run.
        anchor: weight of the KL to the base, 0.01 in an imagined env and else 0; where its default there is None.

    Args:
        resumed: the run continues from its own checkpoint, so the base's critic is not loaded.
    """
    node = config.algo_node
    names = open_arguments(node, "algo")
    if value_of(node, "algo", "anchor") is not None:
        names -= {"anchor"}  # it has a meaning and a default of its own
    available: dict[str, Any] = {
        "policy": policy, "base": policy.base, "demos": demonstrations, "steps": config.loop_steps,
        "seed": config.seed, "device": config.torch_device, "anchor": config.anchor,
    }  # fmt: skip
    if "teacher" in names:
        if teacher is None:
            raise config.missing("teacher", "Give teacher=<run directory> of a trained policy.", "this algo")
        available["teacher"] = teacher
    if "episodes" in names:
        available["episodes"] = required(config, demonstrations)
    if "group_size" in names:
        if config.group_size is None:
            raise ConfigError("group_size: is needed by this algo: how many envs start in the same state, e.g. 8")
        available["group_size"] = config.group_size
    algo = build(node, "algo", **{name: value for name, value in available.items() if name in names})
    if config.base_critic and not resumed:
        load_base_critic(config.base, algo)
    return algo
