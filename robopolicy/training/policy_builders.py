"""Build the policies of a training: base, teacher, and the policy to train."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from robopolicy.config.instantiate import open_arguments, takes
from robopolicy.config.registry import resolve
from robopolicy.config.schema import TARGET, signature
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.specs import PolicySpec, check_fits, with_cameras
from robopolicy.core.types import BASE_ACTION, POINTS, RENDERED, TASK, EnvSpec, VecEnv
from robopolicy.datasets.compatibility import check_same_spec, check_same_statistics
from robopolicy.datasets.episodes import Episodes
from robopolicy.policies.base import Policy
from robopolicy.policies.factory import build_policy
from robopolicy.policies.finetuning import resampled
from robopolicy.policies.normalizer import Normalizer
from robopolicy.policies.residual import ZERO_ACTION, ZERO_ACTION_NODE
from robopolicy.runs.checkpointer import load_policy
from robopolicy.training.builders import required, required_env
from robopolicy.training.train_config import TrainConfig
from robopolicy.utils.storage import load_weights, read_tensors

_log = logging.getLogger(__name__)


def load_base(config: TrainConfig, env: VecEnv | None, resumed: Path | None) -> Policy | None:
    """Load the frozen policy underneath. Later changes of `base=` are ignored on resume.

    Args:
        resumed: newest checkpoint of the run, which holds a copy of the base; None: the run begins.

    Raises:
        ConfigError: a base is needed and not given, or a base or a teacher is given that nothing would use.
    """
    if not resumed:
        _check_used(config)
    if config.base is None:
        if "base" in open_arguments(config.policy_node, "policy"):
            fix = f"Give base=<run directory> of a trained policy, or base={ZERO_ACTION} to learn from scratch."
            raise config.missing("base", fix, config.policy_node[TARGET])
        return None
    if config.base == Path(ZERO_ACTION):
        spec = _available_spec(config, required_env(config, env).spec)
        return build_policy(ZERO_ACTION_NODE, "base", spec=spec).to(config.torch_device)
    path = config.base
    if resumed:  # A fine-tuned policy has no base any more: it continues from its own weights.
        path = resumed / "policy"
        path = path / "base" if (path / "base").is_dir() else path
    with _naming("base", config.base, env):
        return load_policy(path, device=config.torch_device, env=None if env is None else env.spec)


def _check_used(config: TrainConfig) -> None:
    """Raise ConfigError for a base that neither policy nor algorithm takes, and for a teacher without a pupil."""
    policy, algo = (config.policy_node, "policy"), (config.algo_node, "algo")
    if config.base is not None and not takes(*policy, "base") and not takes(*algo, "base"):
        raise ConfigError(
            f"base={config.base}: expected a policy that is built on a base, found "
            f"policy={config.policy_node[TARGET]}, which would learn from scratch. Set policy=finetuned to refine the "
            "base, policy=vla_adapted to go on imitating with a VLA, or leave base out."
        )
    if config.teacher is not None and not takes(*algo, "teacher"):
        raise ConfigError(
            f"teacher={config.teacher}: expected an algorithm that learns from a teacher, found "
            f"algo={config.algo_node[TARGET]}. Set algo=distill or algo=rpd, or leave teacher out."
        )


def load_teacher(config: TrainConfig, env: VecEnv | None) -> Policy | None:
    """Load the policy to distil, with the sampler that `teacher_sampling` asks for; None where none is given."""
    if config.teacher is None:
        return None
    with _naming("teacher", config.teacher, env):
        policy = load_policy(config.teacher, device=config.torch_device, env=None if env is None else env.spec)
    sampling = config.teacher_sampling
    return resampled(policy, sampling, "teacher_sampling") if sampling else policy


def check_teacher(config: TrainConfig, env: VecEnv | None, base: Policy | None, teacher: Policy | None) -> None:
    """Let the algorithm refuse a teacher whose episodes are to be recorded, by its `check_teacher`, before they are.

    Raises:
        SpecError: the student, which reads what the env offers, cannot follow it.
    """
    check = getattr(resolve(config.algo_node, "algo"), "check_teacher", None)
    if check is not None and teacher is not None and env is not None and config.dataset is None:
        check(_spec(config, env, base, None), teacher)


def build_policy_for(
    config: TrainConfig,
    *,
    env: VecEnv | None,
    base: Policy | None,
    demonstrations: Episodes | None,
    resumed: Path | None,
) -> Policy:
    """Build the policy to train; on resume with the weights and the normaliser of the newest checkpoint.

    A policy's constructor receives those of these keyword arguments that it names and its config does not set:
    `spec` (PolicySpec), `normalizer`, `base`, `episodes` (the dataset), `seed`, `device`. The last three need a
    default, as a checkpoint holds none of them.

    Raises:
        ConfigError: the policy's checkpoints could not be loaded, for lack of an argument.
    """
    node = config.policy_node
    names = open_arguments(node, "policy")
    if base is not None and resumed is None:
        _check_steps(config, base.spec)
    spec = _spec(config, env, base, demonstrations)
    available: dict[str, Any] = {"spec": spec, "base": base, "seed": config.seed, "device": config.torch_device}
    if "normalizer" in names:
        available["normalizer"] = _normalizer(config, spec, base, demonstrations)
    if "episodes" in names:
        available["episodes"] = demonstrations if base is not None else required(config, demonstrations)
    given = {name: value for name, value in available.items() if name in names}
    policy = build_policy(node, "policy", **given).to(config.torch_device)
    _check_loadable(policy)
    if resumed:
        check_same_spec(resumed, policy.spec)
    if env is not None:
        with _naming("dataset", config.dataset, env):
            check_fits(policy.spec, env.spec, ignore=[BASE_ACTION] if policy.base is not None else [])
    if resumed:
        weights = read_tensors(resumed / "policy" / "model.safetensors")
        if config.dataset is not None:  # else the normaliser that was saved is kept
            check_same_statistics(resumed, policy.state_dict(), weights, dataset=config.dataset)
        load_weights(policy, weights, skip="base." if policy.base is not None else "", where=str(resumed))
    return policy


def _check_loadable(policy: Policy) -> None:
    """Raise ConfigError where the constructor needs what neither the config nor a checkpoint holds."""
    node: dict[str, Any] = policy.config
    there = {*node, "spec", "normalizer", *(["base"] if policy.base is not None else [])}
    known = signature(resolve(node, "policy"), node).known
    if lacking := sorted(name for name, parameter in known.items() if parameter.required and name not in there):
        raise ConfigError(
            f"policy={node[TARGET]}: its constructor requires {', '.join(lacking)}, which no checkpoint holds, so no "
            "checkpoint could be loaded. Give the argument a default, or set it in the config."
        )


def warn_of_random_encoder(config: TrainConfig, policy: Policy) -> None:
    """Warn where an algorithm froze the encoder of a policy that begins from scratch: its weights stay random.

    The vectors that identify tasks may be random.
    """
    encoder = getattr(policy, "encoder", None)
    if config.base is not None or not isinstance(encoder, nn.Module):
        return
    weights = [p for name, p in encoder.named_parameters() if not name.startswith("task.")]
    if weights and not any(p.requires_grad for p in weights):
        _log.warning(
            "policy: algo=%s trains no encoder, and this policy's begins with random weights and keeps them. Set "
            "cameras=[] points=[] to read the state alone, or begin with an imitated policy: policy=finetuned "
            "base=<run of algo=bc>.",
            config.algo_node[TARGET],
        )  # fmt: skip


def _normalizer(
    config: TrainConfig, spec: PolicySpec, base: Policy | None, demonstrations: Episodes | None
) -> Normalizer:
    """Return a normaliser fitted to the dataset; without a dataset that of the base; else one of the action limits."""
    if config.dataset is not None:
        return Normalizer(spec.observation, spec.action).fit(required(config, demonstrations))
    copied = Normalizer.of_base(getattr(base, "normalizer", None), spec.observation, spec.action)
    if copied is not None:
        return copied
    if base is not None and config.base != Path(ZERO_ACTION):
        _log.warning(
            "base=%s: a %s has no normaliser of ours, and there is no dataset, so observations are not normalised and "
            "actions are scaled by their limits. Give dataset=<the demonstrations of the base>.",
            config.base, type(base).__name__,
        )  # fmt: skip
    return Normalizer.from_limits(spec.observation, spec.action)


def _spec(config: TrainConfig, env: VecEnv | None, base: Policy | None, demonstrations: Episodes | None) -> PolicySpec:
    """Return what the policy reads and commands: as its base does, or else as dataset or env offer."""
    if base is None:
        source = required_env(config, env).spec if demonstrations is None else demonstrations
        return _available_spec(config, source)
    if config.policy_node.get("pictures"):
        return base.spec
    read = {k: v for k, v in base.spec.observation.items() if not k.startswith(RENDERED)}
    return replace(base.spec, observation=read)


def _check_steps(config: TrainConfig, base: PolicySpec) -> None:
    """Raise ConfigError where the config gives other chunks than the base's, which are kept."""
    for key in ("n_obs_steps", "horizon", "n_action_steps"):
        given, own = getattr(config, key), getattr(base, key)
        if given not in (own, TrainConfig.__dataclass_fields__[key].default):
            raise ConfigError(
                f"{key}: expected {own}, as the base has, found {given}. Leave it out: the base's is kept"
            )


def _available_spec(config: TrainConfig, source: Episodes | EnvSpec) -> PolicySpec:
    """Return a spec of everything that a dataset or an env offers."""
    observation = {k: v for k, v in source.observation.items() if k != TASK or len(source.tasks) > 1}
    observation = with_cameras(observation, config.cameras, where="cameras")
    observation = with_cameras(observation, config.points, where="points", prefix=POINTS)
    action = source.action_spec if isinstance(source, Episodes) else source.action
    steps = (config.n_obs_steps, config.horizon, config.n_action_steps)
    return PolicySpec(observation, action, source.dt, *steps, source.tasks)


@contextmanager
def _naming(key: str, given: Path | None, env: VecEnv | None) -> Iterator[None]:
    """Name the key in errors about policies and data that do not fit the env."""
    try:
        yield
    except SpecError as error:
        if given is None or env is None:
            raise
        raise SpecError(f"{key}={given}: {error}\nIs it of another task than task={env.spec.id}?") from None
