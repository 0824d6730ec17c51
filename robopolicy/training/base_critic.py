"""Start a training with the critic of its base's run, as WSRL does (Zhou et al. 2025, arXiv 2412.07762)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robopolicy.algos.chunk_critic import ChunkLearner
from robopolicy.core.errors import ConfigError
from robopolicy.core.untrusted import refusing
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.find import find_policy
from robopolicy.runs.checkpointer import read_training
from robopolicy.utils.storage import load_weights

_KEY = "base_critic=true"
_FIX = "Remove base_critic, or give base=<run directory of algo=offline>"


def load_base_critic(base: Path | None, algo: Any) -> None:
    """Load critic, target and value of the base's checkpoint into `algo`; the optimisers keep their initial state.

    Raises:
        ConfigError: `algo` is none of aloe, ogpo and pa_rl, or the base's run has no such critic.
        CheckpointError: the checkpoint is damaged, or the critic has another shape or is not finite.
    """
    if not isinstance(algo, ChunkLearner) or not isinstance(algo.policy, ChunkDenoiser):
        raise ConfigError(
            f"{_KEY}: expected algo=aloe, offline, ogpo or pa_rl, found {type(algo).__name__}. Remove base_critic"
        )
    if base is None or not base.exists():
        raise ConfigError(f"{_KEY}: expected a run directory, found base={base}. {_FIX}")
    checkpoint = find_policy(base).parent
    if not (checkpoint / "state.json").is_file():
        raise ConfigError(f"{_KEY}: base={base}: expected a training's state beside the policy, found none. {_FIX}")
    modules = {"critic": algo.critic, "target": algo.target}
    if algo.value is not None:
        modules["value"] = algo.value.network
    training = read_training(checkpoint)
    with refusing(f"{checkpoint}: state.json"):
        state = dict(training.get("algo") or {})
        if isinstance(value := state.get("value"), dict):
            state["value"] = value["network"]
        if missing := [name for name in modules if not isinstance(state.get(name), dict)]:
            raise ConfigError(f"{_KEY}: base={base}: its run has no {' and no '.join(missing)} of chunks. {_FIX}")
        for name, module in modules.items():
            load_weights(module, state[name], where=f"{_KEY}: {name} of base={base}")
