"""Register the classes and functions that configs may build: for each slot, names and the code behind each.

A slot is the key that a node stands at: `policy`, `policy.network`, `algo.noise`. A node names its class or function
by `_target_`, out of those registered for its slot. A checkpoint, run directory or dataset holds only names, so it can
call nothing else and can register nothing. `register` adds a user's own code, in a module that the command line admits:
`--allow my_robot`.

No registered constructor writes a file or starts a process from a checkpoint's data.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from robopolicy.config.schema import TARGET
from robopolicy.core.errors import ConfigError, closest

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[a-z][a-z0-9_]*")

# Slots of the command line's own keys. Their nodes are built by the verbs, never as an argument of another node.
ROOTS = frozenset(
    {"algo", "coevolve", "expert", "loop", "policy", "task", "tracker", "world", "world_model", "world_model_report"}
)

_SLOTS: dict[str, dict[str, Any]] = {  # slot → name → "module:attribute", or what `register` was given
    "algo": {
        "aloe": "robopolicy.algos.aloe:ALOE",
        "bc": "robopolicy.algos.bc:BC",
        "co_dppo": "robopolicy.algos.co_dppo:CoDPPO",
        "distill": "robopolicy.algos.distill:Distill",
        "dppo": "robopolicy.algos.dppo:DPPO",
        "dsrl": "robopolicy.algos.dsrl:DSRL",
        "expo": "robopolicy.algos.expo:EXPO",
        "grpo": "robopolicy.algos.grpo:GRPO",
        "ogpo": "robopolicy.algos.ogpo:OGPO",
        "pa_rl": "robopolicy.algos.pa_rl:PARL",
        "policy_flow": "robopolicy.algos.policy_flow:PolicyFlow",
        "ppo": "robopolicy.algos.ppo:PPO",
        "residual": "robopolicy.algos.residual:ResidualTD3",
        "rpd": "robopolicy.algos.rpd:RPD",
    },
    "coevolve": {"coevolve": "robopolicy.world_models.training.coevolve:coevolve"},
    "critic": {
        "ensemble": "robopolicy.networks.critics:CriticEnsemble",
        "mlp": "robopolicy.networks.mlp:MLP",
        "value_mlp": "robopolicy.networks.mlp:ValueMLP",
    },
    "expert": {"policy": "robopolicy.evaluation.policy_expert:PolicyExpert", "scripted": "robopolicy.sim:make_expert"},
    "gate": {"gate": "robopolicy.world_models.training.gate:Gate"},
    "image_encoder": {"conv": "robopolicy.networks.vision:ConvEncoder", "vit": "robopolicy.networks.vision:ViTEncoder"},
    "joint_filter": {"safety": "robopolicy.real.control.joint_filter:SafetyFilter"},
    "loop": {
        "fit_trajectories": "robopolicy.world_models.training.fit_trajectories:fit",
        "fit_world_model": "robopolicy.world_models.training.fit:fit",
        "off_policy": "robopolicy.training.off_policy:off_policy",
        "offline": "robopolicy.training.offline:offline",
        "offline_rl": "robopolicy.training.offline_rl:offline_rl",
        "on_policy": "robopolicy.training.on_policy:on_policy",
        "synthetic_off_policy": "robopolicy.training.synthetic:synthetic_off_policy",
    },
    "network": {
        "action_expert": "robopolicy.networks.action_expert:ActionExpert",
        "mlp": "robopolicy.networks.mlp:MLP",
        "residual_mlp": "robopolicy.networks.mlp:ResidualMLP",
        "transformer": "robopolicy.networks.transformer:Transformer",
        "unet1d": "robopolicy.networks.unet1d:UNet1d",
    },
    "noise": {
        "floor": "robopolicy.policies.denoising_chain:FloorNoise",
        "learned": "robopolicy.policies.denoising_chain:LearnedNoise",
    },
    "points_encoder": {"points": "robopolicy.networks.points:PointEncoder"},
    "policy": {
        "diffusion": "robopolicy.policies.diffusion:DiffusionPolicy",
        "flow": "robopolicy.policies.flow:FlowPolicy",
        "gaussian": "robopolicy.policies.gaussian:GaussianPolicy",
        "zero_action": "robopolicy.policies.residual:ZeroActionPolicy",
        "lerobot": "robopolicy.policies.lerobot.policy:LeRobotPolicy",
        "lerobot_flow": "robopolicy.policies.lerobot.flow:LeRobotFlow",
        "mixture": "robopolicy.policies.mixture:MixturePolicy",
        "residual": "robopolicy.policies.residual:ResidualPolicy",
        "ricl": "robopolicy.policies.ricl:RICLPolicy",
        "ricl_adapted": "robopolicy.policies.in_context:in_context",
        "frozen_encoder_student": "robopolicy.policies.frozen_encoder_student:FrozenEncoderStudent",
        "make_frozen_encoder_student": "robopolicy.policies.frozen_encoder_student:make_frozen_encoder_student",
        "finetuned": "robopolicy.policies.finetuning:finetuned",
        "make_steered": "robopolicy.policies.steered:make_steered",
        "steered": "robopolicy.policies.steered:SteeredPolicy",
        "edited": "robopolicy.policies.edited:EditedPolicy",
        "make_edited": "robopolicy.policies.edited:make_edited",
        "vla": "robopolicy.policies.vla:VLAPolicy",
        "vla_adapted": "robopolicy.policies.vla:adapted",
    },
    "prefix": {"prefix": "robopolicy.networks.prefix:Prefix"},
    "profile": {"robot": "robopolicy.real.safety.profile:load_profile"},
    "replay": {
        "chunk_replay": "robopolicy.buffers.chunk_replay_buffer:ChunkReplay",
        "replay": "robopolicy.buffers.replay_buffer:Replay",
    },
    "state_encoder": {"mlp": "robopolicy.networks.mlp:MLP"},
    "success": {"classifier": "robopolicy.world_models.models.success:SuccessClassifier"},
    "synthetic": {"synthetic": "robopolicy.world_models.training.synthetic:Synthetic"},
    "task": {
        "gymnasium": "robopolicy.sim.suites.gymnasium:make",
        "libero": "robopolicy.sim.suites.libero:make",
        "maniskill": "robopolicy.sim.suites.maniskill:make",
        "maniskill_gpu": "robopolicy.sim.suites.maniskill_gpu:make",
        "metaworld": "robopolicy.sim.suites.metaworld:make",
        "native": "robopolicy.sim:make_native",
        "robosuite": "robopolicy.sim.suites.robosuite:make",
    },
    "tracker": {"tracker": "robopolicy.runs.logger:Tracker"},
    "vision": {
        "conv_tokens": "robopolicy.networks.vision:ConvTokens",
        "keypoint_tokens": "robopolicy.networks.vision:KeypointTokens",
        "patch_tokens": "robopolicy.networks.vision:PatchTokens",
    },
    "world": {
        "imagined": "robopolicy.world_models.envs.make_imagined:make",
        "recorded": "robopolicy.world_models.envs.recorded:make",
    },
    "world_model": {
        "chunk_transformer": "robopolicy.world_models.models.chunk_transformer:ChunkTransformer",
        "ensemble": "robopolicy.world_models.models.ensemble:PhaseEnsemble",
        "rssm": "robopolicy.world_models.models.rssm:RSSM",
        "trajectories": "robopolicy.world_models.models.trajectories:Trajectories",
    },
    "world_model_report": {
        "world_model": "robopolicy.world_models.evaluation.world_model_report:write_world_model_report"
    },
}

_admitted: list[str] = []  # modules of the user's own, in the order of --allow


def register[Target: Callable[..., Any]](slot: str, name: str) -> Callable[[Target], Target]:
    """Register a class or function of your own: nodes at `slot` can then use `_target_: name`.

    Use it as a decorator, in a module that the command line admits by `--allow <module>`.

    Raises:
        ConfigError: `slot` or `name` is no lower-case identifier, or `name` already means something else there.
    """
    for key, given in (("slot", slot), ("name", name)):
        if not isinstance(given, str) or not _NAME.fullmatch(given):
            raise ConfigError(f"register: {key}={given!r}: expected a lower-case identifier, e.g. 'my_policy'")

    def add(target: Target) -> Target:
        there = _SLOTS.setdefault(slot, {})
        if name in there and _place(there[name]) != _place(target):
            raise ConfigError(f"register: {slot}={name} is {_place(there[name])} already; choose another name")
        there[name] = target
        return target

    return add


def names(slot: str) -> list[str]:
    """Return the names that a node at `slot` may have; [] where no node is allowed."""
    return sorted(_SLOTS.get(slot, ()))


@functools.lru_cache(maxsize=1024)
def load(place: str) -> Callable[..., Any]:
    """Import "module:attribute"."""
    module, attribute = place.split(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def resolve(node: Any, slot: str, where: str = "", *, load: Callable[..., Any] = load) -> Any:
    """Return the class or function that `node` names, out of those registered for `slot`.

    Args:
        slot: decides which names may stand there.
        where: dotted key of the node, for the messages; `slot` when empty.
        load: makes the target of "module:attribute".

    Raises:
        ConfigError: `node` is no node, nothing can be built at `slot`, or the name is not registered for it.
    """
    where = where or slot
    if not isinstance(node, Mapping) or TARGET not in node:
        raise ConfigError(f"{where}: expected a node with {TARGET}, found {node!r}")
    known, name = _SLOTS.get(slot), node[TARGET]
    if known is None:
        raise ConfigError(f"{where}.{TARGET}: got a node, and nothing can be built at {slot!r}. Give a plain value.")
    if not isinstance(name, str) or name not in known:
        own = " Code of your own joins by robopolicy.config.registry.register and --allow <module>."
        raise ConfigError(
            f"{where}.{TARGET}: got {name!r}, which is not registered for {slot!r}. {closest(str(name), known)}{own}"
        )
    found: Any = known[name]
    return load(found) if isinstance(found, str) else found


def allow(module: str) -> None:
    """Import a module of the user, which may register code; log the names that it registered.

    Only the user's command line calls this: what is read from a file never does.

    Raises:
        ConfigError: the module cannot be found.
    """
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts) or not _exists(parts):
        raise ConfigError(
            f"--allow {module}: no such module can be imported. Run from the folder that holds it, or install it into "
            "this environment."
        )
    before = {slot: dict(known) for slot, known in _SLOTS.items()}
    importlib.import_module(module)
    if module not in _admitted:
        _admitted.append(module)
    added = [f"{s}={n}" for s, known in _SLOTS.items() for n in known if n not in before.get(s, {})]
    _log.info("--allow %s admits its code: %s", module, ", ".join(added) or "no new names for configs")


def admitted() -> tuple[str, ...]:
    """Return the modules that `allow` imported."""
    return tuple(_admitted)


def _exists(parts: list[str]) -> bool:
    """Return whether a module can be found; its parents are imported, as the import system does."""
    try:
        return importlib.util.find_spec(".".join(parts)) is not None
    except (ImportError, ValueError):
        return False


def _place(target: Any) -> str:
    """Return where a class or function is defined, "module:attribute"."""
    if isinstance(target, str):
        return target
    found = inspect.unwrap(target) if inspect.isroutine(target) else target
    return f"{found.__module__}:{getattr(found, '__qualname__', found)}"
