"""Begin with the critic of the run that `base=` names, as WSRL does (Zhou et al. 2025, arXiv 2412.07762)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from robopolicy.algos.chunk_critic import ChunkLearner
from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.core.untrusted import refusing
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.find import find_policy
from robopolicy.runs.checkpointer import read_training

_KEY = "base_critic=true"
_FIX = "Leave it out, or give base=<run directory of algo=offline>"


def begin_with_critic_of(base: Path | None, algo: Any) -> None:
    """Give `algo` the critic, target and V of the checkpoint that holds the base; optimisers begin anew.

    Raises:
        ConfigError: `algo` is none of aloe, ogpo and pa_rl, or the base was not trained with such a critic.
        CheckpointError: the base's checkpoint is damaged, or its critic is not finite.
    """
    if not isinstance(algo, ChunkLearner) or not isinstance(algo.policy, ChunkDenoiser):
        raise ConfigError(f"{_KEY}: is of aloe, offline, ogpo and pa_rl, found {type(algo).__name__}. Leave it out")
    if base is None or not base.exists():
        raise ConfigError(f"{_KEY}: base={base} is no run directory. {_FIX}")
    checkpoint = find_policy(base).parent
    if not (checkpoint / "state.json").is_file():
        raise ConfigError(f"{_KEY}: base={base}: no training lies beside this policy. {_FIX}")
    training = read_training(checkpoint)
    with refusing(f"{checkpoint}: state.json"):
        saved = dict(training.get("algo") or {})
        value = dict(saved.get("value") or {}).get("network")
    parts = {"critic": (algo.critic, saved.get("critic")), "target": (algo.target, saved.get("target"))}
    if algo.value is not None:
        parts["value"] = (algo.value.network, value)
    fitting = list[tuple[nn.Module, dict[str, Any]]]()
    for name, (own, found) in parts.items():
        if not isinstance(found, dict):
            raise ConfigError(f"{_KEY}: base={base}: was trained without algo's {name} of chunks. {_FIX}")
        with refusing(f"{checkpoint}: state.json"):
            _check(own, found, f"base={base}: its {name}")
        fitting.append((own, found))
    for part, weights in fitting:
        part.load_state_dict(weights)


def _check(own: nn.Module, found: dict[str, Any], what: str) -> None:
    wanted = own.state_dict()
    for key in {**wanted, **found}:
        mine, theirs = (tuple(each[key].shape) if key in each else None for each in (wanted, found))
        if mine != theirs:
            raise ConfigError(
                f"{_KEY}: {what} has {key} of shape {theirs}, that of algo {mine}. Give algo.critic.* of the base's run"
            )
        if not bool(found[key].isfinite().all()):
            raise CheckpointError(f"{what}: {key} is not finite")
