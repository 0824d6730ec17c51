"""Begin with the critic of the run that `base=` names, as WSRL does (Zhou et al. 2025, arXiv 2412.07762)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robopolicy.core.errors import ConfigError
from robopolicy.core.untrusted import refusing
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.policies.find import find_policy
from robopolicy.utils.storage import read_state, verify

_PARTS = ("critic", "target")  # of an algorithm and of its saved state
_KEY = "base_critic=true"
_FIX = "Leave it out, or give base=<run directory of algo=offline>"


def begin_with_critic_of(base: Path | None, algo: Any) -> None:
    """Give `algo` the critic and its target of the checkpoint that holds the base; optimisers begin anew.

    Raises:
        ConfigError: `algo` has no such critic, or the base was not trained with one of the same shape.
        CheckpointError: the base's checkpoint is damaged.
    """
    if not all(isinstance(getattr(algo, name, None), CriticEnsemble) for name in _PARTS):
        raise ConfigError(
            f"{_KEY}: {type(algo).__name__} has no critic with a target; aloe, ogpo and pa_rl have. Leave it out"
        )
    saved = _state_beside(base)
    for name in _PARTS:
        own = getattr(algo, name)
        wanted = {key: tuple(value.shape) for key, value in own.state_dict().items()}
        with refusing(f"{base}: state.json"):
            found = {key: tuple(value.shape) for key, value in saved[name].items()}
        if found != wanted:
            apart = next(key for key in {**wanted, **found} if wanted.get(key) != found.get(key))
            raise ConfigError(
                f"{_KEY}: base={base}: its critic has {apart} of shape {found.get(apart, 'none')}, that of algo "
                f"{wanted.get(apart, 'none')}. Give algo.critic and n_action_steps as in the base's run"
            )
        own.load_state_dict(saved[name])


def _state_beside(base: Path | None) -> dict[str, Any]:
    """Return the state of the algorithm from the checkpoint that the policy `base` lies in."""
    if base is None or not base.exists():
        raise ConfigError(f"{_KEY}: base={base} is no run directory. {_FIX}")
    checkpoint = find_policy(base).parent
    if not (checkpoint / "state.json").is_file():
        raise ConfigError(f"{_KEY}: base={base}: no training lies beside this policy. {_FIX}")
    verify(checkpoint)
    state = read_state(checkpoint)
    with refusing(f"{checkpoint}: state.json"):
        algo = state["training"]["algo"]
        if not algo.keys() >= set(_PARTS):
            raise ConfigError(f"{_KEY}: base={base}: was trained without a critic. {_FIX}")
        return algo
